#include "models/layers/dense.h"

#include <dtrun/error.h>

#include "models/layers/builder.h"
#include "models/layers/dense_products.h"
#include "models/layers/kernels.h"
#include "models/layers/registry.h"
#include "models/text.h"

namespace dtrun::models {

struct Dense::Impl {
  DenseTensors tensors;
  std::unique_ptr<DenseProducts> products;
};

Dense::Dense(int units, Activation activation)
    : Dense(units, DenseOptions{.activation = activation}) {}
Dense::Dense(int units, const DenseOptions& options)
    : units_(units), activation_(options.activation), kernel_l2_(options.kernel_l2) {}
Dense::~Dense() = default;
Dense::Dense(Dense&&) noexcept = default;

std::string Dense::description() const {
  return Text("dense ", units_, activation_ == Activation::kRelu ? " relu" : "");
}

LayerSettings Dense::settings() const {
  return LayerSettings()
      .Set("units", units_)
      .Set("activation", NameOf(activation_))
      .Set("kernel_l2", kernel_l2_);
}

Shape Dense::OutputShape(const Shape&) const {
  if (units_ < 1)
    throw Error(ErrorCode::kInvalidArgument, Text("needs at least 1 unit, got ", units_));
  return {1, 1, units_};
}

std::vector<ParameterSpec> Dense::ParameterSpecs(const Shape& input) const {
  const int inputs = static_cast<int>(input.count());
  return {
      {.name = "kernel",
       .shape = {inputs, units_},
       .fan_in = inputs,
       .fan_out = units_,
       .l2 = kernel_l2_},
      {.name = "bias", .shape = {units_}}};
}

Tensor* Dense::BuildForward(Builder& builder, Tensor* input) {
  impl_ = std::make_unique<Impl>();
  DenseTensors& tensors = impl_->tensors;
  tensors.batch = builder.batch();
  tensors.inputs = static_cast<int>(input->shape.count());
  tensors.units = units_;
  tensors.relu = activation_ == Activation::kRelu;
  tensors.input = input;
  tensors.output =
      builder.NewTensor(OutputShape(input->shape), units_, activation_ == Activation::kRelu);
  tensors.kernel = &builder.parameters[0];
  tensors.bias = &builder.parameters[1];
  impl_->products = builder.dtype == DType::kBF16 ? MakeDenseBf16(builder, tensors)
                                                  : MakeDenseF32(builder, tensors);
  return tensors.output;
}

void Dense::BuildBackward(Builder& builder, bool input_gradient) {
  impl_->products->BuildBackwardWeights();
  if (!input_gradient) return;
  builder.GiveGradient(impl_->tensors.input);
  impl_->products->BuildBackwardData();
}

void Dense::PrepareWeights() { impl_->products->PrepareWeights(); }
void Dense::Forward(const Pass&) { impl_->products->Forward(); }
void Dense::BackwardWeights(const Pass& pass) { impl_->products->BackwardWeights(pass); }

void Dense::BackwardData(const Pass&) {
  impl_->products->BackwardData();
  const Tensor& input = *impl_->tensors.input;
  if (input.relu) MaskByRelu(input, size_t(impl_->tensors.batch));
}

}  // namespace dtrun::models
