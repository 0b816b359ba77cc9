#include "models/layers/builder.h"

#include <algorithm>

namespace dtrun::models {
namespace {

using dnnl::memory;

memory::format_tag TagOf(int block, const Shape& shape) {
  if (block == 1) return memory::format_tag::nchw;
  if (block == shape.channels) return memory::format_tag::nhwc;
  if (block == 4) return memory::format_tag::nChw4c;
  if (block == 8) return memory::format_tag::nChw8c;
  return memory::format_tag::nChw16c;
}

memory::desc Describe(const Shape& shape, int block, int micro_batch) {
  return memory::desc(
      {micro_batch, shape.channels, shape.height, shape.width}, memory::data_type::f32,
      TagOf(block, shape));
}

}  // namespace

int BlockOf(const memory::desc& description, const Shape& shape, int micro_batch) {
  for (int block : {shape.channels, 16, 8, 4, 1}) {
    if (description == Describe(shape, block, micro_batch)) return block;
  }
  return 0;
}

BoundPrimitive BoundReorder(const memory& from, const memory& to) {
  return {dnnl::reorder(from, to), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}};
}

Builder::Builder(int micro_batch, uint64_t seed)
    : micro_batch_(micro_batch),
      seed_(seed),
      engine_(dnnl::engine::kind::cpu, 0),
      stream_(engine_) {}

Tensor* Builder::NewTensor(const Shape& shape, int block, bool relu) {
  Tensor& tensor = tensors_.emplace_back(Tensor{shape, block, relu});
  tensor.data = NewFloats(size_t(micro_batch_) * tensor.stride());
  return &tensor;
}

float* Builder::NewFloats(size_t count) { return memory_.emplace_back(count).data(); }

memory::desc Builder::DescriptionOf(const Tensor& tensor) const {
  return Describe(tensor.shape, tensor.block, micro_batch_);
}

memory Builder::MemoryOf(const Tensor& tensor, float* at) {
  return memory(DescriptionOf(tensor), engine_, at);
}

memory Builder::NewMemory(const memory::desc& description) {
  return memory(description, engine_, NewFloats(description.get_size() / sizeof(float)));
}

dnnl::primitive_attr Builder::ScratchAttribute() const {
  dnnl::primitive_attr attribute;
  attribute.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attribute;
}

memory Builder::NewScratch(const memory::desc& description) {
  scratch_bytes_ = std::max(scratch_bytes_, description.get_size());
  return scratch_.emplace_back(memory(description, engine_, DNNL_MEMORY_NONE));
}

void Builder::PlaceScratch() {
  float* scratch = NewFloats(scratch_bytes_ / sizeof(float) + 1);
  for (memory& piece : scratch_) piece.set_data_handle(scratch);
}

}  // namespace dtrun::models
