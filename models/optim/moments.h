#ifndef DTRUN_MODELS_OPTIM_MOMENTS_H_
#define DTRUN_MODELS_OPTIM_MOMENTS_H_

#include <dtrun/optimizer.h>

#include <cstddef>
#include <string>
#include <vector>

namespace dtrun::models {

/// A number per element of every parameter, zero at first, as optimizers keep them that are not
/// sliceable.
class Moments {
 public:
  explicit Moments(const std::vector<Parameter>& parameters) {
    for (const Parameter& parameter : parameters) values_.emplace_back(parameter.value.count);
  }

  float* of(size_t parameter) { return values_[parameter].data(); }

  /// Appends "<name>/<parameter>" of all parameters.
  void AppendTo(
      std::vector<NamedBuffer>& state, const std::string& name,
      const std::vector<Parameter>& parameters) {
    for (size_t i = 0; i < values_.size(); ++i)
      state.push_back(
          {name + "/" + parameters[i].name, Buffer(values_[i].data(), values_[i].size())});
  }

 private:
  std::vector<std::vector<float>> values_;
};

}  // namespace dtrun::models

#endif
