#ifndef DTRUN_MODELS_LAYERS_BUILDER_H_
#define DTRUN_MODELS_LAYERS_BUILDER_H_

#include <dtrun/optimizer.h>

#include <deque>
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "models/layers/tensor.h"

namespace dtrun::models {

/// A oneDNN primitive with its arguments bound, so that running it builds nothing.
class BoundPrimitive {
 public:
  BoundPrimitive() = default;
  BoundPrimitive(dnnl::primitive primitive, std::unordered_map<int, dnnl::memory> arguments)
      : primitive_(std::move(primitive)), arguments_(std::move(arguments)) {}
  void Run(dnnl::stream& stream) const { primitive_.execute(stream, arguments_); }

 private:
  dnnl::primitive primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

/// Copies `from` to `to`, which says the format.
BoundPrimitive BoundReorder(const dnnl::memory& from, const dnnl::memory& to);

/// What layers are built with: owns the memory they share, and outlives them.
class Builder {
 public:
  Builder(int micro_batch, uint64_t seed);

  int micro_batch() const { return micro_batch_; }
  uint64_t seed() const { return seed_; }
  dnnl::engine& engine() { return engine_; }
  dnnl::stream& stream() { return stream_; }

  /// About the layer that is being built. Its index in the network; the parameters it asked for, in
  /// that order; whether its output is read in the plain format.
  uint32_t layer_index = 0;
  dtrun::Parameter* parameters = nullptr;
  bool plain_output = false;

  /// A tensor with data for a micro-batch.
  Tensor* NewTensor(const Shape& shape, int block, bool relu);
  /// Zeroed memory.
  float* NewFloats(size_t count);
  float* NewGradient(const Tensor& tensor) {
    return NewFloats(size_t(micro_batch_) * tensor.stride());
  }

  /// oneDNN's view of a tensor's format, and the memory there: data or gradient.
  dnnl::memory::desc DescriptionOf(const Tensor& tensor) const;
  dnnl::memory MemoryOf(const Tensor& tensor, float* at);
  /// Memory of its own for `description`, zeroed.
  dnnl::memory NewMemory(const dnnl::memory::desc& description);

  /// An attribute that makes primitives take scratch memory from their caller, and that memory: one
  /// piece for all, since one primitive runs at a time. Its place is known after `PlaceScratch`.
  dnnl::primitive_attr ScratchAttribute() const;
  dnnl::memory NewScratch(const dnnl::memory::desc& description);
  void PlaceScratch();

 private:
  int micro_batch_;
  uint64_t seed_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::deque<Tensor> tensors_;
  std::deque<FloatArray> memory_;
  std::vector<dnnl::memory> scratch_;
  size_t scratch_bytes_ = 0;
};

/// `block` of the format that oneDNN chose for an activation of `shape`; 0 when it is none that
/// Tensor can say.
int BlockOf(const dnnl::memory::desc& description, const Shape& shape, int micro_batch);

}  // namespace dtrun::models

#endif
