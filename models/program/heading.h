#ifndef DTRUN_MODELS_PROGRAM_HEADING_H_
#define DTRUN_MODELS_PROGRAM_HEADING_H_

#include <dtrun/context.h>

#include <string>

#include "models/program/preparation.h"
#include "models/train/options.h"
#include "models/train/report.h"

namespace dtrun::models {

/// What is about to train, a line per question; ends with a new line.
std::string Heading(Context& job, const TrainOptions& options, const Preparation& ready);

/// "Test: loss 0.2312, accuracy 0.9163 on 10000 images; parameters 9f86d081884c7d65 on all 2 ranks"
std::string ResultLine(const TrainingResult& result, uint64_t test_images);

}  // namespace dtrun::models

#endif
