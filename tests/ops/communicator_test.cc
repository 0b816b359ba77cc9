// Communicators over shared memory, with threads of one process as ranks.

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "dtrun/error.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_communicator.h"
#include "tests/support/text.h"
#include "tests/support/thread_ranks.h"

namespace {

using dtrun::Buffer;
using dtrun::DType;
using dtrun::ReduceOp;
using dtrun::ops::Communicator;
using dtrun::ops::Engine;
using dtrun::ops::EngineOptions;
using dtrun::ops::Work;
using dtrun::testing::WithoutWaits;
using Errors = std::vector<std::string>;

struct ShmRank {
  Engine& engine;
  Communicator& comm;
};

// Runs `rank_main` on `size` ranks over shared memory and returns the error of each rank.
Errors RunShm(
    int size, const std::function<void(ShmRank)>& rank_main,
    EngineOptions options = {.may_spin = false}) {
  const dtrun::base::SteadyClock clock;
  return dtrun::testing::RunRanks(size, [&](dtrun::ops::Bootstrap& bootstrap) {
    Engine engine(options, clock, [](auto, const auto&) {});
    const auto comm = dtrun::ops::CreateShmCommunicator(
        bootstrap, engine, dtrun::ops::Members::World(bootstrap.size()));
    rank_main({engine, *comm});
  });
}

// Small integers: every float sum is exact and comparable with ==.
float Value(int rank, uint64_t i) {
  return static_cast<float>((i * 7 + static_cast<uint64_t>(rank) * 3) % 32);
}

float SumOverRanks(int size, uint64_t i) {
  float sum = 0;
  for (int r = 0; r < size; ++r) sum += Value(r, i);
  return sum;
}

// The size and the memory select one of three paths of the data: inline, mapped or staged.
constexpr uint64_t kCounts[] = {0, 1, 17, 1024, 1025, 40'001, 300'000};

TEST_CASE("all_reduce sums private memory of every size") {
  const int size = GENERATE(1, 2, 3, 4, 8);
  CHECK(RunShm(size, [&](ShmRank rank) {
          for (const uint64_t count : kCounts) {
            std::vector<float> data(count);
            for (uint64_t i = 0; i < count; ++i) data[i] = Value(rank.comm.rank(), i);
            rank.comm.AllReduce(Buffer(data.data(), count), ReduceOp::kSum);
            for (uint64_t i = 0; i < count; ++i) {
              if (data[i] != SumOverRanks(size, i)) throw std::runtime_error("wrong sum");
            }
          }
        }) == Errors(static_cast<size_t>(size)));
}

TEST_CASE("all_reduce sums memory that all ranks map in place and in slices") {
  const int size = GENERATE(2, 3, 4, 8);
  CHECK(RunShm(size, [&](ShmRank rank) {
          const auto memory = rank.comm.Allocate(2'000'000);
          for (const uint64_t count : kCounts) {
            const Buffer buffer =
                Buffer(static_cast<float*>(memory->data()), 500'000).Slice(count % 100, count);
            auto* data = static_cast<float*>(buffer.data);
            for (uint64_t i = 0; i < count; ++i) data[i] = Value(rank.comm.rank(), i);
            rank.comm.AllReduce(buffer, ReduceOp::kSum);
            for (uint64_t i = 0; i < count; ++i) {
              if (data[i] != SumOverRanks(size, i)) throw std::runtime_error("wrong sum");
            }
          }
        }) == Errors(static_cast<size_t>(size)));
}

TEST_CASE("mapped memory of one rank and private memory of others can be combined") {
  CHECK(RunShm(3, [&](ShmRank rank) {
          const uint64_t count = 100'000;
          const auto memory = rank.comm.Allocate(rank.comm.rank() == 1 ? 400'000 : 0);
          std::vector<float> mine(count);
          float* data = rank.comm.rank() == 1 ? static_cast<float*>(memory->data()) : mine.data();
          for (uint64_t i = 0; i < count; ++i) data[i] = Value(rank.comm.rank(), i);
          rank.comm.AllReduce(Buffer(data, count), ReduceOp::kAverage);
          for (uint64_t i = 0; i < count; ++i) {
            if (data[i] != SumOverRanks(3, i) * (1.0f / 3))
              throw std::runtime_error("wrong average");
          }
        }) == Errors(3));
}

TEST_CASE("broadcast copies the root's memory to all ranks from every root") {
  const int size = GENERATE(1, 2, 4);
  CHECK(RunShm(size, [&](ShmRank rank) {
          const auto memory = rank.comm.Allocate(1'200'000);
          for (const bool mapped : {false, true}) {
            for (const uint64_t count : kCounts) {
              for (int root = 0; root < size; ++root) {
                std::vector<int32_t> mine(count);
                int32_t* data = mapped ? static_cast<int32_t*>(memory->data()) : mine.data();
                for (uint64_t i = 0; i < count; ++i)
                  data[i] = rank.comm.rank() * 1000 + static_cast<int32_t>(i);
                rank.comm.Broadcast(Buffer(data, count), root);
                for (uint64_t i = 0; i < count; ++i) {
                  if (data[i] != root * 1000 + static_cast<int32_t>(i))
                    throw std::runtime_error("wrong value");
                }
                // A rank may write as soon as its call returns, because no rank reads its memory
                // any more.
                for (uint64_t i = 0; i < count; ++i) data[i] = -1;
              }
            }
          }
        }) == Errors(static_cast<size_t>(size)));
}

TEST_CASE("all_gather joins the inputs in rank order") {
  const int size = GENERATE(1, 2, 3);
  CHECK(RunShm(size, [&](ShmRank rank) {
          const auto memory = rank.comm.Allocate(2'400'000);
          for (const bool mapped : {false, true}) {
            for (const uint64_t count : kCounts) {
              std::vector<double> mine(count), all(count * static_cast<uint64_t>(size));
              double* data = mapped ? static_cast<double*>(memory->data()) : mine.data();
              for (uint64_t i = 0; i < count; ++i) data[i] = Value(rank.comm.rank(), i);
              rank.comm.AllGather(Buffer(data, count), Buffer(all.data(), all.size()));
              for (uint64_t i = 0; i < count; ++i) data[i] = -1;
              for (int r = 0; r < size; ++r) {
                for (uint64_t i = 0; i < count; ++i) {
                  if (all[static_cast<uint64_t>(r) * count + i] != Value(r, i))
                    throw std::runtime_error("wrong value");
                }
              }
            }
          }
        }) == Errors(static_cast<size_t>(size)));
}

TEST_CASE("many operations can be in flight at once and be waited for in any order") {
  CHECK(RunShm(3, [&](ShmRank rank) {
          std::vector<std::vector<float>> data(50, std::vector<float>(3000));
          std::vector<Work> works;
          for (size_t k = 0; k < data.size(); ++k) {
            // Every third operation is staged, the others are inline.
            const uint64_t count = k % 3 == 0 ? 3000 : 10;
            for (uint64_t i = 0; i < count; ++i) data[k][i] = Value(rank.comm.rank(), i + k);
            works.push_back(
                rank.comm.StartAllReduce(Buffer(data[k].data(), count), ReduceOp::kSum));
          }
          for (size_t k = works.size(); k-- > 0;) works[k].Wait();
          for (size_t k = 0; k < data.size(); ++k) {
            if (data[k][5] != SumOverRanks(3, 5 + k)) throw std::runtime_error("wrong sum");
          }
        }) == Errors(3));
}

TEST_CASE("an all_reduce of mapped memory finishes while another rank is busy elsewhere") {
  std::vector<float> seen(2);
  dtrun::testing::RunRanks(2, [&](dtrun::ops::Bootstrap& bootstrap) {
    const dtrun::base::SteadyClock clock;
    Engine engine({.may_spin = false}, clock, [](auto, const auto&) {});
    const auto comm = dtrun::ops::CreateShmCommunicator(
        bootstrap, engine, dtrun::ops::Members::World(bootstrap.size()));
    const auto memory = comm->Allocate(4'000'000);
    auto* data = static_cast<float*>(memory->data());
    data[999'999] = static_cast<float>(comm->rank() + 1);
    Work work = comm->StartAllReduce(Buffer(data, 1'000'000), ReduceOp::kSum);
    // Rank 0 waits; rank 1 does not touch its work before rank 0 has the result.
    if (comm->rank() == 0) work.Wait();
    if (comm->rank() == 0) seen[0] = data[999'999];
    bootstrap.AllGather("");
    work.Wait();
    if (comm->rank() == 1) seen[1] = data[999'999];
    bootstrap.AllGather("");
  });
  CHECK(seen == std::vector<float>{3, 3});
}

TEST_CASE("a duplicate and its original can be used in different orders on the ranks") {
  CHECK(RunShm(2, [&](ShmRank rank) {
          const auto other = rank.comm.Duplicate();
          float a = 1, b = 10;
          Work first = rank.comm.StartAllReduce(Buffer(&a, 1), ReduceOp::kSum);
          // The ranks use the two communicators in different orders. A single communicator would
          // not allow that.
          if (rank.comm.rank() == 0) {
            other->AllReduce(Buffer(&b, 1), ReduceOp::kSum);
            first.Wait();
          } else {
            first.Wait();
            other->AllReduce(Buffer(&b, 1), ReduceOp::kSum);
          }
          if (a != 2 || b != 20) throw std::runtime_error("interleaved");
        }) == Errors(2));
}

TEST_CASE("ranks that call different collectives all get the same error and can go on") {
  const Errors errors = RunShm(3, [&](ShmRank rank) {
    std::vector<float> data(8);
    std::string error;
    try {
      if (rank.comm.rank() == 1) {
        rank.comm.Broadcast(Buffer(data.data(), 8), 0);
      } else {
        rank.comm.AllReduce(Buffer(data.data(), rank.comm.rank() == 0 ? 8 : 4), ReduceOp::kSum);
      }
    } catch (const dtrun::Error& thrown) {
      if (thrown.code() == dtrun::ErrorCode::kMismatch) error = thrown.what();
    }
    rank.comm.Barrier();
    throw std::runtime_error(error);
  });
  const std::string expected =
      "the ranks disagree on collective #1: rank 2 called all_reduce (f32, 4 elements, sum); "
      "rank 0 called all_reduce (f32, 8 elements, sum); rank 1 called broadcast (f32, 8 elements, "
      "root 0)";
  CHECK(errors == Errors(3, expected));
}

TEST_CASE("a rank that never comes is named within the time limit") {
  EngineOptions options{.may_spin = false};
  options.timeout = std::chrono::seconds(3);
  const Errors errors = RunShm(
      3,
      [&](ShmRank rank) {
        if (rank.comm.rank() != 1) rank.comm.Barrier();
      },
      options);
  const std::string expected =
      "gave up after N s: collective #1, barrier, waits for rank 1 to call it";
  CHECK(WithoutWaits(errors[0], 3) == expected);
  CHECK(errors[1] == "");
  CHECK(WithoutWaits(errors[2], 3) == expected);
}

TEST_CASE("invalid arguments of a communicator are refused and the communicator stays usable") {
  CHECK(RunShm(2, [&](ShmRank rank) {
          const auto refused = [](const auto& call, const std::string& expected) {
            try {
              call();
            } catch (const dtrun::Error& error) {
              if (error.what() == expected) return;
              throw;
            }
            throw std::runtime_error("accepted, but expected: " + expected);
          };
          Communicator& comm = rank.comm;
          float data[4] = {};
          refused(
              [&] { comm.AllReduce(Buffer(nullptr, 4, DType::kF32), ReduceOp::kSum); },
              "all_reduce: the input is null but has 4 elements");
          refused(
              [&] { comm.Broadcast(Buffer(data, 4), 2); },
              "broadcast: root is 2; expected a rank from 0 to 1");
          refused(
              [&] { comm.AllReduce(Buffer(data, 4, static_cast<DType>(99)), ReduceOp::kSum); },
              "all_reduce: the input has dtype 99, which does not exist");
          refused(
              [&] { comm.AllReduce(Buffer(data, 4), static_cast<ReduceOp>(7)); },
              "all_reduce: reduce op 7 does not exist");
          refused(
              [&] { comm.AllGather(Buffer(data, 1), Buffer(data, 4)); },
              "all_gather: the output has 4 elements; expected 2 (2 ranks of 1)");
          comm.Barrier();
        }) == Errors(2));
}

TEST_CASE("an operation finishes with an engine thread") {
  CHECK(RunShm(2, [&](ShmRank rank) {
          rank.engine.StartThread();
          std::vector<float> data(300'000, 1.0f);
          Work work = rank.comm.StartAllReduce(Buffer(data.data(), data.size()), ReduceOp::kSum);
          work.Wait();
          if (data[299'999] != 2.0f) throw std::runtime_error("wrong sum");
        }) == Errors(2));
}

}  // namespace
