#ifndef DTRUN_MODELS_OPTIM_MUON_H_
#define DTRUN_MODELS_OPTIM_MUON_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/optim/rate_optimizer.h"

namespace dtrun::models {

/// Brings a matrix near the orthogonal matrix next to it (of its singular value decomposition U S
/// V', near U V'), by the Newton-Schulz iteration that K. Jordan et al. give for Muon (2024):
///   X = x / |x|                                    |x| is the Frobenius norm
///   X = a X + b (X X') X + c (X X')^2 X            `iterations` times
/// with a = 3.4445, b = -4.7750, c = 2.0315. Five bring singular values from 0.003 on into [0.68,
/// 1.14], where they move on; they do not converge to 1, nor is that needed.
///
/// Keeps its memory for the next matrix. Computes on OpenMP's threads; the bits do not depend on
/// their number. Not thread-safe.
class Orthogonaliser {
 public:
  /// Room for a matrix of rows x columns, to be filled by `at`.
  void Resize(size_t rows, size_t columns);
  float& at(size_t row, size_t column) {
    return wide_ ? matrix_[column * stride_ + row] : matrix_[row * stride_ + column];
  }
  /// What was filled in, made orthogonal: value = keep * value - rate * that, row-major. A matrix
  /// of zeros stays one.
  void Apply(int iterations, float keep, float rate, float* value);

 private:
  void ComputeGram();
  bool ComputeFactor(int iterations);

  // The matrix has at least as many rows as columns here: a wide one is kept transposed. Rows and
  // columns of zeros fill it up to whole blocks.
  bool wide_ = false;
  size_t rows_ = 0, columns_ = 0;  // as it is kept
  size_t padded_rows_ = 0, stride_ = 0;
  std::vector<float> matrix_, factor_;  // (padded_rows_, stride_), (stride_, stride_)
  std::vector<double> gram_, square_, polynomial_, product_, scratch_;  // (stride_, stride_)
};

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

#endif  // DTRUN_MODELS_OPTIM_MUON_H_
