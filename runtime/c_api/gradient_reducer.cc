#include <utility>
#include <vector>

#include "dtrun/c.h"
#include "dtrun/types.h"
#include "runtime/c_api/handles.h"

using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Destroy;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::Use;

dtrun_error* dtrun_reducer_create(
    dtrun_communicator* communicator, const dtrun_gradient* gradients, size_t gradient_count,
    int32_t reduce_op, uint64_t bucket_bytes, dtrun_reducer** reducer) {
  return Guard([&] {
    CheckNotNull(reducer, "reducer");
    std::vector<dtrun::runtime::Gradient> list;
    for (size_t i = 0; i < gradient_count; ++i) {
      CheckNotNull(gradients[i].name, "the name of a gradient");
      list.push_back({gradients[i].name, dtrun::detail::FromC(gradients[i].buffer)});
    }
    dtrun_communicator& c = Use(communicator, "communicator");
    *reducer = new dtrun_reducer{
        c.owner, dtrun::runtime::GradientReducer(
                     *c.communicator, std::move(list), static_cast<dtrun::ReduceOp>(reduce_op),
                     bucket_bytes == 0 ? c.default_bucket_bytes : bucket_bytes)};
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

dtrun_error* dtrun_reducer_wait(dtrun_reducer* reducer) {
  return Guard([&] {
    Use(reducer, "reducer").reducer.Wait();
    reducer->owner.recorder->CountReducedStep();
  });
}

void dtrun_reducer_destroy(dtrun_reducer* reducer) { Destroy(reducer); }
