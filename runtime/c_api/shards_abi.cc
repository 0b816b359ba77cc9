#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/c.h"
#include "dtrun/error.h"
#include "dtrun/types.h"
#include "runtime/c_api/handles.h"
#include "runtime/step/parameter_shards.h"

using dtrun::base::Text;
using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Destroy;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::ReadSized;
using dtrun::runtime::c_api::Use;

namespace {

std::vector<std::optional<dtrun::DType>> Slots(const dtrun_shards_options& options) {
  std::vector<std::optional<dtrun::DType>> slots;
  if (options.slot_count > 0) CheckNotNull(options.slot_dtypes, "slot_dtypes");
  for (uint64_t s = 0; s < options.slot_count; ++s) {
    const int32_t dtype = options.slot_dtypes[s];
    if (dtype < 0) {
      slots.emplace_back();
      continue;
    }
    slots.emplace_back(static_cast<dtrun::DType>(dtype));
    if (dtrun::SizeOf(*slots.back()) == 0) {
      throw dtrun::Error(
          dtrun::ErrorCode::kInvalidArgument,
          Text("state slot ", s, " has dtype ", dtype, ", which does not exist"));
    }
  }
  return slots;
}

dtrun_parameter_slice ToC(const dtrun::runtime::ParameterSlice& slice) {
  return {slice.parameter, slice.first, slice.count, slice.gradient, slice.value, slice.slots};
}

dtrun::runtime::MomentumStep StepOf(const dtrun_momentum_step* step, size_t parameters) {
  const dtrun_momentum_step told = ReadSized(step, "dtrun_default_momentum_step()");
  dtrun::runtime::MomentumStep result;
  result.recurrence = {
      .keep = static_cast<float>(told.keep),
      .take = static_cast<float>(told.take),
      .decay = static_cast<float>(told.decay),
      .by_accumulator = static_cast<float>(told.by_momentum),
      .by_input = static_cast<float>(told.by_gradient)};
  if (told.frozen != nullptr) result.frozen.assign(told.frozen, told.frozen + parameters);
  return result;
}

}  // namespace

dtrun_error* dtrun_shards_create(
    dtrun_communicator* communicator, const dtrun_sharded_parameter* parameters,
    size_t parameter_count, const dtrun_shards_options* options, dtrun_shards** shards) {
  return Guard([&] {
    CheckNotNull(shards, "shards");
    const dtrun_shards_options told = ReadSized(options, "dtrun_default_shards_options()");
    std::vector<dtrun::runtime::ShardedParameter> list;
    for (size_t i = 0; i < parameter_count; ++i) {
      CheckNotNull(parameters[i].name, "the name of a parameter");
      list.push_back({parameters[i].name, dtrun::detail::FromC(parameters[i].value)});
    }
    dtrun_communicator& c = Use(communicator, "communicator");
    *shards = new dtrun_shards{
        c.owner, dtrun::runtime::ParameterShards(
                     *c.communicator, std::move(list),
                     {.op = static_cast<dtrun::ReduceOp>(told.reduce_op),
                      .bucket_bytes = told.bucket_bytes == 0 ? c.reducer_defaults.bucket_bytes
                                                             : told.bucket_bytes,
                      .one_copy = told.one_copy_per_host != 0,
                      .slots = Slots(told)})};
  });
}

dtrun_error* dtrun_shards_gradient(const dtrun_shards* shards, size_t index, dtrun_buffer* buffer) {
  return Guard([&] {
    CheckNotNull(buffer, "buffer");
    *buffer = dtrun::detail::ToC(Use(shards, "shards").shards.gradient(index));
  });
}

dtrun_error* dtrun_shards_value(const dtrun_shards* shards, size_t index, dtrun_buffer* buffer) {
  return Guard([&] {
    CheckNotNull(buffer, "buffer");
    *buffer = dtrun::detail::ToC(Use(shards, "shards").shards.value(index));
  });
}

dtrun_error* dtrun_shards_mark_ready(dtrun_shards* shards, size_t index) {
  return Guard([&] { Use(shards, "shards").shards.MarkReady(index); });
}

dtrun_error* dtrun_shards_squared_norms(dtrun_shards* shards, double* gradients, double* values) {
  return Guard([&] {
    auto& used = Use(shards, "shards").shards;
    CheckNotNull(gradients, "gradients");
    used.Reduce();
    used.SquaredNorms(gradients, values);
  });
}

dtrun_error* dtrun_shards_step(
    dtrun_shards* shards, double factor, dtrun_update_function update, void* argument) {
  return Guard([&] {
    dtrun_shards& used = Use(shards, "shards");
    if (update == nullptr) CheckNotNull(nullptr, "update");
    used.shards.Step(factor, [&](const dtrun::runtime::ParameterSlice& slice) {
      const dtrun_parameter_slice told = ToC(slice);
      update(argument, &told);
    });
    used.owner.recorder->AddSteps(used.shards.meter().last());
  });
}

dtrun_error* dtrun_shards_step_momentum(
    dtrun_shards* shards, double factor, const dtrun_momentum_step* step) {
  return Guard([&] {
    dtrun_shards& used = Use(shards, "shards");
    used.shards.Step(factor, StepOf(step, used.shards.size()));
    used.owner.recorder->AddSteps(used.shards.meter().last());
  });
}

dtrun_error* dtrun_shards_wait_for(dtrun_shards* shards, size_t index) {
  return Guard([&] { Use(shards, "shards").shards.WaitFor(index); });
}

dtrun_error* dtrun_shards_own_slices(
    dtrun_shards* shards, dtrun_update_function visit, void* argument) {
  return Guard([&] {
    dtrun_shards& used = Use(shards, "shards");
    if (visit == nullptr) CheckNotNull(nullptr, "visit");
    used.shards.ForOwnSlices([&](const dtrun::runtime::ParameterSlice& slice) {
      const dtrun_parameter_slice told = ToC(slice);
      visit(argument, &told);
    });
  });
}

dtrun_error* dtrun_shards_copy_state(
    dtrun_shards* shards, void* const* places, size_t count, void (*begin)(void* argument),
    void* argument) {
  return Guard([&] {
    dtrun_shards& used = Use(shards, "shards");
    if (count > 0) CheckNotNull(places, "places");
    if (count > 0 && begin == nullptr) CheckNotNull(nullptr, "begin");
    used.shards.CopyStateInNextStep(
        std::vector<void*>(places, places + count), [begin, argument] { begin(argument); });
  });
}

dtrun_error* dtrun_shards_state_is_copied(const dtrun_shards* shards, int32_t* is_copied) {
  return Guard([&] {
    CheckNotNull(is_copied, "is_copied");
    *is_copied = Use(shards, "shards").shards.state_is_copied() ? 1 : 0;
  });
}

dtrun_error* dtrun_shards_gather_state(
    dtrun_shards* shards, size_t slot, size_t index, int32_t root, void* output) {
  return Guard([&] { Use(shards, "shards").shards.GatherState(slot, index, root, output); });
}

dtrun_error* dtrun_shards_set_state(
    dtrun_shards* shards, size_t slot, size_t index, const void* input) {
  return Guard([&] {
    auto& used = Use(shards, "shards").shards;
    if (used.gradient(index).count > 0) CheckNotNull(input, "input");
    used.SetState(slot, index, input);
  });
}

dtrun_error* dtrun_shards_statistics(
    const dtrun_shards* shards, dtrun_step_statistics* last, dtrun_step_statistics* total) {
  return Guard([&] {
    const auto& meter = Use(shards, "shards").shards.meter();
    dtrun::runtime::c_api::TellStatistics(meter.last(), "last", last);
    dtrun::runtime::c_api::TellStatistics(meter.total(), "total", total);
  });
}

void dtrun_shards_destroy(dtrun_shards* shards) { Destroy(shards); }
