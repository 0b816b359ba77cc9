#ifndef DTRUN_MODELS_TRAIN_OPTIONS_H_
#define DTRUN_MODELS_TRAIN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "models/data/dataset.h"
#include "models/optim/by_name.h"

namespace dtrun::models {

/// The command line of an example trainer, with its defaults.
struct TrainOptions {
  uint64_t epochs = 8;
  uint64_t batch_size = 1024;      ///< of one rank
  uint64_t global_batch_size = 0;  ///< of all ranks together; 0: batch_size times the ranks
  uint64_t steps_per_epoch = 0;    ///< 0: every example once
  uint64_t max_steps = 0;          ///< 0: no limit
  std::string optimizer = "adam";
  OptimizerSettings optimizer_settings;
  std::string schedule = "cooldown";
  /// Of --schedule cooldown: last part of training, over which the rate falls to 0.
  std::optional<double> cooldown;
  uint64_t warmup_steps = 0;
  uint64_t seed = 1;
  std::string data_dir = kFashionMnistDir;
  int threads = 0;  ///< 0: those that are this rank's own
  int verbose = 1;
  std::string json;  ///< "": no file
  bool log_steps = false;
  bool overlap = true;  ///< of the reduction and the backward pass
};

struct ParsedOptions {
  TrainOptions options;
  std::string help;   ///< what --help prints; empty unless it was asked for
  std::string error;  ///< one line; empty when the command line is right
};

/// Neither prints nor exits, so that the ranks can agree on what to do first.
ParsedOptions ParseOptions(int argc, const char* const* argv);

/// What has to be equal on all ranks for them to train one network: "name=value" per line.
std::string SharedSettings(const TrainOptions& options);

}  // namespace dtrun::models

#endif
