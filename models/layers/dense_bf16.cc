// oneDNN's inner products on bf16 copies of the kernel, made once per step in the formats that it
// likes. Each call writes a gradient of its own in f32; those of a step are summed in oneDNN's
// format and brought into the parameter's order once, at the end.

#include <dtrun/error.h>

#include <cstring>
#include <dnnl.hpp>

#include "models/layers/dense_products.h"
#include "models/layers/kernels.h"
#include "models/onednn/onednn.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

using dnnl::memory;

class DenseBf16 : public DenseProducts {
 public:
  DenseBf16(Builder& builder, const DenseTensors& tensors)
      : builder_(builder),
        t_(tensors),
        product_(
            {Plain(t_.inputs),
             {Size(), memory::data_type::bf16, memory::format_tag::any},
             {{t_.units}, memory::data_type::f32, memory::format_tag::a},
             Plain(t_.units)}),
        forward_description_(
            DescribeForward(builder.engine(), product_, onednn::ScratchAttribute(t_.relu))) {
    CheckExists(forward_description_);
    builder.Report("forward", onednn::ImplementationOf(forward_description_));
    const memory packed = builder.NewMemory(forward_description_.weights_desc());
    kernel_value_ = View(KerasOrder(memory::data_type::f32), t_.kernel->value.data);
    bias_value_ = View(product_.bias, t_.bias->value.data);
    forward_ = {
        dnnl::inner_product_forward(forward_description_),
        {{DNNL_ARG_SRC, View(product_.source, t_.input->data)},
         {DNNL_ARG_WEIGHTS, packed},
         {DNNL_ARG_BIAS, bias_value_},
         {DNNL_ARG_DST, View(product_.destination, t_.output->data)},
         {DNNL_ARG_SCRATCHPAD, builder.NewScratch(forward_description_.scratchpad_desc())}}};
    // In two steps: rounding to bf16 reads f32 once for both formats.
    rounded_ = builder.NewMemory(KerasOrder(memory::data_type::bf16));
    round_ = BoundReorder(kernel_value_, rounded_);
    pack_for_forward_ = BoundReorder(rounded_, packed);
  }

  void BuildBackwardWeights() override {
    onednn::InnerProduct with_f32_gradient = product_;
    with_f32_gradient.weights = {Size(), memory::data_type::f32, memory::format_tag::any};
    const onednn::InnerProductBackwardWeights description = DescribeBackwardWeights(
        builder_.engine(), with_f32_gradient, onednn::ScratchAttribute(false),
        forward_description_);
    CheckExists(description);
    builder_.Report("backward weights", onednn::ImplementationOf(description));
    const memory scratch = builder_.NewScratch(description.scratchpad_desc());
    const auto bind = [&](memory& kernel_into, memory& bias_into) -> BoundPrimitive {
      kernel_into = builder_.NewMemory(description.diff_weights_desc());
      bias_into = builder_.NewMemory(description.diff_bias_desc());
      return {
          dnnl::inner_product_backward_weights(description),
          {{DNNL_ARG_SRC, View(product_.source, t_.input->data)},
           {DNNL_ARG_DIFF_DST, View(product_.destination, t_.output->gradient)},
           {DNNL_ARG_DIFF_WEIGHTS, kernel_into},
           {DNNL_ARG_DIFF_BIAS, bias_into},
           {DNNL_ARG_SCRATCHPAD, scratch}}};
    };
    backward_to_sum_ = bind(kernel_sum_, bias_sum_);
    backward_to_term_ = bind(kernel_term_, bias_term_);
    kernel_gradient_ = View(KerasOrder(memory::data_type::f32), nullptr);
    unpack_gradient_ = BoundReorder(kernel_sum_, kernel_gradient_);
  }

  void BuildBackwardData() override {
    const onednn::InnerProductBackwardData description = DescribeBackwardData(
        builder_.engine(), product_, onednn::ScratchAttribute(false), forward_description_);
    CheckExists(description);
    builder_.Report("backward data", onednn::ImplementationOf(description));
    const memory packed = builder_.NewMemory(description.weights_desc());
    pack_for_backward_ = BoundReorder(rounded_, packed);
    packs_for_backward_ = true;
    backward_data_ = {
        dnnl::inner_product_backward_data(description),
        {{DNNL_ARG_DIFF_DST, View(product_.destination, t_.output->gradient)},
         {DNNL_ARG_WEIGHTS, packed},
         {DNNL_ARG_DIFF_SRC, View(product_.source, t_.input->gradient)},
         {DNNL_ARG_SCRATCHPAD, builder_.NewScratch(description.scratchpad_desc())}}};
  }

  void PrepareWeights() override {
    kernel_value_.set_data_handle(t_.kernel->value.data);
    bias_value_.set_data_handle(t_.bias->value.data);
    round_.Run(builder_.stream());
    pack_for_forward_.Run(builder_.stream());
    if (packs_for_backward_) pack_for_backward_.Run(builder_.stream());
  }

  void Forward() override { forward_.Run(builder_.stream()); }

  void BackwardWeights(const Pass& pass) override {
    if (pass.first) {
      backward_to_sum_.Run(builder_.stream());
    } else {
      backward_to_term_.Run(builder_.stream());
      AddTo(kernel_term_, kernel_sum_);
      AddTo(bias_term_, bias_sum_);
    }
    if (!pass.last) return;
    kernel_gradient_.set_data_handle(t_.kernel->gradient.data);
    unpack_gradient_.Run(builder_.stream());
    std::memcpy(t_.bias->gradient.data, Floats(bias_sum_), t_.bias->gradient.bytes());
  }

  void BackwardData() override { backward_data_.Run(builder_.stream()); }

 private:
  static float* Floats(const memory& piece) { return static_cast<float*>(piece.get_data_handle()); }
  static void AddTo(const memory& term, const memory& sum) {
    Add(Floats(term), sum.get_desc().get_size() / sizeof(float), Floats(sum));
  }

  memory::dims Size() const { return {t_.units, t_.inputs}; }
  memory::desc Plain(int width) const {
    return memory::desc({t_.batch, width}, memory::data_type::bf16, memory::format_tag::ab);
  }
  memory::desc KerasOrder(memory::data_type type) const {
    return memory::desc(Size(), type, memory::format_tag::ba);
  }
  memory View(const memory::desc& description, void* data) {
    return memory(description, builder_.engine(), data);
  }
  template <typename Description>
  static void CheckExists(const Description& description) {
    if (onednn::Exists(description)) return;
    throw Error(
        ErrorCode::kUnavailable,
        Text("oneDNN ", onednn::Version(), " has no implementation of this product in bf16"));
  }

  Builder& builder_;
  DenseTensors t_;
  onednn::InnerProduct product_;
  onednn::InnerProductForward forward_description_;
  memory kernel_value_, bias_value_;  // where they lie when weights are prepared
  memory rounded_;
  BoundPrimitive round_, pack_for_forward_, pack_for_backward_, forward_, backward_data_;
  bool packs_for_backward_ = false;
  // Gradients of the passes so far, and of the one at hand when it is not the first.
  memory kernel_sum_, bias_sum_, kernel_term_, bias_term_, kernel_gradient_;
  BoundPrimitive backward_to_sum_, backward_to_term_, unpack_gradient_;
};

}  // namespace

std::unique_ptr<DenseProducts> MakeDenseBf16(Builder& builder, const DenseTensors& tensors) {
  return std::make_unique<DenseBf16>(builder, tensors);
}

}  // namespace dtrun::models
