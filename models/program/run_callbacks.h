#ifndef DTRUN_MODELS_PROGRAM_RUN_CALLBACKS_H_
#define DTRUN_MODELS_PROGRAM_RUN_CALLBACKS_H_

#include <dtrun/context.h>

#include <functional>
#include <memory>

#include "models/callbacks/callback.h"
#include "models/train/options.h"

namespace dtrun::models {

/// What the options ask for besides training, in the order in which it is called: what sets the
/// rate is before what reports it. `rate`: of a step. `after_throughput`, which may be null, is
/// called behind what measures the speed and before what shows it. Without StepLosses.
CallbackList MakeRunCallbacks(
    Context& job, const TrainOptions& options, const std::function<double(uint64_t)>& rate,
    std::unique_ptr<Callback> after_throughput);

}  // namespace dtrun::models

#endif
