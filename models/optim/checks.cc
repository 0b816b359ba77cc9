#include "models/optim/checks.h"

#include <dtrun/error.h>

#include <cmath>

#include "models/text.h"

namespace dtrun::models {

void RefuseArgument(const std::string& text) { throw Error(ErrorCode::kInvalidArgument, text); }

void CheckF32(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    if (parameter.value.dtype != DType::kF32)
      RefuseArgument(Text(parameter.name, " is ", NameOf(parameter.value.dtype), ", expected f32"));
  }
}

void CheckPositive(const std::string& name, double value) {
  if (!(value > 0) || std::isinf(value))
    RefuseArgument(Text(name, " is ", value, ", expected above 0"));
}

void CheckNotNegative(const std::string& name, double value) {
  if (!(value >= 0) || std::isinf(value))
    RefuseArgument(Text(name, " is ", value, ", expected at least 0"));
}

void CheckFraction(const std::string& name, double value) {
  if (!(value >= 0 && value < 1))
    RefuseArgument(Text(name, " is ", value, ", expected at least 0 and below 1"));
}

}  // namespace dtrun::models
