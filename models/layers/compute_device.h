#ifndef DTRUN_MODELS_LAYERS_COMPUTE_DEVICE_H_
#define DTRUN_MODELS_LAYERS_COMPUTE_DEVICE_H_

#include <dtrun/communicator.h>
#include <dtrun/device_choice.h>
#include <dtrun/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/layers/layer.h"
#include "models/layers/tensor.h"
#include "models/optim/update_rules.h"

namespace dtrun::models {

/// Called with the index of a parameter when its gradient is complete.
using OnReady = std::function<void(size_t)>;

/// A layer of a network, and the indices of its parameters and buffers in the network's lists.
struct PlacedLayer {
  Layer* layer = nullptr;
  size_t first_parameter = 0, parameter_count = 0, first_buffer = 0;
};

/// What a device plans. The layers, parameters and buffers outlive the plan. The values of the
/// parameters and the buffers are in the device's memory. Gradients may move between steps.
struct NetworkToPlan {
  Shape input;
  std::vector<PlacedLayer> layers;
  std::vector<Parameter>* parameters = nullptr;
  std::vector<NamedBuffer>* buffers = nullptr;
  int micro_batch = 1, micro_batches = 1;  ///< as in SequentialOptions
  uint64_t seed = 0;
  DType dtype = DType::kF32;             ///< one that ComputeDevice::DtypeFor has returned
  Communicator* communicator = nullptr;  ///< for layers that exchange data; may be null

  int chunk() const { return micro_batch * micro_batches; }
};

/// The implementation of one direction of a layer.
struct LayerImplementation {
  std::string layer;      ///< "layer 2 (conv2d 64 3x3 relu)"
  std::string direction;  ///< "forward", "backward data", "backward weights"
  std::string
      implementation;  ///< a library's name: "jit:avx2"; or a kernel of dtrun: "dtrun:few_channels"
};

/// A network that a device runs, for chunks of a fixed number of examples. Sequential describes
/// inputs, outputs and the order of the calls. Not thread-safe.
class PlannedNetwork {
 public:
  virtual ~PlannedNetwork() = default;

  /// Host memory: (chunk, height, width, channels), and twice (chunk, classes).
  virtual float* input() = 0;
  virtual const float* output() const = 0;
  virtual float* output_gradient() = 0;

  virtual void PrepareWeights() = 0;
  /// `pass.examples` is set. The output is complete when the call returns.
  virtual void Forward(const Pass& pass) = 0;
  /// In the pass marked `last`, calls `on_ready` for each parameter, last layer first. On a GPU,
  /// the gradient is then enqueued in the stream of its Buffer.
  virtual void Backward(const Pass& pass, const OnReady& on_ready) = 0;

  /// The implementations of the heavy layers, per direction, in the order in which they were built.
  /// Empty on a GPU.
  virtual const std::vector<LayerImplementation>& implementations() const = 0;
};

/// A device that computes networks: the CPU, or a GPU (models/gpu/cuda_device.h). A device has
/// memory and one stream of work. A Sequential knows its device only through this class, and an
/// optimizer only through UpdateDevice. Not thread-safe.
class ComputeDevice : public UpdateDevice {
 public:
  virtual Device device() const = 0;
  /// The dtype in which a network computes here if `wanted` is asked for. Throws Error
  /// kInvalidArgument if the device has neither `wanted` nor a substitute.
  virtual DType DtypeFor(DType wanted) const = 0;
  /// Throws Error kInvalidArgument, with the name of the layer, if a layer cannot be computed on
  /// this device; kUnavailable if memory or a library is missing.
  virtual std::unique_ptr<PlannedNetwork> Plan(const NetworkToPlan& network) = 0;

  /// Waits for all enqueued work. Throws Error kSystem if any of it failed.
  virtual void Synchronize() = 0;
  /// to = to + factor * from, of f32 buffers of this device.
  virtual void AddScaled(const Buffer& from, float factor, const Buffer& to) = 0;
};

/// The CPU of this process, with oneDNN. Thread-safe.
ComputeDevice& Cpu();
std::unique_ptr<ComputeDevice> MakeCpuDevice();

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_COMPUTE_DEVICE_H_
