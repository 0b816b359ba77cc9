#include "models/optim/checks.h"

#include <dtrun/error.h>

#include <cmath>

#include "models/text.h"

namespace dtrun::models {
namespace {

[[noreturn]] void Refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

}  // namespace

void CheckF32(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    if (parameter.value.dtype != DType::kF32)
      Refuse(Text(parameter.name, " is ", NameOf(parameter.value.dtype), ", expected f32"));
  }
}

void CheckPositive(const std::string& name, double value) {
  if (!(value > 0) || std::isinf(value)) Refuse(Text(name, " is ", value, ", expected above 0"));
}

void CheckFraction(const std::string& name, double value) {
  if (!(value >= 0 && value < 1))
    Refuse(Text(name, " is ", value, ", expected at least 0 and below 1"));
}

size_t TotalCount(const std::vector<Parameter>& parameters) {
  size_t count = 0;
  for (const Parameter& parameter : parameters) count += parameter.value.count;
  return count;
}

}  // namespace dtrun::models
