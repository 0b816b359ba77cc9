// One rank of a job that uses the MPI backend directly. argv[1] is the scenario, argv[2] the MPI:
// "MPICH" for the MPICH ABI. Rank 0 prints "<checks> checks, <wrong> wrong" for all ranks. Some
// scenarios also print the error of each rank. The working folder must have runtime/ with the
// libraries for MPI.

#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/mpi/mpi_module.h"
#include "ops/reduce/reduce.h"

namespace {

using dtrun::Buffer;
using dtrun::DType;
using dtrun::Error;
using dtrun::ReduceOp;
using dtrun::SizeOf;
using dtrun::ops::Collective;
using dtrun::ops::CollectiveKind;
using dtrun::ops::Communicator;
using dtrun::ops::Counts;
using dtrun::ops::Work;

constexpr DType kDTypes[] = {DType::kU8,  DType::kI8,  DType::kU16, DType::kI16, DType::kU32,
                             DType::kI32, DType::kU64, DType::kI64, DType::kF16, DType::kBF16,
                             DType::kF32, DType::kF64, DType::kBool};
constexpr ReduceOp kOps[] = {
    ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kReduce,
    CollectiveKind::kBroadcast, CollectiveKind::kAllGather,     CollectiveKind::kAllToAll,
    CollectiveKind::kGather,    CollectiveKind::kScatter,       CollectiveKind::kBarrier};

// --- values that every rank can compute for all ranks -------------------------------------------

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Fractions: the order of a sum shows in its last bits.
void WriteValue(char* to, DType dtype, uint64_t seed) {
  const uint64_t bits = Mix(seed);
  const auto put = [to](auto value) { std::memcpy(to, &value, sizeof value); };
  const double value = (static_cast<double>(bits % 2001) - 1000) / 7;
  switch (dtype) {
    case DType::kF32: return put(static_cast<float>(value));
    case DType::kF64: return put(value);
    case DType::kF16: return put(static_cast<uint16_t>((bits & 0x83ff) | (bits % 8 + 10) << 10));
    case DType::kBF16: return put(static_cast<uint16_t>((bits & 0x807f) | (bits % 8 + 123) << 7));
    case DType::kBool: return put(static_cast<uint8_t>(bits & 1));
    default: std::memcpy(to, &bits, SizeOf(dtype));
  }
}

using Bytes = std::vector<char>;

Bytes Values(uint64_t count, DType dtype, uint64_t seed, int rank) {
  Bytes bytes(count * SizeOf(dtype));
  for (uint64_t i = 0; i < count; ++i) {
    WriteValue(
        &bytes[i * SizeOf(dtype)], dtype, seed * 1000003 + i * 64 + static_cast<uint64_t>(rank));
  }
  return bytes;
}

// --- one operation and its check ----------------------------------------------------------------

struct Case {
  CollectiveKind kind;
  DType dtype = DType::kF32;
  uint64_t count = 1;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;
  bool tables = false;
  int root = 0;
  dtrun::Scale scale = {};
  int divisor = 0;
};

class Trial {
 public:
  Trial(Communicator& comm, const Case& c, uint64_t seed)
      : comm_(comm), c_(c), seed_(seed), p_(static_cast<uint64_t>(comm.size())) {
    const auto rank = static_cast<uint64_t>(comm.rank());
    const uint64_t in = InputCount(rank), out = Output(rank).size() / element();
    input_ = Values(in, c.dtype, seed, comm.rank());
    output_.assign(out * element(), 0x5a);
    Collective collective{
        .kind = c.kind,
        .input = Buffer(input_.data(), in, c.dtype),
        .output = Buffer(output_.data(), out, c.dtype),
        .op = c.op,
        .scale = c.scale,
        .divisor = c.divisor,
        .root = c.root};
    if (c.in_place) PlaceIn(collective);
    AddTables(collective);
    result_ = static_cast<char*>(collective.output.data);
    work_ = comm.Start(std::move(collective));
  }

  bool Test() { return work_.Test(); }

  // True if the output is right and the input is unchanged.
  bool Right() {
    work_.Wait();
    const auto rank = static_cast<uint64_t>(comm_.rank());
    const Bytes expected = Output(rank);
    if (!expected.empty() && std::memcmp(result_, expected.data(), expected.size()) != 0) {
      return false;
    }
    return c_.in_place || input_ == Values(InputCount(rank), c_.dtype, seed_, comm_.rank());
  }

 private:
  uint64_t element() const { return SizeOf(c_.dtype); }
  uint64_t root() const { return static_cast<uint64_t>(c_.root); }

  // The count that `source` gives to `destination`. With tables the counts differ and may be 0.
  uint64_t Part(uint64_t source, uint64_t destination) const {
    if (!c_.tables) return c_.count;
    return (source * 3 + destination + 1) * (c_.count / 2 + 1) % (c_.count + 1);
  }

  uint64_t Flow(uint64_t source, uint64_t destination) const {
    switch (c_.kind) {
      case CollectiveKind::kBroadcast:
        return source == root() && destination != root() ? c_.count : 0;
      case CollectiveKind::kAllGather: return Part(source, 0);
      case CollectiveKind::kAllToAll: return Part(source, destination);
      case CollectiveKind::kGather: return destination == root() ? Part(source, 0) : 0;
      case CollectiveKind::kScatter: return source == root() ? Part(0, destination) : 0;
      default: return 0;
    }
  }

  bool Splits() const {
    return c_.kind == CollectiveKind::kAllToAll || c_.kind == CollectiveKind::kScatter;
  }

  Counts Shares() const {
    const uint64_t total = c_.count;
    Counts shares = dtrun::ops::DealRows(total, 1, comm_.size());
    if (!c_.tables) return shares;
    uint64_t left = total;
    for (uint64_t r = 0; r + 1 < p_; ++r) left -= shares[r] = r % 2 == 0 ? 0 : left / 2;
    shares[p_ - 1] = left;
    return shares;
  }

  static uint64_t Before(const Counts& counts, uint64_t rank) {
    uint64_t sum = 0;
    for (uint64_t r = 0; r < rank; ++r) sum += counts[r];
    return sum;
  }

  uint64_t InputCount(uint64_t rank) const {
    if (dtrun::ops::Combines(c_.kind)) return c_.count;
    if (c_.kind == CollectiveKind::kBroadcast) return rank == root() ? c_.count : 0;
    uint64_t sum = 0;
    if (Splits()) {
      for (uint64_t d = 0; d < p_; ++d) sum += Flow(rank, d);
    } else {
      sum = Flow(rank, root());
    }
    return sum;
  }

  Bytes Output(uint64_t rank) const {
    if (dtrun::ops::Combines(c_.kind)) return Combined(rank);
    Bytes all;
    for (uint64_t s = 0; s < p_; ++s) {
      uint64_t begin = 0;
      for (uint64_t d = 0; Splits() && d < rank; ++d) begin += Flow(s, d);
      const Bytes from = Values(InputCount(s), c_.dtype, seed_, static_cast<int>(s));
      const auto at = from.begin() + static_cast<ptrdiff_t>(begin * element());
      all.insert(all.end(), at, at + static_cast<ptrdiff_t>(Flow(s, rank) * element()));
    }
    return all;
  }

  Bytes Combined(uint64_t rank) const {
    if (c_.kind == CollectiveKind::kReduce && rank != root()) return {};
    std::vector<Bytes> inputs;
    std::vector<const void*> pointers;
    for (uint64_t r = 0; r < p_; ++r) {
      inputs.push_back(Values(c_.count, c_.dtype, seed_, static_cast<int>(r)));
      pointers.push_back(inputs.back().data());
    }
    Bytes sum(c_.count * element());
    void* output = sum.data();
    dtrun::ops::Reduce(
        pointers.data(), comm_.size(), &output, 1, c_.count, c_.dtype,
        {.op = c_.op, .divisor = c_.divisor, .scale = c_.scale});
    if (c_.kind != CollectiveKind::kReduceScatter) return sum;
    const auto begin = static_cast<ptrdiff_t>(Before(Shares(), rank) * element());
    const auto count = static_cast<ptrdiff_t>(Shares()[rank] * element());
    return Bytes(sum.begin() + begin, sum.begin() + begin + count);
  }

  void PlaceIn(Collective& collective) {
    const auto rank = static_cast<uint64_t>(comm_.rank());
    Counts parts(p_);
    switch (c_.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduce: collective.output.data = input_.data(); return;
      case CollectiveKind::kReduceScatter:
        collective.output.data = input_.data() + Before(Shares(), rank) * element();
        return;
      case CollectiveKind::kAllGather:
      case CollectiveKind::kGather:
        if (output_.empty()) return;
        for (uint64_t r = 0; r < p_; ++r) parts[r] = Flow(r, root());
        collective.input.data = output_.data() + Before(parts, rank) * element();
        std::copy(input_.begin(), input_.end(), static_cast<char*>(collective.input.data));
        return;
      case CollectiveKind::kScatter:
        if (rank != root()) return;
        for (uint64_t r = 0; r < p_; ++r) parts[r] = Flow(root(), r);
        collective.output.data = input_.data() + Before(parts, rank) * element();
        return;
      default: return;
    }
  }

  void AddTables(Collective& collective) {
    if (!c_.tables) return;
    const auto rank = static_cast<uint64_t>(comm_.rank());
    Counts to, from;
    for (uint64_t r = 0; r < p_; ++r) {
      to.push_back(Flow(rank, r));
      from.push_back(Flow(r, rank));
    }
    switch (c_.kind) {
      case CollectiveKind::kReduceScatter: collective.send_counts = Shares(); return;
      case CollectiveKind::kAllToAll:
        collective.send_counts = to;
        collective.receive_counts = from;
        return;
      case CollectiveKind::kScatter:
        if (rank == root()) collective.send_counts = to;
        return;
      case CollectiveKind::kGather:
        if (rank == root()) collective.receive_counts = from;
        return;
      case CollectiveKind::kAllGather: collective.receive_counts = from; return;
      default: return;
    }
  }

  Communicator& comm_;
  Case c_;
  uint64_t seed_, p_;
  Bytes input_, output_;
  char* result_ = nullptr;
  Work work_;
};

// --- the rank -----------------------------------------------------------------------------------

class Rank {
 public:
  Rank(dtrun::base::Duration timeout, const std::string& mpi)
      : job_(dtrun::ops::JoinMpiJob("runtime", {.library = mpi}, std::chrono::seconds(20))),
        engine_(
            {.stall_warning = std::chrono::seconds(30), .timeout = timeout, .may_spin = false},
            clock_, [](dtrun::base::LogLevel, const std::string&) {}),
        comm_(job_->CreateCommunicator(
            engine_, dtrun::ops::Members::World(job_->bootstrap().size()))) {}

  Communicator& comm() { return *comm_; }
  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }
  void StartThread() { engine_.StartThread(); }

  void Check(bool right, const std::string& what) {
    ++counts_[0];
    if (right) return;
    if (++counts_[1] <= 5) std::cerr << "rank " << rank() << ": wrong: " << what << std::endl;
  }
  void Check(Trial& trial, const Case& c) {
    Check(
        trial.Right(),
        dtrun::base::Text(
            NameOf(c.kind), " ", NameOf(c.dtype), " ", NameOf(c.op), " of ", c.count,
            c.in_place ? ", in place" : "", c.tables ? ", tables" : "", ", root ", c.root));
  }

  int Finish() {
    comm_->AllReduce(Buffer(counts_, 2), ReduceOp::kSum);
    if (rank() == 0) std::cout << counts_[0] << " checks, " << counts_[1] << " wrong" << std::endl;
    comm_->Barrier();
    comm_.reset();
    job_->Finalize();
    return counts_[1] == 0 ? 0 : 1;
  }

 private:
  dtrun::base::SteadyClock clock_;
  std::unique_ptr<dtrun::ops::MpiJob> job_;
  dtrun::ops::Engine engine_;
  std::unique_ptr<Communicator> comm_;
  uint64_t counts_[2] = {};  // checks, wrong
};

// --- scenarios ----------------------------------------------------------------------------------

bool CanBeInPlace(CollectiveKind kind) {
  return kind != CollectiveKind::kBroadcast && kind != CollectiveKind::kAllToAll &&
         kind != CollectiveKind::kBarrier;
}
bool HasTables(CollectiveKind kind) {
  return kind != CollectiveKind::kBroadcast && kind != CollectiveKind::kAllReduce &&
         kind != CollectiveKind::kReduce && kind != CollectiveKind::kBarrier;
}

void CheckCase(Rank& rank, Communicator& comm, const Case& c) {
  static uint64_t seed = 0;
  Trial trial(comm, c, ++seed);
  rank.Check(trial, c);
}

// Checks every kind in every form: in place or not, with or without tables.
void CheckForms(Rank& rank, Communicator& comm, DType dtype, uint64_t count) {
  for (const CollectiveKind kind : kKinds) {
    for (int form = 0; form < 4; ++form) {
      const bool in_place = form % 2 != 0, tables = form / 2 != 0;
      if ((in_place && !CanBeInPlace(kind)) || (tables && !HasTables(kind))) continue;
      CheckCase(
          rank, comm,
          {.kind = kind,
           .dtype = dtype,
           .count = count,
           .in_place = in_place,
           .tables = tables,
           .root = static_cast<int>(
               (count + static_cast<uint64_t>(form)) % static_cast<uint64_t>(comm.size()))});
    }
  }
}

void AllForms(Rank& rank) {
  for (const DType dtype : kDTypes) {
    for (const uint64_t count : {0, 1, 3, 1000, 9001}) CheckForms(rank, rank.comm(), dtype, count);
  }
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const uint64_t count : {40'000, 300'007}) CheckForms(rank, rank.comm(), dtype, count);
  }
}

void Arithmetics(Rank& rank) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kReduce}) {
    for (const DType dtype : kDTypes) {
      for (const ReduceOp op : kOps) {
        for (const uint64_t count : {5, 30'000}) {
          CheckCase(rank, rank.comm(), {.kind = kind, .dtype = dtype, .count = count, .op = op});
          if (dtype == DType::kBool) continue;
          CheckCase(
              rank, rank.comm(),
              {.kind = kind,
               .dtype = dtype,
               .count = count,
               .op = op,
               .scale = {0.5, 3},
               .divisor = op == ReduceOp::kAverage ? 7 : 0});
        }
      }
    }
  }
}

// Hundreds of small and large operations in flight, waited for in another order.
void Many(Rank& rank) {
  constexpr uint64_t kMany = 400;
  std::vector<Case> cases;
  std::vector<std::unique_ptr<Trial>> trials;
  for (uint64_t i = 0; i < kMany; ++i) {
    const CollectiveKind kind = kKinds[i % std::size(kKinds)];
    const Case c{
        .kind = kind,
        .dtype = kDTypes[Mix(i) % std::size(kDTypes)],
        .count = i % 7 == 0 ? 50'001 : Mix(i) % 3000,
        .in_place = CanBeInPlace(kind) && i % 4 == 1,
        .tables = HasTables(kind) && i % 4 == 2,
        .root = static_cast<int>(i % static_cast<uint64_t>(rank.size()))};
    cases.push_back(c);
    trials.push_back(std::make_unique<Trial>(rank.comm(), c, 1000 + i));
  }
  for (uint64_t i = 0; i < kMany; ++i) {
    const uint64_t at = (i * 37 + static_cast<uint64_t>(rank.rank()) * 11) % kMany;
    rank.Check(*trials[at], cases[at]);
    trials[at].reset();
  }
}

// Communicators that share ranks in pairs. Each rank starts their operations in another order.
void Overlapping(Rank& rank) {
  const int p = rank.size();
  std::vector<std::unique_ptr<Communicator>> pairs;
  for (int a = 0; a < p; ++a) pairs.push_back(rank.comm().Subset({a, (a + 1) % p}));
  std::unique_ptr<Communicator> backwards = rank.comm().Split(0, -rank.rank());
  rank.Check(backwards->rank() == p - 1 - rank.rank(), "the order of a split");
  for (uint64_t round = 0; round < 20; ++round) {
    std::map<int, std::unique_ptr<Trial>> trials;
    Case c{.kind = CollectiveKind::kAllReduce, .count = round % 2 == 0 ? 100u : 100'000u};
    for (int i = 0; i < p; ++i) {
      // Each rank begins with its own pair, so the ranks share no order.
      const int at = (rank.rank() + i) % p;
      Communicator* pair = pairs[static_cast<size_t>(at)].get();
      if (pair != nullptr) trials[at] = std::make_unique<Trial>(*pair, c, round);
    }
    Trial all(*backwards, c, round + 500);
    for (auto& [at, trial] : trials) rank.Check(*trial, c);
    rank.Check(all, c);
  }
  for (int i = 0; i < 50; ++i) {
    std::unique_ptr<Communicator> passing = rank.comm().Duplicate();
    Case c{.kind = CollectiveKind::kAllReduce, .count = 10};
    CheckCase(rank, *passing, c);
  }
}

// Messages of many sizes in both directions between all pairs. Receives start long before or after
// the sends.
void OutOfStep(Rank& rank) {
  const uint64_t counts[] = {0, 1, 1000, 9000, 200'000, 3};
  const auto values = [](int from, int to, uint64_t i, uint64_t count) {
    return Values(count, DType::kF32, 77 + i, from * 8 + to);
  };
  std::vector<Work> works;
  std::vector<std::unique_ptr<Bytes>> sent, received, expected;
  const auto send_all = [&](int peer) {
    for (uint64_t i = 0; i < std::size(counts); ++i) {
      sent.push_back(std::make_unique<Bytes>(values(rank.rank(), peer, i, counts[i])));
      works.push_back(
          rank.comm().StartSend(Buffer(sent.back()->data(), counts[i], DType::kF32), peer));
    }
  };
  const auto receive_all = [&](int peer) {
    for (uint64_t i = 0; i < std::size(counts); ++i) {
      expected.push_back(std::make_unique<Bytes>(values(peer, rank.rank(), i, counts[i])));
      received.push_back(std::make_unique<Bytes>(counts[i] * 4));
      works.push_back(
          rank.comm().StartReceive(Buffer(received.back()->data(), counts[i], DType::kF32), peer));
    }
  };
  for (int i = 1; i < rank.size(); ++i) {
    const int peer = (rank.rank() + i) % rank.size();
    if (rank.rank() % 2 == 0) send_all(peer);
    receive_all(peer);
    if (i == 1) rank.comm().Barrier();
    if (rank.rank() % 2 != 0) send_all(peer);
  }
  for (size_t i = works.size(); i-- > 0;) works[i].Wait();
  for (size_t i = 0; i < received.size(); ++i) {
    rank.Check(*received[i] == *expected[i], dtrun::base::Text("message ", i));
  }
}

void Tell(Rank& rank, const std::string& what, const std::function<void()>& call) {
  std::string told = "nothing";
  try {
    call();
  } catch (const Error& error) {
    told = error.what();
  }
  // Rank 0 prints the errors of all ranks in rank order.
  const std::vector<std::string> all = dtrun::ops::AllGatherBytes(rank.comm(), told);
  if (rank.rank() != 0) return;
  for (size_t r = 0; r < all.size(); ++r) std::cout << what << ", " << r << ": " << all[r] << "\n";
}

void Mismatches(Rank& rank) {
  Communicator& comm = rank.comm();
  std::vector<float> data(300'000), more(300'000);
  const auto n = static_cast<uint64_t>(comm.size());
  const bool first = comm.rank() == 0;
  Tell(rank, "counts", [&] {
    comm.AllReduce(Buffer(data.data(), first ? 100'000 : 100'001), ReduceOp::kSum);
  });
  Tell(rank, "kinds", [&] {
    if (first) comm.Broadcast(Buffer(data.data(), 4), 0);
    if (!first) comm.Barrier();
  });
  Tell(rank, "table", [&] {
    Counts counts(n, 10);
    if (first) counts[1] = 11;
    uint64_t total = 0;
    for (const uint64_t count : counts) total += count;
    comm.StartAllGather(Buffer(data.data(), 10), Buffer(more.data(), total), counts).Wait();
  });
  std::unique_ptr<Communicator> copy = comm.Duplicate();
  Tell(rank, "duplicate", [&] { copy->Broadcast(Buffer(data.data(), 1), first ? 0 : 1); });
  Tell(rank, "message", [&] {
    if (comm.rank() == 0) comm.StartSend(Buffer(data.data(), 4), 1).Wait();
    if (comm.rank() == 1) comm.StartReceive(Buffer(data.data(), 5), 0).Wait();
  });
  Tell(rank, "types", [&] {
    if (comm.rank() == 0) comm.StartSend(Buffer(data.data(), 100'000), 1).Wait();
    std::vector<double> doubles(100'000);
    if (comm.rank() == 1) comm.StartReceive(Buffer(doubles.data(), 100'000), 0).Wait();
  });
  CheckCase(rank, comm, {.kind = CollectiveKind::kAllReduce, .count = 100'000});
}

// The last rank calls no operation. After some seconds, the other ranks get an error that names the
// last rank. They go on with other communicators.
void Missing(Rank& rank) {
  std::unique_ptr<Communicator> others =
      rank.comm().Split(rank.rank() + 1 < rank.size() ? 0 : 1, 0);
  std::unique_ptr<Communicator> given_up = rank.comm().Duplicate();
  std::unique_ptr<Communicator> messages = rank.comm().Duplicate();
  std::vector<float> data(500'000, 1);
  if (rank.rank() + 1 < rank.size()) {
    try {
      given_up->AllReduce(Buffer(data.data(), data.size()), ReduceOp::kSum);
    } catch (const Error& error) {
      if (rank.rank() == 0) std::cout << error.what() << std::endl;
    }
    try {
      messages->StartReceive(Buffer(data.data(), 1), rank.size() - 1).Wait();
    } catch (const Error& error) {
      if (rank.rank() == 0) std::cout << error.what() << std::endl;
    }
    CheckCase(rank, *others, {.kind = CollectiveKind::kAllReduce, .count = 100'000});
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(7));
  }
}

// Operations with more bytes than an int holds, the type of MPI's counts.
void Huge(Rank& rank) {
  const uint64_t count = (uint64_t{1} << 31) + 12'345;
  const auto value = [](uint64_t i) { return static_cast<uint8_t>(i * 7 + i / 1'000'003); };
  std::vector<uint8_t> data(count);
  if (rank.rank() == 0) {
    for (uint64_t i = 0; i < count; ++i) data[i] = value(i);
  }
  const auto check = [&](int factor, const char* what) {
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; ++i)
      wrong += data[i] != static_cast<uint8_t>(factor * value(i));
    rank.Check(wrong == 0, what);
  };
  rank.comm().Broadcast(Buffer(data.data(), count), 0);
  check(1, "broadcast");
  rank.comm().AllReduce(Buffer(data.data(), count), ReduceOp::kSum);
  check(rank.size(), "all_reduce");
  if (rank.rank() == 0) rank.comm().StartSend(Buffer(data.data(), count), 1).Wait();
  if (rank.rank() == 1) {
    std::fill(data.begin(), data.end(), uint8_t{0});
    rank.comm().StartReceive(Buffer(data.data(), count), 0).Wait();
  }
  check(rank.size(), "message");
}

// The engine's own thread drives the operations, and the main thread only waits.
void WithThread(Rank& rank) {
  rank.StartThread();
  AllForms(rank);
  Many(rank);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(Rank&)> scenarios = {
      {"all_forms", AllForms},
      {"arithmetics", Arithmetics},
      {"many", Many},
      {"overlapping", Overlapping},
      {"out_of_step", OutOfStep},
      {"mismatches", Mismatches},
      {"missing", Missing},
      {"huge", Huge},
      {"with_thread", WithThread}};
  const std::string name = argc > 1 ? argv[1] : "";
  if (scenarios.count(name) == 0) return 2;
  try {
    Rank rank(std::chrono::seconds(name == "missing" ? 3 : 300), argc > 2 ? argv[2] : "");
    scenarios.at(name)(rank);
    return rank.Finish();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 3;
  }
}
