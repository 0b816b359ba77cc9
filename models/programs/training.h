#ifndef DTRUN_MODELS_PROGRAMS_TRAINING_H_
#define DTRUN_MODELS_PROGRAMS_TRAINING_H_

#include <dtrun/context.h>
#include <dtrun/strategy.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/callbacks/callback.h"
#include "models/data/image_dataset.h"
#include "models/data/pipeline.h"
#include "models/formats/tensorboard/events.h"
#include "models/gpu/gpu_replica.h"
#include "models/layers/sequential.h"
#include "models/optim/rate_optimizer.h"
#include "models/programs/training_options.h"
#include "models/report/page.h"
#include "models/train/agreement.h"
#include "models/train/report.h"

namespace dtrun::models {

/// Pointers to a data set's images in host memory, and the labels as bytes, for a GPU.
class ImageBytes {
 public:
  /// The images must lie one behind the other, as those of LoadImageDataset do. Else throws Error
  /// kInvalidArgument. The pipeline's source must outlive this object.
  explicit ImageBytes(const Pipeline& pipeline);
  ByteImages view() const { return {labels_.size(), pixels_, images_, labels_.data()}; }

 private:
  uint64_t pixels_;
  const uint8_t* images_ = nullptr;
  std::vector<uint8_t> labels_;
};

/// The GPU of a rank.
struct PreparedGpu {
  std::unique_ptr<ImageBytes> train, test;
  std::unique_ptr<GpuReplica> replica;                  ///< null: the rank trains on the CPU
  bool streams_training = false, streams_test = false;  ///< from host memory, on any rank
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
  std::unique_ptr<Sequential> model;
  std::unique_ptr<RateOptimizer> optimizer;
  PreparedGpu gpu;
};

/// Makes the network of the options for images like `data`'s and batches of at most `share`
/// examples. Throws Error kInvalidArgument.
std::unique_ptr<Sequential> MakeModel(
    const DatasetInfo& data, uint64_t share, const TrainOptions& options);

/// The number of compute threads of this rank.
int ComputeThreads(const TrainOptions& options, const Context& job);

/// Prepares a training and finds all errors of options, data and devices. The verdict has the
/// error. Collective.
Preparation Prepare(const ParsedOptions& parsed, Context& job);

/// Returns the first of these options that a GPU does not support, with the expected value. "" if a
/// GPU supports all of them.
///   "--adasum: not on a GPU; expected sums of gradients, or --device cpu"
std::string GpuObstacle(const TrainOptions& options);

/// Chooses the device, of the same kind on all ranks. Sets `ready.options.device` to "cpu" or
/// "cuda", and the batch size to a number. Needs the options and the data. Errors are in the
/// verdict. Collective.
void ChooseDeviceTogether(Context& job, Preparation& ready);

/// Makes the replica on the chosen GPU. The data set is copied to the GPU's memory or streamed.
/// Needs the model. Makes no replica if the verdict is not kSuccess. Collective.
Verdict MakeGpuReplica(Context& job, Preparation& ready);

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
/// strategy refuses the network or the optimizer, throws AgreedError.
Trained Train(Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready);

/// The callbacks for the options, in calling order: callbacks that set the learning rate come
/// before callbacks that report it. `rate` is the learning rate of a step. `after_throughput`,
/// which may be null, comes after Throughput and before the callbacks that show its numbers.
/// StepLosses is not in the list.
CallbackList MakeRunCallbacks(
    Context& job, const TrainOptions& options, const std::function<double(uint64_t)>& rate,
    std::unique_ptr<Callback> after_throughput);

/// Converts an epoch's logs.
EpochResult EpochResultOf(const Logs& logs);

/// Like Train, on the GPU of `ready`. The CPU's network gets the parameters and the optimizer's
/// state when a callback needs them: for a checkpoint, at the end of an epoch with checkpoints or
/// early stopping, and at the end of training. Inside an epoch, the loss is not known.
Trained TrainOnGpu(
    Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready);

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

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_TRAINING_H_
