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

/// Another framework that takes the same training step in a separate process (bench/peers). The
/// process reads requests from its standard input and answers each with one line on its standard
/// output:
///
///   peer: ready {"name": "PyTorch 2.15.0", "variants": ["nchw", "nhwc"], "parameters": 1199882}
///   us:   step nhwc
///   peer: done
///
/// The process ends at the end of its input. It has no work between requests. Not thread-safe.
class Peer {
 public:
  /// Starts the shell command, followed by `options`, and waits until the peer is ready.
  /// `environment` changes the variables of this process for the peer: "NAME=value" sets a
  /// variable, "NAME" removes it. Throws Error kUnavailable if the peer ends, does not answer in
  /// time or gives an unexpected answer. The message has the command and, if the peer has ended,
  /// the last line of its standard error.
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
  /// The variants of the step, such as formats of tensors; at least one.
  const std::vector<std::string>& variants() const { return variants_; }
  uint64_t parameters() const { return parameters_; }

  /// Takes one step. Errors are those of the constructor.
  void Step(const std::string& variant);

 private:
  void Start(const std::vector<std::string>& options, const std::vector<std::string>& environment);
  void ReadReady();
  /// Returns "" if the process has closed its output.
  std::string ReadLine();
  /// Closes the peer's input and waits until the process has ended, with SIGKILL after `patience`.
  /// Returns the process's status.
  int End(std::chrono::seconds patience);
  [[noreturn]] void Fail(const std::string& what) const;
  [[noreturn]] void FailAfter(const std::string& answer, const std::string& expected);
  std::string LastComplaint() const;

  std::string command_, name_;
  std::vector<std::string> variants_;
  uint64_t parameters_ = 0;
  pid_t process_ = -1;
  Descriptor socket_;      // the peer's standard input and output
  Descriptor complaints_;  // the peer's standard error, a file in memory
  std::string received_;
};

/// The changes of a peer's environment that limit the peer to the instruction set of oneDNN in this
/// process: {"ATEN_CPU_CAPABILITY=avx2", "MKL_ENABLE_INSTRUCTIONS=AVX2", ...}. `limit` is the value
/// of ONEDNN_MAX_CPU_ISA, or "" if it is not set. `isa` is the instruction set in effect. The
/// changes always remove the variables that select OpenBLAS kernels for another CPU.
std::vector<std::string> PeerEnvironment(const std::string& limit, const std::string& isa);

}  // namespace dtrun::bench

#endif
