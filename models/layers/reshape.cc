#include "models/layers/reshape.h"

#include <dtrun/error.h>

#include <cstring>

#include "models/layers/builder.h"
#include "models/text.h"

namespace dtrun::models {

std::string Reshape::description() const {
  return Text("reshape ", shape_->height, "x", shape_->width, "x", shape_->channels);
}

LayerSettings Reshape::settings() const {
  if (!shape_) return {};
  return LayerSettings()
      .Set("height", shape_->height)
      .Set("width", shape_->width)
      .Set("channels", shape_->channels);
}

Shape Reshape::OutputShape(const Shape& input) const {
  const auto count = static_cast<int>(input.count());
  if (!shape_) return {1, 1, count};
  if (shape_->height < 1 || shape_->width < 1 || shape_->channels < 1)
    throw Error(ErrorCode::kInvalidArgument, "needs a shape of positive numbers");
  if (shape_->count() != input.count()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "needs an input of ", shape_->count(), " values, got ", ToString(input), " = ", count));
  }
  return *shape_;
}

Tensor* Reshape::BuildForward(Builder& builder, Tensor* input) {
  input_ = input;
  output_ = builder.NewView(*input, OutputShape(input->shape));
  count_ = size_t(builder.batch()) * input->shape.count();
  return output_;
}

// Whoever wrote the gradient has applied the input's ReLU, which the output has as well.
void Reshape::BuildBackward(Builder& builder, bool input_gradient) {
  if (input_gradient && input_->gradient == nullptr) builder.PutGradient(input_, output_->gradient);
}

// Where the input has a gradient of its own, it is the first layer of a path.
void Reshape::BackwardData(const Pass&) {
  if (input_->gradient != output_->gradient)
    std::memcpy(input_->gradient, output_->gradient, count_ * sizeof(float));
}

}  // namespace dtrun::models
