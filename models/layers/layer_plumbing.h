#ifndef DTRUN_MODELS_LAYERS_LAYER_PLUMBING_H_
#define DTRUN_MODELS_LAYERS_LAYER_PLUMBING_H_

#include <cstddef>
#include <memory>

#include "models/layers/layer.h"

namespace dtrun::models {

inline float* Floats(const Buffer& buffer) { return static_cast<float*>(buffer.data); }

/// Calls body(i) for i = 0 .. count - 1 on the OpenMP threads, which oneDNN also uses.
template <typename Body>
void ForEachExample(int count, const Body& body) {
#pragma omp parallel for schedule(static)
  for (int i = 0; i < count; ++i) body(static_cast<size_t>(i));
}

/// Converts its input to the format and the dtype that the builder requests. Sequential inserts a
/// Reorder where a layer needs another format or dtype than the layer before produces: after a
/// convolution without pooling, and at changes between f32 and bf16.
class Reorder : public Layer {
 public:
  Reorder();
  ~Reorder() override;

  std::string kind() const override { return "reorder"; }
  std::string description() const override { return "reorder"; }
  Shape OutputShape(const Shape& input) const override { return input; }
  bool keeps_input() const override { return false; }
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_LAYER_PLUMBING_H_
