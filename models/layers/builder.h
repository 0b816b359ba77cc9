#ifndef DTRUN_MODELS_LAYERS_BUILDER_H_
#define DTRUN_MODELS_LAYERS_BUILDER_H_

#include <dtrun/communicator.h>
#include <dtrun/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/layers/compute_device.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

/// Memory for the gradients of activations. The backward pass of the layer that reads a tensor
/// writes its gradient. The backward pass of the layer that made the tensor is the last to read it.
/// Therefore a deep network needs memory for its two or three largest tensors, not for all of them.
/// Not thread-safe.
class GradientPool {
 public:
  /// Returns `count` floats that belong to the caller until Release. New memory is zeroed, reused
  /// memory is not.
  float* Take(size_t count);
  /// Ignores memory that is not from this pool.
  void Release(const float* memory);

 private:
  struct Piece {
    FloatArray floats;
    bool taken = false;
  };

  std::deque<Piece> pieces_;
};

/// A oneDNN primitive with bound arguments. Running it builds no oneDNN objects.
class BoundPrimitive {
 public:
  BoundPrimitive() = default;
  BoundPrimitive(dnnl::primitive primitive, std::unordered_map<int, dnnl::memory> arguments);
  void Run(dnnl::stream& stream) const;

 private:
  dnnl::primitive primitive_;
  std::unordered_map<int, dnnl::memory> owned_;
  std::vector<dnnl_exec_arg_t> arguments_;  // views of owned_
};

/// Copies `from` to `to` and converts to the format of `to`.
BoundPrimitive BoundReorder(const dnnl::memory& from, const dnnl::memory& to);

dnnl::memory::data_type DataTypeOf(DType dtype);

/// Whether the CPU multiplies bf16 values; on x86 this needs AVX512_BF16. With AVX-512 alone,
/// oneDNN emulates bf16 products, three times slower than f32 products.
bool HasBf16();

/// One line, with the reason, for each of `parts` that oneDNN computes without its vector code.
///   "layer 0 (conv2d 32 3x3): backward weights is computed slowly, by ref:any: oneDNN 2.6.3 has
///   ..."
std::vector<std::string> SlowParts(const std::vector<LayerImplementation>& parts);

/// Bytes that a layer keeps from the forward pass for the backward pass.
struct Memo {
  uint8_t* data = nullptr;  ///< of the selected micro-batch
};

/// Gives layers memory and oneDNN objects while they are built. Owns the memory and outlives the
/// layers.
///
/// A chunk is `micro_batches` times `micro_batch` examples. The head of the network takes one
/// micro-batch at a time, the other layers take a whole chunk (see SequentialOptions). If the
/// backward pass of the head reads a value, there is memory for the value per micro-batch. `Select`
/// points the layers to one micro-batch.
class Builder {
 public:
  Builder(int micro_batch, int micro_batches, uint64_t seed);

  /// The layer that is being built, set by Sequential:
  ///   layer_index           index in the network
  ///   parameters, buffers   first of those that the layer asked for, in the order of its specs
  ///   plain_output          the output is read in the plain format
  ///   output_kept           the output is read again in the backward pass
  ///   by_micro_batch        the layer takes micro-batches, not chunks
  uint32_t layer_index = 0;
  dtrun::Parameter* parameters = nullptr;
  dtrun::NamedBuffer* buffers = nullptr;
  bool plain_output = false;
  bool output_kept = true;
  bool by_micro_batch = false;
  /// True if a layer before has parameters: the gradient of the input is then needed.
  bool input_gradient = true;
  /// Position and description of the layer, for `Report`.
  std::string layer_name;
  /// For layers that exchange data between ranks. May be null.
  dtrun::Communicator* communicator = nullptr;
  /// The dtype that the layer computes in, and the dtype of its output.
  DType dtype = DType::kF32;

  /// Examples per pass of the layer that is being built.
  int batch() const { return by_micro_batch ? micro_batch_ : chunk(); }
  int micro_batch() const { return micro_batch_; }
  int micro_batches() const { return micro_batches_; }
  int chunk() const { return micro_batch_ * micro_batches_; }
  uint64_t seed() const { return seed_; }
  dnnl::engine& engine() { return engine_; }
  dnnl::stream& stream() { return stream_; }

  /// Returns a new tensor with data: the output of the layer that is being built.
  Tensor* NewTensor(const Shape& shape, int block, bool relu);
  /// Returns a view of the memory of `tensor` in another shape with as many values. Both are plain.
  Tensor* NewView(const Tensor& tensor, const Shape& shape);
  /// Gives `tensor` memory for its gradient, if it has none.
  void GiveGradient(Tensor* tensor);
  /// Makes `memory` the gradient of `tensor`. `memory` may be the tensor's data, if neither this
  /// layer nor the layer before reads the data again, or the gradient of the layer's output.
  void PutGradient(Tensor* tensor, float* memory);
  /// Lets other tensors reuse the memory of this gradient. Call it when no later backward pass
  /// reads the gradient.
  void ReleaseGradient(const Tensor& tensor) { gradients_.Release(tensor.gradient); }
  Memo* NewMemo(size_t bytes);
  /// Returns zeroed memory.
  float* NewFloats(size_t count);

  /// oneDNN's descriptions of a tensor's format, data and gradient.
  dnnl::memory::desc DescriptionOf(const Tensor& tensor) const;
  dnnl::memory DataOf(const Tensor& tensor);
  dnnl::memory GradientOf(const Tensor& tensor);
  /// Returns new zeroed memory for `description`.
  dnnl::memory NewMemory(const dnnl::memory::desc& description);

  /// Returns scratch memory for a primitive. All primitives share one block, because only one runs
  /// at a time. The memory has data after `PlaceScratch`, which is called when all layers are
  /// built.
  dnnl::memory NewScratch(const dnnl::memory::desc& description);
  void PlaceScratch();

  /// Points all layers to micro-batch `i` of the chunk.
  void Select(int i);

  /// Records the implementation of a direction of the layer that is being built.
  void Report(const std::string& direction, const std::string& implementation);
  const std::vector<LayerImplementation>& implementations() const { return implementations_; }

 private:
  // A pointer, or oneDNN's copy of a pointer. It moves by `step` from one micro-batch to the next.
  template <typename T>
  struct Moving {
    T target;
    uint8_t* first;
    size_t step;  // bytes
  };

  void MoveWithMicroBatch(float*& pointer, const Tensor& tensor);
  dnnl::memory Bind(const Tensor& tensor, float* const& pointer);

  int micro_batch_, micro_batches_;
  uint64_t seed_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::deque<Tensor> tensors_;
  std::deque<FloatArray> memory_;
  GradientPool gradients_;
  std::deque<Memo> memos_;
  std::vector<Moving<float**>> moving_floats_;
  std::vector<Moving<Memo*>> moving_memos_;
  std::vector<Moving<dnnl::memory>> moving_views_;
  std::vector<dnnl::memory> scratch_;
  size_t scratch_bytes_ = 0;
  std::vector<LayerImplementation> implementations_;
};

/// Describes `batch` activations to oneDNN, in the format of Tensor.
dnnl::memory::desc DescribeActivations(
    const Shape& shape, int block, int batch, dnnl::memory::data_type type);

/// A primitive, with reorders before and after it if its formats differ from the tensors' formats.
/// Call Reads and Writes, then Append. Run may then be called any number of times.
class PrimitiveSequence {
 public:
  /// Returns the memory that the primitive reads: the tensor's memory, or a copy in the format
  /// `wanted`.
  dnnl::memory Reads(
      Builder& builder, const dnnl::memory& tensor, const dnnl::memory::desc& wanted);
  /// Returns the memory that the primitive writes: the tensor's memory, or new memory in the format
  /// `made`. New memory is copied to the tensor afterwards.
  dnnl::memory Writes(Builder& builder, const dnnl::memory& tensor, const dnnl::memory::desc& made);
  void Append(BoundPrimitive primitive);
  void Run(dnnl::stream& stream) const;

 private:
  std::vector<BoundPrimitive> steps_, deliveries_;
};

/// Returns `block` of the format that oneDNN chose for the activations of `batch` examples. Returns
/// 0 if Tensor cannot describe that format.
int BlockOf(const dnnl::memory::desc& description, const Shape& shape, int batch);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_BUILDER_H_
