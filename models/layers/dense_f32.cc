// Matrix products straight on the parameters and, summing over the micro-batches, straight into
// their gradients: neither has another format here. Only the input gradient wants the kernel the
// other way round; transposing it once per step is cheaper than letting every product do it
// (network C at micro-batch 32, us per image: 11 against 22).

#include <dtrun/error.h>

#include <dnnl.hpp>

#include "models/layers/dense_products.h"
#include "models/layers/kernels.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

// oneDNN gives its sgemm no name to ask for; on x86 it is generated for every instruction set.
constexpr char kGemm[] = "dnnl_sgemm";

float* Floats(const Buffer& buffer) { return static_cast<float*>(buffer.data); }

// c (m, n) = a (m, k) times b (k, n), plus c itself if `add`; 'T': the operand is stored
// transposed.
void Multiply(
    char transpose_a, char transpose_b, int m, int n, int k, const float* a, const float* b,
    bool add, float* c) {
  const int a_width = transpose_a == 'T' ? m : k, b_width = transpose_b == 'T' ? k : n;
  const dnnl_status_t status = dnnl_sgemm(
      transpose_a, transpose_b, m, n, k, 1.0f, a, a_width, b, b_width, add ? 1.0f : 0.0f, c, n);
  if (status != dnnl_success) {
    throw Error(
        ErrorCode::kSystem, Text("oneDNN's sgemm of ", m, "x", n, "x", k, ": status ", status));
  }
}

class DenseF32 : public DenseProducts {
 public:
  DenseF32(Builder& builder, const DenseTensors& tensors) : builder_(builder), t_(tensors) {
    builder.Report("forward", kGemm);
  }

  void BuildBackwardWeights() override { builder_.Report("backward weights", kGemm); }
  void BuildBackwardData() override {
    builder_.Report("backward data", kGemm);
    transposed_kernel_ = builder_.NewFloats(t_.kernel->value.count);
  }

  void PrepareWeights() override {
    if (transposed_kernel_ == nullptr) return;
    Transpose(Floats(t_.kernel->value), size_t(t_.inputs), size_t(t_.units), transposed_kernel_);
  }

  void Forward() override {
    Multiply(
        'N', 'N', t_.batch, t_.units, t_.inputs, t_.input->data, Floats(t_.kernel->value), false,
        t_.output->data);
    AddBias(Floats(t_.bias->value), size_t(t_.batch), size_t(t_.units), t_.relu, t_.output->data);
  }

  void BackwardWeights(const Pass& pass) override {
    const bool add = !pass.first;
    Multiply(
        'T', 'N', t_.inputs, t_.units, t_.batch, t_.input->data, t_.output->gradient, add,
        Floats(t_.kernel->gradient));
    SumRows(
        t_.output->gradient, size_t(t_.batch), size_t(t_.units), add, Floats(t_.bias->gradient));
  }

  void BackwardData() override {
    Multiply(
        'N', 'N', t_.batch, t_.inputs, t_.units, t_.output->gradient, transposed_kernel_, false,
        t_.input->gradient);
  }

 private:
  Builder& builder_;
  DenseTensors t_;
  float* transposed_kernel_ = nullptr;  // (units, inputs)
};

}  // namespace

std::unique_ptr<DenseProducts> MakeDenseF32(Builder& builder, const DenseTensors& tensors) {
  return std::make_unique<DenseF32>(builder, tensors);
}

}  // namespace dtrun::models
