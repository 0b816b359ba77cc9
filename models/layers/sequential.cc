#include "models/layers/sequential.h"

#include <dtrun/error.h>

#include <algorithm>

#include "models/layers/initial_weights.h"
#include "models/layers/reorder.h"
#include "models/text.h"

namespace dtrun::models {

Sequential::Sequential(const Shape& input, LayerList layers, const SequentialOptions& options)
    : input_shape_(input),
      builder_(options.micro_batch, options.micro_batches, options.seed),
      dtype_(options.dtype == DType::kBF16 && HasBf16() ? DType::kBF16 : DType::kF32) {
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("a network computes in f32 or bf16, got ", NameOf(options.dtype)));
  }
  for (std::unique_ptr<Layer>& layer : layers) {
    layers_.push_back(layer.get());
    entries_.push_back({std::move(layer)});
  }
  MakeParameters(FixShapes(input));
  BuildForward(input);
  BuildBackward();
  builder_.PlaceScratch();
}

std::vector<std::vector<ParameterSpec>> Sequential::FixShapes(const Shape& input) const {
  std::vector<std::vector<ParameterSpec>> specs;
  Shape shape = input;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Layer& layer = *entries_[i].layer;
    try {
      specs.push_back(layer.ParameterSpecs(shape));
      shape = layer.OutputShape(shape);
    } catch (const Error& error) {
      throw Error(error.code(), Text("layer ", i, " (", layer.description(), ") ", error.what()));
    }
  }
  return specs;
}

void Sequential::MakeParameters(const std::vector<std::vector<ParameterSpec>>& specs) {
  size_t count = 0;
  for (const auto& layer : specs) {
    for (const ParameterSpec& spec : layer) count += spec.count();
  }
  values_ = FloatArray(count);
  float* value = values_.data();
  for (size_t i = 0; i < specs.size(); ++i) {
    entries_[i].first_parameter = parameters_.size();
    entries_[i].parameter_count = specs[i].size();
    for (const ParameterSpec& spec : specs[i]) {
      const auto index = static_cast<uint32_t>(parameters_.size());
      WriteInitialWeights(spec, builder_.seed(), index, value);
      parameters_.push_back(
          {Text("layer", i, ".", entries_[i].layer->kind(), ".", spec.name),
           Buffer(value, spec.count()), Buffer(static_cast<float*>(nullptr), spec.count())});
      parameter_shapes_.push_back(spec.shape);
      value += spec.count();
    }
  }
}

// What a layer computes in. The last one's output is seen from outside; a conversion is done for
// the sake of the layer behind it.
DType Sequential::DtypeOf(size_t i) const {
  while (i < entries_.size() && entries_[i].converts) ++i;
  const bool can = i + 1 < entries_.size() && entries_[i].layer->computes_in_bf16();
  return can ? dtype_ : DType::kF32;
}

// What the layers from `reader` on want of the tensor before them. Those that work in place read it
// too; the first that does not decides about its format.
void Sequential::SayWhatIsRead(size_t reader) {
  builder_.output_kept = reader >= head_;
  wanted_dtype_ = DtypeOf(reader);
  for (; reader < entries_.size(); ++reader) {
    const Layer& layer = *entries_[reader].layer;
    builder_.output_kept |= layer.keeps_input();
    builder_.plain_output = layer.needs_plain_input();
    if (!layer.in_place()) return;
  }
  builder_.plain_output = true;
  builder_.output_kept = true;
}

void Sequential::BuildForward(const Shape& input) {
  while (head_ < entries_.size() && !entries_[head_].layer->needs_plain_input()) ++head_;
  SayWhatIsRead(0);
  builder_.output_kept = true;
  builder_.by_micro_batch = head_ > 0;
  Tensor* tensor = builder_.NewTensor(input, input.channels, false);
  input_ = tensor->data;
  const size_t layer_count = entries_.size();
  for (size_t i = 0, layer = 0; layer < layer_count; ++i, ++layer) {
    if (tensor->dtype != wanted_dtype_ || (builder_.plain_output && !tensor->plain()))
      tensor = InsertReorder(i++, tensor);
    builder_.layer_index = static_cast<uint32_t>(layer);
    tensor = BuildEntry(i, tensor);
  }
  if (!tensor->plain()) tensor = InsertReorder(entries_.size(), tensor);
  output_ = tensor;
}

// In front of entry `i`, in the part of the network in which its input was made or is read by
// micro-batch.
Tensor* Sequential::InsertReorder(size_t i, Tensor* input) {
  Entry entry;
  entry.layer = std::make_unique<Reorder>();
  entry.converts = true;
  entries_.insert(entries_.begin() + static_cast<ptrdiff_t>(i), std::move(entry));
  if (i <= head_ && head_ > 0) ++head_;
  return BuildEntry(i, input);
}

Tensor* Sequential::BuildEntry(size_t i, Tensor* input) {
  builder_.by_micro_batch = i < head_;
  builder_.dtype = DtypeOf(i);
  builder_.parameters = parameters_.data() + entries_[i].first_parameter;
  SayWhatIsRead(i + 1);
  return entries_[i].layer->BuildForward(builder_, input);
}

// A gradient is needed wherever a layer before has parameters.
void Sequential::BuildBackward() {
  builder_.by_micro_batch = false;
  builder_.GiveGradient(output_);
  size_t first_trained = 0;
  while (first_trained < entries_.size() && entries_[first_trained].parameter_count == 0)
    ++first_trained;
  for (size_t i = entries_.size(); i-- > first_trained;) {
    entries_[i].input_gradient = i > first_trained;
    builder_.by_micro_batch = i < head_;
    entries_[i].layer->BuildBackward(builder_, entries_[i].input_gradient);
  }
}

std::string Sequential::description() const {
  std::string text;
  for (const Entry& entry : entries_)
    text += Text(text.empty() ? "" : ", ", entry.layer->description());
  return text;
}

void Sequential::PrepareWeights() {
  for (Entry& entry : entries_) entry.layer->PrepareWeights();
}

int Sequential::MicroBatchesOf(int examples) const {
  return (examples + builder_.micro_batch() - 1) / builder_.micro_batch();
}

Pass Sequential::PassOf(const Pass& chunk, int micro_batch, int micro_batches) const {
  Pass pass = chunk;
  pass.first_example += static_cast<uint32_t>(micro_batch * builder_.micro_batch());
  pass.first = chunk.first && micro_batch == 0;
  pass.last = chunk.last && micro_batch + 1 == micro_batches;
  return pass;
}

// Micro-batch by micro-batch up to the first dense layer, and all together from there on.
void Sequential::Forward(const Pass& pass, int examples) {
  const int micro_batches = head_ > 0 ? MicroBatchesOf(examples) : 0;
  for (int m = 0; m < micro_batches; ++m) {
    builder_.Select(m);
    const Pass part = PassOf(pass, m, micro_batches);
    for (size_t i = 0; i < head_; ++i) entries_[i].layer->Forward(part);
  }
  builder_.Select(0);
  for (size_t i = head_; i < entries_.size(); ++i) entries_[i].layer->Forward(pass);
}

void Sequential::Backward(const Pass& pass, int examples, const OnReady& on_ready) {
  for (size_t i = entries_.size(); i-- > head_;) BackwardEntry(entries_[i], pass, on_ready);
  const int micro_batches = head_ > 0 ? MicroBatchesOf(examples) : 0;
  for (int m = 0; m < micro_batches; ++m) {
    builder_.Select(m);
    const Pass part = PassOf(pass, m, micro_batches);
    for (size_t i = head_; i-- > 0;) BackwardEntry(entries_[i], part, on_ready);
  }
  builder_.Select(0);
}

void Sequential::BackwardEntry(Entry& entry, const Pass& pass, const OnReady& on_ready) {
  if (entry.parameter_count > 0) {
    entry.layer->BackwardWeights(pass);
    for (size_t p = entry.parameter_count; pass.last && p-- > 0;)
      on_ready(entry.first_parameter + p);
  }
  if (entry.input_gradient) entry.layer->BackwardData(pass);
}

}  // namespace dtrun::models
