#ifndef DTRUN_RUNTIME_CPUS_H_
#define DTRUN_RUNTIME_CPUS_H_

#include <string>
#include <vector>

namespace dtrun::runtime {

/// The CPUs that this process may run on, as a string of '0' and '1' by CPU number.
std::string AllowedCpus();

/// How many CPUs at least one of the masks has.
int CountUnion(const std::vector<std::string>& masks);

}  // namespace dtrun::runtime

#endif
