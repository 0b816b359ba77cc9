#ifndef DTRUN_MODELS_GPU_CUDA_NETWORK_H_
#define DTRUN_MODELS_GPU_CUDA_NETWORK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "gpu/memory.h"
#include "gpu/stream.h"
#include "models/gpu/convolution.h"
#include "models/gpu/cuda_device.h"
#include "models/layers/compute_device.h"
#include "models/layers/network_graph.h"

namespace dtrun::models {

/// The image (gpu::Kernels) that contains `kernel`, a kernel of layer_args.h.
gpu::Kernels& LayerImageWith(const std::string& kernel);

/// Enqueues the kernel dtrun_layer_<name>.
template <typename Args>
void LaunchLayer(
    const gpu::Stream& stream, const std::string& name, const gpu::Shape& shape, const Args& args) {
  const std::string kernel = "dtrun_layer_" + name;
  LayerImageWith(kernel).Launch(stream.device(), kernel.c_str(), shape, stream.get(), args);
}

/// A value of a NetworkGraph in a GPU's memory: (rows, height, width, channels).
struct CudaValue {
  Shape shape;
  DType dtype = DType::kF32;  ///< of `data`
  void* data = nullptr;
  void* gradient = nullptr;  ///< in the dtype of the network; null: not needed
};

/// The parameters and buffers of a network as a GPU computes with them. If they are in the GPU's
/// memory, the mirror is the parameters themselves, and all copies do nothing. If they are in host
/// memory, the mirror has a copy of them on the GPU: values go there before a step, and gradients
/// come back as soon as they are complete. Not thread-safe.
class ParameterMirror {
 public:
  /// `stream` and the lists of `network` outlive the mirror.
  ParameterMirror(const gpu::Stream& stream, const NetworkToPlan& network);

  bool is_copy() const { return is_copy_; }
  /// Addresses in the GPU's memory.
  float* value(size_t parameter) const {
    return Of(values_, parameters_[parameter].value, parameter);
  }
  float* gradient(size_t parameter) const {
    return Of(gradients_, parameters_[parameter].gradient, parameter);
  }
  float* buffer(size_t i) const {
    if (!is_copy_) return static_cast<float*>(buffers_[i].buffer.data);
    return buffer_values_.as<float>() + buffer_offsets_[i];
  }

  /// Enqueues copies of all values and buffers to the GPU.
  void Upload();
  /// Enqueues a copy of a gradient to the host.
  void EnqueueGradient(size_t parameter);
  /// For each gradient of EnqueueGradient, in that order: waits for its copy, writes it to the
  /// parameter's gradient and calls `on_ready`.
  void Deliver(const OnReady& on_ready);
  /// Copies the buffers to the host and waits. The forward pass of training changes them.
  void DownloadBuffers();

 private:
  float* Of(const gpu::DeviceMemory& copies, const Buffer& own, size_t parameter) const {
    if (!is_copy_) return static_cast<float*>(own.data);
    return copies.as<float>() + offsets_[parameter];
  }

  const gpu::Stream& stream_;
  std::vector<Parameter>& parameters_;
  std::vector<NamedBuffer>& buffers_;
  bool is_copy_;
  std::vector<uint64_t> offsets_, buffer_offsets_;
  gpu::DeviceMemory values_, gradients_, buffer_values_;
  gpu::PinnedMemory returned_;
  std::deque<gpu::Event> arrived_;  // by parameter
  std::vector<size_t> returning_;
};

/// The parts that the operations of a network share: the stream, and scratch memory, which they use
/// one after the other.
class CudaPlan {
 public:
  CudaPlan(
      const gpu::Stream& stream, const CudaDeviceOptions& options, const NetworkToPlan& network);

  const gpu::Stream& stream() const { return stream_; }
  const NetworkToPlan& network() const { return network_; }
  DType dtype() const { return network_.dtype; }
  size_t value_size() const { return SizeOf(dtype()); }
  uint32_t rows() const { return static_cast<uint32_t>(network_.chunk()); }
  Tf32 tf32() const { return options_.tf32 ? Tf32::kAllowed : Tf32::kOff; }
  Selection selection() const {
    return options_.fastest_algorithms ? Selection::kFastest : Selection::kFirst;
  }
  Workspace workspace() const { return {workspace_.as<void>(), workspace_.bytes()}; }
  ParameterMirror& mirror() { return mirror_; }
  float* value(size_t i) const { return mirror_.value(i); }
  float* gradient(size_t i) const { return mirror_.gradient(i); }
  float* buffer(size_t i) const { return mirror_.buffer(i); }

  /// Returns zeroed memory that lives as long as the plan.
  void* NewMemory(uint64_t bytes);
  template <typename T>
  T* New(uint64_t count) {
    return static_cast<T*>(NewMemory(count * sizeof(T)));
  }

  // Sums of a kernel over at most kSumBlocks blocks, for at most `channels` channels.

  static constexpr uint32_t kSumBlocks = 256;
  void ReserveSums(uint32_t channels);
  double* partials() const { return partials_.as<double>(); }
  uint32_t* counters() const { return counters_.as<uint32_t>(); }
  static uint32_t SumBlocks(uint64_t items) { return gpu::BlocksFor(items, 64, kSumBlocks); }

  /// Enqueues dtrun_layer_<name>. Blocks are for `items` at one per thread.
  template <typename Args>
  void Enqueue(const std::string& name, uint64_t items, const Args& args) const {
    EnqueueShaped(name, {gpu::BlocksFor(items, 256, most_blocks_), 256}, args);
  }
  template <typename Args>
  void EnqueueShaped(const std::string& name, const gpu::Shape& shape, const Args& args) const {
    LaunchLayer(stream_, name, shape, args);
  }
  /// "bias_bf16"
  static std::string Typed(const std::string& name, DType dtype) {
    return name + "_" + NameOf(dtype);
  }

 private:
  const gpu::Stream& stream_;
  CudaDeviceOptions options_;
  NetworkToPlan network_;
  ParameterMirror mirror_;
  uint32_t most_blocks_;
  gpu::DeviceMemory workspace_, partials_, counters_;
  std::vector<gpu::DeviceMemory> memory_;
};

/// An operation of a network on a GPU, for all rows of a chunk. All work is enqueued.
class CudaOperation {
 public:
  virtual ~CudaOperation() = default;
  /// Called after the parameters have changed.
  virtual void PrepareWeights() {}
  virtual void Forward(const Pass& pass) = 0;
  /// Computes the gradients of the parameters, and adds them up over the passes of a step.
  virtual void BackwardWeights(const Pass&) {}
  /// Writes the gradient of input `i` to `to`. May overwrite the gradient of the output if `i` is
  /// the last input.
  virtual void BackwardInput(const Pass& pass, size_t i, void* to) = 0;
};

/// Plans one operation. `inputs` and `output` stay where they are. Gradients of inputs go to
/// `gradients`, null if they are not needed. Throws Error kUnavailable if a library has no way to
/// compute the operation.
std::unique_ptr<CudaOperation> PlanOperation(
    CudaPlan& plan, const Operation& operation, const std::vector<CudaValue>& inputs,
    const CudaValue& output, const std::vector<void*>& gradients);

/// Plans a network. `stream` outlives the result.
std::unique_ptr<PlannedNetwork> PlanCudaNetwork(
    const gpu::Stream& stream, const CudaDeviceOptions& options, const NetworkToPlan& network);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_CUDA_NETWORK_H_
