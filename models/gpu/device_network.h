#ifndef DTRUN_MODELS_GPU_DEVICE_NETWORK_H_
#define DTRUN_MODELS_GPU_DEVICE_NETWORK_H_

#include <dtrun/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/kernels.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "models/gpu/convolution.h"
#include "models/gpu/kernel_args.h"
#include "models/gpu/network_plan.h"
#include "models/gpu/product.h"

namespace dtrun::models {

/// The image (gpu::Kernels) that contains `kernel`, a kernel of this folder.
gpu::Kernels& ImageWith(const std::string& kernel);

/// Enqueues a kernel of this folder. kernel_args.h describes the kernels and their arguments.
template <typename Args>
void Launch(
    const gpu::Device& device, const std::string& kernel, const gpu::Shape& shape, CUstream stream,
    const Args& args) {
  ImageWith(kernel).Launch(device, kernel.c_str(), shape, stream, args);
}

/// How a hidden dense layer computes its backward pass through dropout and ReLU, and the gradient
/// of its bias.
enum class Fusion {
  kAlways,  ///< in epilogues of products, if cuBLASLt has them
  kNever,   ///< in a separate kernel
};

/// A network in a device's memory: its parameters, activations and gradients, and the calls that
/// compute them. The number of rows is fixed. All work goes to the constructor's stream and may be
/// captured. One thread at a time.
class DeviceNetwork {
 public:
  struct Options {
    DType dtype = DType::kF32;  ///< f32, bf16 or f16, for computing; parameters are f32
    Tf32 tf32 = Tf32::kAllowed;
    Selection selection = Selection::kFirst;  ///< of the libraries' algorithms
    uint32_t rows = 0;
    uint64_t workspace_bytes = 128 << 20;  ///< for libraries
    Fusion fusion = Fusion::kAlways;
  };

  /// Throws Error kUnavailable if memory, a library or an algorithm of a library is missing.
  DeviceNetwork(const gpu::Stream& stream, NetworkPlan plan, const Options& options);

  /// Bytes for the partial sums that blocks make over a batch. NetworkPlan::Bytes does not include
  /// them.
  static uint64_t PartialBytes(const gpu::Device& device, const NetworkPlan& plan, uint64_t rows);

  const NetworkPlan& plan() const { return plan_; }
  uint32_t rows() const { return options_.rows; }
  DType dtype() const { return options_.dtype; }
  const gpu::Device& device() const { return stream_.device(); }

  /// Flat blocks of plan().parameter_count floats.
  float* values() const { return values_.as<float>(); }
  float* gradients() const {
    return other_gradients_ != nullptr ? other_gradients_ : gradients_.as<float>();
  }
  /// From now on, writes the gradients to `gradients`, for example to memory that other ranks can
  /// access. No work may be running.
  void SetGradients(float* gradients);
  /// The values in the dtype of the computation; null in f32. Code that changes `values` must renew
  /// the copy, for example with EnqueueCopy.
  void* copy() const { return copy_.as<void>(); }
  void EnqueueCopy();

  /// The inputs, (rows, pixels), and the labels, (rows). The gather kernel writes both.
  void* inputs() const { return inputs_.as<void>(); }
  int32_t* wanted() const { return wanted_.as<int32_t>(); }
  /// The logits, (rows, width of the last stage), in f32.
  const float* logits() const { return logits_.as<float>(); }

  /// Computes the logits from the inputs. Applies dropout in training.
  enum class Mode { kTraining, kTest };
  void EnqueueForward(Mode mode, const StepState* state);
  /// Adds the metrics of the logits to `state`. In training, also computes the gradients of the
  /// logits, and writes the batch's loss to `losses`.
  void EnqueueLoss(Mode mode, StepState* state, float* losses);
  /// Computes all of gradients() from the gradients of the logits.
  void EnqueueBackward();

  /// The chosen algorithms of the libraries, one line per layer.
  std::string choices() const;

 private:
  struct StageMemory {
    gpu::DeviceMemory outputs, gradients, winners, mask;
    std::unique_ptr<Convolution> convolution;
    std::unique_ptr<Product> forward, to_kernel, to_input;
    // For hidden dense layers. If fused, the gradient of the layer's outputs arrives masked, and
    // to_kernel also sums the gradient of the bias.
    bool is_fused = false;
    std::string choice;  // of the two forms, with the reason
  };

  static constexpr uint32_t kThreads = 256;
  // The most blocks per multiprocessor of a kernel that sums over the grid. Each block leaves
  // partial sums.
  static constexpr uint32_t kSummingBlocks = 4;

  bool is_f32() const { return options_.dtype == DType::kF32; }
  std::string Typed(const std::string& name) const { return name + "_" + NameOf(options_.dtype); }
  const void* InputOf(size_t i) const;
  void* GradientOf(size_t i) const;
  bool HasPoolBehind(size_t i) const;
  float* Value(size_t parameter) const { return values() + plan_.parameters[parameter].offset; }
  float* Gradient(size_t parameter) const {
    return gradients() + plan_.parameters[parameter].offset;
  }
  void* Computed(size_t parameter) const;
  void Allocate(size_t i);
  void MakeLibraryCalls(size_t i);
  void MakeProducts(size_t i);
  void MakeHiddenProducts(size_t i);
  void UseHiddenProducts(size_t i, bool fused);
  std::unique_ptr<Product> MakeProduct(const Product::Options& options) const;
  std::unique_ptr<Product> ForwardProduct(size_t i, Epilogue epilogue) const;
  std::unique_ptr<Product> KernelGradientProduct(size_t i, Epilogue epilogue) const;
  std::unique_ptr<Product> InputGradientProduct(size_t i, Epilogue epilogue) const;
  uint32_t Blocks(uint64_t items, uint32_t per_multiprocessor) const;
  template <typename Args>
  void Enqueue(const std::string& name, const gpu::Shape& shape, const Args& args) {
    Launch(device(), name, shape, stream_.get(), args);
  }
  void BackwardPool(size_t i);
  void BackwardConvolution(size_t i);
  void BackwardFirstConvolution(size_t i);
  void BackwardDense(size_t i);
  void BackwardRelu(size_t i);

  const gpu::Stream& stream_;
  NetworkPlan plan_;
  Options options_;
  float* other_gradients_ = nullptr;
  gpu::DeviceMemory values_, gradients_, copy_, inputs_, wanted_, logits_;
  gpu::DeviceMemory partials_, counters_, workspace_, filters_gradient_;
  std::vector<StageMemory> stages_;
};

// Copies between the host and a device. All functions wait for the end of the copy.

/// Copies `bytes` bytes from the host to `offset` of `to`.
void WriteBytes(
    const gpu::Stream& stream, const gpu::DeviceMemory& to, uint64_t offset, const void* from,
    uint64_t bytes);

/// Copies the values of the parameters, or an optimizer's state for each of them. `values` has the
/// order of the parameters and host memory. WriteBlock copies to a flat block of the plan,
/// ReadBlock from it.
void WriteBlock(
    const gpu::Stream& stream, const NetworkPlan& plan, float* block,
    const std::vector<NamedBuffer>& values);
void ReadBlock(
    const gpu::Stream& stream, const NetworkPlan& plan, const float* block,
    const std::vector<NamedBuffer>& values);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_DEVICE_NETWORK_H_
