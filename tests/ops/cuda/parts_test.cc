// The parts of a collective over host_staged and over hosts: they must cover the collective and
// stay inside the given memory. The tree in which kernels combine. The tests need no GPU.

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ops/collective/device_parts.h"
#include "ops/collective/host_map.h"
#include "ops/cuda/kernel_args.h"

namespace dtrun::ops::cuda {
namespace {

// Addresses of buffers that no code reads.
char* const kInput = reinterpret_cast<char*>(uint64_t{1} << 40);
char* const kOutput = reinterpret_cast<char*>(uint64_t{2} << 40);
char* const kMemory = reinterpret_cast<char*>(uint64_t{3} << 40);

const CollectiveKind kInChunks[] = {
    CollectiveKind::kAllReduce, CollectiveKind::kReduce, CollectiveKind::kBroadcast,
    CollectiveKind::kReduceScatter, CollectiveKind::kAllGather};

// The call of rank `rank`, with the elements of each rank in `counts`.
Collective CallOfRank(CollectiveKind kind, const Counts& counts, int rank, DType dtype) {
  const uint64_t all = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  const uint64_t own = counts[static_cast<size_t>(rank)];
  Collective call{.kind = kind, .root = 1};
  call.input = Buffer(kInput, kind == CollectiveKind::kAllGather ? own : all, dtype);
  call.output = Buffer(kOutput, kind == CollectiveKind::kReduceScatter ? own : all, dtype);
  if (kind == CollectiveKind::kReduceScatter) call.send_counts = counts;
  if (kind == CollectiveKind::kAllGather) call.receive_counts = counts;
  return call;
}

using Runs = std::vector<std::pair<char*, char*>>;

void Add(Runs& runs, const void* data, uint64_t bytes) {
  char* const begin = static_cast<char*>(const_cast<void*>(data));
  if (bytes > 0) runs.push_back({begin, begin + bytes});
}

// True if `runs` cover each byte of `buffer` exactly once.
bool Covers(Runs runs, const Buffer& buffer) {
  std::sort(runs.begin(), runs.end());
  char* at = static_cast<char*>(buffer.data);
  for (const auto& [begin, end] : runs) {
    if (begin != at) return false;
    at = end;
  }
  return at == static_cast<char*>(buffer.data) + buffer.bytes();
}

bool Lies(const void* data, uint64_t bytes, const char* memory, uint64_t memory_bytes) {
  const char* begin = static_cast<const char*>(data);
  return bytes == 0 || (begin >= memory && begin + bytes <= memory + memory_bytes);
}

TEST_CASE("chunks cover a call and stay in their memory and match between ranks") {
  constexpr uint64_t kChunk = 64;
  for (const Counts& counts : {Counts{40, 40, 40}, Counts{0, 101, 3}, Counts{1, 1, 1}}) {
    for (const CollectiveKind kind : kInChunks) {
      for (const DType dtype : {DType::kU8, DType::kF32, DType::kF64}) {
        uint64_t chunks_of_first = 0;
        for (int rank = 0; rank < 3; ++rank) {
          CAPTURE(NameOf(kind), NameOf(dtype), rank, counts);
          const Collective call = CallOfRank(kind, counts, rank, dtype);
          const uint64_t chunks = ChunkCount(call, rank, 3, kChunk);
          if (rank == 0) chunks_of_first = chunks;
          CHECK(chunks == chunks_of_first);
          Runs in, out;
          for (uint64_t k = 0; k < chunks; ++k) {
            const HostChunk chunk = MakeChunk(call, rank, 3, k, chunks, kMemory);
            for (const ChunkPart& part : chunk.in) {
              Add(in, part.on_gpu.data, part.on_gpu.bytes());
              CHECK(Lies(part.on_host, part.on_gpu.bytes(), kMemory, ChunkBytes(kChunk, 3)));
            }
            for (const ChunkPart& part : chunk.out) {
              Add(out, part.on_gpu.data, part.on_gpu.bytes());
              CHECK(Lies(part.on_host, part.on_gpu.bytes(), kMemory, ChunkBytes(kChunk, 3)));
            }
            CHECK_NOTHROW(CheckArguments(chunk.on_host, rank, 3));
          }
          if (UsesInput(call, rank)) CHECK(Covers(in, call.input));
          if (UsesOutput(call, rank)) CHECK(Covers(out, call.output));
        }
      }
    }
  }
}

TEST_CASE("a kind with a result that needs the whole input is one chunk") {
  Collective call{.kind = CollectiveKind::kAllToAll};
  call.input = Buffer(kInput, 3000, DType::kF64);
  call.output = Buffer(kOutput, 3000, DType::kF64);
  CHECK(ChunkCount(call, 0, 3, 64) == 1);
}

// The collectives of a rank at one level, over all steps: kind, root and counts of each.
std::vector<std::vector<uint64_t>> Summary(const std::vector<Step>& steps, bool across) {
  std::vector<std::vector<uint64_t>> summary;
  for (const Step& step : steps) {
    const auto add = [&](const Collective& part) {
      summary.push_back({static_cast<uint64_t>(part.kind), static_cast<uint64_t>(part.root)});
      if (Combines(part.kind)) summary.back().push_back(part.input.count);
      for (const uint64_t count : part.send_counts) summary.back().push_back(count);
      for (const uint64_t count : part.receive_counts) summary.back().push_back(count);
    };
    for (const Collective& part : across ? step.across : step.up) add(part);
    for (const Collective& part : across ? std::vector<Collective>() : step.down) add(part);
    summary.push_back({});
  }
  return summary;
}

TEST_CASE("steps over hosts match between ranks and stay in the staging memory") {
  constexpr uint64_t kChunk = 512;
  const std::vector<std::vector<int>> placements = {
      {0, 0, 1, 1}, {0, 1, 1}, {0, 1, 0, 2, 0, 2}, {0, 1, 1, 0}};
  for (const auto& host_of_rank : placements) {
    const HostMap hosts(host_of_rank);
    const uint64_t staging = 2 * SlotBytes(hosts, kChunk);
    for (const CollectiveKind kind : kInChunks) {
      for (const uint64_t each : {0, 1, 30, 700}) {
        Counts counts;
        for (int r = 0; r < hosts.size(); ++r)
          counts.push_back(each * static_cast<uint64_t>(r % 2 + 1));
        CAPTURE(NameOf(kind), each, host_of_rank);
        std::vector<std::vector<Step>> of_rank;
        for (int r = 0; r < hosts.size(); ++r) {
          const TwoLevels levels{
              .hosts = hosts, .rank = r, .chunk_bytes = kChunk, .staging = kMemory};
          of_rank.push_back(PlanSteps(levels, CallOfRank(kind, counts, r, DType::kF32)));
          CHECK_FALSE(of_rank.back().front().up.empty());
          CHECK_FALSE(of_rank.back().back().down.empty());
          for (const Step& step : of_rank.back()) {
            if (hosts.local_rank(r) >= hosts.rails()) CHECK(step.across.empty());
            for (const auto* parts : {&step.up, &step.across, &step.down}) {
              for (const Collective& part : *parts) {
                for (const Buffer& buffer : {part.input, part.output}) {
                  if (static_cast<char*>(buffer.data) < kMemory) continue;
                  CHECK(Lies(buffer.data, buffer.bytes(), kMemory, staging));
                }
              }
            }
          }
        }
        for (int a = 0; a < hosts.size(); ++a) {
          for (int b = 0; b < a; ++b) {
            const auto &first = of_rank[static_cast<size_t>(a)],
                       &second = of_rank[static_cast<size_t>(b)];
            CHECK(first.size() == second.size());
            if (hosts.host(a) == hosts.host(b))
              CHECK(Summary(first, false) == Summary(second, false));
            if (hosts.local_rank(a) == hosts.local_rank(b))
              CHECK(Summary(first, true) == Summary(second, true));
          }
        }
      }
    }
  }
}

// Applies the combinations of a tree over `size` inputs to texts, as a kernel does to values.
std::string Tree(int size) {
  ReduceArgs args = {};
  CountCombines(0, size, args.combines);
  std::vector<std::string> waiting;
  for (int k = 0; k < size; ++k) {
    waiting.push_back(std::string(1, static_cast<char>('a' + k)));
    for (int n = args.combines[k]; n > 0; --n) {
      const std::string right = waiting.back();
      waiting.pop_back();
      waiting.back() = "(" + waiting.back() + right + ")";
    }
  }
  REQUIRE(waiting.size() == 1);
  return waiting[0];
}

TEST_CASE("inputs are combined in the tree of ops/reduce") {
  CHECK(Tree(1) == "a");
  CHECK(Tree(2) == "(ab)");
  CHECK(Tree(3) == "((ab)c)");
  CHECK(Tree(5) == "(((ab)c)(de))");
  CHECK(Tree(8) == "(((ab)(cd))((ef)(gh)))");
}

}  // namespace
}  // namespace dtrun::ops::cuda
