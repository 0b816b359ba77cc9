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

/// The settings of an optimizer on a command line. nullopt: the optimizer's default.
struct OptimizerSettings {
  std::optional<double> learning_rate = {}, momentum = {}, weight_decay = {};
  std::optional<double> beta1 = {}, beta2 = {}, epsilon = {};
  std::optional<bool> nesterov = {};
};

/// "sgd", "adam", "adamw", "lars", "lamb", "muon"
const std::vector<std::string>& OptimizerNames();
/// `shapes` are the shapes of the parameters, in their order. The parameters are in memory of
/// `device`. For Muon, a matrix has two dimensions
/// or more. Throws Error kInvalidArgument for an unknown name and for a setting that this optimizer
/// does not have. Also throws the errors of the optimizer's constructor.
std::unique_ptr<RateOptimizer> MakeOptimizer(
    const std::string& name, std::vector<Parameter>& parameters,
    const std::vector<std::vector<int>>& shapes, const OptimizerSettings& settings = {},
    UpdateDevice& device = HostMemory());

/// The settings of a schedule on a command line. nullopt: the schedule's default.
struct ScheduleSettings {
  double learning_rate = 1e-3;          ///< after the warm-up
  uint64_t steps = 0;                   ///< of the whole training, with the warm-up
  uint64_t warmup_steps = 0;            ///< of a LinearWarmup before the schedule
  std::optional<double> fraction = {};  ///< of cooldown
  std::optional<double> final = {};     ///< of cosine, restarts, polynomial
  std::optional<double> power = {};     ///< of polynomial
  std::optional<double> factor = {};    ///< of exponential; length_factor of restarts
  std::optional<uint64_t> every = {};   ///< steps: of exponential; first decay of restarts
  std::optional<std::vector<uint64_t>> boundaries = {};  ///< of piecewise, after the warm-up
  std::optional<std::vector<double>> factors = {};       ///< of piecewise: rates / learning_rate
};

/// "constant", "piecewise", "cosine", "restarts", "polynomial", "exponential", "cooldown"
const std::vector<std::string>& ScheduleNames();
/// Throws Error kInvalidArgument for an unknown name and for a setting that this schedule does not
/// have. Also throws the errors of the schedule's Check().
Schedule MakeSchedule(const std::string& name, const ScheduleSettings& settings);

}  // namespace dtrun::models

#endif
