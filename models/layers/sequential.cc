// Forward runs the entries before head_ once per micro-batch, then the other entries once per
// chunk. Backward runs the other entries first, then the entries before head_ once per micro-batch.
// It reports each parameter as soon as its gradient is complete. BuildForward inserts a Reorder
// where two layers disagree on the format or the dtype of a tensor.

#include "models/layers/sequential.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "models/layers/cpu_kernels.h"
#include "models/layers/layer.h"
#include "models/layers/layer_plumbing.h"
#include "models/message_text.h"
#include "models/random/philox.h"

namespace dtrun::models {

/// Writes the initial value of parameter `index` of the network (see ParameterSpec). A pure
/// function of its arguments.
void WriteInitialWeights(const ParameterSpec& spec, uint64_t seed, uint32_t index, float* value);

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
  const std::vector<LayerSpecs> specs = FixShapes(input);
  MakeParameters(specs);
  MakeBuffers(specs);
  if (options.communicator != nullptr && synchronizes()) {
    communicator_.emplace(options.communicator->Duplicate());
    builder_.communicator = &*communicator_;
  }
  BuildForward(input);
  BuildBackward();
  builder_.PlaceScratch();
}

std::vector<Sequential::LayerSpecs> Sequential::FixShapes(const Shape& input) const {
  std::vector<LayerSpecs> specs;
  Shape shape = input;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Layer& layer = *entries_[i].layer;
    try {
      const Shape output = layer.OutputShape(shape);
      specs.push_back({layer.ParameterSpecs(shape), layer.BufferSpecs(shape)});
      shape = output;
    } catch (const Error& error) {
      throw Error(error.code(), Text("layer ", i, " (", layer.description(), ") ", error.what()));
    }
  }
  return specs;
}

std::string Sequential::ParameterName(size_t i, const ParameterSpec& spec) const {
  return Text("layer", i, ".", entries_[i].layer->kind(), ".", spec.name);
}

void Sequential::MakeParameters(const std::vector<LayerSpecs>& specs) {
  size_t count = 0;
  for (const LayerSpecs& layer : specs) {
    for (const ParameterSpec& spec : layer.parameters) count += spec.count();
  }
  values_ = FloatArray(count);
  float* value = values_.data();
  for (size_t i = 0; i < specs.size(); ++i) {
    entries_[i].first_parameter = parameters_.size();
    entries_[i].parameter_count = specs[i].parameters.size();
    for (const ParameterSpec& spec : specs[i].parameters) {
      const auto index = static_cast<uint32_t>(parameters_.size());
      WriteInitialWeights(spec, builder_.seed(), index, value);
      parameters_.push_back(
          {ParameterName(i, spec), Buffer(value, spec.count()),
           Buffer(static_cast<float*>(nullptr), spec.count())});
      l2_.push_back(spec.l2);
      parameter_shapes_.push_back(spec.shape);
      value += spec.count();
    }
  }
}

void Sequential::MakeBuffers(const std::vector<LayerSpecs>& specs) {
  size_t count = 0;
  for (const LayerSpecs& layer : specs) {
    for (const ParameterSpec& spec : layer.buffers) count += spec.count();
  }
  if (count == 0) return;
  buffer_values_ = FloatArray(count);
  float* value = buffer_values_.data();
  for (size_t i = 0; i < specs.size(); ++i) {
    entries_[i].first_buffer = buffers_.size();
    for (const ParameterSpec& spec : specs[i].buffers) {
      std::fill_n(value, spec.count(), spec.value);
      buffers_.push_back({ParameterName(i, spec), Buffer(value, spec.count())});
      value += spec.count();
    }
  }
}

// The dtype that entry `i` computes in. The last layer computes in f32, because its output is
// public. A conversion has the dtype of the layer behind it.
DType Sequential::DtypeOf(size_t i) const {
  while (i < entries_.size() && entries_[i].converts) ++i;
  const bool can = i + 1 < entries_.size() && entries_[i].layer->computes_in_bf16();
  return can ? dtype_ : DType::kF32;
}

// Tells the builder how the layers from `reader` on read the tensor before them. Layers that work
// in place also read the tensor. The first layer that does not work in place decides the format.
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
  const auto takes_chunks = [](const Entry& entry) {
    return entry.layer->needs_plain_input() || entry.layer->takes_chunks();
  };
  while (head_ < entries_.size() && !takes_chunks(entries_[head_])) ++head_;
  SayWhatIsRead(0);
  builder_.output_kept = true;
  builder_.by_micro_batch = head_ > 0;
  Tensor* tensor = builder_.NewTensor(input, input.channels, false);
  input_tensor_ = tensor;
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

// Inserts a Reorder before entry `i`. The Reorder takes micro-batches if its input is made or read
// by micro-batch.
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
  NameEntry(i);
  builder_.input_gradient = std::any_of(
      entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(i),
      [](const Entry& entry) { return entry.parameter_count > 0; });
  builder_.parameters = parameters_.data() + entries_[i].first_parameter;
  builder_.buffers = buffers_.data() + entries_[i].first_buffer;
  SayWhatIsRead(i + 1);
  try {
    return entries_[i].output = entries_[i].layer->BuildForward(builder_, input);
  } catch (const Error& error) {
    throw Error(error.code(), Text(builder_.layer_name, " ", error.what()));
  }
}

// Names an entry by its index in the user's list. A conversion gets the index of the layer that
// reads it.
void Sequential::NameEntry(size_t i) {
  size_t index = 0;
  for (size_t before = 0; before < i; ++before) index += !entries_[before].converts;
  builder_.layer_name = Text("layer ", index, " (", entries_[i].layer->description(), ")");
}

// A layer needs the gradient of its input if a layer before has parameters.
void Sequential::BuildBackward() {
  builder_.by_micro_batch = false;
  builder_.GiveGradient(output_);
  size_t first_trained = 0;
  while (first_trained < entries_.size() && entries_[first_trained].parameter_count == 0)
    ++first_trained;
  for (size_t i = entries_.size(); i-- > first_trained;) {
    entries_[i].input_gradient = i > first_trained;
    builder_.by_micro_batch = i < head_;
    NameEntry(i);
    entries_[i].layer->BuildBackward(builder_, entries_[i].input_gradient);
    ReleaseGradientOf(i);
  }
}

// Releases the gradient of a tensor after the backward pass of the layer that made it, unless the
// layer works in place. The gradient of the network's output belongs to the loss.
void Sequential::ReleaseGradientOf(size_t i) {
  const Tensor &input = i > 0 ? *entries_[i - 1].output : *input_tensor_,
               &output = *entries_[i].output;
  if (output.gradient != input.gradient && output.gradient != output_->gradient)
    builder_.ReleaseGradient(output);
}

bool Sequential::synchronizes() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.layer->synchronizes();
  });
}

void Sequential::CheckWholeShare(const Pass& pass) const {
  if (!pass.training || (pass.first && pass.last)) return;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].layer->needs_whole_share()) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "layer ", i, " (", entries_[i].layer->description(),
            ") needs all examples of a rank's share in one pass, got a part of them: the model "
            "has room for micro_batch ",
            builder_.micro_batch(), " * micro_batches ", builder_.micro_batches(), " = ", chunk()));
  }
}

double Sequential::RegularizationLoss() const {
  double loss = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (l2_[i] == 0) continue;
    const auto* value = static_cast<const float*>(parameters_[i].value.data);
    loss += l2_[i] * SumOfSquares(value, parameters_[i].value.count);
  }
  return loss;
}

void Sequential::AddRegularization(const Pass& pass, size_t i) {
  const auto factor = static_cast<float>(2 * l2_[i] * pass.regularization_scale);
  if (factor == 0) return;
  const Buffer& value = parameters_[i].value;
  AddScaled(
      static_cast<const float*>(value.data), value.count, factor,
      static_cast<float*>(parameters_[i].gradient.data));
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
  return (std::max(examples, 1) + builder_.micro_batch() - 1) / builder_.micro_batch();
}

Pass Sequential::PassOf(const Pass& chunk, int micro_batch, int micro_batches) const {
  Pass pass = chunk;
  const int done = micro_batch * builder_.micro_batch();
  pass.examples = std::min(builder_.micro_batch(), chunk.examples - done);
  pass.first_example += static_cast<uint32_t>(done);
  pass.first = chunk.first && micro_batch == 0;
  pass.last = chunk.last && micro_batch + 1 == micro_batches;
  return pass;
}

// The layers before head_ take micro-batches, the others take the chunk.
void Sequential::Forward(const Pass& chunk, int examples) {
  CheckWholeShare(chunk);
  Pass pass = chunk;
  pass.examples = examples;
  const int micro_batches = head_ > 0 ? MicroBatchesOf(examples) : 0;
  for (int m = 0; m < micro_batches; ++m) {
    builder_.Select(m);
    const Pass part = PassOf(pass, m, micro_batches);
    for (size_t i = 0; i < head_; ++i) entries_[i].layer->Forward(part);
  }
  builder_.Select(0);
  for (size_t i = head_; i < entries_.size(); ++i) entries_[i].layer->Forward(pass);
}

void Sequential::Backward(const Pass& chunk, int examples, const OnReady& on_ready) {
  Pass pass = chunk;
  pass.examples = examples;
  if (output_->relu) {
    MaskByRelu(output_->data, size_t(examples) * output_->stride(), output_->gradient);
  }
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
    for (size_t p = entry.parameter_count; pass.last && p-- > 0;) {
      AddRegularization(pass, entry.first_parameter + p);
      on_ready(entry.first_parameter + p);
    }
  }
  if (entry.input_gradient) entry.layer->BackwardData(pass);
}

void Sequential::ZeroGradients(const Pass& pass, const OnReady& on_ready) {
  for (size_t i = parameters_.size(); i-- > 0;) {
    std::memset(parameters_[i].gradient.data, 0, parameters_[i].gradient.bytes());
    AddRegularization(pass, i);
    on_ready(i);
  }
}

namespace {

// Uniform in (-1, 1) and symmetric. Uses the upper 24 bits, the precision of a float.
float SymmetricUniform(uint32_t word) {
  return (static_cast<float>(word >> 8) + 0.5f) * 0x1p-23f - 1.0f;
}

// Normal numbers in pairs: G. E. P. Box, M. E. Muller, Annals of Mathematical Statistics 29 (1958).
void WriteNormal(double deviation, PhiloxKey key, uint32_t domain, size_t count, float* value) {
  PhiloxCounter counter{0, 0, 0, domain};
  for (size_t i = 0; i < count; i += 2, ++counter[0]) {
    const auto words = Philox4x32(counter, key);
    const double radius = deviation * std::sqrt(-2 * std::log((words[0] + 0.5) * 0x1p-32));
    const double angle = 2 * M_PI * (words[1] * 0x1p-32);
    value[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < count) value[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

}  // namespace

size_t ParameterSpec::count() const {
  size_t product = 1;
  for (int dim : shape) product *= size_t(dim);
  return product;
}

void WriteInitialWeights(const ParameterSpec& spec, uint64_t seed, uint32_t index, float* value) {
  const size_t count = spec.count();
  if (spec.fan_in == 0) {
    std::fill_n(value, count, spec.value);
    return;
  }
  if (spec.initializer == Initializer::kHeNormal) {
    return WriteNormal(
        std::sqrt(2.0 / spec.fan_out), KeyOfSeed(seed),
        RandomDomain(RandomUse::kInitialWeights, index), count, value);
  }
  const float limit = std::sqrt(6.0f / static_cast<float>(spec.fan_in + spec.fan_out));
  PhiloxCounter counter{0, 0, 0, RandomDomain(RandomUse::kInitialWeights, index)};
  for (size_t i = 0; i < count; i += 4, ++counter[0]) {
    const auto words = Philox4x32(counter, KeyOfSeed(seed));
    for (size_t j = i; j < std::min(i + 4, count); ++j)
      value[j] = limit * SymmetricUniform(words[j - i]);
  }
}

}  // namespace dtrun::models
