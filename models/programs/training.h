#ifndef DTRUN_MODELS_PROGRAMS_TRAINING_H_
#define DTRUN_MODELS_PROGRAMS_TRAINING_H_

#include <dtrun/context.h>
#include <dtrun/strategy.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/callbacks/callback.h"
#include "models/data/image_dataset.h"
#include "models/data/pipeline.h"
#include "models/gpu/gpu_replica.h"
#include "models/layers/sequential.h"
#include "models/optim/rate_optimizer.h"
#include "models/programs/training_options.h"
#include "models/report/page.h"
#include "models/train/agreement.h"
#include "models/train/report.h"

namespace dtrun::models {

/// A data set's images where they lie, and its labels as bytes, for a GPU.
class ImageBytes {
 public:
  /// Of images that lie one behind the other, as those of LoadImageDataset do; throws Error
  /// kInvalidArgument for others. The pipeline's source outlives it.
  explicit ImageBytes(const Pipeline& pipeline);
  ByteImages view() const { return {labels_.size(), pixels_, images_, labels_.data()}; }

 private:
  uint64_t pixels_;
  const uint8_t* images_ = nullptr;
  std::vector<uint8_t> labels_;
};

/// The GPU that a rank trains on.
struct PreparedGpu {
  std::unique_ptr<ImageBytes> train, test;
  std::unique_ptr<GpuReplica> replica;                  ///< null: it trains on the CPU
  bool streams_training = false, streams_test = false;  ///< what lies on the host, on any rank
  int index = 0, sharers = 1;     ///< ranks of this host on it, this one included
  bool shared_somewhere = false;  ///< by several ranks, on any host
  bool asked_for = false;         ///< no CPU instead
  std::string why_not;            ///< what keeps a GPU that there is from training; or ""
};

/// What a rank trains with.
struct Preparation {
  Verdict verdict;  ///< equal on all ranks
  /// As given, with the batch size that `auto` has come to, the device, and the strategy without
  /// the GPUs that it has named.
  TrainOptions options;
  std::optional<ImageDataset> data;  ///< like what follows: there when the verdict is kSuccess
  uint64_t global_batch = 0;
  int threads = 1;  ///< that this rank computes with
  std::unique_ptr<Sequential> model;
  std::unique_ptr<RateOptimizer> optimizer;
  PreparedGpu gpu;
};

/// The network that the options name, for examples like these and batches of at most `share` of
/// them. Throws Error kInvalidArgument.
std::unique_ptr<Sequential> MakeModel(
    const DatasetInfo& data, uint64_t share, const TrainOptions& options);

/// Threads that this rank computes with.
int ComputeThreads(const TrainOptions& options, const Context& job);

/// Collective. Everything that can be wrong is found here, and told by the verdict.
Preparation Prepare(const ParsedOptions& parsed, Context& job);

/// What of these options no GPU can do yet, and what is expected; "" if there is nothing.
///   "--adasum: not on a GPU; expected --device cpu"
std::string GpuObstacle(const TrainOptions& options);

/// Collective: which device the options mean, the same kind on all ranks: `ready.options.device` is
/// "cpu" or "cuda" then, and the batch size a number. Needs the options and the data. What is wrong
/// is in the verdict.
void ChooseDeviceTogether(Context& job, Preparation& ready);

/// Collective: makes the replica on the GPU that was chosen, with the data set in its memory or
/// streamed to it. Needs the model. There is none where the verdict is another than kSuccess.
Verdict MakeGpuReplica(Context& job, Preparation& ready);

/// Instead of a GPU that was tried for `auto`.
void UseCpu(const TrainOptions& given, const std::string& why_not, Preparation& ready);

struct Trained {
  TrainingResult result;
  std::vector<std::string> not_written;  ///< checkpoints that a disk had no room for
  RankTime time;                         ///< where this rank's training time went
};

/// Trains as the options say and evaluates the test set. Collective. Rank 0 prints. Throws what
/// Trainer::Fit throws, and Error kMismatch when the ranks' parameters differ in the end.
/// What a strategy refuses, such as an optimizer that it cannot take, is thrown as AgreedError.
Trained Train(Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready);

/// What the options ask for besides training, in the order in which it is called: what sets the
/// rate is before what reports it. `rate`: of a step. `after_throughput`, which may be null, is
/// called behind what measures the speed and before what shows it. Without StepLosses.
CallbackList MakeRunCallbacks(
    Context& job, const TrainOptions& options, const std::function<double(uint64_t)>& rate,
    std::unique_ptr<Callback> after_throughput);

/// An epoch's numbers, from what callbacks are given.
EpochResult EpochResultOf(const Logs& logs);

/// Train, on the GPU of `ready`. The network of the CPU has the parameters and the optimizer's
/// state whenever a callback wants them: after steps of which a checkpoint is made, at the ends of
/// epochs where somebody looks, and at the end. Inside an epoch nobody knows the loss.
Trained TrainOnGpu(
    Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready);

/// What is about to train, a line per question; ends with a new line.
std::string Heading(Context& job, const TrainOptions& options, const Preparation& ready);

/// "Test: loss 0.2312, accuracy 0.9163 on 10000 images; parameters 9f86d081884c7d65 on all 2 ranks"
std::string ResultLine(const TrainingResult& result, uint64_t test_images);

/// What the page about a run says. Collective: every rank brings its own times.
RunReport PageOf(
    Context& job, const TrainOptions& options, const Preparation& ready, const Trained& trained);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_TRAINING_H_
