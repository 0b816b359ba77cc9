#ifndef DTRUN_BENCH_PEER_H_
#define DTRUN_BENCH_PEER_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::bench {

/// An open file descriptor, closed with the object.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }

  int get() const { return fd_; }
  void Reset(int fd);
  void Close() { Reset(-1); }

 private:
  int fd_;
};

/// Another framework that takes the same training step, in a process of its own: bench/peers.
/// Reads requests from its standard input and answers each with one line on its standard output:
///
///   peer: ready {"name": "PyTorch 2.15.0", "variants": ["nchw", "nhwc"], "parameters": 1199882}
///   us:   step nhwc
///   peer: done
///
/// and ends at the end of its input. Between requests it has no work. Not thread-safe.
class Peer {
 public:
  /// Starts the shell command with `options` behind it and waits until it is ready. `environment`
  /// holds what it has besides this process's own variables: "NAME=value", or "NAME" for one that
  /// it does not have. Throws Error kUnavailable when it ends, does not answer in time, or answers
  /// with anything else; the text has the command and the last line of the peer's standard error.
  Peer(
      const std::string& command, const std::vector<std::string>& options,
      const std::vector<std::string>& environment);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  /// Ends the process and waits for it, so that its CPU time counts as a child's.
  ~Peer();

  const std::string& command() const { return command_; }
  /// "PyTorch 2.15.0"
  const std::string& name() const { return name_; }
  /// Ways in which it can take the step, such as formats of its tensors; one or more.
  const std::vector<std::string>& variants() const { return variants_; }
  uint64_t parameters() const { return parameters_; }

  /// Takes one step. Errors: those of the constructor.
  void Step(const std::string& variant);

 private:
  void Start(const std::vector<std::string>& options, const std::vector<std::string>& environment);
  void ReadReady();
  /// "" when the process has closed its output.
  std::string ReadLine();
  /// Waits until the process has ended, with SIGKILL after `patience`; returns its status.
  int End(std::chrono::seconds patience);
  [[noreturn]] void Fail(const std::string& what) const;
  [[noreturn]] void FailAfter(const std::string& answer, const std::string& expected);
  std::string LastComplaint() const;

  std::string command_, name_;
  std::vector<std::string> variants_;
  uint64_t parameters_ = 0;
  pid_t process_ = -1;
  Descriptor socket_;      // its standard input and output
  Descriptor complaints_;  // a file in memory: its standard error
  std::string received_;
};

/// What a peer's environment needs so that it is limited to the same instruction set as oneDNN here
/// is by ONEDNN_MAX_CPU_ISA: {"ATEN_CPU_CAPABILITY=avx2", "MKL_ENABLE_INSTRUCTIONS=AVX2", ...}.
/// `limit` is the variable's value, "" without one; `isa` what is in effect. Variables that would
/// choose OpenBLAS's kernels for another CPU are removed in any case.
std::vector<std::string> PeerEnvironment(const std::string& limit, const std::string& isa);

}  // namespace dtrun::bench

#endif
