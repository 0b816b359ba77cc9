#ifndef DTRUN_MODELS_GPU_GPU_REPLICA_H_
#define DTRUN_MODELS_GPU_GPU_REPLICA_H_

#include <dtrun/communicator.h>
#include <dtrun/optimizer.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/layers/sequential.h"
#include "models/train/replica.h"

namespace dtrun::models {

/// The optimizers that a GPU has, with the formulas of models/optim/adam.h and models/optim/sgd.h.
struct GpuOptimizer {
  enum class Kind { kAdam, kSgd };
  Kind kind = Kind::kAdam;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-7;  ///< Adam's
  double momentum = 0, weight_decay = 0;              ///< SGD's
  bool nesterov = false;
};

/// Where a data set lies: as a whole on the GPU, or on the host, from where batches are copied
/// while the step before them is computed. The numbers are the same.
enum class GpuData {
  kAuto,  ///< on the GPU if it fits there
  kResident,
  kStreamed,
};

struct GpuOptions {
  int device = 0;
  /// f32, bf16 or f16: what is computed in. Parameters, their gradients' sums and the optimizer's
  /// state are f32; with bf16 and f16, the gradients of convolutions behind the first one are
  /// rounded to that before they are summed over the ranks. f16 goes with a LossScale.
  DType dtype = DType::kF32;
  /// f32: products may round their factors to TF32's 10 bits of mantissa, as NVIDIA's libraries do
  /// unless they are told not to.
  bool tf32 = true;
  /// Of the algorithms that NVIDIA's libraries propose the first ones are taken, not the fastest:
  /// another process computes the same bits on such a GPU with the same libraries.
  bool first_algorithms = false;
  uint64_t rows = 0;             ///< examples of this rank in a step, at most
  uint64_t seed = 0;             ///< of the network: selects the dropout masks
  uint64_t steps_per_epoch = 1;  ///< at most, whose losses are kept
  GpuOptimizer optimizer = {};
  /// The kernels of a step are launched together, as a CUDA graph.
  bool graph = true;
  uint64_t workspace_bytes = 128 << 20;  ///< for cuDNN and cuBLASLt
  uint64_t memory_bytes = 0;             ///< of the GPU that may be taken in all; 0: what is free
  int sharers = 1;                       ///< ranks that have the GPU in equal parts
  GpuData data = GpuData::kAuto;
  /// Of the LossScale; it doubles after so many steps in a row with finite gradients.
  double initial_loss_scale = 32768;
  uint32_t loss_scale_growth = 2000;
};

/// Labelled grey images, as bytes.
struct ByteImages {
  uint64_t count = 0, pixels = 0;
  const uint8_t* images = nullptr;  ///< (count, pixels)
  const uint8_t* labels = nullptr;  ///< (count)
};

/// One step's batch, of this rank.
struct GpuStep {
  uint64_t step = 0;            ///< optimizer steps before it: selects the dropout masks
  uint64_t first_example = 0;   ///< of this rank's, in the order that was set
  uint64_t first_position = 0;  ///< of it in the global batch, which selects the masks as well
  uint64_t examples = 0;        ///< at most `rows`; the order goes on that far
  uint64_t global_batch = 0;    ///< examples of all ranks
  uint64_t loss_slot = 0;       ///< the number of the step in its epoch
  double learning_rate = 0;
  /// The first and the number of this rank's examples in the step that comes next; 0: not known.
  /// Data on the host is made ready that far ahead.
  uint64_t next_example = 0, next_examples = 0;
};

/// Sums over this rank's examples.
struct GpuMetrics {
  double loss_sum = 0;
  uint64_t correct = 0, examples = 0;
};

/// One rank's copy of a network on a GPU. The network of the CPU remains where parameters have
/// names, and where they are read from and saved; its values are brought here by SetParameters and
/// back by GetParameters. One thread at a time.
///
/// Data sets are bytes, on the device or streamed to it. A step is one graph: gather the batch,
/// forward, backward, sum the gradients over the ranks, update. Nothing in it waits for the host,
/// but for a sum that goes through host memory, where no other backend reaches the GPUs of all
/// ranks. What reads results throws when a sum before it has failed: kTimeout, kMismatch or
/// kPeerLost, as CheckDeviceCollectives does.
class GpuReplica {
 public:
  /// Throws Error kUnavailable without a GPU, or when this does not fit there: the text has the
  /// bytes needed and free. kInvalidArgument for a network that PlanNetwork refuses. Local.
  static std::unique_ptr<GpuReplica> Make(
      Sequential& model, Communicator& world, const GpuOptions& options);
  virtual ~GpuReplica() = default;

  /// True: it lies on the device now. False: it is streamed, through 2 x rows x (pixels + 1) bytes
  /// of pinned host memory, and read where it is until the replica goes. Throws Error kUnavailable
  /// without room for that, kInvalidArgument for images of another shape.
  virtual bool LoadTrainingData(const ByteImages& data) = 0;
  virtual bool LoadTestData(const ByteImages& data) = 0;

  /// From the model that it was made with.
  virtual void SetParameters() = 0;
  /// In the order of the model's parameters.
  virtual void GetParameters(const std::vector<NamedBuffer>& values) = 0;
  /// The optimizer's state by the names that its state() on the CPU has.
  virtual void SetState(const std::vector<NamedBuffer>& state) = 0;
  virtual void GetState(const std::vector<NamedBuffer>& state) = 0;
  /// Of the last step, summed over the ranks and without the loss's scale, in the order of the
  /// model's parameters.
  virtual std::vector<std::vector<float>> Gradients() = 0;

  /// Indices into the training data; as many as that has examples, at most.
  virtual void SetOrder(std::span<const uint32_t> order) = 0;
  /// Collective over the world. Does not wait for the device, with a world of one.
  virtual void Step(const GpuStep& step) = 0;
  /// Of the steps since the last call. Waits.
  virtual GpuMetrics TakeMetrics() = 0;
  /// This rank's part of the loss of the first `count` steps of the epoch, by slot. Waits.
  virtual std::vector<double> Losses(uint64_t count) = 0;
  /// Decided on the device. Not in f16: always 1.
  virtual LossScale loss_scale() = 0;
  /// Goes on from another one, as when a checkpoint was read. Not in f16: does nothing.
  virtual void SetLossScale(const LossScale& scale) = 0;

  /// Examples [first, first + count) of the test data, without dropout. Local.
  virtual GpuMetrics Evaluate(uint64_t first, uint64_t count) = 0;

  /// Seconds that the host has waited for sums over ranks.
  virtual double exposed_seconds() const = 0;
  /// "NVIDIA H200"
  virtual std::string device_name() const = 0;
};

/// The largest power of two that is at most `most` and, as GpuOptions::rows, fits into this rank's
/// part of what is free of the device, together with data sets of so many examples, each streamed
/// where that takes less. Throws Error kUnavailable without a GPU or when not even one row fits.
uint64_t LargestGpuBatch(
    Sequential& model, const GpuOptions& options, std::span<const uint64_t> data_sets,
    uint64_t most);

}  // namespace dtrun::models

#endif
