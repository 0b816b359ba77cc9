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
  uint64_t global_batch_size = 0;  ///< of all ranks together; 0: batch_size * ranks
  uint64_t steps_per_epoch = 0;    ///< 0: every example once
  uint64_t max_steps = 0;          ///< 0: no limit
  double learning_rate = 1e-3;
  std::string optimizer = "adam";     ///< one of OptimizerNames()
  OptimizerSettings settings;         ///< of the optimizer, without the learning rate
  std::string schedule = "cooldown";  ///< one of ScheduleNames()
  uint64_t warmup_steps = 0;
  uint64_t warmup_epochs = 0;  ///< 0: none
  double cooldown = 0.25;      ///< last fraction of training, in which the rate falls to 0
  uint64_t seed = 1;
  std::string data_dir = kFashionMnistDir;
  /// In the form of MakeStrategy.
  std::string strategy = "multi_worker_mirrored";
  std::string network = "C";      ///< one of TrainableNetworks()
  std::string loop = "fit";       ///< or "custom"
  uint64_t early_stopping = 0;    ///< epochs of patience; 0: off
  std::string checkpoint_dir;     ///< "": no checkpoints
  uint64_t checkpoint_every = 0;  ///< interval in steps; 0: only at the ends of epochs
  uint64_t keep_checkpoints = 3;
  bool resume = false;
  std::string report;            ///< file of a page about the run; "": none
  std::string save;              ///< folder of the trained model; "": none
  std::string export_onnx;       ///< file; "": none
  std::string tensorboard;       ///< folder; "": none
  std::string dtype = "f32";     ///< of the layers; also "bf16", and "f16" on a GPU
  std::string device = "auto";   ///< in the form of ChooseDevice
  bool share_gpus = false;       ///< several ranks may share a requested GPU
  bool tf32 = true;              ///< on a GPU: f32 products may round factors to 10 bits
  bool first_algorithms = true;  ///< on a GPU: the libraries' first, not the fastest
  bool largest_batch = false;    ///< batch_size is the largest that fits into a GPU
  uint64_t prefetch = 2;         ///< batches made ahead; 0: none
  int threads = 0;               ///< 0: this rank's CPUs, or 1 with `deterministic`
  int deterministic = 0;         ///< leaves of a GradientTree; 0: none
  int verbose = 1;
  std::string json;  ///< "": no file
  bool log_steps = false;
  std::string example_log;
  bool overlap = true;  ///< overlaps the reduction with the backward pass
  bool adasum = false;  ///< each rank steps alone, and the steps are combined
  std::string command;  ///< the whole command line, quoted for a shell; not an option
};

struct ParsedOptions {
  TrainOptions options;
  std::string help;   ///< text of --help, --version or --completion, if given; else empty
  std::string error;  ///< one line; empty if the command line is valid
};

/// The names of networks for images of one channel; see NetworkByName.
std::vector<std::string> TrainableNetworks();

/// Does not print or exit, so that the ranks can first agree on the result. `defaults` has the
/// values of options that are not given.
ParsedOptions ParseOptions(int argc, const char* const* argv, const TrainOptions& defaults = {});

/// The options that must be equal on all ranks to train one network, one "name=value" per line.
std::string SharedSettings(const TrainOptions& options);

/// Pure functions of the options and the job's size:

uint64_t GlobalBatchOf(const TrainOptions& options, int ranks);

/// The steps of an epoch and of the whole training. `images` is the number of training images.
uint64_t StepsPerEpoch(const TrainOptions& options, uint64_t images, int ranks);
uint64_t TotalSteps(const TrainOptions& options, uint64_t images, int ranks);

/// The learning rate of a step, from 0. During the warm-up epochs, the rate grows from
/// `learning_rate` to `ranks` times that rate; see LearningRateWarmup. Afterwards, or without a
/// warm-up, the rate follows the schedule. Throws Error kInvalidArgument for an invalid schedule.
double RateAt(const TrainOptions& options, uint64_t step, uint64_t images, int ranks);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_TRAINING_OPTIONS_H_
