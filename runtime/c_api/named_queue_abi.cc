#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/c.h"
#include "dtrun/error.h"
#include "dtrun/types.h"
#include "runtime/c_api/handles.h"
#include "runtime/named/process_sets.h"

using dtrun::Error;
using dtrun::ErrorCode;
using dtrun::base::Text;
using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Destroy;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::Owner;
using dtrun::runtime::c_api::ReadSized;
using dtrun::runtime::c_api::Use;
using dtrun::runtime::named::Kind;
using dtrun::runtime::named::NamedQueue;
using dtrun::runtime::named::NamedTensor;
using dtrun::runtime::named::NamedWork;
using dtrun::runtime::named::Operation;
using dtrun::runtime::named::Settings;
using dtrun::runtime::named::Submission;

struct dtrun_named_queue {
  Owner owner;
  NamedQueue queue;
};

struct dtrun_named_work {
  Owner owner;
  std::vector<int> ranks;  // of the process set, for a join
  NamedWork work;
};

namespace {

dtrun::base::Duration ReadSeconds(const char* name, double seconds, dtrun::base::Duration unsaid) {
  if (seconds == 0) return unsaid;
  if (!(seconds > 0) || seconds > 1e6) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(name, " is ", seconds, "; expected a number of seconds up to 1000000, or 0"));
  }
  return std::chrono::duration_cast<dtrun::base::Duration>(std::chrono::duration<double>(seconds));
}

Settings ReadSettings(const dtrun_named_queue_options& told, const Owner& owner) {
  Settings settings;
  if (told.batch_bytes > uint64_t{1} << 40) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("batch_bytes is ", told.batch_bytes, "; expected 1099511627776 at most"));
  }
  if (told.cache_capacity > 1 << 20) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("cache_capacity is ", told.cache_capacity, "; expected 1048576 at most"));
  }
  settings.batch_bytes = told.batch_bytes;
  settings.cache_capacity = told.cache_capacity;
  settings.first_sets = told.set_count;
  const dtrun::ops::EngineOptions& job = owner.engine->options();
  settings.timeout = ReadSeconds("timeout_s", told.timeout_s, job.timeout);
  settings.stall_warning = ReadSeconds(
      "stall_warning_s", told.stall_warning_s, std::min(job.stall_warning, settings.timeout));
  if (owner.timeline != nullptr)
    settings.observe = [timeline = owner.timeline](std::string ranks) {
      return timeline->ObserveTensors(std::move(ranks));
    };
  return settings;
}

std::vector<int> ReadRanks(const int32_t* ranks, size_t count) {
  if (count > 0) CheckNotNull(ranks, "ranks");
  return std::vector<int>(ranks, ranks + count);
}

NamedTensor ReadTensor(const dtrun_named_tensor& told, const NamedQueue& queue, int set) {
  CheckNotNull(told.name, "the name of a tensor");
  NamedTensor tensor;
  tensor.name = told.name;
  tensor.input = dtrun::detail::FromC(told.input);
  tensor.output = dtrun::detail::FromC(told.output);
  if (told.dimensions > 0) CheckNotNull(told.shape, "the shape of a tensor");
  tensor.shape.assign(told.shape, told.shape + told.dimensions);
  if (told.splits == nullptr) return tensor;
  tensor.has_splits = true;
  tensor.splits.assign(told.splits, told.splits + queue.RanksOf(set).size());
  return tensor;
}

NamedWork Submit(
    NamedQueue& queue, const Operation& operation, std::span<const dtrun_named_tensor> tensors,
    NamedQueue::Callback callback) {
  if (tensors.size() == 1)
    return queue.Submit(
        operation, ReadTensor(tensors[0], queue, operation.set), std::move(callback));
  std::vector<NamedTensor> group;
  group.reserve(tensors.size());
  for (const dtrun_named_tensor& told : tensors)
    group.push_back(ReadTensor(told, queue, operation.set));
  return queue.Submit(operation, std::move(group), std::move(callback));
}

// The callback gets its own work handle, because the caller may not have received its handle yet.
NamedQueue::Callback ReadCallback(
    const Owner& owner, dtrun_named_callback callback, void* argument) {
  if (callback == nullptr) return nullptr;
  return [=](const std::shared_ptr<Submission>& submission) {
    const dtrun_named_work work{owner, {}, NamedWork(nullptr, submission)};
    dtrun_error* const error = Guard([&] {
      if (submission->error) std::rethrow_exception(submission->error);
    });
    callback(argument, &work, error);
    dtrun_error_destroy(error);
  };
}

}  // namespace

dtrun_error* dtrun_named_queue_create(
    dtrun_communicator* communicator, const dtrun_named_queue_options* options,
    dtrun_named_queue** queue) {
  return Guard([&] {
    CheckNotNull(queue, "queue");
    dtrun_communicator& c = Use(communicator, "communicator");
    const dtrun_named_queue_options told =
        options == nullptr ? dtrun_default_named_queue_options()
                           : ReadSized(options, "dtrun_default_named_queue_options()");
    if (told.set_count > 0) CheckNotNull(told.sets, "sets");
    auto created = std::unique_ptr<dtrun_named_queue>(new dtrun_named_queue{
        c.owner,
        NamedQueue(*c.communicator, *c.owner.engine, *c.owner.log, ReadSettings(told, c.owner))});
    for (size_t i = 0; i < told.set_count; ++i) {
      created->queue.AddSet(ReadRanks(told.sets[i].ranks, told.sets[i].rank_count));
    }
    *queue = created.release();
  });
}

void dtrun_named_queue_destroy(dtrun_named_queue* queue) { Destroy(queue); }

dtrun_error* dtrun_named_queue_add_set(
    dtrun_named_queue* queue, const int32_t* ranks, size_t rank_count, int32_t* set) {
  return Guard([&] {
    CheckNotNull(set, "set");
    *set = Use(queue, "queue").queue.AddSet(ReadRanks(ranks, rank_count));
  });
}

dtrun_error* dtrun_named_queue_remove_set(dtrun_named_queue* queue, int32_t set) {
  return Guard([&] { Use(queue, "queue").queue.RemoveSet(set); });
}

dtrun_error* dtrun_named_queue_sets(
    const dtrun_named_queue* queue, int32_t* sets, size_t* set_count) {
  return Guard([&] {
    CheckNotNull(set_count, "set_count");
    const std::vector<int> all = Use(queue, "queue").queue.Sets();
    if (sets != nullptr) std::copy_n(all.begin(), std::min(*set_count, all.size()), sets);
    *set_count = all.size();
  });
}

dtrun_error* dtrun_named_queue_set_ranks(
    const dtrun_named_queue* queue, int32_t set, int32_t* ranks, size_t* rank_count) {
  return Guard([&] {
    CheckNotNull(rank_count, "rank_count");
    const std::vector<int> all = Use(queue, "queue").queue.RanksOf(set);
    if (ranks != nullptr) {
      std::copy_n(all.begin(), std::min(*rank_count, all.size()), ranks);
    }
    *rank_count = all.size();
  });
}

dtrun_error* dtrun_named_submit(
    dtrun_named_queue* queue, const dtrun_named_operation* operation,
    const dtrun_named_tensor* tensors, size_t tensor_count, dtrun_named_work** work) {
  return Guard([&] {
    CheckNotNull(work, "work");
    dtrun_named_queue& used = Use(queue, "queue");
    const auto told = ReadSized(operation, "dtrun_named_operation_of()");
    if (told.kind < DTRUN_NAMED_ALL_REDUCE || told.kind > DTRUN_NAMED_REDUCE_SCATTER) {
      throw Error(
          ErrorCode::kInvalidArgument, Text("named operation ", told.kind, " does not exist"));
    }
    if (tensor_count > 0) CheckNotNull(tensors, "tensors");
    const Operation asked = {
        .kind = static_cast<Kind>(told.kind),
        .op = static_cast<dtrun::ReduceOp>(told.reduce_op),
        .root = told.root,
        .set = told.set,
        .scale = {told.scale.before, told.scale.after}};
    *work = new dtrun_named_work{
        used.owner,
        {},
        Submit(
            used.queue, asked, {tensors, tensor_count},
            ReadCallback(used.owner, told.callback, told.argument))};
  });
}

dtrun_error* dtrun_named_barrier(dtrun_named_queue* queue, int32_t set, dtrun_named_work** work) {
  return Guard([&] {
    CheckNotNull(work, "work");
    dtrun_named_queue& used = Use(queue, "queue");
    *work = new dtrun_named_work{used.owner, {}, used.queue.Barrier(set)};
  });
}

dtrun_error* dtrun_named_join(dtrun_named_queue* queue, int32_t set, dtrun_named_work** work) {
  return Guard([&] {
    CheckNotNull(work, "work");
    dtrun_named_queue& used = Use(queue, "queue");
    *work = new dtrun_named_work{used.owner, used.queue.RanksOf(set), used.queue.Join(set)};
  });
}

dtrun_error* dtrun_named_work_test(dtrun_named_work* work, int32_t* done) {
  return Guard([&] {
    CheckNotNull(done, "done");
    *done = Use(work, "work").work.Test() ? 1 : 0;
  });
}

dtrun_error* dtrun_named_work_wait(dtrun_named_work* work) {
  return Guard([&] { Use(work, "work").work.Wait(); });
}

dtrun_error* dtrun_named_work_result(
    const dtrun_named_work* work, size_t index, dtrun_buffer* result, const uint64_t** shape,
    uint64_t* dimensions) {
  return Guard([&] {
    const auto& part = Use(work, "work").work.result(index);
    if (result != nullptr) *result = dtrun::detail::ToC(part.result);
    if (shape != nullptr) *shape = ShapeOf(part).data();
    if (dimensions != nullptr) *dimensions = ShapeOf(part).size();
  });
}

dtrun_error* dtrun_named_work_received_splits(
    const dtrun_named_work* work, size_t index, const uint64_t** splits) {
  return Guard([&] {
    CheckNotNull(splits, "splits");
    const auto& part = Use(work, "work").work.result(index);
    if (part.received_splits.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "the work is no all_to_all");
    }
    *splits = part.received_splits.data();
  });
}

dtrun_error* dtrun_named_work_last_joined(const dtrun_named_work* work, int32_t* rank) {
  return Guard([&] {
    CheckNotNull(rank, "rank");
    const dtrun_named_work& used = Use(work, "work");
    *rank = used.ranks.at(static_cast<size_t>(used.work.last_joined()));
  });
}

void dtrun_named_work_destroy(dtrun_named_work* work) { Destroy(work); }
