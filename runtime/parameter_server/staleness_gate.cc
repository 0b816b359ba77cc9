#include "runtime/parameter_server/staleness_gate.h"

#include <algorithm>

namespace dtrun::runtime {

// The others, earliest deadline first, would be applied to the versions after this one.
bool StalenessGate::MayApply(int worker) const {
  if (!bound_) return true;
  std::vector<uint64_t> others;
  for (const auto& [other, version] : begun_)
    if (other != worker) others.push_back(version);
  std::sort(others.begin(), others.end());
  for (size_t i = 0; i < others.size(); ++i)
    if (version_ + 1 + i > others[i] + *bound_) return false;
  return true;
}

uint64_t StalenessGate::Apply(int worker) {
  const auto begun = begun_.find(worker);
  const uint64_t staleness = begun == begun_.end() ? 0 : version_ - begun->second;
  if (begun != begun_.end()) begun_.erase(begun);
  ++version_;
  if (histogram_.size() <= staleness) histogram_.resize(staleness + 1);
  ++histogram_[staleness];
  return staleness;
}

}  // namespace dtrun::runtime
