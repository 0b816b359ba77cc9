#include "runtime/c_api/handles.h"

#include <unistd.h>

#include "base/launch_env.h"
#include "base/text.h"

namespace {

dtrun::runtime::c_api::ReducerDefaults DefaultsOf(const dtrun::base::Options& options) {
  dtrun::runtime::c_api::ReducerDefaults defaults;
  defaults.bucket_bytes = options.bucket_bytes;
  if (options.autotune)
    defaults.autotune = {options.autotune_log, options.autotune_cache, options.autotune_wire};
  return defaults;
}

}  // namespace

dtrun_context::dtrun_context(
    const std::vector<std::pair<std::string, std::string>>& given,
    const dtrun::ops::MpiHandle& handle)
    : context(dtrun::base::ProcessEnv, given, handle),
      owner{
          .launch_rank = context.launch_rank(),
          .recorder = &context.recorder(),
          .timeline = &context.timeline(),
          .log = &context.log(),
          .engine = &context.engine(),
          .gpu_memory_bytes = context.options().gpu_memory_bytes},
      world{owner, &context.world(), nullptr, DefaultsOf(context.options())},
      description(context.Describe()),
      options(dtrun::base::OptionValues(context.options())) {}

namespace dtrun::runtime::c_api {

void CheckProcess(const Owner& owner) {
  if (!owner.watch.forked()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      base::Text(
          "process ", ::getpid(), " was forked from rank ", owner.launch_rank,
          " after Init; only the process that called Init may use objects of dtrun"));
}

dtrun_error* NewError(ErrorCode code, const char* message) {
  return new dtrun_error{static_cast<int32_t>(code), message};
}

void CheckNotNull(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Error(ErrorCode::kInvalidArgument, base::Text(name, " is NULL"));
}

}  // namespace dtrun::runtime::c_api
