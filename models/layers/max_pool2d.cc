#include "models/layers/max_pool2d.h"

#include <dtrun/error.h>

#include "models/layers/builder.h"
#include "models/layers/for_each_example.h"
#include "models/layers/pool_kernels.h"
#include "models/layers/window_settings.h"
#include "models/text.h"

namespace dtrun::models {

MaxPool2D::MaxPool2D(int window) : window_(window) {}

MaxPool2D::MaxPool2D(const Window& window) : window_(window.size) {
  if (window.stride == window.size && window.padding.is_valid()) return;
  general_ = std::make_unique<WindowPool2D>(WindowPool2D::Operation::kMax, window);
}

std::string MaxPool2D::description() const {
  return general_ ? general_->description() : Text("max_pool2d ", window_, "x", window_);
}

LayerSettings MaxPool2D::settings() const {
  if (general_) return general_->settings();
  LayerSettings settings;
  SetWindow("pool_size", {window_, window_}, settings);
  return settings;
}

Shape MaxPool2D::OutputShape(const Shape& input) const {
  if (general_) return general_->OutputShape(input);
  // A winner is a byte, and 255 stands for none.
  if (window_ < 1 || window_ > 15)
    throw Error(ErrorCode::kInvalidArgument, Text("needs a window from 1 to 15, got ", window_));
  if (input.height < window_ || input.width < window_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("needs an input of at least ", window_, "x", window_, ", got ", ToString(input)));
  }
  return {input.height / window_, input.width / window_, input.channels};
}

// Pooling reads 4 times what it writes, so where the next layer wants another format than the
// previous one gives, this is the place that changes it for free.
Tensor* MaxPool2D::BuildForward(Builder& builder, Tensor* input) {
  if (general_) return general_->BuildForward(builder, input);
  const Shape shape = OutputShape(input->shape);
  batch_ = builder.batch();
  input_ = input;
  output_ = builder.NewTensor(shape, builder.plain_output ? shape.channels : input->block, false);
  winners_ = builder.NewMemo(size_t(batch_) * output_->stride());
  return output_;
}

// The input's gradient overwrites the input: neither this layer nor the one before reads it again,
// because the winners already say where its ReLU lets something through.
void MaxPool2D::BuildBackward(Builder& builder, bool input_gradient) {
  if (general_) return general_->BuildBackward(builder, input_gradient);
  if (!input_gradient) return;
  if (input_->shared) return builder.GiveGradient(input_);
  builder.PutGradient(input_, input_->data);
}

void MaxPool2D::Forward(const Pass& pass) {
  if (general_) return general_->Forward(pass);
  ForEachExample(batch_, [&](size_t i) {
    const size_t from = i * input_->stride(), to = i * output_->stride();
    if (input_->dtype == DType::kBF16) {
      PoolForward(
          *input_, *output_, window_, As<Bf16>(input_->data) + from, As<Bf16>(output_->data) + to,
          winners_->data + to);
    } else {
      PoolForward(
          *input_, *output_, window_, input_->data + from, output_->data + to, winners_->data + to);
    }
  });
}

void MaxPool2D::BackwardData(const Pass& pass) {
  if (general_) return general_->BackwardData(pass);
  ForEachExample(batch_, [&](size_t i) {
    const size_t from = i * input_->stride(), to = i * output_->stride();
    if (input_->dtype == DType::kBF16) {
      PoolBackward(
          *input_, *output_, window_, As<Bf16>(output_->gradient) + to, winners_->data + to,
          As<Bf16>(input_->gradient) + from);
    } else {
      PoolBackward(
          *input_, *output_, window_, output_->gradient + to, winners_->data + to,
          input_->gradient + from);
    }
  });
}

}  // namespace dtrun::models
