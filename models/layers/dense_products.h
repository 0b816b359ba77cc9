#ifndef DTRUN_MODELS_LAYERS_DENSE_PRODUCTS_H_
#define DTRUN_MODELS_LAYERS_DENSE_PRODUCTS_H_

#include <dtrun/optimizer.h>

#include <memory>

#include "models/layers/builder.h"
#include "models/layers/layer.h"

namespace dtrun::models {

/// What a dense layer works on.
struct DenseTensors {
  Tensor *input = nullptr, *output = nullptr;    // (batch, inputs), (batch, units)
  Parameter *kernel = nullptr, *bias = nullptr;  // (inputs, units), (units)
  int batch = 0, inputs = 0, units = 0;
  bool relu = false;  // the layer's own: a block may give its output another one
};

/// The products of a dense layer, in one dtype. The functions are those of Layer, of which
/// BuildBackwardData is called when the input has a gradient.
class DenseProducts {
 public:
  virtual ~DenseProducts() = default;
  virtual void BuildBackwardWeights() = 0;
  virtual void BuildBackwardData() = 0;
  virtual void PrepareWeights() = 0;
  virtual void Forward() = 0;
  virtual void BackwardWeights(const Pass& pass) = 0;
  /// Before the ReLU of what made the input.
  virtual void BackwardData() = 0;
};

std::unique_ptr<DenseProducts> MakeDenseF32(Builder& builder, const DenseTensors& tensors);
std::unique_ptr<DenseProducts> MakeDenseBf16(Builder& builder, const DenseTensors& tensors);

}  // namespace dtrun::models

#endif
