#include "models/formats/layer_shapes.h"

#include <dtrun/error.h>

#include "models/text.h"

namespace dtrun::models {
namespace {

constexpr double kMostActivations = 1 << 24, kMostParameters = 1u << 31;

[[noreturn]] void Refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

void CheckSize(const Shape& shape) {
  if (shape.height < 1 || shape.width < 1 || shape.channels < 1)
    Refuse(Text("gives an output of ", ToString(shape), ", expected one with values"));
  if (double(shape.height) * shape.width * shape.channels > kMostActivations)
    Refuse(Text("is too large: ", ToString(shape), " values of one example"));
}

void CheckSize(const std::vector<ParameterSpec>& specs) {
  for (const ParameterSpec& spec : specs) {
    double count = 1;
    for (int size : spec.shape) {
      if (size < 1) Refuse(Text(spec.name, " has a size of ", size));
      count *= size;
    }
    if (count > kMostParameters)
      Refuse(Text("is too large: ", count, " values of its ", spec.name));
  }
}

LayerShapes OneOf(const Layer& layer, const Shape& input) {
  LayerShapes shapes{&layer, input, layer.OutputShape(input), {}, {}};
  CheckSize(shapes.output);
  shapes.parameters = layer.ParameterSpecs(input);
  shapes.buffers = layer.BufferSpecs(input);
  CheckSize(shapes.parameters);
  CheckSize(shapes.buffers);
  return shapes;
}

}  // namespace

std::vector<LayerShapes> ShapesOf(const Shape& input, const std::vector<const Layer*>& layers) {
  std::vector<LayerShapes> all;
  Shape shape = input;
  for (const Layer* layer : layers) {
    try {
      all.push_back(OneOf(*layer, shape));
    } catch (const Error& error) {
      throw Error(
          error.code(), Text("layer ", all.size(), " (", layer->description(), ") ", error.what()));
    }
    shape = all.back().output;
  }
  return all;
}

uint64_t CountOf(const std::vector<LayerShapes>& layers) {
  uint64_t count = 0;
  for (const LayerShapes& layer : layers) {
    for (const auto* specs : {&layer.parameters, &layer.buffers}) {
      for (const ParameterSpec& spec : *specs) count += spec.count();
    }
  }
  return count;
}

}  // namespace dtrun::models
