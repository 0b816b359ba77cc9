// The step time under the strategies for one host, and the memory of their variables. Run it under
// dtrun or mpirun, on one host.
//
// The parameters are those of ResNet-50, and the optimizer is SGD with momentum. All gradients are
// ready at once. Both strategies alternate in the same processes.
//
//   mirrored:         every rank has a copy of the parameters and of the momentum, and updates it
//   central_storage:  the host has one copy of each, and every rank updates a share
//
// Copies are counted in resident pages, of all ranks together: where the parameters lie, and where
// they lay before the strategy moved them. Memory that ranks share counts once.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/optimizer.h>
#include <dtrun/strategies.h>
#include <dtrun/strategy.h>
#include <dtrun/types.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "bench/measure.h"
#include "bench/model_shapes.h"
#include "bench/momentum_sgd.h"

namespace programs::strategy_perf {

using namespace dtrun::bench;
using namespace dtrun;
using dtrun::bench::Shape;  // not dtrun::Shape

namespace {

using nlohmann::json;

// Bytes of the resident pages of these buffers, which are in ascending order.
uint64_t Resident(const std::vector<Buffer>& buffers) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  uint64_t pages = 0;
  uintptr_t counted = 0;  // the end of the counted pages: small tensors share pages
  for (const Buffer& buffer : buffers) {
    const auto begin = reinterpret_cast<uintptr_t>(buffer.data);
    const uintptr_t first = std::max(begin / page * page, counted);
    const uintptr_t end = (begin + buffer.bytes() + page - 1) / page * page;
    if (first >= end) continue;
    counted = end;
    std::vector<unsigned char> in_memory((end - first) / page);
    if (::mincore(reinterpret_cast<void*>(first), end - first, in_memory.data()) != 0) continue;
    for (const unsigned char each : in_memory) pages += each & 1;
  }
  return pages * page;
}

// The memory of this process. A shared page counts in equal parts for all processes that share it.
uint64_t ProportionalSetSize() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    uint64_t kilobytes = 0;
    if (word == "Pss:" && rollup >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

uint64_t SumOver(Communicator& comm, uint64_t mine) {
  comm.AllReduce(Buffer(&mine, 1), ReduceOp::kSum);
  return mine;
}

std::vector<Buffer> ValuesOf(Optimizer& optimizer) {
  std::vector<Buffer> values;
  for (const Parameter& parameter : optimizer.parameters()) values.push_back(parameter.value);
  std::sort(values.begin(), values.end(), [](const Buffer& a, const Buffer& b) {
    return a.data < b.data;
  });
  return values;
}

// A model under a strategy.
class Side {
 public:
  Side(Strategy& strategy, const std::vector<Shape>& shapes)
      : strategy_(strategy), sgd_(shapes), before_(ValuesOf(sgd_)) {
    const uint64_t pss = SumOver(strategy.replicas(), ProportionalSetSize());
    optimizer_ = strategy.Scope().Distribute(sgd_, Average());
    wrong_ = WrongAfterTwoSteps(strategy.replicas(), sgd_, [this] { Run(); });
    pss_ = SumOver(strategy.replicas(), ProportionalSetSize()) - pss;
  }

  void Run() {
    for (size_t i = sgd_.parameters().size(); i-- > 0;) optimizer_->MarkReady(i);
    optimizer_->Step();
  }

  uint64_t wrong() const { return wrong_; }
  /// Bytes that the strategy has added, with its gradients and momentum.
  uint64_t pss() const { return pss_; }

  // Resident bytes of the parameters, of all ranks of the host.
  uint64_t ResidentBytes() {
    const std::vector<Buffer> now = ValuesOf(sgd_);
    const bool moved = now[0].data != before_[0].data;
    uint64_t bytes = Resident(before_);
    if (moved && strategy_.is_chief()) bytes += Resident(now);
    return SumOver(strategy_.replicas(), bytes);
  }

 private:
  static StrategyOptimizerOptions Average() {
    StrategyOptimizerOptions options;
    options.op = ReduceOp::kAverage;
    return options;
  }

  Strategy& strategy_;
  MomentumSgd sgd_;
  std::vector<Buffer> before_;
  std::unique_ptr<StrategyOptimizer> optimizer_;
  uint64_t wrong_ = 0, pss_ = 0;
};

json MeasureAll(Context& job, int least_rounds) {
  const std::vector<Shape> shapes = ResNet50();
  uint64_t bytes = 0;
  for (const Shape& shape : shapes) bytes += shape.count * sizeof(float);
  MirroredStrategy mirrored(job);
  CentralStorageStrategy central(job);
  Side mirrored_side(mirrored, shapes), central_side(central, shapes);
  const std::vector<double> us = MeasureInTurn(
      job.world(), {[&] { mirrored_side.Run(); }, [&] { central_side.Run(); }}, least_rounds);
  json rows = json::array();
  if (job.rank() == 0) {
    std::printf(
        "# %d ranks, backend %s, ResNet-50's %zu parameters\n%-18s %12s %12s %12s %10s %12s %6s\n",
        job.size(), job.world().backend().c_str(), shapes.size(), "strategy", "bytes", "step us",
        "of mirrored", "copies", "added MiB", "wrong");
  }
  Side* const sides[] = {&mirrored_side, &central_side};
  const Strategy* const strategies[] = {&mirrored, &central};
  for (size_t i = 0; i < 2; ++i) {
    const double copies =
        static_cast<double>(sides[i]->ResidentBytes()) / static_cast<double>(bytes);
    rows.push_back(
        {{"strategy", strategies[i]->name()},
         {"ranks", job.size()},
         {"bytes", bytes},
         {"step_us", us[i]},
         {"ratio_to_mirrored", us[i] / us[0]},
         {"resident_copies", copies},
         {"added_bytes", sides[i]->pss()},
         {"wrong", sides[i]->wrong()}});
    if (job.rank() == 0) {
      std::printf(
          "%-18s %12llu %12.1f %12.2f %10.3f %12.1f %6llu\n", strategies[i]->name().c_str(),
          static_cast<unsigned long long>(bytes), us[i], us[i] / us[0], copies,
          static_cast<double>(sides[i]->pss()) / (1 << 20),
          static_cast<unsigned long long>(sides[i]->wrong()));
    }
  }
  return rows;
}

std::string Obstacle(Context& job) {
  if (job.hosts().size() > 1) return "the ranks are on several hosts; mirrored needs one";
  return "";
}

}  // namespace

using dtrun::bench::OptionSet;
using dtrun::bench::Range;

int Main(int argc, char** argv) {
  int rounds = 15;
  OptionSet options(
      "The steps of mirrored and central storage, and the memory that their variables take.",
      "strategy_perf");
  options.Add("--rounds", &rounds, "timed rounds of each side, at least", Range<int>{1, 10000});
  return dtrun::bench::Main(
      options,
      {"strategy_perf", [&](dtrun::Context& job) { return MeasureAll(job, rounds); }, Obstacle},
      argc, argv);
}

}  // namespace programs::strategy_perf
