// A job that uses all operations of a named queue. Each rank prints its failed checks. Rank 0
// prints "<backend>: all is right" if it has none.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/named_queue.h>
#include <dtrun/types.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace programs::named {

using dtrun::Buffer;
using dtrun::NamedOptions;
using dtrun::NamedQueue;
using dtrun::NamedWork;
using dtrun::QueuedTensor;
using dtrun::ReduceOp;

int wrong = 0;

void Expect(dtrun::Context& job, bool holds, const std::string& what) {
  if (holds) return;
  ++wrong;
  std::printf("rank %d: not so: %s\n", job.rank(), what.c_str());
}

std::string ErrorOf(NamedWork work) {
  try {
    work.Wait();
    return "";
  } catch (const dtrun::Error& error) {
    return error.what();
  }
}

void InDifferentOrders(dtrun::Context& job, NamedQueue& queue) {
  constexpr int kTensors = 50;
  for (int step = 0; step < 20; ++step) {
    std::vector<std::vector<double>> values(kTensors);
    std::vector<NamedWork> works;
    for (int i = 0; i < kTensors; ++i) {
      const int name = (7 * i + 13 * job.rank()) % kTensors;
      auto& mine = values[static_cast<size_t>(name)];
      mine.assign(static_cast<size_t>(1 + name * name), job.rank() + name + step);
      works.push_back(
          queue.AllReduce("t" + std::to_string(name), Buffer(mine.data(), mine.size())));
    }
    for (NamedWork& work : works) work.Wait();
    for (int name = 0; name < kTensors; ++name) {
      const double sum = job.size() * (name + step) + job.size() * (job.size() - 1) / 2;
      for (const double value : values[static_cast<size_t>(name)])
        Expect(job, value == sum, "the sum of tensor " + std::to_string(name));
    }
  }
}

void EveryKind(dtrun::Context& job, NamedQueue& queue) {
  const auto p = static_cast<uint64_t>(job.size()), r = static_cast<uint64_t>(job.rank());
  std::vector<int32_t> rows(r + 1, job.rank()), dealt(p, job.rank()), all(p, 1),
      value = {job.rank()};
  NamedWork gather = queue.AllGather({QueuedTensor::Flat("rows", Buffer(rows.data(), r + 1))});
  NamedWork exchange = queue.AllToAll({QueuedTensor::Flat("dealt", Buffer(dealt.data(), p))});
  NamedWork scatter = queue.ReduceScatter({QueuedTensor::Flat("all", Buffer(all.data(), p))});
  NamedWork broadcast = queue.Broadcast(
      {QueuedTensor::Flat("value", Buffer(value.data(), 1))},
      NamedOptions{{}, {}, job.size() - 1, 0});
  gather.Wait(), exchange.Wait(), scatter.Wait(), broadcast.Wait();
  Expect(job, gather.ResultShape() == dtrun::Shape{p * (p + 1) / 2}, "the shape of the gather");
  const auto* gathered = static_cast<const int32_t*>(gather.Result().data);
  for (uint64_t s = 0; s < p; ++s) {
    for (uint64_t i = 0; i <= s; ++i)
      Expect(job, *gathered++ == static_cast<int32_t>(s), "the rows of the gather");
    Expect(
        job, static_cast<const int32_t*>(exchange.Result().data)[s] == static_cast<int32_t>(s),
        "the rows of the exchange");
  }
  Expect(job, exchange.ReceivedSplits(job.size()) == dtrun::Counts(p, 1), "received splits");
  Expect(job, *static_cast<const int32_t*>(scatter.Result().data) == job.size(), "the share");
  Expect(job, value[0] == job.size() - 1, "the root's value");
}

void Mismatch(dtrun::Context& job, NamedQueue& queue) {
  std::vector<float> values(8);
  const uint64_t n = job.rank() == 0 ? 4 : 5;
  const std::string error = ErrorOf(queue.AllReduce("x", Buffer(values.data(), n)));
  const std::string begin =
      "tensor 'x': the ranks disagree on the shape: rank 0 submitted all_reduce (f32[4], sum); ";
  Expect(job, job.size() == 1 ? error.empty() : error.compare(0, begin.size(), begin) == 0, error);
}

void Sets(dtrun::Context& job, NamedQueue& queue) {
  std::vector<std::vector<int>> ranks(2);
  for (int r = 0; r < job.size(); ++r) ranks[r % 2 == 0 ? 0 : 1].push_back(r);
  if (ranks[1].empty()) return;
  const int even = queue.AddSet(ranks[0]), odd = queue.AddSet(ranks[1]);
  const int mine = job.rank() % 2 == 0 ? even : odd;
  float value = 1;
  queue.AllReduce("x", Buffer(&value, 1), NamedOptions{ReduceOp::kSum, {}, 0, mine}).Wait();
  Expect(
      job, value == static_cast<float>(ranks[static_cast<size_t>(job.rank() % 2)].size()),
      "the sum of a set");
  queue.Barrier(mine).Wait();
  queue.RemoveSet(even);
  Expect(job, queue.AddSet(ranks[0]) == odd + 1, "a new number");
}

// Adasum of all ranks, of pairs of ranks, and after some ranks have joined. The sizes cover small
// tensors, tensors in a batch and tensors reduced alone.
void Adasum(dtrun::Context& job, NamedQueue& queue) {
  constexpr size_t kCounts[] = {5, 30000, 2 << 20};
  const auto combine = [&](size_t count, int members, int member, int set) {
    std::vector<float> alike(count, 2), apart(count), one(count);
    for (size_t i = static_cast<size_t>(member); i < count; i += static_cast<size_t>(members))
      apart[i] = 3;
    if (member == 0) one.assign(count, -7);
    const NamedOptions options{ReduceOp::kAdasum, {}, 0, set};
    NamedWork first = queue.AllReduce("alike", Buffer(alike.data(), count), options);
    NamedWork second = queue.AllReduce("apart", Buffer(apart.data(), count), options);
    NamedWork third = queue.AllReduce("one", Buffer(one.data(), count), options);
    first.Wait(), second.Wait(), third.Wait();
    Expect(job, alike == std::vector<float>(count, 2), "adasum of what is the same");
    Expect(job, apart == std::vector<float>(count, 3), "adasum of what is orthogonal");
    Expect(job, one == std::vector<float>(count, -7), "adasum of zeros and one");
  };
  const int size = job.size();
  if (size == 3) {
    float value = 1;
    std::string error;
    try {
      queue.AllReduce("x", Buffer(&value, 1), NamedOptions{ReduceOp::kAdasum}).Wait();
    } catch (const dtrun::Error& refused) {
      error = refused.what();
    }
    Expect(
        job,
        error ==
            "tensor 'x': adasum on the 3 ranks of process set 0; expected a number of ranks that "
            "is a power of two",
        error);
  } else {
    for (const size_t count : kCounts) combine(count, size, job.rank(), 0);
  }
  if (size < 4) return;
  const int sets[] = {queue.AddSet({0, 1}), queue.AddSet({2, 3})};
  for (const size_t count : kCounts) {
    if (job.rank() < 4) combine(count, 2, job.rank() % 2, sets[job.rank() / 2]);
  }
  for (const int set : sets) queue.RemoveSet(set);
  // Ranks 0 and 1 combine equal values while the other ranks wait in Join.
  if (job.rank() < 2) {
    std::vector<float> values(30000, 4);
    queue.AllReduce("x", Buffer(values.data(), values.size()), NamedOptions{ReduceOp::kAdasum})
        .Wait();
    Expect(job, values == std::vector<float>(30000, 4), "adasum of those that take part");
  }
  queue.Join().Wait();
}

void Join(dtrun::Context& job, NamedQueue& queue) {
  for (int step = 0; step < 3 * (job.rank() + 1); ++step) {
    int32_t mean = 5;  // the average is exact for any number of ranks
    queue.AllReduce("mean", Buffer(&mean, 1), NamedOptions{ReduceOp::kAverage}).Wait();
    Expect(job, mean == 5, "the mean of those that take part");
  }
  NamedWork join = queue.Join();
  join.Wait();
  Expect(job, join.LastJoined() == job.size() - 1, "the last to join");
}

int Main(int, char**) {
  dtrun::Context job = dtrun::Init();
  {
    NamedQueue queue(job.world());
    InDifferentOrders(job, queue);
    EveryKind(job, queue);
    Mismatch(job, queue);
    Sets(job, queue);
    Adasum(job, queue);
    Join(job, queue);
    queue.Barrier().Wait();
  }
  if (job.rank() == 0 && wrong == 0)
    std::printf("%s: all is right\n", job.world().backend().c_str());
  job.Shutdown();
  return wrong == 0 ? 0 : 1;
}

}  // namespace programs::named
