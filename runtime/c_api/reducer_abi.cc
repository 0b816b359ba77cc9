#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/c.h"
#include "dtrun/error.h"
#include "dtrun/types.h"
#include "runtime/c_api/handles.h"

using dtrun::base::Text;
using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Destroy;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::TellStatistics;
using dtrun::runtime::c_api::Use;

namespace {

// The size of the members that the first version had.
constexpr uint64_t kLeastBytes = offsetof(dtrun_reducer_options, first_bucket_bytes);

// A program that was compiled with an earlier version has a shorter struct. The missing members get
// their defaults. A program that was compiled with a later version has a longer struct. The members
// that this library does not know must be zero.
dtrun_reducer_options ReadOptions(const dtrun_reducer_options* options) {
  CheckNotNull(options, "options");
  dtrun_reducer_options known = dtrun_default_reducer_options();
  const uint64_t bytes = options->struct_bytes;
  if (bytes < kLeastBytes) {
    throw dtrun::Error(
        dtrun::ErrorCode::kInvalidArgument,
        Text(
            "struct_bytes of the options is ", bytes, "; expected ", sizeof known,
            ": begin with dtrun_default_reducer_options()"));
  }
  const char* first = reinterpret_cast<const char*>(options);
  if (bytes > sizeof known &&
      std::any_of(first + sizeof known, first + bytes, [](char byte) { return byte != 0; })) {
    throw dtrun::Error(
        dtrun::ErrorCode::kUnavailable,
        "the program sets an option that this version of libdtrun does not know");
  }
  std::memcpy(&known, options, std::min<uint64_t>(bytes, sizeof known));
  return known;
}

std::vector<std::vector<size_t>> ReadGroups(const dtrun_reducer_options& told) {
  std::vector<std::vector<size_t>> groups;
  if (told.group_count > 0) CheckNotNull(told.groups, "the groups");
  for (size_t g = 0; g < told.group_count; ++g) {
    const dtrun_group& group = told.groups[g];
    if (group.gradient_count > 0) CheckNotNull(group.gradients, "the gradients of a group");
    groups.emplace_back(group.gradients, group.gradients + group.gradient_count);
  }
  return groups;
}

// Each reducer that tunes gets its own log file: FILE, FILE.2, FILE.3, ...
std::optional<dtrun::runtime::AutotuneOptions> AutotuneOf(
    const dtrun::runtime::c_api::ReducerDefaults& defaults) {
  std::optional<dtrun::runtime::AutotuneOptions> autotune = defaults.autotune;
  if (!autotune || autotune->log_file.empty()) return autotune;
  const int number = ++*defaults.tuned;
  if (number > 1) autotune->log_file += Text('.', number);
  return autotune;
}

dtrun::runtime::ReducerSettings ReadSettings(
    const dtrun_reducer_options& told, const dtrun::runtime::c_api::ReducerDefaults& defaults) {
  dtrun::runtime::ReducerSettings settings;
  settings.op = static_cast<dtrun::ReduceOp>(told.reduce_op);
  settings.bucket_bytes = told.bucket_bytes == 0 ? defaults.bucket_bytes : told.bucket_bytes;
  settings.autotune = AutotuneOf(defaults);
  settings.scale = {told.scale.before, told.scale.after};
  settings.first_bucket_bytes = told.first_bucket_bytes;
  settings.groups = ReadGroups(told);
  settings.group_count = told.equal_groups;
  settings.wire = dtrun::runtime::c_api::ReadWireFormat(told.wire, told.wire_format);
  settings.rebuild = told.rebuild != 0;
  return settings;
}

constexpr double kSecond = 1e9;  // nanoseconds

}  // namespace

dtrun_error* dtrun_reducer_create(
    dtrun_communicator* communicator, const dtrun_gradient* gradients, size_t gradient_count,
    int32_t reduce_op, uint64_t bucket_bytes, dtrun_reducer** reducer) {
  dtrun_reducer_options options = dtrun_default_reducer_options();
  options.reduce_op = reduce_op;
  options.bucket_bytes = bucket_bytes;
  return dtrun_reducer_create_with(communicator, gradients, gradient_count, &options, reducer);
}

dtrun_error* dtrun_reducer_create_with(
    dtrun_communicator* communicator, const dtrun_gradient* gradients, size_t gradient_count,
    const dtrun_reducer_options* options, dtrun_reducer** reducer) {
  return Guard([&] {
    CheckNotNull(reducer, "reducer");
    const dtrun_reducer_options told = ReadOptions(options);
    std::vector<dtrun::runtime::Gradient> list;
    for (size_t i = 0; i < gradient_count; ++i) {
      CheckNotNull(gradients[i].name, "the name of a gradient");
      list.push_back({gradients[i].name, dtrun::detail::FromC(gradients[i].buffer)});
    }
    dtrun_communicator& c = Use(communicator, "communicator");
    std::unique_ptr<dtrun::runtime::ReducerObserver> observer;
    if (c.owner.timeline != nullptr) {
      std::vector<std::string> names;
      for (const auto& gradient : list) names.push_back(gradient.name);
      observer = c.owner.timeline->ObserveReducer(std::move(names));
    }
    *reducer = new dtrun_reducer{
        c.owner, dtrun::runtime::GradientReducer(
                     *c.communicator, std::move(list), ReadSettings(told, c.reducer_defaults),
                     std::move(observer))};
  });
}

dtrun_error* dtrun_reducer_gradient(
    const dtrun_reducer* reducer, size_t index, dtrun_buffer* buffer) {
  return Guard([&] {
    CheckNotNull(buffer, "buffer");
    *buffer = dtrun::detail::ToC(Use(reducer, "reducer").reducer.gradient(index));
  });
}

dtrun_error* dtrun_reducer_mark_ready(dtrun_reducer* reducer, size_t index) {
  return Guard([&] { Use(reducer, "reducer").reducer.MarkReady(index); });
}

dtrun_error* dtrun_reducer_mark_ready_from(
    dtrun_reducer* reducer, size_t index, const void* source) {
  return Guard([&] {
    auto& used = Use(reducer, "reducer").reducer;
    if (used.gradient(index).count > 0) CheckNotNull(source, "source");
    used.MarkReadyFrom(index, source);
  });
}

dtrun_error* dtrun_reducer_mark_unused(dtrun_reducer* reducer, size_t index) {
  return Guard([&] { Use(reducer, "reducer").reducer.MarkUnused(index); });
}

dtrun_error* dtrun_reducer_mark_ready_at(
    dtrun_reducer* reducer, size_t index, const void* source, void* place) {
  return Guard([&] {
    auto& used = Use(reducer, "reducer").reducer;
    CheckNotNull(source, "source");
    CheckNotNull(place, "place");
    used.MarkReadyAt(index, source, place);
  });
}

dtrun_error* dtrun_reducer_mark_unused_at(dtrun_reducer* reducer, size_t index, void* place) {
  return Guard([&] {
    CheckNotNull(place, "place");
    Use(reducer, "reducer").reducer.MarkUnusedAt(index, place);
  });
}

dtrun_error* dtrun_reducer_is_alone(const dtrun_reducer* reducer, size_t index, int32_t* alone) {
  return Guard([&] {
    CheckNotNull(alone, "alone");
    *alone = Use(reducer, "reducer").reducer.IsAlone(index) ? 1 : 0;
  });
}

dtrun_error* dtrun_reducer_was_used(const dtrun_reducer* reducer, size_t index, int32_t* used) {
  return Guard([&] {
    CheckNotNull(used, "used");
    *used = Use(reducer, "reducer").reducer.WasUsed(index) ? 1 : 0;
  });
}

namespace {

// dtrun --inject "corrupt bucket B of rank R at step S". dtrun reports it.
void CorruptOnPurpose(dtrun_reducer& reducer) {
  const auto* corruptions = reducer.owner.corruptions;
  if (corruptions == nullptr || corruptions->empty()) return;
  for (const dtrun::base::Corruption& each : *corruptions)
    if (each.rank == reducer.owner.process.launch_rank &&
        each.step == reducer.owner.recorder->step() + 1 &&
        !reducer.reducer.Corrupt(static_cast<size_t>(each.bucket)))
      (*reducer.owner.log)(
          dtrun::base::LogLevel::kWarning,
          Text("--inject: there is no bucket ", each.bucket, " to corrupt in step ", each.step));
}

}  // namespace

dtrun_error* dtrun_reducer_wait(dtrun_reducer* reducer) {
  return Guard([&] {
    Use(reducer, "reducer").reducer.Wait();
    CorruptOnPurpose(*reducer);
    reducer->owner.recorder->AddSteps(reducer->reducer.meter().last());
  });
}

dtrun_error* dtrun_reducer_statistics(
    const dtrun_reducer* reducer, dtrun_step_statistics* last, dtrun_step_statistics* total) {
  return Guard([&] {
    const auto& meter = Use(reducer, "reducer").reducer.meter();
    TellStatistics(meter.last(), "last", last);
    TellStatistics(meter.total(), "total", total);
  });
}

dtrun_error* dtrun_reducer_late_ranks(const dtrun_reducer* reducer, double* seconds, size_t count) {
  return Guard([&] {
    CheckNotNull(seconds, "seconds");
    const auto& late = Use(reducer, "reducer").reducer.meter().total_lateness().by_rank;
    for (size_t rank = 0; rank < count; ++rank)
      seconds[rank] = rank < late.size() ? static_cast<double>(late[rank].count()) / kSecond : 0;
  });
}

void dtrun_reducer_destroy(dtrun_reducer* reducer) { Destroy(reducer); }
