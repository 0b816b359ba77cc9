#include "tests/models/formats/brief_training.h"

#include <catch2/catch.hpp>
#include <vector>

#include "models/data/dataset.h"
#include "models/layers/activations.h"

namespace dtrun::testing {
namespace {

using models::Images;
using models::Pass;
using models::Sequential;

constexpr float kMomentum = 0.9f;

class Descent {
 public:
  explicit Descent(std::vector<Parameter>& parameters) : parameters_(parameters) {
    for (Parameter& parameter : parameters) {
      gradients_.emplace_back(parameter.value.count);
      velocities_.emplace_back(parameter.value.count);
      parameter.gradient = Buffer(gradients_.back().data(), parameter.value.count);
    }
  }
  ~Descent() {
    for (Parameter& parameter : parameters_)
      parameter.gradient = Buffer(static_cast<float*>(nullptr), parameter.value.count);
  }

  void Step(float learning_rate) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      auto* values = static_cast<float*>(parameters_[p].value.data);
      for (size_t i = 0; i < gradients_[p].size(); ++i) {
        velocities_[p][i] = kMomentum * velocities_[p][i] - learning_rate * gradients_[p][i];
        values[i] += velocities_[p][i];
      }
    }
  }

 private:
  std::vector<Parameter>& parameters_;
  std::vector<std::vector<float>> gradients_, velocities_;
};

}  // namespace

void TrainBriefly(Sequential& model, const Images& images, int steps, float learning_rate) {
  const size_t pixels = images.pixels_per_image(), chunk = size_t(model.chunk());
  REQUIRE(images.count >= chunk);
  Descent descent(model.parameters());
  for (int step = 0; step < steps; ++step) {
    const size_t first = size_t(step) * chunk % (images.count - chunk + 1);
    models::BytesToFloats(images.pixels.data() + first * pixels, chunk * pixels, model.input());
    Pass pass;
    pass.training = true;
    pass.step = uint64_t(step);
    model.PrepareWeights();
    model.Forward(pass, int(chunk));
    models::SoftmaxCrossEntropy(
        model.output(), images.labels.data() + first, chunk, model.classes(), 1.0f / float(chunk),
        model.output_gradient());
    model.Backward(pass, int(chunk), [](size_t) {});
    descent.Step(learning_rate);
  }
}

}  // namespace dtrun::testing
