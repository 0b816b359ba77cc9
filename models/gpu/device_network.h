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

/// The image with a kernel of this folder.
gpu::Kernels& ImageWith(const std::string& kernel);

/// Enqueues a kernel of this folder: what the headers *_kernels.h say.
template <typename Args>
void Launch(
    const gpu::Device& device, const std::string& kernel, const gpu::Shape& shape, CUstream stream,
    const Args& args) {
  ImageWith(kernel).Launch(device, kernel.c_str(), shape, stream, args);
}

/// The way back through a hidden dense layer's dropout and ReLU, and its bias's gradient.
enum class Fusion {
  kMeasured,  ///< whatever is faster; the same for all networks of a process that are alike
  kAlways,    ///< in epilogues of products, where cuBLASLt has them
  kNever,     ///< in a kernel of their own
};

/// Of such a layer. Fused: its gradient comes masked, and to_kernel sums the bias's besides.
struct HiddenProductsChoice {
  bool is_fused = false;
  std::string text;  ///< why
};

/// A network in a device's memory: parameters, activations and gradients of a fixed number of rows,
/// and what computes them. Everything is enqueued into the stream that it was made with, and may be
/// captured. One thread at a time.
class DeviceNetwork {
 public:
  struct Options {
    DType dtype = DType::kF32;  ///< f32, bf16 or f16: what is computed in; parameters are f32
    Tf32 tf32 = Tf32::kAllowed;
    Selection selection = Selection::kFastest;  ///< of libraries' algorithms
    uint32_t rows = 0;
    uint64_t workspace_bytes = 128 << 20;  ///< for libraries, at most
    /// What stands behind products of hidden dense layers on their way back.
    Fusion fusion = Fusion::kMeasured;
  };

  /// Throws Error kUnavailable: no room, a library that is not there, nothing that computes this.
  DeviceNetwork(const gpu::Stream& stream, NetworkPlan plan, const Options& options);

  /// For sums over a batch, which blocks make parts of; besides what NetworkPlan::Bytes counts.
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
  /// From now on the gradients are written there, such as where other ranks reach them. Nothing is
  /// under way.
  void SetGradients(float* gradients);
  /// The values in the dtype that is computed in: who changes `values` renews it. Null in f32.
  void* copy() const { return copy_.as<void>(); }
  void EnqueueCopy();

  /// (rows, pixels) and (rows), which the gather kernel writes.
  void* inputs() const { return inputs_.as<void>(); }
  int32_t* wanted() const { return wanted_.as<int32_t>(); }
  /// (rows, stride of the last stage), in f32.
  const float* logits() const { return logits_.as<float>(); }

  /// Inputs to logits; with dropout in training.
  enum class Mode { kTraining, kTest };
  void EnqueueForward(Mode mode, const StepState* state);
  /// Logits to what the metrics count in `state`; in training their gradients, and the batch's loss
  /// into `losses`.
  void EnqueueLoss(Mode mode, StepState* state, float* losses);
  /// The logits' gradients to all of gradients().
  void EnqueueBackward();

  /// What the libraries have been asked for, a line per layer.
  std::string choices() const;

 private:
  struct StageMemory {
    gpu::DeviceMemory outputs, gradients, winners, mask;
    std::unique_ptr<Convolution> convolution;
    std::unique_ptr<Product> forward, to_kernel, to_input;
    HiddenProductsChoice hidden_choice;  // kDense
  };
  // Of a hidden dense layer; the last one belongs to the layer behind it.
  struct HiddenProducts {
    std::unique_ptr<Product> forward, to_kernel, next_to_input;
  };

  static constexpr uint32_t kThreads = 256;
  // What a kernel that sums over the grid leaves partial sums of, at most, per multiprocessor.
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
  HiddenProductsChoice ChooseHiddenProducts(size_t i);
  HiddenProducts HiddenProductsOf(size_t i, bool fused) const;
  std::unique_ptr<Product> MakeProduct(const Product::Options& options) const;
  std::unique_ptr<Product> ForwardProduct(size_t i, Epilogue epilogue) const;
  std::unique_ptr<Product> KernelGradientProduct(size_t i, Epilogue epilogue) const;
  std::unique_ptr<Product> InputGradientProduct(size_t i, Epilogue epilogue) const;
  double Milliseconds(size_t i, const HiddenProducts& products, bool fused);
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

// What goes between the host and a device now and then. All of it waits.

/// Bytes, to `offset` of `to`.
void WriteBytes(
    const gpu::Stream& stream, const gpu::DeviceMemory& to, uint64_t offset, const void* from,
    uint64_t bytes);

/// The parameters' values, or what an optimizer keeps for each of them, in the order of the
/// parameters: from the host's order to the flat block of the plan, and back.
void WriteBlock(
    const gpu::Stream& stream, const NetworkPlan& plan, float* block,
    const std::vector<NamedBuffer>& values);
void ReadBlock(
    const gpu::Stream& stream, const NetworkPlan& plan, const float* block,
    const std::vector<NamedBuffer>& values);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_DEVICE_NETWORK_H_
