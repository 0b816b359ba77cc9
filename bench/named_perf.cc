// The cost of submitting tensors by name. Run it under dtrun or mpirun.
//
//   latency    one all-reduce of 4 bytes after the other, each submitted and waited for. Compared
//              with the communicator, which needs no agreement, and with raw MPI.
//   idle       one such all-reduce after 10 ms without work on any rank; and one for which the
//              other ranks have waited 10 ms
//   thousand   1,000 all-reduces of 1 KiB: all are submitted one by one, then all are waited for
//   adasum     adaptive summation of a group of 1,000 tensors of 1 KiB, and of one tensor of
//              64 MiB, as multiples of the time of their sum; 0 unless the number of ranks is a
//              power of two
//   sets       4 ranks or more: two process sets of two ranks. Each set computes (sleeps) for
//              500 us before each all-reduce of 4 KiB. The time of both at once, as a multiple of
//              the longer time of one alone.
//
// Medians over rounds. The time of a round is that of the slowest rank.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/named_queue.h>
#include <dtrun/types.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "bench/measure.h"

namespace programs::named_perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kTensors = 1000, kElements = 256;
constexpr auto kIdle = std::chrono::milliseconds(10);

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// The time of the slowest rank in each round.
std::vector<double> Slowest(dtrun::Communicator& comm, std::vector<double> times) {
  comm.AllReduce(dtrun::Buffer(times.data(), times.size()), dtrun::ReduceOp::kMax);
  return times;
}

class Measurement {
 public:
  Measurement(dtrun::Communicator& world, int rounds)
      : world_(world), queue_(world), rounds_(rounds), values_(kTensors) {
    for (size_t i = 0; i < kTensors; ++i) {
      tensors_.push_back("layer" + std::to_string(i / 10) + "/gradient" + std::to_string(i));
      values_[i].assign(kElements, 1.0f);
    }
  }

  // The time that a caller waits for each operation.
  std::vector<double> Latencies(const std::function<void()>& operation) {
    for (int i = 0; i < 1000; ++i) operation();
    std::vector<double> times;
    for (int i = 0; i < 200 * rounds_; ++i) {
      const auto start = Clock::now();
      operation();
      times.push_back(MicrosecondsSince(start));
    }
    return Slowest(world_, times);
  }

  void OneByName() { queue_.AllReduce("one", dtrun::Buffer(&one_, 1)).Wait(); }
  void OneByOrder() { world_.AllReduce(dtrun::Buffer(&one_, 1)); }
  void OneOfMpi() { MPI_Allreduce(MPI_IN_PLACE, &one_, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }

  // Ranks end their sleep at different times, so they meet at a barrier first.
  std::vector<double> AfterIdleness() {
    std::vector<double> times;
    for (int i = 0; i < rounds_; ++i) {
      ::usleep(std::chrono::microseconds(kIdle).count());
      world_.Barrier();
      const auto start = Clock::now();
      OneByName();
      times.push_back(MicrosecondsSince(start));
    }
    return Slowest(world_, times);
  }

  // Rank 0 comes last, and only its time counts.
  std::vector<double> OfSleepers() {
    std::vector<double> times;
    for (int i = 0; i < rounds_; ++i) {
      world_.Barrier();
      if (world_.rank() == 0) ::usleep(std::chrono::microseconds(kIdle).count());
      const auto start = Clock::now();
      OneByName();
      times.push_back(world_.rank() == 0 ? MicrosecondsSince(start) : 0);
    }
    return Slowest(world_, times);
  }

  std::vector<double> Thousand() {
    std::vector<double> times;
    for (int i = 0; i < 2 * rounds_ + 5; ++i) {
      std::vector<dtrun::NamedWork> works;
      works.reserve(kTensors);
      world_.Barrier();
      const auto start = Clock::now();
      for (size_t t = 0; t < kTensors; ++t) {
        works.push_back(queue_.AllReduce(tensors_[t], dtrun::Buffer(values_[t].data(), kElements)));
      }
      for (dtrun::NamedWork& work : works) work.Wait();
      const double time = MicrosecondsSince(start);
      if (i >= 5) times.push_back(time);  // without the first rounds, in which the names are new
      Refill();
    }
    return Slowest(world_, times);
  }

  // Sums and adaptive sums of the same group alternate. Returns 0 if the number of ranks is not a
  // power of two.
  double AdasumRatio(const dtrun::NamedQueue::Tensors& tensors, int rounds) {
    const int size = world_.size();
    if ((size & (size - 1)) != 0) return 0;
    std::vector<double> times[2];
    for (int i = 0; i < 2 * rounds + 4; ++i) {
      dtrun::NamedOptions options;
      options.op = i % 2 == 0 ? dtrun::ReduceOp::kSum : dtrun::ReduceOp::kAdasum;
      world_.Barrier();
      const auto start = Clock::now();
      queue_.AllReduce(tensors, options).Wait();
      if (i >= 4) times[i % 2].push_back(MicrosecondsSince(start));
    }
    return Percentile(Slowest(world_, times[1]), 0.5) / Percentile(Slowest(world_, times[0]), 0.5);
  }
  double AdasumOfThousand() {
    dtrun::NamedQueue::Tensors tensors;
    std::vector<std::vector<float>> zeros(kTensors, std::vector<float>(kElements));
    for (size_t t = 0; t < kTensors; ++t)
      tensors.push_back(
          dtrun::QueuedTensor::Flat(tensors_[t], dtrun::Buffer(zeros[t].data(), kElements)));
    return AdasumRatio(tensors, rounds_);
  }
  double AdasumOfOne() {
    std::vector<float> zeros(16 << 20);
    return AdasumRatio(
        {dtrun::QueuedTensor::Flat("large", dtrun::Buffer(zeros.data(), zeros.size()))},
        std::min(rounds_, 20));
  }

  // Returns 0 with fewer than 4 ranks.
  double SetsAtOnce() {
    if (world_.size() < 4) return 0;
    const int sets[] = {queue_.AddSet({0, 1}), queue_.AddSet({2, 3})};
    const int mine = world_.rank() / 2;
    std::vector<double> alone, together;
    for (int i = 0; i < 5; ++i) {
      double longer = 0;
      for (int turn = 0; turn < 2; ++turn)
        longer = std::max(longer, WorkInSet(mine == turn ? sets[turn] : -1));
      alone.push_back(longer);
      together.push_back(WorkInSet(mine < 2 ? sets[mine] : -1));
    }
    for (const int set : sets) queue_.RemoveSet(set);
    return Percentile(together, 0.5) / Percentile(alone, 0.5);
  }

  uint64_t wrong() const { return wrong_; }

 private:
  // The time of the slowest rank. If `set` is -1, this rank does no work.
  double WorkInSet(int set) {
    constexpr int kSteps = 100;
    constexpr auto kCompute = std::chrono::microseconds(500);
    std::vector<float> values(1024, 1);
    world_.Barrier();
    const auto start = Clock::now();
    for (int i = 0; set >= 0 && i < kSteps; ++i) {
      ::usleep(static_cast<useconds_t>(kCompute.count()));
      dtrun::NamedOptions options;
      options.set = set;
      queue_.AllReduce("of a set", dtrun::Buffer(values.data(), values.size()), options).Wait();
    }
    return Slowest(world_, {MicrosecondsSince(start)})[0];
  }

  void Refill() {
    for (auto& values : values_) {
      for (float& value : values) {
        if (value != static_cast<float>(world_.size())) ++wrong_;
        value = 1;
      }
    }
  }

  dtrun::Communicator& world_;
  dtrun::NamedQueue queue_;
  int rounds_;
  float one_ = 0;
  std::vector<std::string> tensors_;
  std::vector<std::vector<float>> values_;
  uint64_t wrong_ = 0;
};

nlohmann::json Measure(dtrun::Context& job, int rounds) {
  Measurement measurement(job.world(), rounds);
  const auto named = measurement.Latencies([&] { measurement.OneByName(); });
  const auto ordered = measurement.Latencies([&] { measurement.OneByOrder(); });
  const auto mpi = measurement.Latencies([&] { measurement.OneOfMpi(); });
  const auto idle = measurement.AfterIdleness();
  const auto sleepers = measurement.OfSleepers();
  const auto thousand = measurement.Thousand();
  const double adasum_of_thousand = measurement.AdasumOfThousand();
  const double adasum_of_one = measurement.AdasumOfOne();
  const double sets_at_once = measurement.SetsAtOnce();
  nlohmann::json row = {
      {"ranks", job.size()},
      {"latency_us_p50", Percentile(named, 0.5)},
      {"latency_us_p99", Percentile(named, 0.99)},
      {"communicator_us_p50", Percentile(ordered, 0.5)},
      {"mpi_us_p50", Percentile(mpi, 0.5)},
      {"idle_latency_us_p50", Percentile(idle, 0.5)},
      {"sleeper_latency_us_p50", Percentile(sleepers, 0.5)},
      {"thousand_tensors_us", Percentile(thousand, 0.5)},
      {"adasum_thousand_ratio", adasum_of_thousand},
      {"adasum_64mib_ratio", adasum_of_one},
      {"wrong", measurement.wrong()}};
  if (sets_at_once > 0) row["two_sets_ratio"] = sets_at_once;
  if (job.rank() == 0) {
    std::printf("# %d ranks, backend %s\n", job.size(), job.world().backend().c_str());
    for (const auto& [name, value] : row.items())
      std::printf("%-24s %10.2f\n", name.c_str(), value.get<double>());
    std::fflush(stdout);
  }
  return nlohmann::json::array({row});
}

}  // namespace

using dtrun::bench::OptionSet;
using dtrun::bench::Range;

int Main(int argc, char** argv) {
  int rounds = 100;
  OptionSet options("What it costs to submit tensors by name.", "named_perf");
  options.Add("--rounds", &rounds, "timed rounds", Range<int>{1, 10000});
  return dtrun::bench::Main(
      options,
      {"named_perf", [&](dtrun::Context& job) { return Measure(job, rounds); },
       dtrun::bench::ObstacleBesideMpi, true},
      argc, argv);
}

}  // namespace programs::named_perf
