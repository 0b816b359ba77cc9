#ifndef DTRUN_MODELS_OPTIM_MUON_H_
#define DTRUN_MODELS_OPTIM_MUON_H_

#include <cstdint>
#include <vector>

#include "models/optim/excluded.h"
#include "models/optim/moments.h"
#include "models/optim/orthogonalise.h"
#include "models/optim/rate_optimizer.h"

namespace dtrun::models {

struct MuonOptions {
  double learning_rate = 1e-2;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0;  ///< decoupled: see AdamW
  LastWords not_decayed = BiasesAndNorms();
  int iterations = 5;  ///< of Newton and Schulz
  /// Of Adam's update, for what is no matrix.
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-7;
};

/// For each parameter the last of its dimensions if it has two or more, else 0.
///   {{3, 3, 32, 64}, {64}}  ->  {64, 0}
std::vector<uint64_t> MatrixColumns(const std::vector<std::vector<int>>& shapes);

/// Momentum orthogonalised by Newton-Schulz iteration, K. Jordan et al., "Muon: An optimizer for
/// hidden layers in neural networks", 2024, with the scale and decay of J. Liu et al., "Muon is
/// Scalable for LLM Training", arXiv:2502.16982: all directions in which a layer's gradient points
/// get the same length, the weak ones too, so that few large batches go far. Of a matrix of `rows`
/// x `columns`:
///   m = momentum * m + gradient
///   u = gradient + momentum * m                         (without Nesterov's momentum: m)
///   o = the orthogonal matrix near u: see Orthogonalise
///   value = value - learning_rate * (0.2 * sqrt(max(rows, columns)) * o + weight_decay * value)
/// The factor gives the update the size that Adam's has, so that one learning rate fits both:
/// parameters that are no matrices get Adam's update (see adam.h), with the same decay.
/// Parameters whose names end with a word of `not_decayed` are not decayed.
/// State: "muon.momentum/<parameter>" of matrices, "muon.m/<parameter>" and "muon.v/<parameter>" of
/// the others, as f32; "muon.step", the steps done, one u64. Computes on OpenMP's threads; the bits
/// do not depend on their number.
class Muon : public RateOptimizer {
 public:
  /// `parameters` are f32 and outlive it. `columns` are those of each parameter as a matrix in
  /// row-major order, in the order of `parameters`; 0: it is none. Throws Error kInvalidArgument
  /// when parameters are not f32 or no whole rows, or an option is out of range.
  Muon(
      std::vector<Parameter>& parameters, const std::vector<uint64_t>& columns,
      const MuonOptions& options);

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<NamedBuffer> state() override;
  void Step() override;
  double learning_rate() const override { return options_.learning_rate; }
  void set_learning_rate(double rate) override;

 private:
  // Where the momentum of a matrix is, or the moments of what is none.
  struct State {
    uint64_t columns = 0;
    float decay = 0;  // weight decay
    std::vector<float> momentum, m, v;
  };
  void StepMatrix(const Parameter& parameter, State& state);
  void StepOther(const Parameter& parameter, State& state);

  std::vector<Parameter>& parameters_;
  MuonOptions options_;
  std::vector<State> states_;  // by parameter
  Orthogonaliser orthogonaliser_;
  uint64_t step_ = 0;
};

}  // namespace dtrun::models

#endif
