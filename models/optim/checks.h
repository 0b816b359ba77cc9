#ifndef DTRUN_MODELS_OPTIM_CHECKS_H_
#define DTRUN_MODELS_OPTIM_CHECKS_H_

#include <dtrun/optimizer.h>

#include <string>
#include <vector>

namespace dtrun::models {

/// What optimizers demand of their arguments. Each throws Error kInvalidArgument that names what it
/// found and what it expected.
void CheckF32(const std::vector<Parameter>& parameters);
void CheckPositive(const std::string& name, double value);
/// At least 0 and below 1.
void CheckFraction(const std::string& name, double value);

size_t TotalCount(const std::vector<Parameter>& parameters);

}  // namespace dtrun::models

#endif
