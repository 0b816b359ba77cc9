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

/// An optimizer on a GPU. The formulas are those of models/optim/adam.h and models/optim/sgd.h.
struct GpuOptimizer {
  enum class Kind { kAdam, kSgd };
  Kind kind = Kind::kAdam;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-7;  ///< Adam's
  double momentum = 0, weight_decay = 0;              ///< SGD's
  bool nesterov = false;
};

/// The place of a data set: in GPU memory as a whole, or on the host. From the host, each batch is
/// copied while the GPU computes the step before it. The results are the same.
enum class GpuData {
  kAuto,  ///< on the GPU if it fits there
  kResident,
  kStreamed,
};

struct GpuOptions {
  int device = 0;
  /// The type for computing: f32, bf16 or f16. Parameters, the sums of their gradients and the
  /// optimizer's state are f32. With bf16 and f16, the gradients of all convolutions but the first
  /// are rounded to this type before the sum over the ranks. f16 uses a LossScale.
  DType dtype = DType::kF32;
  /// For f32: products may round their factors to TF32's 10 bits of mantissa, which is the default
  /// of NVIDIA's libraries.
  bool tf32 = true;
  /// Use the first working algorithms that NVIDIA's libraries propose. Then another process
  /// computes the same bits on such a GPU with the same libraries. If false, time the proposed
  /// algorithms on the GPU and use the fastest.
  bool first_algorithms = true;
  uint64_t rows = 0;             ///< the most examples of this rank in a step
  uint64_t seed = 0;             ///< of the network; selects the dropout masks
  uint64_t steps_per_epoch = 1;  ///< the most steps of an epoch; their losses are kept
  GpuOptimizer optimizer = {};
  /// Launch the kernels of a step together, as a CUDA graph.
  bool graph = true;
  uint64_t workspace_bytes = 128 << 20;  ///< for cuDNN and cuBLASLt
  uint64_t memory_bytes = 0;             ///< limit of GPU memory; 0: no limit
  int sharers = 1;                       ///< ranks that share the GPU in equal parts
  GpuData data = GpuData::kAuto;
  /// The first LossScale. The scale doubles after `loss_scale_growth` steps in a row with finite
  /// gradients.
  double initial_loss_scale = 32768;
  uint32_t loss_scale_growth = 2000;
};

/// Labelled grey images with one byte per pixel.
struct ByteImages {
  uint64_t count = 0, pixels = 0;
  const uint8_t* images = nullptr;  ///< (count, pixels)
  const uint8_t* labels = nullptr;  ///< (count)
};

/// This rank's batch of one step.
struct GpuStep {
  uint64_t step = 0;            ///< optimizer steps before this step; selects the dropout masks
  uint64_t first_example = 0;   ///< this rank's first example, as a place in the order
  uint64_t first_position = 0;  ///< its place in the global batch; also selects the masks
  uint64_t examples = 0;        ///< at most `rows`, consecutive in the order
  uint64_t global_batch = 0;    ///< examples of all ranks
  uint64_t loss_slot = 0;       ///< the number of the step in its epoch
  double learning_rate = 0;
  /// This rank's first example in the next step, and the number of examples; 0: not known. Streamed
  /// data is prepared one step ahead.
  uint64_t next_example = 0, next_examples = 0;
};

/// Sums over this rank's examples.
struct GpuMetrics {
  double loss_sum = 0;
  uint64_t correct = 0, examples = 0;
};

/// One rank's copy of a network on a GPU. The CPU's network keeps the names of the parameters, and
/// parameters are read and saved there. SetParameters copies the CPU's values to the GPU.
/// GetParameters copies the GPU's values back. One thread at a time.
///
/// Data sets are bytes, on the device or streamed to it. A step gathers the batch, computes forward
/// and backward, sums the gradients over the ranks and updates the parameters. All of this is one
/// CUDA graph, which does not wait for the host. There is one exception: with the host_staged
/// backend, the sum goes through host memory and waits. If a sum has failed, methods that read
/// later results throw kTimeout, kMismatch or kPeerLost, as CheckDeviceCollectives does.
class GpuReplica {
 public:
  /// Throws Error kUnavailable without a GPU, or if the network does not fit into its memory. The
  /// message has the needed and the free bytes. Throws Error kInvalidArgument for a network that
  /// PlanNetwork refuses. Not collective.
  static std::unique_ptr<GpuReplica> Make(
      Sequential& model, Communicator& world, const GpuOptions& options);
  virtual ~GpuReplica() = default;

  /// Returns true if the data is now on the device. Returns false if the data is streamed, through
  /// 2 x rows x (pixels + 1) bytes of pinned host memory. Streamed data is read in place and must
  /// stay until the replica is destroyed. Throws Error kUnavailable if there is no room, and
  /// kInvalidArgument for images of another shape.
  virtual bool LoadTrainingData(const ByteImages& data) = 0;
  virtual bool LoadTestData(const ByteImages& data) = 0;

  /// Copies the values of the constructor's model to the GPU.
  virtual void SetParameters() = 0;
  /// Copies the parameters to `values`, which has the order of the model's parameters.
  virtual void GetParameters(const std::vector<NamedBuffer>& values) = 0;
  /// Writes or reads the optimizer's state, by the names of the CPU optimizer's state().
  virtual void SetState(const std::vector<NamedBuffer>& state) = 0;
  virtual void GetState(const std::vector<NamedBuffer>& state) = 0;
  /// The gradients of the last step, summed over the ranks and without the loss scale, in the order
  /// of the model's parameters.
  virtual std::vector<std::vector<float>> Gradients() = 0;

  /// Sets the order of the training data: at most as many indices as the data has examples.
  virtual void SetOrder(std::span<const uint32_t> order) = 0;
  /// Collective over the world. With a world of one rank, does not wait for the device.
  virtual void Step(const GpuStep& step) = 0;
  /// Returns the sums of the steps since the last call. Waits for the device.
  virtual GpuMetrics TakeMetrics() = 0;
  /// This rank's part of the loss of the first `count` steps of the epoch, by slot. Waits for the
  /// device.
  virtual std::vector<double> Losses(uint64_t count) = 0;
  /// The loss scale, which the device decides. Without f16: always 1.
  virtual LossScale loss_scale() = 0;
  /// Continues with another loss scale, for example from a checkpoint. Without f16: no effect.
  virtual void SetLossScale(const LossScale& scale) = 0;

  /// Evaluates examples [first, first + count) of the test data, without dropout. Not collective.
  virtual GpuMetrics Evaluate(uint64_t first, uint64_t count) = 0;

  /// Seconds that the host has waited for sums over ranks.
  virtual double exposed_seconds() const = 0;
  /// "NVIDIA H200"
  virtual std::string device_name() const = 0;
};

/// The largest power of two, at most `most`, that is possible as GpuOptions::rows. The network must
/// fit into this rank's part of the free device memory, together with data sets of so many examples
/// (`data_sets`). With GpuData::kAuto, a data set is streamed if streaming takes less memory.
/// Throws Error kUnavailable without a GPU, or if not even one row fits.
uint64_t LargestGpuBatch(
    Sequential& model, const GpuOptions& options, std::span<const uint64_t> data_sets,
    uint64_t most);

}  // namespace dtrun::models

#endif
