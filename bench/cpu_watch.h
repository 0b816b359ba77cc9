#ifndef DTRUN_BENCH_CPU_WATCH_H_
#define DTRUN_BENCH_CPU_WATCH_H_

namespace dtrun::bench {

/// How busy this host was with other things than the calling process, since construction or
/// `Restart()`. A benchmark whose machine did something else did not measure what it says.
class CpuWatch {
 public:
  CpuWatch() { Restart(); }
  void Restart();

  /// CPU seconds of all processes of this host, and of this one with its children that have ended.
  double HostSeconds() const;
  double OwnSeconds() const;
  /// Seconds that passed, times the CPUs of the host.
  double AvailableSeconds() const;

 private:
  double host_ = 0, own_ = 0, wall_ = 0;
};

}  // namespace dtrun::bench

#endif
