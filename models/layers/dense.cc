#include "models/layers/dense.h"

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

Dense::Dense(int units, Activation activation) : units_(units), activation_(activation) {}
Dense::~Dense() = default;
Dense::Dense(Dense&&) noexcept = default;

std::string Dense::description() const {
  return Text("dense ", units_, activation_ == Activation::kRelu ? " relu" : "");
}

LayerSettings Dense::settings() const {
  return LayerSettings().Set("units", units_).Set("activation", NameOf(activation_));
}

std::vector<ParameterSpec> Dense::ParameterSpecs(const Shape& input) const {
  const int inputs = static_cast<int>(input.count());
  return {{"kernel", {inputs, units_}, inputs, units_}, {"bias", {units_}}};
}

Tensor* Dense::BuildForward(Builder& builder, Tensor* input) {
  impl_ = std::make_unique<Impl>();
  DenseTensors& tensors = impl_->tensors;
  tensors.batch = builder.batch();
  tensors.inputs = static_cast<int>(input->shape.count());
  tensors.units = units_;
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
