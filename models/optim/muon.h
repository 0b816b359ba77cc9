#ifndef DTRUN_MODELS_OPTIM_MUON_H_
#define DTRUN_MODELS_OPTIM_MUON_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "models/optim/rate_optimizer.h"

namespace dtrun::models {

/// Approximates the orthogonal matrix nearest to a matrix: U V', if U S V' is its singular value
/// decomposition. Uses the Newton-Schulz iteration of K. Jordan et al., Muon (2024):
///   X = x / |x|                                    |x| is the Frobenius norm
///   X = a X + b (X X') X + c (X X')^2 X            `iterations` times
/// with a = 3.4445, b = -4.7750, c = 2.0315. Five iterations bring singular values of at least
/// 0.003 into [0.68, 1.14]. Further iterations move them within this range. They do not converge to
/// 1, and Muon does not need them to.
///
/// Keeps its memory for the next matrix. Computes on OpenMP threads. The bits of the result do not
/// depend on the number of threads. Not thread-safe.
class Orthogonaliser {
 public:
  /// Makes room for a matrix of rows x columns. Fill it with `at`.
  void Resize(size_t rows, size_t columns);
  float& at(size_t row, size_t column) {
    return wide_ ? matrix_[column * stride_ + row] : matrix_[row * stride_ + column];
  }
  /// Computes value = keep * value - rate * o, row-major. o approximates the orthogonal matrix
  /// nearest to the filled matrix. A matrix of zeros gives o = 0. Overwrites the filled matrix.
  void Apply(int iterations, float keep, float rate, float* value);

 private:
  void ComputeGram();
  bool ComputeFactor(int iterations);

  // The stored matrix has at least as many rows as columns: a wide matrix is stored transposed.
  // Rows and columns of zeros pad the matrix to whole blocks.
  bool wide_ = false;
  size_t rows_ = 0, columns_ = 0;  // as stored
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
  int iterations = 5;  ///< of the Newton-Schulz iteration
  /// For Adam's update of parameters that are not matrices.
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-7;
};

/// For each parameter, its last dimension if it has two dimensions or more, otherwise 0.
///   {{3, 3, 32, 64}, {64}}  ->  {64, 0}
std::vector<uint64_t> MatrixColumns(const std::vector<std::vector<int>>& shapes);

/// Momentum orthogonalised by Newton-Schulz iteration: K. Jordan et al., "Muon: An optimizer for
/// hidden layers in neural networks", 2024. The scale and the decay are those of J. Liu et al.,
/// "Muon is Scalable for LLM Training", arXiv:2502.16982. All directions of a layer's gradient get
/// the same length, also the weak directions. Therefore few large batches make much progress. For a
/// matrix of `rows` x `columns`:
///   m = momentum * m + gradient
///   u = gradient + momentum * m                         (without Nesterov's momentum: m)
///   o = the orthogonal matrix near u: see Orthogonaliser
///   value = value - learning_rate * (0.2 * sqrt(max(rows, columns)) * o + weight_decay * value)
/// The factor gives the update the size of Adam's update. Therefore one learning rate fits both.
/// Parameters that are not matrices get Adam's update (see adam.h), with the same decay. If the
/// name of a parameter ends with a word of `not_decayed`, its weight decay is 0. State:
/// "muon.momentum/<parameter>" of matrices, "muon.m/<parameter>" and "muon.v/<parameter>" of the
/// other parameters, as f32; "muon.step", the number of steps done, one u64. Computes on OpenMP
/// threads. The bits of the result do not depend on the number of threads. On a GPU, the step of a
/// matrix copies the gradient, the momentum and the values to the host, and the last two back.
class Muon : public RateOptimizer {
 public:
  /// `parameters` must be f32, in memory of `device`, and outlive the optimizer. `columns` has one
  /// element per parameter: its columns as a row-major matrix, or 0 if it is not a matrix. Throws
  /// Error kInvalidArgument if a parameter is not f32 or does not consist of whole rows, or if an
  /// option is out of range.
  Muon(
      std::vector<Parameter>& parameters, const std::vector<uint64_t>& columns,
      const MuonOptions& options, UpdateDevice& device = HostMemory());

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<NamedBuffer> state() override;
  void Step() override;
  double learning_rate() const override { return options_.learning_rate; }
  void set_learning_rate(double rate) override;

 private:
  // The momentum of a matrix, or the moments of another parameter.
  struct State {
    uint64_t columns = 0;
    float decay = 0;  // weight decay
    Buffer momentum, m, v;
  };
  float* Load(const Buffer& buffer, std::vector<float>& copy);
  void Store(float* values, const Buffer& buffer);
  void StepMatrix(const Parameter& parameter, State& state);
  void StepOther(const Parameter& parameter, State& state);

  std::vector<Parameter>& parameters_;
  MuonOptions options_;
  UpdateDevice& device_;
  std::deque<std::shared_ptr<void>> memory_;
  std::vector<State> states_;  // by parameter
  Orthogonaliser orthogonaliser_;
  std::vector<float> copies_[3];  // of a gradient, momentum and value on a GPU
  uint64_t step_ = 0;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_OPTIM_MUON_H_
