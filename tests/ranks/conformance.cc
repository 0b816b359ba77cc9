// Runs the conformance suite through the public API, on the backend of the job. Rank 0 prints
// "<backend>: many checks, <m> wrong", and every rank prints its failed checks. Exits with 1 if a
// check failed on any rank.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/metrics.h>
#include <dtrun/objects.h>
#include <dtrun/types.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/conformance/public_ranks.h"
#include "tests/conformance/suite.h"

namespace {

using dtrun::Buffer;
using dtrun::Communicator;
using dtrun::Counts;
using dtrun::DType;
using dtrun::Gradient;
using dtrun::GradientReducer;
using dtrun::ReduceOp;
using dtrun::ReducerOptions;
using dtrun::Wire;
using dtrun::testing::Findings;

// The input of rank r: r % 3 elements with the value r.
template <typename T>
std::vector<T> Own(int rank) {
  return std::vector<T>(static_cast<size_t>(rank) % 3, static_cast<T>(rank));
}

void CheckVectors(Communicator& comm, Findings& findings) {
  const auto size = static_cast<size_t>(comm.size());
  std::vector<int32_t> expected;
  Counts counts;
  for (int r = 0; r < comm.size(); ++r) {
    const std::vector<int32_t> own = Own<int32_t>(r);
    expected.insert(expected.end(), own.begin(), own.end());
    counts.push_back(own.size());
  }
  const auto gathered = dtrun::AllGatherV(comm, Own<int32_t>(comm.rank()));
  findings.Count(gathered.data == expected && gathered.counts == counts, "AllGatherV");
  findings.Count(
      comm.AllGatherCounts(Own<int8_t>(comm.rank()).size()) == counts, "AllGatherCounts");

  // Rank a sends b + 1 elements to rank b, each with the value 100 a + b.
  std::vector<double> data, received;
  Counts splits;
  for (size_t b = 0; b < size; ++b) {
    splits.push_back(b + 1);
    data.insert(data.end(), b + 1, 100.0 * comm.rank() + static_cast<double>(b));
    received.insert(
        received.end(), static_cast<size_t>(comm.rank()) + 1,
        100.0 * static_cast<double>(b) + comm.rank());
  }
  const Counts from_each(size, static_cast<uint64_t>(comm.rank()) + 1);
  const auto exchanged = dtrun::AllToAllV(comm, data, splits);
  findings.Count(exchanged.data == received && exchanged.splits == from_each, "AllToAllV");

  std::vector<std::string> texts;
  for (int r = 0; r < comm.size(); ++r) texts.push_back(std::string(static_cast<size_t>(r), 'x'));
  findings.Count(
      dtrun::AllGatherBytes(comm, texts[static_cast<size_t>(comm.rank())]) == texts,
      "AllGatherBytes");
  for (int root = 0; root < comm.size(); ++root) {
    const auto r = static_cast<size_t>(root);
    findings.Count(
        dtrun::BroadcastBytes(comm, texts[static_cast<size_t>(comm.rank())], root) == texts[r],
        "BroadcastBytes");
    findings.Count(
        dtrun::BroadcastV(comm, Own<int64_t>(comm.rank()), root) == Own<int64_t>(root),
        "BroadcastV");
  }
}

// --- reducers ------------------------------------------------------------------------------------

constexpr int kSteps = 3;

// Element k of a gradient on a rank. Values are small, so sums over the ranks are exact in 16 bits.
uint64_t ValueOf(int rank, uint64_t k) { return static_cast<uint64_t>(rank + 1) * (k % 3); }

template <typename T>
void FillWith(const Buffer& gradient, int rank) {
  for (uint64_t k = 0; k < gradient.count; ++k)
    static_cast<T*>(gradient.data)[k] = static_cast<T>(ValueOf(rank, k));
}

template <typename T>
uint64_t Wrong(const Buffer& gradient, int size) {
  const auto ranks = static_cast<uint64_t>(size);
  uint64_t wrong = 0;
  for (uint64_t k = 0; k < gradient.count; ++k)
    wrong += static_cast<const T*>(gradient.data)[k] !=
             static_cast<T>(ValueOf(0, k) * (ranks * (ranks + 1) / 2));
  return wrong;
}

void Fill(const Buffer& gradient, int rank) {
  if (gradient.dtype == DType::kF32) FillWith<float>(gradient, rank);
  if (gradient.dtype == DType::kF64) FillWith<double>(gradient, rank);
  if (gradient.dtype == DType::kI64) FillWith<int64_t>(gradient, rank);
}

uint64_t WrongOf(const Buffer& gradient, int size) {
  if (gradient.dtype == DType::kF32) return Wrong<float>(gradient, size);
  if (gradient.dtype == DType::kF64) return Wrong<double>(gradient, size);
  return Wrong<int64_t>(gradient, size);
}

void CheckReducer(
    Communicator& comm, const ReducerOptions& options, const std::string& what,
    Findings& findings) {
  std::vector<float> own(1000);
  std::vector<double> wide(70'000);
  const std::vector<Gradient> gradients = {
      {"placed", Buffer(nullptr, 5000, DType::kF32)},   {"own", Buffer(own.data(), own.size())},
      {"large", Buffer(nullptr, 300'000, DType::kF32)}, {"wide", Buffer(wide.data(), wide.size())},
      {"counts", Buffer(nullptr, 3, DType::kI64)},      {"small", Buffer(nullptr, 7, DType::kF32)},
      {"never", Buffer(nullptr, 9, DType::kF32)},
  };
  const size_t count = gradients.size() - 1;  // the last gradient is never used
  GradientReducer reducer(comm, gradients, options);
  for (size_t step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < count; ++i) Fill(reducer.gradient(i), comm.rank());
    reducer.MarkUnused(count);
    for (size_t k = 0; k < count; ++k)
      reducer.MarkReady((k * 5 + step + static_cast<size_t>(comm.rank())) % count);
    reducer.Wait();
    for (size_t i = 0; i < count; ++i) {
      findings.Count(
          WrongOf(reducer.gradient(i), comm.size()) == 0 && reducer.WasUsed(i),
          "'" + gradients[i].name + "' in step " + std::to_string(step) + ", " + what);
    }
    findings.Count(!reducer.WasUsed(count), "a gradient that nobody used, " + what);
  }
}

// Checks that reducers compute exact sums with all kinds of buckets and wire formats. The order of
// marks differs on each rank and in each step.
void CheckReducers(Communicator& comm, Findings& findings) {
  for (const Wire wire : {Wire::kNone, Wire::kF16, Wire::kBF16}) {
    for (const bool grouped : {false, true}) {
      ReducerOptions options;
      options.op = ReduceOp::kSum;
      options.bucket_bytes = 16 << 10;
      options.wire = wire;
      if (grouped) options.groups = {{0, 5}, {2, 1}};
      CheckReducer(
          comm, options,
          std::string(grouped ? "grouped" : "not grouped") + ", wire " +
              std::to_string(static_cast<int>(wire)),
          findings);
    }
  }
}

// Destroys a reducer with buckets in flight, as an exception in a backward pass does.
void CheckAbandonedReducer(Communicator& comm, Findings& findings) {
  const Buffer gradient(nullptr, 4 << 20, DType::kF32);
  {
    GradientReducer reducer(comm, {{"first", gradient}, {"second", gradient}});
    reducer.MarkReady(1);
    reducer.MarkReady(0);
  }
  comm.Barrier();
  findings.Count(true, "a reducer that is gone while its buckets are under way");
}

// --- names and refusals --------------------------------------------------------------------------

void CheckNames(Communicator& comm, Findings& findings) {
  findings.Count(comm.name() == "world", "the world is called " + comm.name());
  const auto first = comm.Duplicate();
  const auto second = comm.Split(3);
  findings.Count(first.name() == "world/1", "a duplicate is called " + first.name());
  findings.Count(second && second->name() == "world/2:3", "a split has another name");
  findings.Count(!comm.Split(-1), "a negative colour got a communicator");
  findings.Count(dtrun::DealRows(5, 10, 2) == Counts{30, 20}, "DealRows");
}

// Each rank refuses these calls locally, before it sends data.
void CheckRefusals(Communicator& comm, Findings& findings) {
  const auto refused = [&](const std::string& expected, const auto& call) {
    std::string text = "nothing";
    try {
      call();
    } catch (const dtrun::Error& error) {
      text = error.what();
    }
    findings.Count(text == expected, "expected '" + expected + "', got '" + text + "'");
  };
  const std::string size = std::to_string(comm.size());
  refused("all_to_all: the input has 1 elements; expected 2 (the sum of the splits)", [&] {
    dtrun::AllToAllV(comm, std::vector<int>{1}, {2});
  });
  Counts many(static_cast<size_t>(comm.size()) + 1);
  refused(
      "exchange_splits: the splits: found " + std::to_string(comm.size() + 1) +
          " counts; expected one for each of " + size + " ranks",
      [&] { comm.ExchangeSplits(many); });
  refused(
      "subset: rank " + size + " does not exist; expected different ranks from 0 to " +
          std::to_string(comm.size() - 1),
      [&] { comm.Subset({comm.size()}); });
}

void CheckAll(Communicator& comm, bool core, Findings& findings) {
  CheckNames(comm, findings);
  CheckAbandonedReducer(comm, findings);
  CheckReducers(comm, findings);
  CheckVectors(comm, findings);
  CheckRefusals(comm, findings);
  const auto ranks = dtrun::testing::OverPublicApi(comm);
  // tests/ops checks each variant of each type, with ranks that are threads.
  core ? dtrun::testing::CheckEveryKindInTurn(*ranks, findings)
       : dtrun::testing::CheckEveryKindIfFull(*ranks, findings);
  // The hierarchical backend adds one host after another. Rounded sums therefore differ from those
  // of the tree over all ranks.
  const bool any_values = comm.backend() != "hierarchical";
  const int operations = core ? 50 : dtrun::testing::RunsInFull() ? 1500 : 200;
  dtrun::testing::CheckRandomOperations(*ranks, findings, 21, operations, any_values);
  dtrun::testing::CheckSameBits(*ranks, findings);
  dtrun::testing::CheckMessages(*ranks, findings);
  dtrun::testing::CheckSubCommunicators(*ranks, findings);
}

}  // namespace

// The argument "core" means fewer operations, for jobs with many ranks.
int main(int argc, char** argv) {
  const bool core = argc > 1 && std::string(argv[1]) == "core";
  dtrun::Context job = dtrun::Init();
  Findings findings;
  try {
    CheckAll(job.world(), core, findings);
  } catch (const dtrun::Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", job.rank(), error.what());
    return 1;
  }
  for (const std::string& text : findings.texts) {
    std::fprintf(stderr, "rank %d: %s\n", job.rank(), text.c_str());
  }
  uint64_t wrong = findings.wrong;
  job.world().AllReduce(Buffer(&wrong, 1));
  if (job.rank() == 0) {
    std::printf(
        "%s: %s checks, %" PRIu64 " wrong\n", job.world().backend().c_str(),
        findings.checks > 1000 ? "many" : "too few", wrong);
  }
  job.Shutdown();
  return wrong == 0 ? 0 : 1;
}
