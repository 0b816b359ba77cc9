#ifndef DTRUN_MODELS_PROGRAM_RUN_PAGE_H_
#define DTRUN_MODELS_PROGRAM_RUN_PAGE_H_

#include <dtrun/context.h>

#include "models/program/preparation.h"
#include "models/program/training.h"
#include "models/report/run_report.h"
#include "models/train/options.h"

namespace dtrun::models {

/// What the page about a run says. Collective: every rank brings its own times.
RunReport PageOf(
    Context& job, const TrainOptions& options, const Preparation& ready, const Trained& trained);

}  // namespace dtrun::models

#endif
