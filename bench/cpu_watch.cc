#include "bench/cpu_watch.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>

namespace dtrun::bench {
namespace {

// Adds up the first line of /proc/stat: the time in which processes ran, and the time that the
// hypervisor took from them (steal). Interrupts do not count, because they carry the job's traffic
// between hosts and belong to no process.
double HostCpuSeconds() {
  std::ifstream stat("/proc/stat");
  std::string label;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  stat >> label >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  return (user + nice + system + steal) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double CpuSecondsOf(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double OwnCpuSeconds() { return CpuSecondsOf(RUSAGE_SELF) + CpuSecondsOf(RUSAGE_CHILDREN); }

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void CpuWatch::Restart() {
  host_ = HostCpuSeconds();
  own_ = OwnCpuSeconds();
  wall_ = WallSeconds();
}

double CpuWatch::HostSeconds() const { return HostCpuSeconds() - host_; }
double CpuWatch::OwnSeconds() const { return OwnCpuSeconds() - own_; }
double CpuWatch::AvailableSeconds() const {
  return (WallSeconds() - wall_) * static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace dtrun::bench
