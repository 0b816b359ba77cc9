#include "models/layers/builder.h"

#include <algorithm>
#include <utility>

#include "models/layers/convolution_plan.h"
#include "models/layers/layer_plumbing.h"
#include "models/message_text.h"
#include "models/onednn/onednn.h"

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

// Number of floats with room for `bytes` bytes.
size_t FloatsFor(size_t bytes) { return (bytes + sizeof(float) - 1) / sizeof(float); }

}  // namespace

memory::desc DescribeActivations(const Shape& shape, int block, int batch, memory::data_type type) {
  return memory::desc(
      {batch, shape.channels, shape.height, shape.width}, type, TagOf(block, shape));
}

int BlockOf(const memory::desc& description, const Shape& shape, int batch) {
  for (int block : {shape.channels, 16, 8, 4, 1}) {
    if (description == DescribeActivations(shape, block, batch, onednn::TypeOf(description)))
      return block;
  }
  return 0;
}

memory::data_type DataTypeOf(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// An instruction set is a set of bits. It includes the bits of every instruction set that it
// contains.
bool HasBf16() {
  const auto needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & needed) == needed;
}

std::vector<std::string> SlowParts(const std::vector<LayerImplementation>& parts) {
  std::vector<std::string> slow;
  for (const LayerImplementation& part : parts) {
    if (!IsReference(part.implementation)) continue;
    slow.push_back(Text(
        part.layer, ": ", part.direction, " is computed slowly, by ", part.implementation,
        ": oneDNN ", onednn::Version(), " has nothing faster for it on ",
        onednn::InstructionSet()));
  }
  return slow;
}

BoundPrimitive::BoundPrimitive(dnnl::primitive primitive, std::unordered_map<int, memory> arguments)
    : primitive_(std::move(primitive)), owned_(std::move(arguments)) {
  for (const auto& [argument, piece] : owned_) arguments_.push_back({argument, piece.get(true)});
}

// primitive::execute would build the list of arguments in each call.
void BoundPrimitive::Run(dnnl::stream& stream) const {
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(
          primitive_.get(), stream.get(), static_cast<int>(arguments_.size()), arguments_.data()),
      "oneDNN could not execute a primitive");
}

memory PrimitiveSequence::Reads(
    Builder& builder, const memory& tensor, const memory::desc& wanted) {
  if (tensor.get_desc() == wanted) return tensor;
  const memory copy = builder.NewMemory(wanted);
  steps_.push_back(BoundReorder(tensor, copy));
  return copy;
}

memory PrimitiveSequence::Writes(Builder& builder, const memory& tensor, const memory::desc& made) {
  if (tensor.get_desc() == made) return tensor;
  const memory room = builder.NewMemory(made);
  deliveries_.push_back(BoundReorder(room, tensor));
  return room;
}

void PrimitiveSequence::Append(BoundPrimitive primitive) {
  steps_.push_back(std::move(primitive));
  for (BoundPrimitive& delivery : deliveries_) steps_.push_back(std::move(delivery));
  deliveries_.clear();
}

void PrimitiveSequence::Run(dnnl::stream& stream) const {
  for (const BoundPrimitive& step : steps_) step.Run(stream);
}

BoundPrimitive BoundReorder(const memory& from, const memory& to) {
  return {dnnl::reorder(from, to), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}};
}

Builder::Builder(int micro_batch, int micro_batches, uint64_t seed)
    : micro_batch_(micro_batch),
      micro_batches_(micro_batches),
      seed_(seed),
      engine_(dnnl::engine::kind::cpu, 0),
      stream_(engine_) {}

Tensor* Builder::NewTensor(const Shape& shape, int block, bool relu) {
  Tensor& tensor = tensors_.emplace_back(Tensor{shape, block, relu});
  tensor.dtype = dtype;
  const bool moves = by_micro_batch && output_kept;
  const int examples = moves ? chunk() : batch();
  tensor.data = NewFloats(FloatsFor(size_t(examples) * tensor.stride() * tensor.value_size()));
  if (moves) {
    tensor.step = size_t(micro_batch_) * tensor.stride();
    MoveWithMicroBatch(tensor.data, tensor);
  }
  return &tensor;
}

Tensor* Builder::NewView(const Tensor& tensor, const Shape& shape) {
  Tensor& view = tensors_.emplace_back(tensor);
  view.shape = shape;
  view.block = shape.channels;
  view.step = 0;
  return &view;
}

void Builder::GiveGradient(Tensor* tensor) {
  if (tensor->gradient != nullptr) return;
  const size_t count = FloatsFor(size_t(batch()) * tensor->stride() * tensor->value_size());
  PutGradient(tensor, by_micro_batch ? NewFloats(count) : gradients_.Take(count));
}

// A tensor may be made by micro-batch and read by chunk. Its gradient is then made for a whole
// chunk and read by micro-batch.
void Builder::PutGradient(Tensor* tensor, float* memory) {
  tensor->gradient = memory;
  if (!by_micro_batch && tensor->step != 0) MoveWithMicroBatch(tensor->gradient, *tensor);
}

Memo* Builder::NewMemo(size_t bytes) {
  const auto parts = size_t(by_micro_batch ? micro_batches_ : 1);
  auto* first = reinterpret_cast<uint8_t*>(NewFloats(parts * bytes / sizeof(float) + 1));
  Memo& memo = memos_.emplace_back(Memo{first});
  if (by_micro_batch) moving_memos_.push_back({&memo, first, bytes});
  return &memo;
}

float* Builder::NewFloats(size_t count) { return memory_.emplace_back(count).data(); }

void Builder::MoveWithMicroBatch(float*& pointer, const Tensor& tensor) {
  auto* first = reinterpret_cast<uint8_t*>(pointer);
  moving_floats_.push_back({&pointer, first, tensor.step * tensor.value_size()});
}

memory::desc Builder::DescriptionOf(const Tensor& tensor) const {
  return DescribeActivations(tensor.shape, tensor.block, batch(), DataTypeOf(tensor.dtype));
}

// A view of the memory at `pointer`. Select moves the view with the pointer.
memory Builder::Bind(const Tensor& tensor, float* const& pointer) {
  const memory view(DescriptionOf(tensor), engine_, pointer);
  for (const Moving<float**>& moving : moving_floats_) {
    if (moving.target == &pointer) moving_views_.push_back({view, moving.first, moving.step});
  }
  return view;
}

memory Builder::DataOf(const Tensor& tensor) { return Bind(tensor, tensor.data); }
memory Builder::GradientOf(const Tensor& tensor) { return Bind(tensor, tensor.gradient); }

memory Builder::NewMemory(const memory::desc& description) {
  return memory(description, engine_, NewFloats(FloatsFor(description.get_size())));
}

memory Builder::NewScratch(const memory::desc& description) {
  scratch_bytes_ = std::max(scratch_bytes_, description.get_size());
  return scratch_.emplace_back(memory(description, engine_, DNNL_MEMORY_NONE));
}

void Builder::PlaceScratch() {
  float* scratch = NewFloats(scratch_bytes_ / sizeof(float) + 1);
  for (memory& piece : scratch_) piece.set_data_handle(scratch);
}

void Builder::Select(int i) {
  const auto index = static_cast<size_t>(i);
  for (const auto& moving : moving_floats_)
    *moving.target = reinterpret_cast<float*>(moving.first + index * moving.step);
  for (const auto& moving : moving_memos_) moving.target->data = moving.first + index * moving.step;
  for (auto& moving : moving_views_)
    moving.target.set_data_handle(moving.first + index * moving.step);
}

void Builder::Report(const std::string& direction, const std::string& implementation) {
  implementations_.push_back({layer_name, direction, implementation});
}

// Takes the smallest free piece that is large enough. Makes a new piece only if there is none.
float* GradientPool::Take(size_t count) {
  Piece* best = nullptr;
  for (Piece& piece : pieces_) {
    if (piece.taken || piece.floats.count() < count) continue;
    if (best == nullptr || piece.floats.count() < best->floats.count()) best = &piece;
  }
  if (best == nullptr) best = &pieces_.emplace_back(Piece{FloatArray(count)});
  best->taken = true;
  return best->floats.data();
}

void GradientPool::Release(const float* memory) {
  for (Piece& piece : pieces_) {
    if (piece.floats.data() == memory) piece.taken = false;
  }
}

struct Reorder::Impl {
  Builder* builder;
  Tensor *input, *output;
  BoundPrimitive forward, backward;
};

Reorder::Reorder() = default;
Reorder::~Reorder() = default;

// The output has the ReLU flag of the input. Therefore the layer that writes its gradient applies
// the ReLU.
Tensor* Reorder::BuildForward(Builder& builder, Tensor* input) {
  const int block = builder.plain_output ? input->shape.channels : input->block;
  Tensor* output = builder.NewTensor(input->shape, block, input->relu);
  impl_ = std::make_unique<Impl>(Impl{&builder, input, output, {}, {}});
  impl_->forward = BoundReorder(builder.DataOf(*input), builder.DataOf(*output));
  return output;
}

void Reorder::BuildBackward(Builder& builder, bool input_gradient) {
  if (!input_gradient) return;
  Tensor &input = *impl_->input, &output = *impl_->output;
  builder.GiveGradient(&input);
  impl_->backward = BoundReorder(builder.GradientOf(output), builder.GradientOf(input));
}

void Reorder::Forward(const Pass&) { impl_->forward.Run(impl_->builder->stream()); }

void Reorder::BackwardData(const Pass&) { impl_->backward.Run(impl_->builder->stream()); }

}  // namespace dtrun::models
