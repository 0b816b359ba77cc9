#ifndef DTRUN_MODELS_PROGRAMS_TRAINING_H_
#define DTRUN_MODELS_PROGRAMS_TRAINING_H_

#include <dtrun/context.h>
#include <dtrun/parameter_server_strategy.h>
#include <dtrun/strategy.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/data/image_dataset.h"
#include "models/data/pipeline.h"
#include "models/formats/tensorboard/events.h"
#include "models/layers/compute_device.h"
#include "models/layers/sequential.h"
#include "models/optim/rate_optimizer.h"
#include "models/programs/training_options.h"
#include "models/report/page.h"
#include "models/train/agreement.h"
#include "models/train/kept_training.h"
#include "models/train/report.h"

namespace dtrun::models {

/// The GPU of a rank.
struct PreparedGpu {
  int index = 0, sharers = 1;     ///< ranks of this host on the GPU, this rank included
  bool shared_somewhere = false;  ///< true if ranks share a GPU on any host
  bool asked_for = false;         ///< the user requested a GPU; no fallback to the CPU
  std::string why_not;            ///< the reason for not using an existing GPU, or ""
};

/// The result of Prepare: the objects for a training.
struct Preparation {
  Verdict verdict;  ///< equal on all ranks
  /// The given options with three changes: the chosen device, the batch size for `auto`, and the
  /// strategy without its list of GPUs.
  TrainOptions options;
  std::optional<ImageDataset> data;  ///< like the following members, set if the verdict is kSuccess
  uint64_t global_batch = 0;
  int threads = 1;  ///< compute threads of this rank
  std::unique_ptr<ComputeDevice> device;
  std::unique_ptr<Sequential> model;
  std::unique_ptr<RateOptimizer> optimizer;
  PreparedGpu gpu;

  bool on_gpu() const { return options.device == "cuda"; }
};

/// Makes the network of the options on `device`, for images like `data`'s and batches of at most
/// `share` examples. Throws Error kInvalidArgument, and on a GPU kUnavailable.
std::unique_ptr<Sequential> MakeModel(
    const DatasetInfo& data, uint64_t share, const TrainOptions& options,
    ComputeDevice& device = Cpu());

/// The number of compute threads of this rank.
int ComputeThreads(const TrainOptions& options, const Context& job);

/// Prepares a training and finds all errors of options, data and devices. The verdict has the
/// error. Collective.
Preparation Prepare(const ParsedOptions& parsed, Context& job, KeptImages* kept = nullptr);

/// Chooses the device, of the same kind on all ranks. Sets `ready.options.device` to "cpu" or
/// "cuda", and the batch size to a number. Needs the options and the data. Errors are in the
/// verdict. Collective.
void ChooseDeviceTogether(Context& job, Preparation& ready);

/// The chosen device of this rank. Throws Error kUnavailable.
std::unique_ptr<ComputeDevice> MakeChosenDevice(const Context& job, const Preparation& ready);

/// The strategy of the options, with the chosen device. Collective.
std::unique_ptr<Strategy> MakeChosenStrategy(Context& job, const Preparation& ready);

/// Switches `ready` to the CPU. `why_not` is the reason why `auto` does not use an existing GPU.
void UseCpu(const TrainOptions& given, const std::string& why_not, Preparation& ready);

struct Trained {
  TrainingResult result;
  uint64_t steps = 0;                    ///< of the whole training, also before a resume
  std::vector<std::string> not_written;  ///< for example checkpoints, on a full disk
  RankTime time;                         ///< the parts of this rank's training time
};

/// Trains as the options say and evaluates the test set. Collective. Rank 0 prints. Throws the
/// errors of Trainer::Fit, and Error kMismatch if the ranks' final parameters differ. If the
/// strategy refuses the network or the optimizer, throws AgreedError. `kept` outlives this
/// process's work in the job. After a loss of ranks, the loop `fit` continues from there, and the
/// loop `custom` starts again. The loop `fit` looks at `notice`, if there is one (Trainer::Watch).
Trained Train(
    Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready,
    KeptTraining& kept, const PreemptionNotice* notice = nullptr);

/// Describes the training, one topic per line. Ends with a new line.
std::string Heading(Context& job, const TrainOptions& options, const Preparation& ready);

/// "Test: loss 0.2312, accuracy 0.9163 on 10000 images; parameters 9f86d081884c7d65 on all 2 ranks"
std::string ResultLine(const TrainingResult& result, uint64_t test_images);

/// The options of a training that readers compare, for TensorBoard. Every training has the same
/// names.
HParams HParamsOf(const TrainOptions& options, int ranks);

/// The metadata of a model that a program saves, without the results of the training: program,
/// version, date, command, data and options.
std::map<std::string, std::string> OriginOf(
    const std::string& program, const Context& job, const TrainOptions& options);

/// OriginOf, and how long and how well the model was trained.
std::map<std::string, std::string> MetadataOf(
    const Context& job, const Preparation& ready, const Trained& trained);

/// The content of the page about a run. Every rank passes its own times. Collective.
RunReport PageOf(
    Context& job, const TrainOptions& options, const Preparation& ready, const Trained& trained);

/// The command line of a trainer that may have parameter servers: the options of ParseOptions,
/// --max-staleness and --evaluator. With parameter servers, a batch is the input of one gradient of
/// one worker.
struct ParameterOptions {
  ParsedOptions parsed;
  ParameterServerOptions servers;  ///< without the number of steps
  bool has_servers() const {
    const std::string& strategy = parsed.options.strategy;
    return strategy.substr(0, strategy.find(':')) == "parameter_server";
  }
};
/// If an option does not fit the strategy, `parsed` has the error.
ParameterOptions ReadParameterOptions(int argc, const char* const* argv);

/// The work of a rank in a job with parameter servers: as server, worker or evaluator, with the
/// training of the options. Returns the exit code. If the options are wrong, rank 0 prints the
/// problem with the name `program`. Throws the errors of ParameterServer and ParameterWorker.
int TrainWithServers(Context& job, const std::string& program, const ParameterOptions& options);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_TRAINING_H_
