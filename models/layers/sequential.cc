#include "models/layers/sequential.h"

#include <dtrun/error.h>

#include <algorithm>

#include "models/layers/initial_weights.h"
#include "models/layers/reorder.h"
#include "models/text.h"

namespace dtrun::models {

Sequential::Sequential(const Shape& input, LayerList layers, const SequentialOptions& options)
    : builder_(options.micro_batch, options.seed) {
  for (std::unique_ptr<Layer>& layer : layers) entries_.push_back({std::move(layer)});
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
      value += spec.count();
    }
  }
}

// The first layer that changes its input's place decides which format it is read in.
bool Sequential::OutputReadPlain(size_t entry) const {
  const auto reader = std::find_if(
      entries_.begin() + static_cast<ptrdiff_t>(entry) + 1, entries_.end(),
      [](const Entry& e) { return !e.layer->in_place(); });
  return reader == entries_.end() || reader->layer->needs_plain_input();
}

void Sequential::BuildForward(const Shape& input) {
  input_ = builder_.NewTensor(input, input.channels, false);
  Tensor* tensor = input_;
  const size_t layer_count = entries_.size();
  for (size_t i = 0, layer = 0; layer < layer_count; ++i, ++layer) {
    builder_.layer_index = static_cast<uint32_t>(layer);
    builder_.parameters = parameters_.data() + entries_[i].first_parameter;
    builder_.plain_output = OutputReadPlain(i);
    tensor = entries_[i].layer->BuildForward(builder_, tensor);
    if (builder_.plain_output && !tensor->plain()) {
      const auto after = entries_.begin() + static_cast<ptrdiff_t>(++i);
      entries_.insert(after, Entry{std::make_unique<Reorder>()});
      tensor = entries_[i].layer->BuildForward(builder_, tensor);
    }
  }
  output_ = tensor;
}

// A gradient is needed wherever a layer before has parameters.
void Sequential::BuildBackward() {
  output_->gradient = builder_.NewGradient(*output_);
  size_t first_trained = 0;
  while (first_trained < entries_.size() && entries_[first_trained].parameter_count == 0)
    ++first_trained;
  for (size_t i = entries_.size(); i-- > 0;) {
    entries_[i].input_gradient = i > first_trained;
    if (i >= first_trained) entries_[i].layer->BuildBackward(builder_, entries_[i].input_gradient);
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

void Sequential::Forward(const Pass& pass) {
  for (Entry& entry : entries_) entry.layer->Forward(pass);
}

void Sequential::Backward(const Pass& pass, const std::function<void(size_t)>& on_ready) {
  for (size_t i = entries_.size(); i-- > 0;) {
    Entry& entry = entries_[i];
    if (entry.parameter_count > 0) {
      entry.layer->BackwardWeights(pass);
      for (size_t p = entry.parameter_count; pass.last && p-- > 0;)
        on_ready(entry.first_parameter + p);
    }
    if (entry.input_gradient) entry.layer->BackwardData(pass);
  }
}

}  // namespace dtrun::models
