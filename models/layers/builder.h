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

#include "models/layers/tensor.h"

namespace dtrun::models {

/// Memory for the gradients of activations, which live shortly: from the way back of the layer that
/// reads a tensor to that of the layer which made it. A deep network needs as much as its two or
/// three largest tensors, not as all of them together. Not thread-safe.
class GradientPool {
 public:
  /// `count` floats that are nobody else's until they are released; zeroed when they are new.
  float* Take(size_t count);
  /// No effect on memory that is not from here.
  void Release(const float* memory);

 private:
  struct Piece {
    FloatArray floats;
    bool taken = false;
  };

  std::deque<Piece> pieces_;
};

/// A oneDNN primitive with its arguments bound, so that running it builds nothing.
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

/// Copies `from` to `to`, which says the format.
BoundPrimitive BoundReorder(const dnnl::memory& from, const dnnl::memory& to);

dnnl::memory::data_type DataTypeOf(DType dtype);

/// Whether the CPU multiplies bf16 values: on x86, AVX512_BF16. With AVX-512 alone oneDNN emulates
/// such products, three times slower than those of f32.
bool HasBf16();

/// What computes one direction of a layer.
struct LayerImplementation {
  std::string layer;      ///< "layer 2 (conv2d 64 3x3 relu)"
  std::string direction;  ///< "forward", "backward data", "backward weights"
  std::string
      implementation;  ///< oneDNN's name: "jit:avx2"; one of dtrun's own: "dtrun:few_channels"
};

/// A line for each of `parts` that oneDNN computes without its vector code, with the reason.
///   "layer 0 (conv2d 32 3x3): backward weights is computed slowly, by ref:any: oneDNN 2.6.3 has
///   ..."
std::vector<std::string> SlowParts(const std::vector<LayerImplementation>& parts);

/// Bytes that a layer remembers from a pass for the way back.
struct Memo {
  uint8_t* data = nullptr;  ///< those of the micro-batch at hand
};

/// What layers are built with: owns the memory they share, and outlives them.
///
/// A chunk is `micro_batches` times `micro_batch` examples. Layers before the first dense one take
/// a micro-batch at a time, the others a whole chunk. What the former have to remember for the way
/// back is there once per micro-batch; `Select` points all of them to the one at hand.
class Builder {
 public:
  Builder(int micro_batch, int micro_batches, uint64_t seed);

  /// About the layer that is being built, set by Sequential: its index in the network; the
  /// parameters and buffers it asked for, in that order; whether its output is read in the plain
  /// format; whether its output is read again on the way back; whether it takes micro-batches or
  /// chunks.
  uint32_t layer_index = 0;
  dtrun::Parameter* parameters = nullptr;
  dtrun::NamedBuffer* buffers = nullptr;
  bool plain_output = false;
  bool output_kept = true;
  bool by_micro_batch = false;
  /// Whether the gradient of the layer's input is needed: some layer before has parameters.
  bool input_gradient = true;
  /// Its place and description, for `Report`.
  std::string layer_name;
  /// For layers that exchange data between ranks; null: there is none.
  dtrun::Communicator* communicator = nullptr;
  /// What the layer computes in, and so the type of its output.
  DType dtype = DType::kF32;

  /// Examples per pass of that layer.
  int batch() const { return by_micro_batch ? micro_batch_ : chunk(); }
  int micro_batch() const { return micro_batch_; }
  int micro_batches() const { return micro_batches_; }
  int chunk() const { return micro_batch_ * micro_batches_; }
  uint64_t seed() const { return seed_; }
  dnnl::engine& engine() { return engine_; }
  dnnl::stream& stream() { return stream_; }

  /// A tensor with data, that layer's output.
  Tensor* NewTensor(const Shape& shape, int block, bool relu);
  /// The same memory as `tensor`, seen in another shape with as many values; both are plain.
  Tensor* NewView(const Tensor& tensor, const Shape& shape);
  /// Gives that layer's input, or what Sequential says, memory for its gradient, unless it has
  /// some.
  void GiveGradient(Tensor* tensor);
  /// The input's gradient overwrites what `memory` points to: the input's data, when neither that
  /// layer nor the one before reads it again, or the gradient of the layer's output.
  void PutGradient(Tensor* tensor, float* memory);
  /// Nobody has a use for the gradient any more when layers before run their way back.
  void ReleaseGradient(const Tensor& tensor) { gradients_.Release(tensor.gradient); }
  Memo* NewMemo(size_t bytes);
  /// Zeroed memory.
  float* NewFloats(size_t count);

  /// oneDNN's view of a tensor's format, and of its data or gradient.
  dnnl::memory::desc DescriptionOf(const Tensor& tensor) const;
  dnnl::memory DataOf(const Tensor& tensor);
  dnnl::memory GradientOf(const Tensor& tensor);
  /// Memory of its own for `description`, zeroed.
  dnnl::memory NewMemory(const dnnl::memory::desc& description);

  /// Scratch memory of a primitive: one piece for all, since one primitive runs at a time. Its
  /// place is known after `PlaceScratch`.
  dnnl::memory NewScratch(const dnnl::memory::desc& description);
  void PlaceScratch();

  /// Points to micro-batch `i` of the chunk.
  void Select(int i);

  /// Notes what computes a direction of the layer that is being built.
  void Report(const std::string& direction, const std::string& implementation);
  const std::vector<LayerImplementation>& implementations() const { return implementations_; }

 private:
  // A pointer, or oneDNN's copy of one, that moves by `step` from micro-batch to micro-batch.
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

/// oneDNN's view of `batch` activations in the format that Tensor describes.
dnnl::memory::desc DescribeActivations(
    const Shape& shape, int block, int batch, dnnl::memory::data_type type);

/// A primitive, and reorders around it where it takes other formats than the tensors have. Built in
/// the order Reads and Writes, Append; then run as often as needed.
class PrimitiveSequence {
 public:
  /// Returns the memory that the primitive reads: the tensor's, or a copy in the format `wanted`.
  dnnl::memory Reads(
      Builder& builder, const dnnl::memory& tensor, const dnnl::memory::desc& wanted);
  /// Returns the memory that the primitive writes: the tensor's, or room in the format `made`,
  /// which is copied to the tensor afterwards.
  dnnl::memory Writes(Builder& builder, const dnnl::memory& tensor, const dnnl::memory::desc& made);
  void Append(BoundPrimitive primitive);
  void Run(dnnl::stream& stream) const;

 private:
  std::vector<BoundPrimitive> steps_, deliveries_;
};

/// `block` of the format that oneDNN chose for the activations of `batch` examples; 0 when it is
/// none that Tensor can say.
int BlockOf(const dnnl::memory::desc& description, const Shape& shape, int batch);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_BUILDER_H_
