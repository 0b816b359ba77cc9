#ifndef DTRUN_MODELS_PROGRAMS_TRAINING_OPTIONS_H_
#define DTRUN_MODELS_PROGRAMS_TRAINING_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

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
  double learning_rate = 1e-3;
  std::string optimizer = "adam";     ///< one of OptimizerNames()
  OptimizerSettings settings;         ///< of the optimizer, without the learning rate
  std::string schedule = "cooldown";  ///< one of ScheduleNames()
  uint64_t warmup_steps = 0;
  uint64_t warmup_epochs = 0;  ///< 0: none
  double cooldown = 0.25;      ///< last part of training, over which the rate falls to 0
  uint64_t seed = 1;
  std::string data_dir = kFashionMnistDir;
  /// As MakeStrategy takes it, or "parameter_server".
  std::string strategy = "multi_worker_mirrored";
  std::string network = "C";      ///< one of TrainableNetworks()
  std::string loop = "fit";       ///< or "custom"
  uint64_t early_stopping = 0;    ///< epochs of patience; 0: off
  std::string checkpoint_dir;     ///< "": none are saved
  uint64_t checkpoint_every = 0;  ///< steps; 0: at the epochs' ends alone
  uint64_t keep_checkpoints = 3;
  bool resume = false;
  std::string report;             ///< file of a page about the run; "": none
  std::string save;               ///< folder of the trained model; "": none
  std::string export_onnx;        ///< file; "": none
  std::string tensorboard;        ///< folder; "": nothing is written
  std::string dtype = "f32";      ///< or "bf16", on a GPU "f16": what layers compute in
  std::string device = "auto";    ///< as ChooseDevice takes it
  bool share_gpus = false;        ///< with a GPU that was asked for: several ranks may use it
  bool tf32 = true;               ///< on a GPU, in f32: products may have factors of 10 bits
  bool first_algorithms = false;  ///< on a GPU: libraries' first ones, not the fastest
  bool largest_batch = false;     ///< batch_size is the largest that fits, where that is limited
  uint64_t prefetch = 2;          ///< batches made ahead; 0: none
  int threads = 0;                ///< 0: those that are this rank's own; 1 with `deterministic`
  int deterministic = 0;          ///< leaves of a GradientTree; 0: none
  int verbose = 1;
  std::string json;  ///< "": no file
  bool log_steps = false;
  bool overlap = true;  ///< of the reduction and the backward pass
  bool adasum = false;  ///< ranks step by themselves, and their steps are combined
};

struct ParsedOptions {
  TrainOptions options;
  std::string help;   ///< what --help prints; empty unless it was asked for
  std::string error;  ///< one line; empty when the command line is right
};

/// Networks for images of one channel, by the names of NetworkByName.
std::vector<std::string> TrainableNetworks();

/// Neither prints nor exits, so that the ranks can agree on what to do first. `defaults`: what is
/// not said.
ParsedOptions ParseOptions(int argc, const char* const* argv, const TrainOptions& defaults = {});

/// What has to be equal on all ranks for them to train one network: "name=value" per line.
std::string SharedSettings(const TrainOptions& options);

/// What the options come to in a job: pure functions.

uint64_t GlobalBatchOf(const TrainOptions& options, int ranks);

/// Of an epoch, and of the whole training, as the options cut them; `images` are trained on.
uint64_t StepsPerEpoch(const TrainOptions& options, uint64_t images, int ranks);
uint64_t TotalSteps(const TrainOptions& options, uint64_t images, int ranks);

/// The learning rate of a step (from 0). With a warm-up it grows from that of one rank to `ranks`
/// times it (see LearningRateWarmup); then, or from the beginning, it follows the schedule. Throws
/// Error kInvalidArgument for a schedule that cannot be.
double RateAt(const TrainOptions& options, uint64_t step, uint64_t images, int ranks);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_TRAINING_OPTIONS_H_
