// Updates of shares: fused in one pass over memory that all ranks map, and composed of other
// operations.

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/process.h"
#include "dtrun/error.h"
#include "ops/communicator/communicator_base.h"
#include "ops/reduce/reduce.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"
#include "tests/support/reference_communicator.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using ops::Communicator;
using ops::Counts;
using ops::Members;

enum class Backend { kShm, kReference };

std::unique_ptr<Communicator> Create(
    Backend backend, ops::Bootstrap& bootstrap, ops::Engine& engine) {
  const Members members = Members::World(bootstrap.size());
  if (bootstrap.size() == 1) return ops::CreateSelfCommunicator(members);
  if (backend == Backend::kShm) return ops::CreateShmCommunicator(bootstrap, engine, members);
  return CreateReferenceCommunicator(bootstrap, engine, members);
}

// The error of each rank, "" if the rank succeeds.
Texts OnRanks(int size, Backend backend, const std::function<void(Communicator&)>& rank_main) {
  const base::SteadyClock clock;
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    ops::Engine engine({.may_spin = false}, clock, [](auto, const auto&) {});
    rank_main(*Create(backend, bootstrap, engine));
  });
}

// Uneven shares. The share of rank 1 is empty.
Counts SharesOf(uint64_t count, int size) {
  Counts shares(static_cast<size_t>(size));
  uint64_t left = count;
  for (size_t r = 0; r + 1 < shares.size(); ++r) left -= shares[r] = r == 1 ? 0 : left / 3;
  shares.back() = left;
  return shares;
}

void Fill(const Buffer& buffer, int rank) {
  std::vector<float> values(buffer.count);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 0.37f * static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 101) - 11;
  if (buffer.dtype == DType::kF32) {
    std::memcpy(buffer.data, values.data(), buffer.bytes());
  } else if (buffer.dtype == DType::kF64) {
    for (size_t i = 0; i < values.size(); ++i)
      static_cast<double*>(buffer.data)[i] = static_cast<double>(values[i]) / 3;
  } else {
    ops::Convert(values.data(), DType::kF32, buffer.data, buffer.dtype, buffer.count);
  }
}

TEST_CASE("an update that only stores the reduced values gives the bits of all_reduce") {
  const int size = GENERATE(1, 2, 3, 4);
  const Backend backend = GENERATE(Backend::kShm, Backend::kReference);
  const DType dtype = GENERATE(DType::kF32, DType::kF64, DType::kBF16, DType::kF16);
  const bool mapped = GENERATE(true, false);
  for (const uint64_t count : {0, 1, 63, 4097, 100'003}) {
    CHECK(OnRanks(size, backend, [&](Communicator& world) {
            const uint64_t bytes = count * SizeOf(dtype);
            const auto allocate = [&] {
              return mapped ? world.Allocate(bytes) : ops::AllocatePrivate(bytes);
            };
            const auto input = allocate(), output = allocate(), expected = allocate();
            const Buffer in(input->data(), count, dtype), out(output->data(), count, dtype);
            const Buffer all(expected->data(), count, dtype);
            Fill(in, world.rank());
            const Scale scale{0.5, 3};
            world.StartAllReduce(in, all, ReduceOp::kAverage, scale).Wait();
            const Counts shares = SharesOf(count, size);
            uint64_t updated = 0;
            world.ReduceUpdateGather(
                in, out, ReduceOp::kAverage, scale, shares,
                [&](uint64_t first, uint64_t n, const void* reduced) {
                  std::memcpy(out.Slice(first, n).data, reduced, n * SizeOf(dtype));
                  updated += n;
                });
            Expect(std::memcmp(out.data, all.data, bytes) == 0, "the same bits");
            Expect(updated == shares[static_cast<size_t>(world.rank())], "each rank its own share");
          }) == Nothing(size));
  }
}

TEST_CASE("without a gather each rank gets the reduced values of its own share only") {
  const int size = GENERATE(2, 3);
  const Backend backend = GENERATE(Backend::kShm, Backend::kReference);
  CHECK(OnRanks(size, backend, [&](Communicator& world) {
          const auto memory = world.Allocate(1000 * sizeof(float));
          const Buffer in(memory->data(), 1000, DType::kF32);
          for (size_t i = 0; i < 1000; ++i)
            static_cast<float*>(in.data)[i] = static_cast<float>(world.rank() + 1);
          const Counts shares = SharesOf(1000, size);
          float sum = 0;
          world.ReduceUpdate(
              in, ReduceOp::kSum, {}, shares, [&](uint64_t, uint64_t n, const void* reduced) {
                for (uint64_t i = 0; i < n; ++i) sum += static_cast<const float*>(reduced)[i];
              });
          const auto each = static_cast<float>(size * (size + 1) / 2);
          Expect(
              sum == each * static_cast<float>(shares[static_cast<size_t>(world.rank())]),
              "the sum of the share");
        }) == Nothing(size));
}

TEST_CASE("all ranks see the same values in shared memory") {
  CHECK(OnRanks(3, Backend::kShm, [&](Communicator& world) {
          const auto memory = world.AllocateShared(3 * sizeof(int64_t));
          auto* values = static_cast<volatile int64_t*>(memory->data());
          Expect(memory->bytes() == 24, "the size");
          values[world.rank()] = world.rank() + 5;
          world.Barrier();
          Expect(values[0] == 5 && values[1] == 6 && values[2] == 7, "everybody's values");
          world.Barrier();
        }) == Nothing(3));
  for (const std::string& text :
       OnRanks(2, Backend::kReference, [](Communicator& world) { world.AllocateShared(8); }))
    CHECK_THAT(text, Contains("8 bytes of memory that all ranks share: the backend is "));
}

TEST_CASE("ranks that disagree on an update get the call of each rank and can go on") {
  const auto disagree = [](const std::function<void(Communicator&, Buffer, Buffer)>& other) {
    const Texts texts = OnRanks(3, Backend::kShm, [&](Communicator& world) {
      const auto memory = world.Allocate(2000 * sizeof(float));
      const Buffer in(memory->data(), 900, DType::kF32);
      const Buffer out(static_cast<float*>(memory->data()) + 1000, 900, DType::kF32);
      std::string text = "no error";
      try {
        if (world.rank() == 1) {
          other(world, in, out);
        } else {
          world.ReduceUpdateGather(
              in, out, ReduceOp::kAverage, {}, {300, 300, 300}, [](uint64_t, uint64_t, auto) {});
        }
      } catch (const Error& error) {
        Expect(error.code() == ErrorCode::kMismatch, "the code");
        text = error.what();
      }
      world.Barrier();
      throw std::runtime_error(text);
    });
    CHECK(texts[0] == texts[1]);
    CHECK(texts[0] == texts[2]);
    return texts[0];
  };
  const auto nothing = [](uint64_t, uint64_t, const void*) {};
  CHECK_THAT(
      disagree([&](Communicator& world, Buffer in, Buffer) {
        world.ReduceUpdate(in, ReduceOp::kAverage, {}, {300, 300, 300}, nothing);
      }),
      Contains("rank 1 called reduce_update (f32, 900 elements, average)") &&
          Contains("ranks 0 and 2 called reduce_update_gather (f32, 900 elements, average)"));
  CHECK_THAT(
      disagree([&](Communicator& world, Buffer in, Buffer out) {
        world.ReduceUpdateGather(in, out, ReduceOp::kAverage, {}, {299, 301, 300}, nothing);
      }),
      Contains("rank 1 called") && Contains("with shares of 299, 301, 300") &&
          Contains("with shares of 300, 300, 300"));
  CHECK_THAT(
      disagree([&](Communicator& world, Buffer in, Buffer) {
        world.StartAllReduce(in, ReduceOp::kSum).Wait();
      }),
      Contains("rank 1 called all_reduce (f32, 900 elements, sum)"));
}

TEST_CASE("invalid arguments of an update are refused before any data is sent") {
  const auto refusal = [](const std::function<void(Communicator&, Buffer, Buffer)>& call) {
    return OnRanks(1, Backend::kShm, [&](Communicator& world) {
      float in[4] = {}, out[4] = {};
      call(world, Buffer(in, 4), Buffer(out, 4));
    })[0];
  };
  const auto nothing = [](uint64_t, uint64_t, const void*) {};
  CHECK(
      refusal([&](Communicator& world, Buffer in, Buffer out) {
        world.ReduceUpdateGather(in, out, ReduceOp::kSum, {}, {}, nothing);
      }) ==
      "reduce_update_gather: the sum of the shares: found 0 counts; expected one for each of 1 "
      "ranks");
  CHECK(refusal([&](Communicator& world, Buffer in, Buffer out) {
          world.ReduceUpdateGather(in, out.Slice(0, 3), ReduceOp::kSum, {}, {4}, nothing);
        }) == "reduce_update_gather: the output has 3 elements; expected 4 (as many as the input)");
  CHECK(
      refusal([&](Communicator& world, Buffer in, Buffer) {
        world.ReduceUpdateGather(in, in, ReduceOp::kSum, {}, {4}, nothing);
      }) ==
      "reduce_update_gather: the input and the output overlap; expected the same memory or "
      "separate memory");
  CHECK_THAT(
      refusal([&](Communicator& world, Buffer in, Buffer) {
        static_cast<void>(world.Start({.kind = ops::CollectiveKind::kReduceUpdate, .input = in}));
      }),
      Contains("reduce_update cannot be started as an operation"));
}

}  // namespace
}  // namespace dtrun::testing
