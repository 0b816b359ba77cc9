#ifndef DTRUN_MODELS_LAYERS_DROPOUT_H_
#define DTRUN_MODELS_LAYERS_DROPOUT_H_

#include <cstdint>

#include "models/layers/builder.h"
#include "models/layers/layer.h"
#include "models/random/philox.h"

namespace dtrun::models {

/// In training, sets elements to zero with probability `rate` and multiplies the others by
/// 1 / (1 - rate); otherwise does nothing. N. Srivastava et al., JMLR 15 (2014), scaled as in
/// Keras.
///
/// Whether an element is kept is a pure function of seed, step, layer, position of the example in
/// the global batch, and position (h, w, c) of the element in the example: neither micro-batches
/// nor the number of ranks have a part in it. The rate is rounded to a multiple of 2^-16.
class Dropout : public Layer {
 public:
  explicit Dropout(double rate);

  std::string kind() const override { return "dropout"; }
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape& input) const override;
  bool in_place() const override { return true; }
  bool keeps_input() const override { return false; }
  bool computes_in_bf16() const override { return true; }
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder&, bool) override {}
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  void MakeMask(const Pass& pass, size_t example);
  template <typename Value>
  void Apply(size_t example, Value* values) const;
  void ApplyTo(float* values, size_t example) const;

  double rate_;

  uint32_t keep_below_ = 0;  // of 2^16
  float scale_ = 0;
  int batch_ = 0;
  PhiloxKey key_{};
  uint32_t domain_ = 0;
  Tensor* tensor_ = nullptr;
  size_t mask_stride_ = 0;
  Memo* keep_ = nullptr;  // bytes (batch, height, width, channels)
};

}  // namespace dtrun::models

#endif
