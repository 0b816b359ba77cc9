#ifndef DTRUN_RUNTIME_C_API_HANDLES_H_
#define DTRUN_RUNTIME_C_API_HANDLES_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/flight_record.h"
#include "base/process.h"
#include "base/text.h"
#include "dtrun/c.h"
#include "dtrun/error.h"
#include "dtrun/types.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/job/job_context.h"
#include "runtime/reducer/bucketed_reducer.h"
#include "runtime/reducer/reducer_settings.h"
#include "runtime/step/parameter_shards.h"
#include "runtime/tensor_file/tensor_file.h"

// The structs behind the opaque types of c.h. Each function of c.h unwraps its handles with `Use`,
// calls one method, and turns an exception into a dtrun_error with `Guard`. Structs of the caller
// are read with `ReadSized` and the functions after it.

namespace dtrun::runtime::c_api {

/// The process that a handle belongs to.
struct Process {
  base::ForkWatch watch = {};
  int launch_rank = 0;
};

/// The process that a handle belongs to, and pointers to objects of its context. The context
/// outlives all handles.
struct Owner {
  Process process = {};
  ops::FlightRecorder* recorder = nullptr;                     // of the context
  Timeline* timeline = nullptr;                                // of the context; null: none
  const base::LogSink* log = nullptr;                          // of the context
  const std::vector<base::Corruption>* corruptions = nullptr;  // of the launch; null: none
  ops::Engine* engine = nullptr;                               // of the context
  uint64_t gpu_memory_bytes = 0;                               // the job's limit; 0: none

  operator const Process&() const { return process; }
};

/// Defaults for all reducers, from the job's options.
struct ReducerDefaults {
  uint64_t bucket_bytes = 0;
  std::optional<AutotuneOptions> autotune = std::nullopt;
  /// The number of reducers that write an autotuning log. Each has its own file.
  std::shared_ptr<std::atomic<int>> tuned = std::make_shared<std::atomic<int>>(0);
};

/// Throws Error kInvalidArgument in a forked child of the owner.
void CheckProcess(const Process& owner);

}  // namespace dtrun::runtime::c_api

struct dtrun_error {
  int32_t code;
  std::string message;
  std::vector<int32_t> ranks;
  std::string operation;
};

struct dtrun_communicator {
  dtrun::runtime::c_api::Owner owner;
  dtrun::ops::Communicator* communicator;
  std::unique_ptr<dtrun::ops::Communicator> owned;  // null for the world
  dtrun::runtime::c_api::ReducerDefaults reducer_defaults;
};

struct dtrun_context {
  dtrun_context(
      const std::vector<std::pair<std::string, std::string>>& options,
      const dtrun::ops::MpiHandle& handle);

  dtrun::runtime::Context context;
  dtrun::runtime::c_api::Owner owner;
  dtrun_communicator world;
  std::string description;
  std::vector<std::pair<std::string, std::string>> options;
};

struct dtrun_memory {
  dtrun::runtime::c_api::Owner owner;
  std::unique_ptr<dtrun::ops::Memory> memory;
};

// Each operation makes one, so it holds no more of its owner than a check needs.
struct dtrun_work {
  dtrun::runtime::c_api::Process owner;
  dtrun::ops::Work work;
};

struct dtrun_reducer {
  dtrun::runtime::c_api::Owner owner;
  dtrun::runtime::GradientReducer reducer;
};

struct dtrun_shards {
  dtrun::runtime::c_api::Owner owner;
  dtrun::runtime::ParameterShards shards;
};

namespace dtrun::runtime::c_api {

dtrun_error* NewError(
    ErrorCode code, const char* message, const std::vector<int>& ranks = {},
    const std::string& operation = "");

/// Calls `body` and returns its exception as an error: no exception may cross the C ABI.
template <typename Body>
dtrun_error* Guard(const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    return NewError(error.code(), error.what(), error.ranks(), error.operation());
  } catch (const std::bad_alloc&) {
    return NewError(ErrorCode::kSystem, "out of memory");
  } catch (const std::exception& error) {
    return NewError(ErrorCode::kSystem, error.what());
  }
}

[[noreturn]] void RefuseNull(const char* name);

/// Throws Error kInvalidArgument if `pointer` is NULL.
inline void CheckNotNull(const void* pointer, const char* name) {
  if (pointer == nullptr) RefuseNull(name);
}

/// Dereferences `handle`. Throws Error kInvalidArgument if it is NULL or of another process.
template <typename Handle>
Handle& Use(Handle* handle, const char* name) {
  CheckNotNull(handle, name);
  CheckProcess(handle->owner);
  return *handle;
}

/// Deletes `handle`, except in a forked child: its peers rely on the inherited resources.
template <typename Handle>
void Destroy(Handle* handle) {
  if (handle == nullptr) return;
  const Process& owner = handle->owner;
  if (!owner.watch.forked()) delete handle;
}

/// Copies the caller's options. A caller that was compiled with a later version has a longer
/// struct. The members that this library does not know must then be zero. Throws Error kUnavailable
/// if they are not, or kInvalidArgument if the struct is too short.
template <typename Options>
Options ReadSized(const Options* options, const char* how_to_begin) {
  CheckNotNull(options, "options");
  Options known;
  const uint64_t bytes = options->struct_bytes;
  if (bytes < sizeof known) {
    throw Error(
        ErrorCode::kInvalidArgument, base::Text(
                                         "struct_bytes of the options is ", bytes, "; expected ",
                                         sizeof known, ": begin with ", how_to_begin));
  }
  const char* first = reinterpret_cast<const char*>(options);
  if (std::any_of(first + sizeof known, first + bytes, [](char byte) { return byte != 0; })) {
    throw Error(
        ErrorCode::kUnavailable,
        "the program sets an option that this version of libdtrun does not know");
  }
  std::memcpy(&known, options, sizeof known);
  return known;
}

/// The wire format that the program selects, by DTRUN_WIRE_... or by its own `format` (may be
/// null). Returns null if the program selects no format. Throws Error kInvalidArgument.
std::shared_ptr<WireFormat> ReadWireFormat(int32_t wire, const dtrun_wire_format* format);

/// Fills in a struct that the caller has created with dtrun_new_step_statistics. Null is allowed.
/// `name` is the name of the parameter, for errors.
void TellStatistics(
    const base::StepTotals& totals, const char* name, dtrun_step_statistics* statistics);

std::vector<Tensor> ReadTensors(const dtrun_tensor* tensors, size_t count);
Metadata ReadMetadata(const dtrun_metadata* metadata, size_t count);

/// A new handle for the tensors of a file and their memory.
dtrun_tensor_file* NewTensorFile(TensorFile file);

/// Views of the metadata for C. They are valid as long as `metadata`.
std::vector<dtrun_metadata> ToC(const Metadata& metadata);

}  // namespace dtrun::runtime::c_api

#endif
