#ifndef DTRUN_TESTS_MODELS_LAYERS_GRADIENT_CHECK_H_
#define DTRUN_TESTS_MODELS_LAYERS_GRADIENT_CHECK_H_

#include <functional>
#include <vector>

#include "models/layers/sequential.h"
#include "tests/models/layers/reference_layers.h"

namespace dtrun::testing {

/// A network with memory for its gradients and with parameters that are not all alike. A batch of
/// made-up examples and labels goes through in one pass.
class CheckedNetwork {
 public:
  CheckedNetwork(
      const models::Shape& input, models::LayerList layers, int examples,
      const models::SequentialOptions& options);

  models::Sequential& model() { return model_; }
  int examples() const { return examples_; }
  /// A training step forward and backward with softmax cross-entropy. Returns the sum of the
  /// losses. The gradient is that of the mean loss.
  double Train();
  void Forward(bool training);

  std::vector<double> parameters();
  std::vector<double> gradients();
  Batch inputs() const { return inputs_; }
  /// Replaces the made-up inputs.
  void SetInputs(const std::function<void(int example, float* values)>& write);
  std::vector<float> outputs();
  size_t label(size_t example) const { return example % model_.classes(); }

 private:
  void LoadInputs();

  models::Sequential model_;
  models::FloatArray gradient_memory_;
  int examples_;
  Batch inputs_;
};

/// The outputs of a network in training, in double precision. Reads the parameters one after the
/// other.
using Reference = std::function<Batch(Batch, const double*& parameter)>;

/// Compares the loss in training with the reference, and the gradients with central differences of
/// the reference. Checks every gradient of up to 400 parameters and a sample of more. Uses 5
/// examples in a chunk of 6.
void CheckGradients(
    const models::Shape& input, models::LayerList layers, const Reference& reference);

/// Applies a function of one example to all examples.
template <typename Function>
Batch ForEach(Batch batch, const Function& function) {
  for (Activations& x : batch) x = function(x);
  return batch;
}

}  // namespace dtrun::testing

#endif
