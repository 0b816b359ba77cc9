#ifndef DTRUN_BENCH_CPU_WATCH_H_
#define DTRUN_BENCH_CPU_WATCH_H_

namespace dtrun::bench {

/// The CPU time of this host and of the calling process, since construction or `Restart()`. If
/// other processes used much CPU meanwhile, the figures of a benchmark are not valid.
class CpuWatch {
 public:
  CpuWatch() { Restart(); }
  void Restart();

  /// CPU seconds of all processes of this host, and of this process with its ended children.
  double HostSeconds() const;
  double OwnSeconds() const;
  /// Wall-clock seconds, times the number of CPUs of the host.
  double AvailableSeconds() const;

 private:
  double host_ = 0, own_ = 0, wall_ = 0;
};

}  // namespace dtrun::bench

#endif
