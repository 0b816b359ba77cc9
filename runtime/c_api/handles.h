#ifndef DTRUN_RUNTIME_C_API_HANDLES_H_
#define DTRUN_RUNTIME_C_API_HANDLES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "dtrun/c.h"
#include "dtrun/error.h"
#include "dtrun/types.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/job/job_context.h"
#include "runtime/reducer/bucketed_reducer.h"
#include "runtime/step/parameter_shards.h"

// What is behind the opaque types of c.h, and how each of its functions uses them: it unwraps its
// handles with `Use`, calls one method, and turns an exception into a dtrun_error with `Guard`.

namespace dtrun::runtime::c_api {

/// The process that a handle belongs to, and what it is called.
struct Owner {
  base::ForkWatch watch = {};
  int launch_rank = 0;
  ops::FlightRecorder* recorder = nullptr;  // the context's, which outlives all handles
  Timeline* timeline = nullptr;             // likewise; null: none
  const base::LogSink* log = nullptr;       // likewise
  ops::Engine* engine = nullptr;            // likewise
};

/// What the job's options say of all reducers.
struct ReducerDefaults {
  uint64_t bucket_bytes = 0;
  std::optional<AutotuneOptions> autotune = std::nullopt;
  /// Reducers of the job that have been told to tune: each writes a log of its own.
  std::shared_ptr<std::atomic<int>> tuned = std::make_shared<std::atomic<int>>(0);
};

/// Throws Error kInvalidArgument in a child of the owner.
void CheckProcess(const Owner& owner);

}  // namespace dtrun::runtime::c_api

struct dtrun_error {
  int32_t code;
  std::string message;
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
  std::string obstacle = {};  // of registered memory
};

struct dtrun_work {
  dtrun::runtime::c_api::Owner owner;
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

dtrun_error* NewError(ErrorCode code, const char* message);

/// No exception may cross the C ABI.
template <typename Body>
dtrun_error* Guard(const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    return NewError(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return NewError(ErrorCode::kSystem, "out of memory");
  } catch (const std::exception& error) {
    return NewError(ErrorCode::kSystem, error.what());
  }
}

void CheckNotNull(const void* pointer, const char* name);

/// What `handle` points to, if this process may use it.
template <typename Handle>
Handle& Use(Handle* handle, const char* name) {
  CheckNotNull(handle, name);
  CheckProcess(handle->owner);
  return *handle;
}

/// A child of the owner leaves what it inherited alone: peers rely on it.
template <typename Handle>
void Destroy(Handle* handle) {
  if (handle != nullptr && !handle->owner.watch.forked()) delete handle;
}

}  // namespace dtrun::runtime::c_api

#endif
