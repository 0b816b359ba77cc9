#ifndef DTRUN_BASE_OPTIONS_H_
#define DTRUN_BASE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/launch_env.h"
#include "base/listen_filter.h"
#include "base/process.h"

namespace dtrun::base {

/// All settings of the runtime, with their defaults. Option `x` is read from the environment
/// variable DTRUN_X. Init also takes options by name, which override the environment.
/// docs/reference/options.md describes the options for users.
struct Options {
  /// The size at which a gradient bucket is launched: small enough to overlap with the backward
  /// pass, large enough that the fixed cost of a collective does not count. 0: "auto", by the size
  /// of all gradients.
  uint64_t bucket_bytes = 0;
  /// "auto", or the required backend: "shm", "hierarchical", "tcp", "ucx", "mpi".
  std::string backend = "auto";
  /// "auto", or the required backend for data on GPUs: "cuda_ipc", "nccl", "hierarchical",
  /// "host_staged".
  std::string device_backend = "auto";
  /// The most bytes that this rank takes of its GPU's memory. 0: "all".
  uint64_t gpu_memory_bytes = 0;
  /// The carrier of data between hosts: "tcp", "ucx", "mpi", or "auto" (see ops::World).
  std::string transport = "auto";
  /// A rank on a host that does not answer for this long is lost. Only with TCP and UCX.
  int64_t peer_timeout_s = 30;
  /// The ports at which ranks listen for the transport "tcp". The hosts may have different ones.
  PortRange tcp_ports = {};
  /// The type in which reduced f32 values cross from host to host: "none" (as they are), "f16",
  /// "bf16".
  std::string wire_dtype = "none";
  /// The instruction set for reductions on CPUs: "auto" (the best of the CPU), "baseline", "avx2",
  /// "avx512". All of them give the same bits.
  std::string reduce_isa = "auto";
  /// A thread that drives progress in addition to the threads that wait: "auto" (if this rank has
  /// more CPUs than compute threads and MPI allows the thread), "on", "off".
  std::string engine_thread = "auto";
  /// How long an operation waits for other ranks before a warning, and before an error. If only
  /// timeout_s is set, stall_warning_s is at most timeout_s.
  int64_t stall_warning_s = 30;
  int64_t timeout_s = 600;
  /// The reaction of a rank that gives up waiting. "error": the operation fails, and the program
  /// sees the error. "abort": MPI_Abort ends the job, even if the program ignores errors.
  std::string on_stall = "error";
  /// Whether gradient reducers look for the fastest bucket size and route in their first steps. The
  /// file in which they write each trial, and the file in which they keep and find results; "": no
  /// file. Whether they may try wire types, which round.
  bool autotune = false;
  std::string autotune_log = {};
  std::string autotune_cache = {};
  bool autotune_wire = false;
  LogLevel log_level = LogLevel::kWarning;

  bool operator==(const Options&) const = default;
};

/// The defaults, overridden by the environment, overridden by `given`. If a value or a name in
/// `given` is wrong, throws Error kInvalidArgument with the option or variable, the value and the
/// expected value.
Options ReadOptions(
    const GetEnv& get, const std::vector<std::pair<std::string, std::string>>& given);

/// The name and value of every option, in the form that ReadOptions reads.
std::vector<std::pair<std::string, std::string>> OptionValues(const Options& options);

/// The values that option `name` accepts, in words; nullopt if `value` is one of them. The option
/// exists.
///   ExpectedOption("on_stall", "wait")  ->  "error or abort"
std::optional<std::string> ExpectedOption(const std::string& name, const std::string& value);

/// The environment variable of an option: "DTRUN_ON_STALL".
std::string OptionVariable(const std::string& option);

/// The options that must be the same on all ranks, one per line: "bucket_bytes=4194304" and so on.
std::vector<std::string> AgreedOptions(const Options& options);

}  // namespace dtrun::base

#endif
