#include "runtime/cpus.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace dtrun::runtime {

std::string AllowedCpus() {
  // The kernel's mask may be larger than cpu_set_t: grow until it fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cpus));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const bool known = ::sched_getaffinity(0, bytes, set) == 0;
    std::string mask;
    for (int cpu = 0; known && cpu < cpus; ++cpu) {
      mask += CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set) ? '1' : '0';
    }
    CPU_FREE(set);
    if (known) return mask.substr(0, mask.rfind('1') + 1);
  }
  return std::string(std::max(1u, std::thread::hardware_concurrency()), '1');
}

int CountUnion(const std::vector<std::string>& masks) {
  std::string all;
  for (const std::string& mask : masks) {
    if (mask.size() > all.size()) all.resize(mask.size(), '0');
    for (size_t cpu = 0; cpu < mask.size(); ++cpu) {
      if (mask[cpu] == '1') all[cpu] = '1';
    }
  }
  return static_cast<int>(std::count(all.begin(), all.end(), '1'));
}

}  // namespace dtrun::runtime
