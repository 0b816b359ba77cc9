#ifndef DTRUN_BASE_OPTIONS_H_
#define DTRUN_BASE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/launch_env.h"
#include "base/process.h"

namespace dtrun::base {

/// Everything about the runtime that can be set, with its default. Each option `x` is read from the
/// environment variable DTRUN_X and may be given to Init by name, which wins.
/// docs/reference/options.md describes them for users.
struct Options {
  /// A gradient bucket is launched when it holds this much: small enough to overlap with the
  /// backward pass, large enough that the fixed cost of a collective does not count. 0: "auto", by
  /// the size of all gradients.
  uint64_t bucket_bytes = 0;
  /// "auto", or the backend that has to be used: "shm", "hierarchical", "mpi".
  std::string backend = "auto";
  /// "auto", or the backend that has to be used for what lies on GPUs: "cuda_ipc", "nccl",
  /// "host_staged".
  std::string device_backend = "auto";
  /// How much this rank may take of its GPU's memory. 0: "all".
  uint64_t gpu_memory_bytes = 0;
  /// As what f32 values that are reduced cross from host to host: "none" (as they are), "f16",
  /// "bf16".
  std::string wire_dtype = "none";
  /// What reductions on CPUs are computed with: "auto" (the best that the CPU has), "baseline",
  /// "avx2", "avx512". All of them give the same bits.
  std::string reduce_isa = "auto";
  /// A thread that drives progress besides those that wait: "auto" (when this rank has more CPUs
  /// than compute threads and MPI allows it), "on", "off".
  std::string engine_thread = "auto";
  /// How long an operation waits for other ranks before that is reported, and before it is an
  /// error. Where only the second is set, the first is no longer than that.
  int64_t stall_warning_s = 30;
  int64_t timeout_s = 600;
  /// What a rank does that gives up waiting: "error" (the operation's, for the program to see) or
  /// "abort" (the job by MPI_Abort, whatever the program makes of errors).
  std::string on_stall = "error";
  /// Whether gradient reducers look for the fastest bucket size and route in their first steps;
  /// where they write each trial, where they keep and find results ("": nowhere), and whether they
  /// may try wire types, which round.
  bool autotune = false;
  std::string autotune_log = {};
  std::string autotune_cache = {};
  bool autotune_wire = false;
  LogLevel log_level = LogLevel::kWarning;

  bool operator==(const Options&) const = default;
};

/// Defaults, overridden by the environment, overridden by `given`. Throws Error kInvalidArgument
/// that names the option or variable, what was found and what was expected; an unknown name among
/// `given` is one as well.
Options ReadOptions(
    const GetEnv& get, const std::vector<std::pair<std::string, std::string>>& given);

/// Every option's name with its value, as ReadOptions would read it.
std::vector<std::pair<std::string, std::string>> OptionValues(const Options& options);

/// What option `name` accepts, in words; nothing where `value` is such a one. The option exists.
///   ExpectedOption("on_stall", "wait")  ->  "error or abort"
std::optional<std::string> ExpectedOption(const std::string& name, const std::string& value);

/// The environment variable of an option: "DTRUN_ON_STALL".
std::string OptionVariable(const std::string& option);

/// "bucket_bytes=4194304" and so on, for the options that all ranks have to agree on, one per line.
std::vector<std::string> AgreedOptions(const Options& options);

}  // namespace dtrun::base

#endif
