// Adaptive summation as an operation: its kernels, the cut of tensors into blocks, the deal of
// blocks to ranks, and equal bits for every location of the data.

#include "ops/communicator/adasum.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/hierarchical/hierarchical_communicator.h"
#include "ops/reduce/reduce.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"
#include "tests/support/adasum_reference.h"
#include "tests/support/reference_communicator.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {
namespace {

using base::Text;
using ops::Counts;
using ops::Products;
using ops::TensorBlock;

Vector RandomVector(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Vector values(count);
  for (double& value : values) value = normal(random);
  return values;
}

// Elements of `dtype` with these values. f16 and bf16 are rounded from f32.
std::vector<char> Elements(const Vector& values, DType dtype) {
  std::vector<char> bytes(values.size() * SizeOf(dtype));
  const std::vector<float> narrow(values.begin(), values.end());
  if (dtype == DType::kF64) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else if (dtype == DType::kF32) {
    std::memcpy(bytes.data(), narrow.data(), bytes.size());
  } else {
    ops::Convert(narrow.data(), DType::kF32, bytes.data(), dtype, values.size());
  }
  return bytes;
}

Vector Values(const std::vector<char>& bytes, DType dtype) {
  const size_t count = bytes.size() / SizeOf(dtype);
  if (dtype == DType::kF64) {
    Vector values(count);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> narrow(count);
  if (dtype == DType::kF32) {
    std::memcpy(narrow.data(), bytes.data(), bytes.size());
  } else {
    ops::Convert(bytes.data(), dtype, narrow.data(), DType::kF32, count);
  }
  return Vector(narrow.begin(), narrow.end());
}

double Epsilon(DType dtype) {
  if (dtype == DType::kF16) return std::ldexp(1, -11);
  if (dtype == DType::kBF16) return std::ldexp(1, -8);
  if (dtype == DType::kF32) return std::ldexp(1, -24);
  return std::ldexp(1, -46);  // products lose some digits if groups nearly cancel out
}

// --- kernels ------------------------------------------------------------------------------------

TEST_CASE("products and weighted sums have the same bits on every instruction set") {
  const DType dtype = GENERATE(DType::kF16, DType::kBF16, DType::kF32, DType::kF64);
  const size_t count = GENERATE(0u, 1u, 7u, 16u, 127u, 128u, 129u, 1000u);
  const int half = GENERATE(1, 2, 4);
  CAPTURE(NameOf(dtype), count, half);
  std::vector<std::vector<char>> inputs;
  std::vector<const void*> pointers;
  for (int k = 0; k < 2 * half; ++k)
    inputs.push_back(Elements(RandomVector(count, static_cast<uint64_t>(k)), dtype));
  for (const auto& input : inputs) pointers.push_back(input.data());
  const Vector weights = half == 1 ? Vector{1, 1} : RandomVector(2 * static_cast<size_t>(half), 77);

  Vector a(count), b(count);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Vector values = Values(inputs[k], dtype);
    Vector& side = k < inputs.size() / 2 ? a : b;
    for (size_t i = 0; i < count; ++i) side[i] += weights[k] * values[i];
  }
  std::vector<Products> products;
  std::vector<std::vector<char>> sums;
  for (const ops::InstructionSet& set : ops::InstructionSetsHere()) {
    CAPTURE(set.name);
    products.push_back(
        ops::ProductsOfSumsWith(set, pointers.data(), weights.data(), half, count, dtype));
    CHECK(products.back().aa == Approx(Dot(a, a)).epsilon(1e-12));
    CHECK(products.back().bb == Approx(Dot(b, b)).epsilon(1e-12));
    CHECK(products.back().ab == Approx(Dot(a, b)).epsilon(1e-9).margin(1e-11));
    CHECK(std::memcmp(&products.back(), &products.front(), sizeof(Products)) == 0);

    sums.emplace_back(count * SizeOf(dtype) + 8, '\x55');  // with 8 bytes behind the output
    void* output = sums.back().data();
    ops::WeightedSumWith(
        set, pointers.data(), weights.data(), 2 * half, &output, 1, count, dtype,
        ops::Stores::kCached);
    CHECK(sums.back() == sums.front());
    CHECK(std::string(sums.back().end() - 8, sums.back().end()) == std::string(8, '\x55'));
  }
  Vector sum(count);
  for (size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
  sums[0].resize(count * SizeOf(dtype));
  CHECK(RelativeDifference(Values(sums[0], dtype), sum) <= Epsilon(dtype));
}

TEST_CASE("a weighted sum is stored in all outputs with streaming stores and over an input") {
  const size_t count = 1003;
  std::vector<float> a(count, 2), b(count, 3);
  struct alignas(64) Line {
    float values[16];
  };
  std::vector<Line> aligned(count / 16 + 1);
  void* outputs[] = {aligned.data(), a.data()};
  const void* inputs[] = {a.data(), b.data()};
  const double weights[] = {0.5, 2};
  ops::WeightedSum(inputs, weights, 2, outputs, 2, count, DType::kF32, ops::Stores::kStreaming);
  CHECK(a == std::vector<float>(count, 7));
  CHECK(b == std::vector<float>(count, 3));
  CHECK(std::memcmp(aligned.data(), a.data(), count * sizeof(float)) == 0);
}

// --- blocks and their ranks ---------------------------------------------------------------------

TEST_CASE("a tensor is cut the same alone and among others and an empty tensor has no block") {
  const auto alone = ops::CutIntoBlocks({20000});
  const auto among = ops::CutIntoBlocks({0, 5, 20000, 0, 8192, 1});
  REQUIRE(alone.size() == 3);
  REQUIRE(among.size() == 6);
  for (size_t b = 0; b < alone.size(); ++b) {
    CHECK(among[b + 1].first == alone[b].first + 5);
    CHECK(among[b + 1].count == alone[b].count);
    CHECK(among[b + 1].tensor == 2);
  }
  CHECK(alone[2].count == 20000 - 2 * 8192);
  CHECK(among[5].first == 5 + 20000 + 8192);
  CHECK(ops::CutIntoBlocks({0, 0}).empty());
}

TEST_CASE("all blocks are dealt in order and in about equal parts") {
  const int size = GENERATE(1, 2, 4, 16);
  const Counts tensors =
      GENERATE(Counts{}, Counts{1}, Counts{1000000}, Counts(100, 700), Counts{5, 200000, 3, 9000});
  const auto blocks = ops::CutIntoBlocks(tensors);
  const auto begins = ops::DealBlocks(blocks, size);
  REQUIRE(begins.size() == static_cast<size_t>(size) + 1);
  CHECK(begins.front() == 0);
  CHECK(begins.back() == blocks.size());
  uint64_t all = 0;
  for (const TensorBlock& block : blocks) all += block.count;
  for (size_t r = 0; r + 1 < begins.size(); ++r) {
    REQUIRE(begins[r] <= begins[r + 1]);
    uint64_t share = 0;
    for (size_t b = begins[r]; b < begins[r + 1]; ++b) share += blocks[b].count;
    CHECK(share <= all / static_cast<uint64_t>(size) + 8192);
  }
}

// --- ranks --------------------------------------------------------------------------------------

enum class Where { kMapped, kPrivate, kOtherBackend, kHosts };

struct Rank {
  ops::Communicator& world;
  ops::Adasum& adasum;
  Where where;

  // The result for the tensors in `input`, which lie one after the other.
  std::vector<char> Combined(
      const std::vector<char>& input, DType dtype, const Counts& tensors, Scale scale = {},
      bool in_place = true) {
    const uint64_t bytes = input.size(), count = bytes / SizeOf(dtype);
    const uint64_t apart = (bytes + 63) / 64 * 64;
    const bool mapped = where == Where::kMapped;
    const auto memory = mapped ? world.Allocate(2 * apart) : ops::AllocatePrivate(2 * apart);
    char* const data = static_cast<char*>(memory->data());
    std::memcpy(data, input.data(), bytes);
    char* const output = in_place ? data : data + apart;
    adasum.Start(Buffer(data, count, dtype), Buffer(output, count, dtype), tensors, scale).Wait();
    if (!in_place && std::memcmp(data, input.data(), bytes) != 0)
      throw std::runtime_error("the input has changed");
    std::vector<char> result(output, output + bytes);
    world.Barrier();
    return result;
  }
};

std::unique_ptr<ops::Communicator> MakeWorld(
    Where where, ops::Bootstrap& bootstrap, ops::Engine& engine) {
  const int size = bootstrap.size();
  ops::Members members = ops::Members::World(size);
  if (where == Where::kOtherBackend) return CreateReferenceCommunicator(bootstrap, engine, members);
  if (where != Where::kHosts) return ops::CreateShmCommunicator(bootstrap, engine, members);
  std::vector<int> host_of_rank;
  for (int r = 0; r < size; ++r) host_of_rank.push_back(r >= (size + 1) / 2);
  const ops::HostMap hosts(host_of_rank);
  for (const int host : host_of_rank) members.hosts.push_back(Text("h", host));
  const std::vector<int>& here = hosts.ranks(hosts.host(bootstrap.rank()));
  ops::SubsetBootstrap host_bootstrap(bootstrap, here);
  auto local = here.size() == 1
                   ? ops::CreateSelfCommunicator(members.Subset(here, ""))
                   : ops::CreateShmCommunicator(host_bootstrap, engine, members.Subset(here, ""));
  host_bootstrap.Finish();
  return ops::CreateHierarchicalCommunicator(
      std::move(local), CreateReferenceCommunicator(bootstrap, engine, members), hosts,
      ops::Route{}, engine, members);
}

std::vector<std::string> RunAdasum(
    int size, Where where, const std::function<void(Rank&)>& rank_main) {
  const base::SteadyClock clock;
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    ops::Engine engine({.may_spin = false}, clock, [](auto, const auto&) {});
    const auto world = MakeWorld(where, bootstrap, engine);
    ops::Adasum adasum(*world, engine);
    Rank rank{*world, adasum, where};
    rank_main(rank);
    world->Barrier();
  });
}

Vector InputOf(int rank, size_t count) {
  Vector values = RandomVector(count, 100 + static_cast<uint64_t>(rank));
  const Vector common = RandomVector(count, 5);
  for (size_t i = 0; i < count; ++i) values[i] += common[i];  // neither orthogonal nor parallel
  return values;
}

// The result of rank 0. All ranks have the same result.
std::vector<char> CombinedWhere(
    Where where, int size, DType dtype, const Counts& tensors, Scale scale, bool in_place) {
  uint64_t count = 0;
  for (const uint64_t each : tensors) count += each;
  std::vector<std::vector<char>> results(static_cast<size_t>(size));
  const auto errors = RunAdasum(size, where, [&](Rank& r) {
    const std::vector<char> input = Elements(InputOf(r.world.rank(), count), dtype);
    results[static_cast<size_t>(r.world.rank())] =
        r.Combined(input, dtype, tensors, scale, in_place);
  });
  CHECK(errors == Nothing(size));
  for (const auto& result : results) CHECK((result == results[0]));
  return results[0];
}

TEST_CASE("tensors are combined as in the paper with the same bits on every backend") {
  const int size = GENERATE(1, 2, 4, 8);
  const DType dtype = GENERATE(DType::kF16, DType::kBF16, DType::kF32, DType::kF64);
  const Counts tensors = GENERATE(
      Counts{}, Counts{3}, Counts{1, 0, 300, 5}, Counts{9001}, Counts{17, 40000, 0, 1, 20001});
  const bool in_place = GENERATE(true, false);
  CAPTURE(size, NameOf(dtype), tensors, in_place);
  uint64_t count = 0;
  for (const uint64_t each : tensors) count += each;
  std::vector<Vector> inputs;
  for (int r = 0; r < size; ++r)
    inputs.push_back(Values(Elements(InputOf(r, count), dtype), dtype));

  const auto mapped = CombinedWhere(Where::kMapped, size, dtype, tensors, {}, in_place);
  const Vector found = Values(mapped, dtype);
  REQUIRE(found.size() == count);
  for (size_t t = 0, begin = 0; t < tensors.size(); begin += tensors[t++]) {
    const auto part = [&](const Vector& whole) {
      const auto first = whole.begin() + static_cast<std::ptrdiff_t>(begin);
      return Vector(first, first + static_cast<std::ptrdiff_t>(tensors[t]));
    };
    std::vector<Vector> parts;
    for (const Vector& input : inputs) parts.push_back(part(input));
    // The inputs may cancel out in part, so the bound is relative to the largest of them.
    const Vector expected = AdasumOf(parts);
    double largest = Dot(expected, expected);
    for (const Vector& one : parts) largest = std::max(largest, Dot(one, one));
    const double scale = std::sqrt(largest / std::max(Dot(expected, expected), 1e-300));
    CHECK(RelativeDifference(part(found), expected) <= Epsilon(dtype) * scale);
  }
  for (const Where where : {Where::kPrivate, Where::kOtherBackend, Where::kHosts}) {
    if (size == 1 && where == Where::kHosts) continue;
    CHECK((CombinedWhere(where, size, dtype, tensors, {}, in_place) == mapped));
  }
}

TEST_CASE("a tensor has the same result bits alone and among other tensors") {
  const Where where = GENERATE(Where::kMapped, Where::kPrivate);
  const Counts tensors = {17, 40000, 1, 9000};
  const auto together = [&] { return CombinedWhere(where, 4, DType::kF32, tensors, {}, true); }();
  std::vector<char> one_by_one;
  const auto errors = RunAdasum(4, where, [&](Rank& r) {
    const auto all = Elements(InputOf(r.world.rank(), 17 + 40000 + 1 + 9000), DType::kF32);
    for (size_t t = 0, begin = 0; t < tensors.size(); begin += 4 * tensors[t++]) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto result = r.Combined(
          {first, first + static_cast<std::ptrdiff_t>(4 * tensors[t])}, DType::kF32, {tensors[t]});
      if (r.world.rank() == 0) one_by_one.insert(one_by_one.end(), result.begin(), result.end());
    }
  });
  CHECK(errors == Nothing(4));
  CHECK((one_by_one == together));
}

TEST_CASE("both factors of a scale multiply the result") {
  const Counts tensors = {5, 30000};
  const auto plain = CombinedWhere(Where::kMapped, 2, DType::kF64, tensors, {}, true);
  const auto scaled = CombinedWhere(Where::kMapped, 2, DType::kF64, tensors, {0.5, 8}, true);
  Vector expected = Values(plain, DType::kF64);
  for (double& value : expected) value *= 4;
  CHECK(Values(scaled, DType::kF64) == expected);
}

TEST_CASE("several operations with large streamed results can be in flight at once") {
  const Where where = GENERATE(Where::kMapped, Where::kPrivate);
  const auto errors = RunAdasum(2, where, [](Rank& r) {
    constexpr uint64_t kLarge = 3 << 20;
    const bool mapped = r.where == Where::kMapped;
    std::vector<std::unique_ptr<ops::Memory>> memory;
    std::vector<ops::Work> works;
    for (int i = 0; i < 3; ++i) {
      memory.push_back(mapped ? r.world.Allocate(8 * kLarge) : ops::AllocatePrivate(8 * kLarge));
      float* const values = static_cast<float*>(memory.back()->data());
      // Orthogonal inputs: each rank sets every other element.
      for (uint64_t k = static_cast<uint64_t>(r.world.rank()); k < kLarge; k += 2)
        values[k] = static_cast<float>(i + 1);
      works.push_back(
          r.adasum.Start(Buffer(values, kLarge), Buffer(values + kLarge, kLarge), {kLarge}));
    }
    for (ops::Work& work : works) work.Wait();
    for (int i = 0; i < 3; ++i) {
      const float* const values = static_cast<const float*>(memory[static_cast<size_t>(i)]->data());
      for (uint64_t k = 0; k < kLarge; ++k)
        if (values[kLarge + k] != static_cast<float>(i + 1))
          throw std::runtime_error(Text("element ", k, " is ", values[kLarge + k]));
    }
    r.world.Barrier();
  });
  CHECK(errors == Nothing(2));
}

TEST_CASE("adaptive summation refuses invalid arguments on every rank") {
  const auto errors = RunAdasum(3, Where::kMapped, [](Rank& r) {
    std::vector<float> values(4);
    static_cast<void>(r.adasum.Start(Buffer(values.data(), 4), Buffer(values.data(), 4), {4}));
  });
  for (const std::string& error : errors)
    CHECK(error == "adasum: there are 3 ranks; expected a power of two");

  const auto refused = [](const std::function<void(Rank&)>& call) {
    return RunAdasum(2, Where::kMapped, call)[0];
  };
  std::vector<int32_t> integers(4);
  CHECK(refused([&](Rank& r) {
          static_cast<void>(
              r.adasum.Start(Buffer(integers.data(), 4), Buffer(integers.data(), 4), {4}));
        }) == "adasum: the input is of i32; expected f16, bf16, f32 or f64");
  std::vector<float> values(4);
  CHECK(refused([&](Rank& r) {
          static_cast<void>(
              r.adasum.Start(Buffer(values.data(), 4), Buffer(values.data(), 4), {1, 2}));
        }) == "adasum: the tensors have 3 elements, but the input 4");
  CHECK(
      refused([&](Rank& r) { r.world.AllReduce(Buffer(values.data(), 4), ReduceOp::kAdasum); }) ==
      "all_reduce: the reduce op is adasum, which only named tensors support; expected sum, "
      "average, min, max or product");
}

}  // namespace
}  // namespace dtrun::testing
