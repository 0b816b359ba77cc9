// The hierarchical communicator on threads as ranks. The hosts exist in name only. The reference
// communicator connects the ranks within a host and between hosts. It is also the oracle.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "base/process.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "ops/collective/host_map.h"
#include "ops/communicator/communicator_setup.h"
#include "ops/hierarchical/hierarchical_communicator.h"
#include "ops/reduce/reduce.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"
#include "tests/support/reference_communicator.h"
#include "tests/support/text.h"
#include "tests/support/thread_ranks.h"

namespace {

using dtrun::Buffer;
using dtrun::DType;
using dtrun::ReduceOp;
using dtrun::Scale;
using dtrun::base::Text;
using dtrun::ops::Bootstrap;
using dtrun::ops::Collective;
using dtrun::ops::CollectiveKind;
using dtrun::ops::Communicator;
using dtrun::ops::Counts;
using dtrun::ops::Engine;
using dtrun::ops::EngineOptions;
using dtrun::ops::HostMap;
using dtrun::ops::Members;
using dtrun::ops::Route;
using dtrun::ops::WireDType;
using dtrun::ops::Work;
using dtrun::testing::WithoutWaits;
using Errors = std::vector<std::string>;
using Slots = std::vector<int>;

// The chunks are small, so that little data fills many chunks.
constexpr Route kSmallChunks = {.chunk_bytes = 1024};

struct Rank {
  Engine& engine;
  Communicator& comm;
  Communicator& oracle;  // of the same ranks
};

using RankMain = std::function<void(Rank)>;
using LocalBackend = std::unique_ptr<Communicator> (*)(Bootstrap&, Engine&, Members);

// The host of each rank: host 0 once per slot, then host 1, and so on.
std::vector<int> HostOfRank(const Slots& slots) {
  std::vector<int> hosts;
  for (size_t h = 0; h < slots.size(); ++h) {
    hosts.insert(hosts.end(), static_cast<size_t>(slots[h]), static_cast<int>(h));
  }
  return hosts;
}

Members MembersOf(const std::vector<int>& host_of_rank) {
  Members members = Members::World(static_cast<int>(host_of_rank.size()));
  for (const int host : host_of_rank) members.hosts.push_back(Text("h", host));
  return members;
}

std::unique_ptr<Communicator> CreateHierarchical(
    Bootstrap& bootstrap, Engine& engine, const HostMap& hosts, const Members& members,
    const Route& route, LocalBackend backend) {
  const std::vector<int>& here = hosts.ranks(hosts.host(bootstrap.rank()));
  dtrun::ops::SubsetBootstrap host_bootstrap(bootstrap, here);
  auto local = here.size() == 1 ? dtrun::ops::CreateSelfCommunicator(members.Subset(here, ""))
                                : backend(host_bootstrap, engine, members.Subset(here, ""));
  host_bootstrap.Finish();
  auto cross = dtrun::testing::CreateReferenceCommunicator(bootstrap, engine, members);
  return dtrun::ops::CreateHierarchicalCommunicator(
      std::move(local), std::move(cross), hosts, route, engine, members);
}

struct Setup {
  Route route = kSmallChunks;
  LocalBackend local = dtrun::testing::CreateReferenceCommunicator;
  EngineOptions engine = {.may_spin = false};
};

// Runs `rank_main` on the ranks of these hosts and returns the error of each rank.
Errors RunHosts(
    const std::vector<int>& host_of_rank, const RankMain& rank_main, const Setup& setup = {}) {
  const dtrun::base::SteadyClock clock;
  const HostMap hosts(host_of_rank);
  return dtrun::testing::RunRanks(hosts.size(), [&](Bootstrap& bootstrap) {
    Engine engine(setup.engine, clock, [](auto, const auto&) {});
    const Members members = MembersOf(host_of_rank);
    const auto comm =
        CreateHierarchical(bootstrap, engine, hosts, members, setup.route, setup.local);
    const auto oracle = dtrun::testing::CreateReferenceCommunicator(bootstrap, engine, members);
    rank_main({engine, *comm, *oracle});
  });
}

std::unique_ptr<Communicator> OverShm(Bootstrap& bootstrap, Engine& engine, Members members) {
  return dtrun::ops::CreateShmCommunicator(bootstrap, engine, std::move(members));
}
const std::vector<LocalBackend> kLocalBackends = {
    dtrun::testing::CreateReferenceCommunicator, OverShm};

const std::vector<Slots> kShapes = {{1, 1}, {2, 2}, {1, 3}, {3, 1, 2}};

// --- one call, on the communicator and on the oracle --------------------------------------------

void Store(char* at, DType dtype, int value) {
  const auto as = [at](auto number) { std::memcpy(at, &number, sizeof number); };
  const float f32 = static_cast<float>(value);
  switch (dtype) {
    case DType::kU8:
    case DType::kI8: return as(static_cast<int8_t>(value));
    case DType::kU16:
    case DType::kI16: return as(static_cast<int16_t>(value));
    case DType::kU32:
    case DType::kI32: return as(static_cast<int32_t>(value));
    case DType::kU64:
    case DType::kI64: return as(static_cast<int64_t>(value));
    case DType::kF16:
    case DType::kBF16: return dtrun::ops::Convert(&f32, DType::kF32, at, dtype, 1);
    case DType::kF32: return as(f32);
    case DType::kF64: return as(static_cast<double>(value));
    case DType::kBool: return as(static_cast<uint8_t>(value % 2));
  }
}

// A typed array of small integers. Floats of every size hold them exactly, and also their sums and
// (over 6 ranks) products.
struct Array {
  Array(DType type, uint64_t n) : dtype(type), bytes(n * SizeOf(type)) {}
  Array(DType type, uint64_t n, uint64_t seed) : Array(type, n) {
    std::minstd_rand random(static_cast<unsigned>(seed + 1));
    for (uint64_t i = 0; i < n; ++i) {
      Store(bytes.data() + i * SizeOf(type), type, 1 + static_cast<int>(random() % 3));
    }
  }
  Buffer buffer() { return Buffer(bytes.data(), bytes.size() / SizeOf(dtype), dtype); }

  DType dtype;
  std::vector<char> bytes;
};

// The call that all ranks make.
struct Case {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  Scale scale = {};
  int root = 0;
  uint64_t count = 0;          // as in the table in ops/collective/collective.h
  std::vector<Counts> counts;  // [source][destination]; empty if even
  bool in_place = false;
  uint64_t seed = 0;
};

uint64_t Sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

uint64_t Before(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, uint64_t{0});
}

// The call of one rank with its memory.
class Caller {
 public:
  Caller(const Case& test, int rank, int size)
      : case_(test), rank_(rank), size_(static_cast<uint64_t>(size)), call_(Empty()) {
    Plan();
    input_ = std::make_unique<Array>(
        test.dtype, input_count_, test.seed * 100 + static_cast<uint64_t>(rank));
    output_ = std::make_unique<Array>(test.dtype, output_count_);
    if (test.in_place) {
      PutInPlace();
    } else {
      call_.input = input_->buffer();
      call_.output = output_->buffer();
    }
    if (test.kind == CollectiveKind::kBroadcast) call_.input = call_.output = input_->buffer();
  }

  const Collective& call() const { return call_; }
  // The output of this rank, empty if it has none.
  std::string result() const {
    const Buffer& output = call_.output;
    if (case_.kind == CollectiveKind::kBarrier) return "";
    if (only_root_gets() && rank_ != case_.root) return "";
    return std::string(static_cast<const char*>(output.data), output.bytes());
  }

 private:
  bool only_root_gets() const {
    return case_.kind == CollectiveKind::kReduce || case_.kind == CollectiveKind::kGather;
  }
  Collective Empty() const {
    return {.kind = case_.kind, .op = case_.op, .scale = case_.scale, .root = case_.root};
  }

  // Counts from [source][destination].
  Counts Sends(int source) const { return case_.counts[static_cast<size_t>(source)]; }
  Counts Receives(int destination) const {
    Counts counts;
    for (const Counts& sends : case_.counts) {
      counts.push_back(sends[static_cast<size_t>(destination)]);
    }
    return counts;
  }

  void Plan() {
    const bool even = case_.counts.empty();
    const bool is_root = rank_ == case_.root;
    input_count_ = output_count_ = case_.count;
    switch (case_.kind) {
      case CollectiveKind::kReduceScatter: {
        const Counts shares =
            even ? dtrun::ops::DealRows(case_.count, 1, static_cast<int>(size_)) : Sends(0);
        if (!even) call_.send_counts = shares;
        input_count_ = Sum(shares);
        output_count_ = shares[static_cast<size_t>(rank_)];
        own_ = Before(shares, rank_);
        break;
      }
      case CollectiveKind::kAllGather:
      case CollectiveKind::kGather: {
        const Counts blocks = even ? Counts(size_, case_.count) : Receives(0);
        if (!even) call_.receive_counts = blocks;
        input_count_ = blocks[static_cast<size_t>(rank_)];
        output_count_ = Sum(blocks);
        own_ = Before(blocks, rank_);
        break;
      }
      case CollectiveKind::kScatter: {
        const Counts blocks = even ? Counts(size_, case_.count) : Sends(0);
        if (!even) call_.send_counts = blocks;
        input_count_ = is_root ? Sum(blocks) : 0;
        output_count_ = blocks[static_cast<size_t>(rank_)];
        own_ = Before(blocks, rank_);
        break;
      }
      case CollectiveKind::kAllToAll:
        if (even) {
          input_count_ = output_count_ = case_.count * size_;
        } else {
          call_.send_counts = Sends(rank_);
          call_.receive_counts = Receives(rank_);
          input_count_ = Sum(call_.send_counts);
          output_count_ = Sum(call_.receive_counts);
        }
        break;
      default: break;
    }
  }

  // In place: the smaller of the two buffers is this rank's part of the larger buffer.
  void PutInPlace() {
    const Buffer input = input_->buffer(), output = output_->buffer();
    call_.input = input;
    call_.output = output;
    const bool is_root = rank_ == case_.root;
    switch (case_.kind) {
      case CollectiveKind::kAllReduce: call_.output = input; break;
      case CollectiveKind::kReduce:
        if (is_root) call_.output = input;
        break;
      case CollectiveKind::kReduceScatter: call_.output = input.Slice(own_, output.count); break;
      case CollectiveKind::kScatter:
        if (is_root) call_.output = input.Slice(own_, output.count);
        break;
      case CollectiveKind::kAllGather:
      case CollectiveKind::kGather:
        if (case_.kind == CollectiveKind::kGather && !is_root) break;
        call_.input = output.Slice(own_, input.count);
        if (input.count > 0) std::memcpy(call_.input.data, input.data, input.bytes());
        break;
      default: break;
    }
  }

  const Case& case_;
  int rank_;
  uint64_t size_;
  Collective call_;
  uint64_t input_count_ = 0, output_count_ = 0;
  uint64_t own_ = 0;  // where this rank's part begins in the larger buffer
  std::unique_ptr<Array> input_, output_;
};

std::string NameOf(const Case& test) {
  return Text(
      "seed ", test.seed, ": ", dtrun::ops::NameOf(test.kind), " of ", test.count, " ",
      dtrun::NameOf(test.dtype), ", ", dtrun::NameOf(test.op), ", root ", test.root,
      test.counts.empty() ? "" : ", counts by rank", test.in_place ? ", in place" : "",
      test.scale.before != 1 ? ", scaled" : "");
}

void Check(Rank& rank, const Case& test) {
  Caller caller(test, rank.comm.rank(), rank.comm.size());
  Caller expected(test, rank.comm.rank(), rank.comm.size());
  rank.comm.Start(caller.call()).Wait();
  rank.oracle.Start(expected.call()).Wait();
  if (caller.result() != expected.result()) throw std::runtime_error("wrong: " + NameOf(test));
}

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kReduce,
    CollectiveKind::kBroadcast, CollectiveKind::kAllGather,     CollectiveKind::kAllToAll,
    CollectiveKind::kGather,    CollectiveKind::kScatter,       CollectiveKind::kBarrier,
};
constexpr DType kDTypes[] = {DType::kU8,  DType::kI8,  DType::kU16, DType::kI16, DType::kU32,
                             DType::kI32, DType::kU64, DType::kI64, DType::kF16, DType::kBF16,
                             DType::kF32, DType::kF64, DType::kBool};
constexpr ReduceOp kOps[] = {
    ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

// --- tests --------------------------------------------------------------------------------------

TEST_CASE("first ranks number the hosts and the smallest host sets the number of rails") {
  const HostMap hosts({7, 3, 7, 7, 3});
  CHECK(hosts.host_count() == 2);
  CHECK(hosts.ranks(0) == std::vector<int>{0, 2, 3});
  CHECK(hosts.ranks(1) == std::vector<int>{1, 4});
  CHECK(hosts.rails() == 2);
  CHECK(hosts.local_rank(3) == 2);
  const HostMap subset = hosts.Subset({4, 0, 3});
  CHECK(subset.ranks(0) == std::vector<int>{0});
  CHECK(subset.ranks(1) == std::vector<int>{1, 2});
  CHECK(subset.rails() == 1);
}

TEST_CASE("every collective gives the result of the oracle at every size and also in place") {
  const LocalBackend local = GENERATE(from_range(kLocalBackends));
  const Slots slots = GENERATE(from_range(kShapes));
  const auto size = std::accumulate(slots.begin(), slots.end(), 0);
  CHECK(
      RunHosts(
          HostOfRank(slots),
          [&](Rank rank) {
            for (const CollectiveKind kind : kKinds) {
              for (const uint64_t count : {0, 1, 7, 100, 1001, 6007}) {
                for (const bool in_place : {false, true}) {
                  for (const DType dtype : {DType::kF32, DType::kU8}) {
                    Check(
                        rank, {.kind = kind,
                               .dtype = dtype,
                               .root = static_cast<int>(count) % size,
                               .count = count,
                               .counts = {},
                               .in_place = in_place});
                  }
                }
              }
            }
          },
          {.local = local}) == Errors(static_cast<size_t>(size)));
}

TEST_CASE("every reduce op gives the result of the oracle for every type and size and scale") {
  const LocalBackend local = GENERATE(from_range(kLocalBackends));
  const Slots slots = GENERATE(from_range(kShapes));
  const auto size = std::accumulate(slots.begin(), slots.end(), 0);
  CHECK(
      RunHosts(
          HostOfRank(slots),
          [&](Rank rank) {
            for (const DType dtype : kDTypes) {
              for (const ReduceOp op : kOps) {
                for (const uint64_t count : {3, 1501}) {
                  for (const Scale scale : {Scale{}, Scale{2, 0.5}}) {
                    if (dtype == DType::kBool && scale.before != 1) continue;
                    Check(
                        rank, {.kind = CollectiveKind::kAllReduce,
                               .dtype = dtype,
                               .op = op,
                               .scale = scale,
                               .count = count,
                               .counts = {}});
                  }
                }
              }
            }
          },
          {.local = local}) == Errors(static_cast<size_t>(size)));
}

Case RandomCase(uint64_t seed, int size) {
  std::mt19937_64 random(seed);
  const auto below = [&random](uint64_t n) { return random() % n; };
  Case test{.counts = {}};
  test.seed = seed;
  test.kind = kKinds[below(std::size(kKinds))];
  test.dtype = kDTypes[below(std::size(kDTypes))];
  test.op = kOps[below(std::size(kOps))];
  if (test.dtype != DType::kBool && below(3) == 0) test.scale = {2, 0.25};
  test.root = static_cast<int>(below(static_cast<uint64_t>(size)));
  test.in_place = below(2) == 0;
  const uint64_t most = below(2) == 0 ? 40 : 3000;
  test.count = below(4) == 0 ? 0 : below(most);
  const auto p = static_cast<size_t>(size);
  if (below(2) == 0) {
    test.counts.assign(p, Counts(p));
    // Kinds other than all_to_all use one row or column, so all other rows or columns must equal
    // it.
    const bool by_source =
        test.kind == CollectiveKind::kAllGather || test.kind == CollectiveKind::kGather;
    for (size_t s = 0; s < p; ++s) {
      for (size_t d = 0; d < p; ++d) test.counts[s][d] = below(3) == 0 ? 0 : below(most);
    }
    for (size_t s = 0; s < p && test.kind != CollectiveKind::kAllToAll; ++s) {
      for (size_t d = 0; d < p; ++d) {
        test.counts[s][d] = by_source ? test.counts[s][0] : test.counts[0][d];
      }
    }
  }
  return test;
}

TEST_CASE("random calls give the results of the oracle") {
  const LocalBackend local = GENERATE(from_range(kLocalBackends));
  const Slots slots = GENERATE(from_range(kShapes));
  const auto size = std::accumulate(slots.begin(), slots.end(), 0);
  CHECK(
      RunHosts(
          HostOfRank(slots),
          [&](Rank rank) {
            for (uint64_t seed = 0; seed < 300; ++seed) Check(rank, RandomCase(seed, size));
          },
          {.local = local}) == Errors(static_cast<size_t>(size)));
}

TEST_CASE("many random calls can be in flight at once and be waited for in any order") {
  const LocalBackend local = GENERATE(from_range(kLocalBackends));
  const Slots slots = GENERATE(Slots{2, 2}, Slots{3, 1, 2});
  const auto size = std::accumulate(slots.begin(), slots.end(), 0);
  CHECK(
      RunHosts(
          HostOfRank(slots),
          [&](Rank rank) {
            std::vector<Case> cases;
            for (uint64_t seed = 1000; seed < 1060; ++seed) cases.push_back(RandomCase(seed, size));
            std::vector<std::unique_ptr<Caller>> callers;
            std::vector<Work> works;
            for (const Case& test : cases) {
              callers.push_back(std::make_unique<Caller>(test, rank.comm.rank(), size));
              works.push_back(rank.comm.Start(callers.back()->call()));
            }
            std::mt19937 random(static_cast<unsigned>(rank.comm.rank()));
            std::vector<size_t> order(works.size());
            std::iota(order.begin(), order.end(), size_t{0});
            std::shuffle(order.begin(), order.end(), random);
            for (const size_t i : order) works[i].Wait();
            for (size_t i = 0; i < cases.size(); ++i) {
              Caller expected(cases[i], rank.comm.rank(), size);
              rank.oracle.Start(expected.call()).Wait();
              if (callers[i]->result() != expected.result()) {
                throw std::runtime_error("wrong: " + NameOf(cases[i]));
              }
            }
          },
          {.local = local}) == Errors(static_cast<size_t>(size)));
}

TEST_CASE("the route may change while operations are in flight") {
  const std::vector<Route> routes = {
      {.chunk_bytes = 4096}, {.flat = true}, {.chunk_bytes = 1024}, {.chunk_bytes = 64 << 10}};
  CHECK(RunHosts({0, 0, 1, 1, 1}, [&](Rank rank) {
          for (uint64_t seed = 0; seed < 60; ++seed) {
            // The ranks reach the change of the route at different times.
            Caller before(RandomCase(seed + 500, 5), rank.comm.rank(), 5);
            Work under_way = rank.comm.Start(before.call());
            rank.comm.SetRoute(routes[seed % routes.size()]);
            if (rank.comm.route() != routes[seed % routes.size()])
              throw std::runtime_error("another route");
            Check(rank, RandomCase(seed, 5));
            under_way.Wait();
          }
        }) == Errors(5));
}

TEST_CASE("a reduction on a flat route has the bits of the communicator between hosts") {
  CHECK(RunHosts({0, 0, 1, 1}, [](Rank rank) {
          rank.comm.SetRoute({.wire = WireDType::kBF16, .flat = true});
          std::mt19937 random(static_cast<unsigned>(rank.comm.rank()));
          std::normal_distribution<float> normal;
          std::vector<float> data(5000);
          for (float& x : data) x = normal(random);
          std::vector<float> expected = data;
          rank.oracle.AllReduce(Buffer(expected.data(), expected.size()), ReduceOp::kAverage);
          rank.comm.AllReduce(Buffer(data.data(), data.size()), ReduceOp::kAverage);
          if (data != expected) throw std::runtime_error("other bits");
        }) == Errors(4));
}

TEST_CASE("operations over hosts finish with an engine thread") {
  CHECK(RunHosts({0, 0, 1, 1}, [](Rank rank) {
          rank.engine.StartThread();
          for (uint64_t seed = 0; seed < 50; ++seed) Check(rank, RandomCase(seed, 4));
        }) == Errors(4));
}

TEST_CASE("a subset of ranks in any order within or across hosts gives results in its own order") {
  const std::vector<int> ranks = GENERATE(
      std::vector<int>{5, 0, 3, 2, 4, 1}, std::vector<int>{4, 1, 0}, std::vector<int>{3, 0, 4},
      std::vector<int>{2, 1}, std::vector<int>{4}, std::vector<int>{5, 2, 4});
  CHECK(RunHosts({0, 0, 0, 1, 2, 2}, [&](Rank rank) {
          const auto comm = rank.comm.Subset(ranks);
          const auto oracle = rank.oracle.Subset(ranks);
          if (comm == nullptr) return;
          Rank inner{rank.engine, *comm, *oracle};
          for (uint64_t seed = 0; seed < 60; ++seed) {
            Check(inner, RandomCase(seed, comm->size()));
          }
        }) == Errors(6));
}

TEST_CASE("ranks interleaved over hosts and duplicates of splits keep their order") {
  CHECK(RunHosts({0, 1, 0, 2, 1, 0}, [](Rank rank) {
          for (uint64_t seed = 0; seed < 60; ++seed) Check(rank, RandomCase(seed, 6));
          const int r = rank.comm.rank();
          const auto comm = rank.comm.Split(r % 2, -r);
          const auto oracle = rank.oracle.Split(r % 2, -r);
          const auto copy = comm->Duplicate();
          Rank inner{rank.engine, *copy, *oracle};
          for (uint64_t seed = 0; seed < 60; ++seed) Check(inner, RandomCase(seed, 3));
        }) == Errors(6));
}

TEST_CASE("a communicator reports its backend") {
  CHECK(RunHosts({0, 0, 1, 1}, [](Rank rank) {
          const auto backend = [&rank](const std::vector<int>& ranks) {
            const auto comm = rank.comm.Subset(ranks);
            return comm == nullptr ? std::string() : std::string(comm->backend());
          };
          const bool here = rank.comm.rank() < 2;
          if (rank.comm.backend() != std::string("hierarchical")) throw std::runtime_error("all");
          if (backend({0, 1}) != (here ? "reference" : "")) throw std::runtime_error("a host");
          const std::string across = backend({0, 3});
          if (!across.empty() && across != "reference") throw std::runtime_error("across");
          const std::string mixed = backend({3, 2, 0});
          if (!mixed.empty() && mixed != "hierarchical") throw std::runtime_error("mixed");
        }) == Errors(4));
}

TEST_CASE("memory of the communicator is reduced in place and in slices and into other memory") {
  const Slots slots = GENERATE(from_range(kShapes));
  const auto size = std::accumulate(slots.begin(), slots.end(), 0);
  CHECK(
      RunHosts(
          HostOfRank(slots),
          [&](Rank rank) {
            const uint64_t count = 100'000;
            const auto memory = rank.comm.Allocate(2 * count * sizeof(float));
            const Buffer all(static_cast<float*>(memory->data()), 2 * count);
            for (const uint64_t first : {uint64_t{0}, uint64_t{3}, count}) {
              for (const uint64_t n : {uint64_t{1}, uint64_t{777}, count - 5}) {
                const Buffer buffer = all.Slice(first, n);
                auto* data = static_cast<float*>(buffer.data);
                for (uint64_t i = 0; i < n; ++i) data[i] = static_cast<float>(i % 100 + first % 5);
                std::vector<float> other(n), before(data, data + n);
                rank.comm.StartAllReduce(buffer, Buffer(other.data(), n), ReduceOp::kSum).Wait();
                if (std::memcmp(data, before.data(), n * sizeof(float)) != 0) {
                  throw std::runtime_error("the input has changed");
                }
                rank.comm.AllReduce(buffer, ReduceOp::kSum);
                for (uint64_t i = 0; i < n; ++i) {
                  const float expected = before[i] * static_cast<float>(size);
                  if (data[i] != expected || other[i] != expected) {
                    throw std::runtime_error("wrong sum");
                  }
                }
              }
            }
          },
          {.route = {.chunk_bytes = 64 << 10}, .local = OverShm}) ==
      Errors(static_cast<size_t>(size)));
}

TEST_CASE("messages reach ranks of the same host and of another host") {
  CHECK(RunHosts({0, 0, 1}, [](Rank rank) {
          const int r = rank.comm.rank();
          int32_t next = -1, previous = -1, mine = 100 + r;
          // Around the ring in both directions at once.
          std::vector<Work> works;
          works.push_back(rank.comm.StartReceive(Buffer(&previous, 1), (r + 2) % 3));
          works.push_back(rank.comm.StartSend(Buffer(&mine, 1), (r + 1) % 3));
          works.push_back(rank.comm.StartReceive(Buffer(&next, 1), (r + 1) % 3));
          works.push_back(rank.comm.StartSend(Buffer(&mine, 1), (r + 2) % 3));
          for (Work& work : works) work.Wait();
          if (previous != 100 + (r + 2) % 3 || next != 100 + (r + 1) % 3) {
            throw std::runtime_error("wrong message");
          }
        }) == Errors(3));
}

TEST_CASE("counts by rank work with more ranks than fit beside a call") {
  Slots slots(12, 4);
  CHECK(RunHosts(HostOfRank(slots), [](Rank rank) {
          for (uint64_t seed = 0; seed < 12; ++seed) Check(rank, RandomCase(seed, 48));
        }) == Errors(48));
}

TEST_CASE("the result has the bits of a tree within each host and then a tree over the hosts") {
  const Slots slots = GENERATE(from_range(kShapes));
  const auto size = std::accumulate(slots.begin(), slots.end(), 0);
  const uint64_t count = GENERATE(50, 5000);
  std::vector<std::vector<float>> inputs;
  for (int r = 0; r < size; ++r) {
    std::mt19937 random(static_cast<unsigned>(r));
    std::normal_distribution<float> normal;
    auto& input = inputs.emplace_back(count);
    for (float& x : input) x = normal(random);
  }
  const auto combine = [count](const std::vector<std::vector<float>>& parts, ReduceOp op, int n) {
    std::vector<const void*> pointers;
    for (const auto& part : parts) pointers.push_back(part.data());
    std::vector<float> sum(count);
    void* output = sum.data();
    dtrun::ops::Reduce(
        pointers.data(), static_cast<int>(pointers.size()), &output, 1, count, DType::kF32,
        {.op = op, .divisor = n});
    return sum;
  };
  std::vector<std::vector<float>> host_sums;
  for (auto first = inputs.begin(); const int n : slots) {
    host_sums.push_back(combine({first, first + n}, ReduceOp::kSum, 0));
    first += n;
  }
  const std::vector<float> expected = combine(host_sums, ReduceOp::kAverage, size);
  CHECK(RunHosts(HostOfRank(slots), [&](Rank rank) {
          for (int run = 0; run < 3; ++run) {
            std::vector<float> data = inputs[static_cast<size_t>(rank.comm.rank())];
            rank.comm.AllReduce(Buffer(data.data(), count), ReduceOp::kAverage);
            if (data != expected) throw std::runtime_error("other bits");
          }
        }) == Errors(static_cast<size_t>(size)));
}

TEST_CASE("a 16-bit wire rounds host sums and the result to the same bits on all ranks") {
  const WireDType wire = GENERATE(WireDType::kF16, WireDType::kBF16);
  const Slots slots = GENERATE(from_range(kShapes));
  const float rounding = wire == WireDType::kF16 ? 0x1p-11f : 0x1p-8f;
  const float absolute = wire == WireDType::kF16 ? 0x1p-25f : 0;
  const auto size = std::accumulate(slots.begin(), slots.end(), 0);
  const std::vector<int> host_of_rank = HostOfRank(slots);
  const uint64_t count = 5000;
  const auto value = [](int rank, uint64_t i) {
    std::minstd_rand random(static_cast<unsigned>(i * 64 + static_cast<uint64_t>(rank) + 1));
    random.discard(3);
    return static_cast<float>(random()) / 0x1p30f - 1.0f;
  };
  std::vector<std::vector<float>> results(static_cast<size_t>(size), std::vector<float>(count));
  std::vector<std::vector<float>> scattered(static_cast<size_t>(size));
  const Errors errors = RunHosts(
      host_of_rank,
      [&](Rank rank) {
        auto& data = results[static_cast<size_t>(rank.comm.rank())];
        for (uint64_t i = 0; i < count; ++i) data[i] = value(rank.comm.rank(), i);
        const Counts shares = dtrun::ops::DealRows(count, 1, size);
        auto& share = scattered[static_cast<size_t>(rank.comm.rank())];
        share.resize(shares[static_cast<size_t>(rank.comm.rank())]);
        rank.comm
            .StartReduceScatter(
                Buffer(data.data(), count), Buffer(share.data(), share.size()), ReduceOp::kSum)
            .Wait();
        rank.comm.AllReduce(Buffer(data.data(), count), ReduceOp::kSum);
      },
      {.route = {.wire = wire, .chunk_bytes = 1024}});
  CHECK(errors == Errors(static_cast<size_t>(size)));
  std::vector<float> joined;
  for (const auto& share : scattered) joined.insert(joined.end(), share.begin(), share.end());
  CHECK(joined == results[0]);
  int rounded = 0;
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<double> sums(slots.size());
    for (int r = 0; r < size; ++r)
      sums[static_cast<size_t>(host_of_rank[static_cast<size_t>(r)])] += value(r, i);
    double exact = 0, magnitude = 0;
    for (const double sum : sums) {
      exact += sum;
      magnitude += std::abs(sum);
    }
    const double got = results[0][i];
    const double bound = rounding * magnitude + rounding * std::abs(exact) * 1.01 +
                         absolute * static_cast<double>(slots.size() + 1) + 0x1p-21 * magnitude;
    if (!(std::abs(got - exact) <= bound)) FAIL("element " << i << " is off by " << got - exact);
    if (got != exact) ++rounded;
  }
  CHECK(rounded > 0);
  for (int r = 1; r < size; ++r) CHECK(results[static_cast<size_t>(r)] == results[0]);
}

TEST_CASE("beyond the range of f16 an f16 wire gives infinity and a bf16 wire a number") {
  const WireDType wire = GENERATE(WireDType::kF16, WireDType::kBF16);
  CHECK(
      RunHosts(
          {0, 0, 1},
          [&](Rank rank) {
            std::vector<float> data(1000, 30000.0f);
            rank.comm.AllReduce(Buffer(data.data(), 1000), ReduceOp::kSum);
            const bool infinite = std::isinf(data[999]);
            if (infinite != (wire == WireDType::kF16)) throw std::runtime_error("range");
          },
          {.route = {.wire = wire, .chunk_bytes = 1024}}) == Errors(3));
}

TEST_CASE("ranks that disagree over hosts get an error with the call of each rank and can go on") {
  const Errors errors = RunHosts({0, 0, 1}, [](Rank rank) {
    std::vector<float> data(1000), other(8);
    std::string error;
    Work before = rank.comm.StartAllReduce(Buffer(data.data(), 1000), ReduceOp::kSum);
    try {
      rank.comm.AllReduce(Buffer(other.data(), rank.comm.rank() == 2 ? 4 : 8), ReduceOp::kSum);
    } catch (const dtrun::Error& thrown) {
      if (thrown.code() == dtrun::ErrorCode::kMismatch) error = thrown.what();
    }
    before.Wait();
    Check(rank, RandomCase(1, 3));
    throw std::runtime_error(error);
  });
  CHECK(
      errors == Errors(
                    3,
                    "the ranks disagree on collective #2: rank 2 (h1) called all_reduce (f32, 4 "
                    "elements, sum); ranks 0 (h0) and 1 (h0) called all_reduce (f32, 8 elements, "
                    "sum)"));
}

TEST_CASE("an absent rank is named with its host on all hosts") {
  EngineOptions options{.may_spin = false};
  options.timeout = std::chrono::milliseconds(2500);
  const int missing = GENERATE(0, 1, 2, 3);
  const Errors errors = RunHosts(
      {0, 0, 1, 1},
      [&](Rank rank) {
        if (rank.comm.rank() == missing) return;
        rank.comm.Barrier();
      },
      {.local = GENERATE(from_range(kLocalBackends)), .engine = options});
  const std::string expected = Text(
      "gave up after N s: collective #1, barrier, waits for rank ", missing, " (h", missing / 2,
      ") to call it");
  for (int r = 0; r < 4; ++r) {
    INFO("rank " << r << ", missing " << missing);
    CHECK(WithoutWaits(errors[static_cast<size_t>(r)], 2) == (r == missing ? "" : expected));
  }
}

TEST_CASE("after a timeout the next call on the communicator reports the timeout") {
  EngineOptions options{.may_spin = false};
  options.timeout = std::chrono::milliseconds(300);
  const Errors errors = RunHosts(
      {0, 1},
      [&](Rank rank) {
        if (rank.comm.rank() == 1) return;
        try {
          rank.comm.Barrier();
        } catch (const dtrun::Error&) {
        }
        rank.comm.Barrier();
      },
      {.engine = options});
  CHECK(
      WithoutWaits(errors[0], 0) ==
      "collective #2, barrier, cannot be done any more: gave up after N s: collective #1, barrier, "
      "waits for rank 1 (h1) to call it");
}

}  // namespace
