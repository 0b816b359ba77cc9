#ifndef DTRUN_MODELS_OPTIM_UPDATE_RULES_H_
#define DTRUN_MODELS_OPTIM_UPDATE_RULES_H_

#include <dtrun/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dtrun::models {

// The formulas of the optimizers over `count` elements. Each function makes one pass over memory.
// Factors that are the same for all elements of a step are computed in f64 and rounded once.

/// Factors of the formula in adam.h.
struct AdamFactors {
  float rate = 0;                  ///< with the corrections for the first steps
  float m_share = 0, v_share = 0;  ///< 1 - beta1, 1 - beta2
  float epsilon = 0;
  float decay = 0;  ///< learning rate times weight decay
};
void UpdateAdam(
    const float* gradient, size_t count, const AdamFactors& factors, float* m, float* v,
    float* value);

/// Factors of the formula in lamb.h. Its step needs two passes.
struct LambFactors {
  float m_share = 0, v_share = 0;            ///< 1 - beta1, 1 - beta2
  float m_correction = 0, v_correction = 0;  ///< 1 / (1 - beta^step)
  float epsilon = 0;
  float decay = 0;  ///< weight decay
};
struct SquaredNorms {
  double update = 0, value = 0;
};
/// Updates the moments. Returns the squared norms of the resulting update and of the values.
SquaredNorms UpdateLambMoments(
    const float* gradient, size_t count, const LambFactors& factors, float* m, float* v,
    const float* value);
/// value = value - rate * update. Computes the update again from the moments.
void ApplyLamb(
    const float* m, const float* v, size_t count, const LambFactors& factors, float rate,
    float* value);

/// Factors of the formulas in sgd.h and lars.h: gradient descent along `gradient + decay * value`.
/// Each operation is rounded separately. Therefore the bits are the same as in dtrun's own momentum
/// step (SliceableOptimizer::momentum_rule).
struct DescentFactors {
  float rate = 0;
  float momentum = 0;
  float decay = 0;
  bool nesterov = false;
};
void Descend(const float* gradient, size_t count, const DescentFactors& factors, float* value);
void DescendWithMomentum(
    const float* gradient, size_t count, const DescentFactors& factors, float* velocity,
    float* value);

/// The memory of an optimizer's parameters, and the updates there. This class is the host's memory
/// and the functions above. A device with memory of its own overrides all functions: the arguments
/// are then addresses in that memory, and the work is enqueued in the stream of the parameters.
class UpdateDevice {
 public:
  virtual ~UpdateDevice() = default;

  /// The number of the GPU, as in Buffer::device. -1: host memory.
  virtual int index() const { return -1; }
  /// Returns `count` elements of zeroed memory, aligned for all vector units. `owner` frees the
  /// memory. Throws Error kUnavailable if there is too little memory.
  virtual Buffer Allocate(uint64_t count, DType dtype, std::shared_ptr<void>& owner);
  /// Copies between buffers of the host and of this device, and waits for the end. Both have the
  /// same number of bytes.
  virtual void Copy(const Buffer& from, const Buffer& to);

  virtual void Adam(
      const float* gradient, size_t count, const AdamFactors& factors, float* m, float* v,
      float* value) {
    UpdateAdam(gradient, count, factors, m, v, value);
  }
  /// The update of lamb.h. The rate is multiplied by |value| / |update| if `adapts` and both norms
  /// are above 0.
  virtual void Lamb(
      const float* gradient, size_t count, const LambFactors& factors, double rate, bool adapts,
      float* m, float* v, float* value);
  /// `velocity` is null without momentum.
  virtual void Descend(
      const float* gradient, size_t count, const DescentFactors& factors, float* velocity,
      float* value);
};

/// The device of parameters in host memory. Thread-safe.
UpdateDevice& HostMemory();

/// Copies of a device's buffers in host memory, for code that reads or writes files. Not
/// thread-safe.
class HostCopies {
 public:
  /// Returns the buffers with their values in host memory: a buffer of the host as it is, a buffer
  /// of `device` as a copy, which is valid until the next Read.
  std::vector<NamedBuffer> Read(UpdateDevice& device, const std::vector<NamedBuffer>& buffers);
  /// Copies the values back to the device, after they have changed, and frees the copies. Call it
  /// at most once after Read.
  void Write(UpdateDevice& device);

 private:
  struct Copy {
    std::vector<uint8_t> values;
    Buffer original;
  };

  std::vector<Copy> copies_;
};

/// Checks of the arguments of optimizers and schedules. Each throws Error kInvalidArgument with the
/// value found and the value expected. Parameters must be f32, in memory of `device`.
void CheckParameters(const std::vector<Parameter>& parameters, const UpdateDevice& device);
/// The value must be above 0 and finite.
void CheckPositive(const std::string& name, double value);
/// The value must be at least 0 and finite.
void CheckNotNegative(const std::string& name, double value);
/// The value must be at least 0 and below 1.
void CheckFraction(const std::string& name, double value);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_OPTIM_UPDATE_RULES_H_
