#ifndef DTRUN_MODELS_OPTIM_BY_NAME_H_
#define DTRUN_MODELS_OPTIM_BY_NAME_H_

#include <dtrun/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/optim/rate_optimizer.h"
#include "models/optim/schedules.h"

namespace dtrun::models {

/// What an optimizer is told on a command line. What is not given is the optimizer's own default.
struct OptimizerSettings {
  std::optional<double> learning_rate = {}, momentum = {}, weight_decay = {};
  std::optional<double> beta1 = {}, beta2 = {}, epsilon = {};
  std::optional<bool> nesterov = {};
};

/// "sgd", "adam", "adamw", "lars", "lamb", "muon"
const std::vector<std::string>& OptimizerNames();
/// `shapes` are those of the parameters, in their order: Muon's matrices have two dimensions or
/// more. Throws Error kInvalidArgument for an unknown name, a setting that this optimizer does not
/// have, and what its constructor throws.
std::unique_ptr<RateOptimizer> MakeOptimizer(
    const std::string& name, std::vector<Parameter>& parameters,
    const std::vector<std::vector<int>>& shapes, const OptimizerSettings& settings = {});

/// What a schedule is told on a command line. What is not given is the schedule's own default.
struct ScheduleSettings {
  double learning_rate = 1e-3;          ///< after the warm-up
  uint64_t steps = 0;                   ///< of the whole training, the warm-up included
  uint64_t warmup_steps = 0;            ///< of LinearWarmup, in front of any schedule
  std::optional<double> fraction = {};  ///< cooldown's
  std::optional<double> final = {};     ///< cosine's, restarts', polynomial's
  std::optional<double> power = {};     ///< polynomial's
  std::optional<double> factor = {};    ///< exponential's; restarts' length_factor
  std::optional<uint64_t> every = {};   ///< steps: exponential's; restarts' first decay
  std::optional<std::vector<uint64_t>> boundaries = {};  ///< piecewise's, counted after the warm-up
  std::optional<std::vector<double>> factors = {};       ///< piecewise's: rates over learning_rate
};

/// "constant", "piecewise", "cosine", "restarts", "polynomial", "exponential", "cooldown"
const std::vector<std::string>& ScheduleNames();
/// Throws Error kInvalidArgument for an unknown name, a setting that this schedule does not have,
/// and what its Check() throws.
Schedule MakeSchedule(const std::string& name, const ScheduleSettings& settings);

}  // namespace dtrun::models

#endif
