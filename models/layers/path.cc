#include "models/layers/path.h"

#include <dtrun/error.h>

#include <algorithm>

#include "models/layers/registry.h"
#include "models/layers/reorder.h"
#include "models/text.h"

namespace dtrun::models {

Path::Path(std::string name, std::vector<std::unique_ptr<Layer>> layers) : name_(std::move(name)) {
  for (std::unique_ptr<Layer>& layer : layers) entries_.push_back({std::move(layer)});
}

std::string Path::description() const {
  std::string text;
  for (const Entry& entry : entries_)
    text += Text(text.empty() ? "" : ", ", entry.layer->description());
  return text;
}

std::vector<LayerConfig> Path::configs() const {
  std::vector<LayerConfig> configs;
  for (const Entry& entry : entries_) configs.push_back(ConfigOf(*entry.layer));
  return configs;
}

// Calls visit(index, layer, its input) from layer to layer and returns the output's shape.
template <typename Visit>
Shape Path::Walk(const Shape& input, const Visit& visit) const {
  Shape shape = input;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Layer& layer = *entries_[i].layer;
    try {
      const Shape output = layer.OutputShape(shape);
      visit(i, layer, shape);
      shape = output;
    } catch (const Error& error) {
      throw Error(error.code(), Text(name_, " ", i, " (", layer.description(), ") ", error.what()));
    }
  }
  return shape;
}

Shape Path::OutputShape(const Shape& input) const {
  return Walk(input, [&](size_t i, const Layer& layer, const Shape&) {
    if (layer.in_place() && (i == 0 || i + 1 == entries_.size())) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "works in place, expected a layer that does not as the first and the last one of a path");
    }
  });
}

std::vector<ParameterSpec> Path::ParameterSpecs(const Shape& input) const {
  std::vector<ParameterSpec> specs;
  Walk(input, [&](size_t i, const Layer& layer, const Shape& shape) {
    for (ParameterSpec& spec : layer.ParameterSpecs(shape)) {
      spec.name = Text(name_, i, ".", layer.kind(), ".", spec.name);
      specs.push_back(std::move(spec));
    }
  });
  return specs;
}

std::vector<ParameterSpec> Path::BufferSpecs(const Shape& input) const {
  std::vector<ParameterSpec> specs;
  Walk(input, [&](size_t i, const Layer& layer, const Shape& shape) {
    for (ParameterSpec& spec : layer.BufferSpecs(shape)) {
      spec.name = Text(name_, i, ".", layer.kind(), ".", spec.name);
      specs.push_back(std::move(spec));
    }
  });
  return specs;
}

bool Path::needs_whole_share() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.layer->needs_whole_share();
  });
}

bool Path::synchronizes() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.layer->synchronizes();
  });
}

// A layer that needs the plain format gets a Reorder in front of it where it finds another one.
Tensor* Path::BuildForward(Builder& builder, Tensor* input) {
  const uint32_t outer = builder.layer_index;
  const bool plain_output = builder.plain_output, output_kept = builder.output_kept;
  const bool input_gradient = builder.input_gradient;
  const std::string layer_name = builder.layer_name;
  builder.output_kept = true;
  for (size_t i = 0; i < entries_.size(); ++i) {
    // Random numbers of layers inside others never are those of another layer.
    builder.layer_index = 0x800000 | ((outer * 64 + uint32_t(i)) & 0x7fffff);
    if (entries_[i].layer->needs_plain_input() && !input->plain()) {
      Entry reorder{std::make_unique<Reorder>()};
      entries_.insert(entries_.begin() + static_cast<ptrdiff_t>(i), std::move(reorder));
    }
    builder.layer_name = NameOf(layer_name, i);
    input = BuildEntry(builder, i, input);
    builder.input_gradient |= entries_[i].parameter_count > 0;
  }
  builder.layer_index = outer;
  builder.input_gradient = input_gradient;
  builder.layer_name = layer_name;
  builder.plain_output = plain_output;
  builder.output_kept = output_kept;
  return input;
}

Tensor* Path::BuildEntry(Builder& builder, size_t i, Tensor* input) {
  Entry& entry = entries_[i];
  builder.plain_output = i + 1 < entries_.size() && entries_[i + 1].layer->needs_plain_input();
  entry.input = input;
  entry.parameter_count = entry.layer->ParameterSpecs(input->shape).size();
  dtrun::Parameter* const behind = builder.parameters + entry.parameter_count;
  dtrun::NamedBuffer* const buffers_behind =
      builder.buffers + entry.layer->BufferSpecs(input->shape).size();
  entry.output = entry.layer->BuildForward(builder, input);
  builder.parameters = behind;
  builder.buffers = buffers_behind;
  return entry.output;
}

// A gradient is needed wherever a layer before has parameters, or the input wants it.
void Path::BuildBackward(Builder& builder, bool input_gradient) {
  const std::string layer_name = builder.layer_name;
  size_t first = 0;
  if (!input_gradient) {
    while (first < entries_.size() && entries_[first].parameter_count == 0) ++first;
  }
  for (size_t i = entries_.size(); i-- > first;) {
    Entry& entry = entries_[i];
    entry.input_gradient = input_gradient || i > first;
    builder.layer_name = NameOf(layer_name, i);
    entry.layer->BuildBackward(builder, entry.input_gradient);
    if (i + 1 < entries_.size() && entry.output->gradient != entry.input->gradient)
      builder.ReleaseGradient(*entry.output);
  }
  builder.layer_name = layer_name;
}

std::string Path::NameOf(const std::string& outer, size_t i) const {
  return Text(outer, ", ", name_, " ", i, " (", entries_[i].layer->description(), ")");
}

void Path::PrepareWeights() {
  for (Entry& entry : entries_) entry.layer->PrepareWeights();
}

void Path::Forward(const Pass& pass) {
  for (Entry& entry : entries_) entry.layer->Forward(pass);
}

void Path::Backward(const Pass& pass) {
  for (size_t i = entries_.size(); i-- > 0;) {
    Entry& entry = entries_[i];
    if (entry.parameter_count > 0) entry.layer->BackwardWeights(pass);
    if (entry.input_gradient) entry.layer->BackwardData(pass);
  }
}

}  // namespace dtrun::models
