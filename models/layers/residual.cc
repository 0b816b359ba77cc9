#include "models/layers/residual.h"

#include <dtrun/error.h>

#include "models/layers/add_kernels.h"
#include "models/layers/builder.h"
#include "models/layers/for_each_example.h"
#include "models/layers/kernels.h"
#include "models/layers/path.h"
#include "models/text.h"

namespace dtrun::models {

// Both paths read the input through a view of their own, so that each writes its own gradient; the
// two are added at the end, where the input's ReLU is applied to the sum.
//
// The sum overwrites the main path's output unless that has a ReLU of its own, for whose way back
// it is needed, or is the input's memory. The gradient of the sum is that of both paths' outputs: a
// path gets a copy of it only where it has a ReLU of its own or its values lie in another format.
struct Residual::Impl {
  Path main, shortcut;
  bool relu;

  int batch = 0;
  bool input_gradient = false, has_parameters = false;
  Tensor *input = nullptr, *output = nullptr;
  Tensor main_input = {}, shortcut_input = {};  // the input, without its ReLU
  Tensor *main_output = nullptr, *shortcut_output = nullptr;
  Tensor shortcut_term = {};  // the shortcut's output in the sum's format
  Tensor returned = {};       // the shortcut's input gradient in the input's format

  static bool SameFormat(const Tensor& a, const Tensor& b) { return a.block == b.block; }

  template <typename Body>
  void ForEachExampleOf(const Tensor& tensor, const Body& body) const {
    const size_t stride = tensor.stride();
    ForEachExample(batch, [&](size_t i) { body(i * stride, stride); });
  }

  void Convert(const Tensor& from, const float* x, const Tensor& to, float* y) const {
    ForEachExample(batch, [&](size_t i) {
      ConvertFormat(from, x + i * from.stride(), to, y + i * to.stride());
    });
  }

  void BuildSum(Builder& builder) {
    output = main_output;
    if (main_output->relu || main_output->shared) {
      output = builder.NewTensor(main_output->shape, main_output->block, relu);
    }
    output->relu = relu;
    shortcut_term = *shortcut_output;
    if (SameFormat(*shortcut_output, *output)) return;
    shortcut_term.block = output->block;
    shortcut_term.data = builder.NewFloats(size_t(batch) * shortcut_term.stride());
  }

  void Sum() {
    if (shortcut_term.data != shortcut_output->data)
      Convert(*shortcut_output, shortcut_output->data, shortcut_term, shortcut_term.data);
    ForEachExampleOf(*output, [&](size_t at, size_t count) {
      AddTwo(main_output->data + at, shortcut_term.data + at, count, relu, output->data + at);
    });
  }

  void BuildGradientsOfSum(Builder& builder) {
    if (main_output != output) builder.GiveGradient(main_output);
    if (shortcut.empty()) {
      shortcut_input.gradient = output->gradient;
    } else if (shortcut_output->relu || !SameFormat(*shortcut_output, *output)) {
      builder.GiveGradient(shortcut_output);
    } else {
      shortcut_output->gradient = output->gradient;
    }
  }

  void CopyGradient(Tensor& to) const {
    if (to.gradient == output->gradient) return;
    Convert(*output, output->gradient, to, to.gradient);
    if (!to.relu) return;
    ForEachExampleOf(
        to, [&](size_t at, size_t n) { MaskByRelu(to.data + at, n, to.gradient + at); });
  }

  // The gradients of the two views of the input, added into the input's.
  void BuildReturn(Builder& builder) {
    returned = shortcut_input;
    if (!shortcut.empty() || SameFormat(*output, *input)) return;
    returned.block = input->block;
    returned.gradient = nullptr;
    builder.GiveGradient(&returned);
  }

  void Return() {
    if (shortcut.empty() && !SameFormat(*output, *input))
      Convert(*output, output->gradient, returned, returned.gradient);
    ForEachExampleOf(*input, [&](size_t at, size_t count) {
      AddMasked(
          returned.gradient + at, input->relu ? input->data + at : nullptr, count,
          input->gradient + at);
    });
  }

  void Backward(const Pass& pass) {
    CopyGradient(*main_output);
    if (!shortcut.empty()) CopyGradient(*shortcut_output);
    main.Backward(pass);
    shortcut.Backward(pass);
    if (input_gradient) Return();
  }
};

Residual::Residual(
    std::vector<std::unique_ptr<Layer>> main, std::vector<std::unique_ptr<Layer>> shortcut,
    Activation activation)
    : impl_(new Impl{
          Path("main", std::move(main)), Path("shortcut", std::move(shortcut)),
          activation == Activation::kRelu}) {}
Residual::~Residual() = default;
Residual::Residual(Residual&&) noexcept = default;

std::string Residual::description() const {
  return Text(
      "residual [", impl_->main.description(), "] + [",
      impl_->shortcut.empty() ? "input" : impl_->shortcut.description(), "]",
      impl_->relu ? " relu" : "");
}

LayerSettings Residual::settings() const {
  return LayerSettings()
      .Set("main", impl_->main.configs())
      .Set("shortcut", impl_->shortcut.configs())
      .Set("activation", impl_->relu ? "relu" : "linear");
}

Shape Residual::OutputShape(const Shape& input) const {
  if (impl_->main.empty())
    throw Error(ErrorCode::kInvalidArgument, "needs at least one layer in its main path");
  const Shape main = impl_->main.OutputShape(input), side = impl_->shortcut.OutputShape(input);
  if (main == side) return main;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "needs paths with equal outputs, got ", ToString(main), " from the main path and ",
          ToString(side), " from the shortcut"));
}

std::vector<ParameterSpec> Residual::ParameterSpecs(const Shape& input) const {
  std::vector<ParameterSpec> specs = impl_->main.ParameterSpecs(input);
  for (ParameterSpec& spec : impl_->shortcut.ParameterSpecs(input)) specs.push_back(spec);
  return specs;
}

std::vector<ParameterSpec> Residual::BufferSpecs(const Shape& input) const {
  std::vector<ParameterSpec> specs = impl_->main.BufferSpecs(input);
  for (ParameterSpec& spec : impl_->shortcut.BufferSpecs(input)) specs.push_back(spec);
  return specs;
}

bool Residual::needs_whole_share() const {
  return impl_->main.needs_whole_share() || impl_->shortcut.needs_whole_share();
}

bool Residual::synchronizes() const {
  return impl_->main.synchronizes() || impl_->shortcut.synchronizes();
}

Tensor* Residual::BuildForward(Builder& builder, Tensor* input) {
  impl_->batch = builder.batch();
  impl_->has_parameters = !ParameterSpecs(input->shape).empty();
  impl_->input = input;
  impl_->main_input = *input;
  impl_->main_input.relu = false;
  impl_->main_input.shared = true;
  impl_->main_input.step = 0;
  impl_->shortcut_input = impl_->main_input;
  impl_->main_output = impl_->main.BuildForward(builder, &impl_->main_input);
  const uint32_t index = builder.layer_index;
  builder.layer_index += 0x8000;
  impl_->shortcut_output = impl_->shortcut.BuildForward(builder, &impl_->shortcut_input);
  builder.layer_index = index;
  impl_->BuildSum(builder);
  return impl_->output;
}

// Memory is released in the order in which the way back has done with it.
void Residual::BuildBackward(Builder& builder, bool input_gradient) {
  Impl& impl = *impl_;
  impl.input_gradient = input_gradient;
  if (input_gradient) {
    builder.GiveGradient(impl.input);
    impl.main_input.gradient = impl.input->gradient;
  }
  impl.BuildGradientsOfSum(builder);
  impl.main.BuildBackward(builder, input_gradient);
  impl.shortcut.BuildBackward(builder, input_gradient);
  if (input_gradient) impl.BuildReturn(builder);
  if (impl.main_output != impl.output) builder.ReleaseGradient(*impl.main_output);
  if (impl.shortcut.empty()) {
    if (impl.returned.gradient != impl.output->gradient) builder.ReleaseGradient(impl.returned);
    return;
  }
  if (impl.shortcut_output->gradient != impl.output->gradient)
    builder.ReleaseGradient(*impl.shortcut_output);
  builder.ReleaseGradient(impl.shortcut_input);
}

void Residual::PrepareWeights() {
  impl_->main.PrepareWeights();
  impl_->shortcut.PrepareWeights();
}

void Residual::Forward(const Pass& pass) {
  impl_->main.Forward(pass);
  impl_->shortcut.Forward(pass);
  impl_->Sum();
}

// Sequential calls this only for layers with parameters, and BackwardData only where the input
// gradient is read: the whole way back belongs to the first of the two.
void Residual::BackwardWeights(const Pass& pass) { impl_->Backward(pass); }

void Residual::BackwardData(const Pass& pass) {
  if (!impl_->has_parameters) impl_->Backward(pass);
}

}  // namespace dtrun::models
