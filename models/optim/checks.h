#ifndef DTRUN_MODELS_OPTIM_CHECKS_H_
#define DTRUN_MODELS_OPTIM_CHECKS_H_

#include <dtrun/optimizer.h>

#include <string>
#include <vector>

namespace dtrun::models {

/// What optimizers and schedules demand of their arguments. Each throws Error kInvalidArgument that
/// names what it found and what it expected.
[[noreturn]] void RefuseArgument(const std::string& text);

void CheckF32(const std::vector<Parameter>& parameters);
/// Above 0.
void CheckPositive(const std::string& name, double value);
/// From 0 on.
void CheckNotNegative(const std::string& name, double value);
/// At least 0 and below 1.
void CheckFraction(const std::string& name, double value);

}  // namespace dtrun::models

#endif
