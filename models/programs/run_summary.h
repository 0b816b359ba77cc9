#ifndef DTRUN_MODELS_PROGRAMS_RUN_SUMMARY_H_
#define DTRUN_MODELS_PROGRAMS_RUN_SUMMARY_H_

#include <dtrun/context.h>

#include <string>

#include "models/programs/preparation.h"
#include "models/programs/training.h"
#include "models/programs/training_options.h"
#include "models/report/run_report.h"
#include "models/train/report.h"

namespace dtrun::models {

/// What is about to train, a line per question; ends with a new line.
std::string Heading(Context& job, const TrainOptions& options, const Preparation& ready);

/// "Test: loss 0.2312, accuracy 0.9163 on 10000 images; parameters 9f86d081884c7d65 on all 2 ranks"
std::string ResultLine(const TrainingResult& result, uint64_t test_images);

/// What the page about a run says. Collective: every rank brings its own times.
RunReport PageOf(
    Context& job, const TrainOptions& options, const Preparation& ready, const Trained& trained);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_RUN_SUMMARY_H_
