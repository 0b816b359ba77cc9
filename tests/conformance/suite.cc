#include "tests/conformance/suite.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <memory>
#include <sstream>

#include "tests/conformance/reference.h"
#include "tests/conformance/shape.h"

namespace dtrun::testing {
namespace {

constexpr unsigned char kUntouched = 0xa5;

// Memory for the buffers of operations. Take hands out memory from the front, and Reset takes all
// of it back.
class Arena {
 public:
  Arena(Ranks& ranks, uint64_t bytes)
      : bytes_(bytes), mapped_(ranks.Allocate(bytes)), private_(bytes) {}

  void Reset() { mapped_used_ = private_used_ = 0; }

  // Returns memory that is aligned to one element, but no better, with `kGuard` bytes on both
  // sides.
  unsigned char* Take(bool mapped, uint64_t bytes, uint64_t element) {
    uint64_t& used = mapped ? mapped_used_ : private_used_;
    const uint64_t begin = used + kGuard + element;
    used = (begin + bytes + kGuard + 15) / 16 * 16;
    if (used > bytes_) throw std::runtime_error("the suite needs a larger arena");
    auto* base = mapped ? static_cast<unsigned char*>(mapped_.get()) : private_.data();
    std::memset(base + begin - kGuard, kUntouched, bytes + 2 * kGuard);
    return base + begin;
  }

  static bool GuardsHold(const unsigned char* data, uint64_t bytes) {
    const auto untouched = [](unsigned char byte) { return byte == kUntouched; };
    return std::all_of(data - kGuard, data, untouched) &&
           std::all_of(data + bytes, data + bytes + kGuard, untouched);
  }

 private:
  static constexpr uint64_t kGuard = 48;

  uint64_t bytes_, mapped_used_ = 0, private_used_ = 0;
  std::shared_ptr<void> mapped_;
  Bytes private_;
};

std::string Hex(const unsigned char* element, uint64_t size) {
  std::ostringstream text;
  text << "0x" << std::hex << std::setfill('0');
  for (uint64_t i = size; i-- > 0;) text << std::setw(2) << static_cast<int>(element[i]);
  return text.str();
}

// One operation of this rank, from its start to the check of its output.
class Trial {
 public:
  Trial(Ranks& ranks, Arena& arena, const Shape& shape)
      : shape_(shape), rank_(ranks.rank()), part_(shape_, ranks.rank(), ranks.size()) {
    PlaceBuffers(arena);
    if (part_.has_input()) std::memcpy(input_, Input().data(), Input().size());
    Operation operation;
    operation.kind = shape_.kind;
    operation.op = shape_.op;
    operation.scale = shape_.scale;
    if (part_.has_input()) operation.input = Buffer(input_, part_.input_count(), shape_.dtype);
    if (part_.has_output()) operation.output = Buffer(output_, part_.output_count(), shape_.dtype);
    operation.root = shape_.root;
    operation.send_counts = part_.send_counts();
    operation.receive_counts = part_.receive_counts();
    started_ = ranks.Start(operation);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool Test() { return started_->Test(); }

  void Finish(Findings& findings) {
    started_->Wait();
    started_.reset();
    CheckOutput(findings);
    if (part_.has_input() && !part_.in_place()) {
      findings.Count(
          Input().empty() || std::memcmp(input_, Input().data(), Input().size()) == 0,
          "the input changed: " + Describe(shape_));
    }
    const bool whole = Arena::GuardsHold(larger_, larger_bytes_) &&
                       (smaller_ == nullptr || Arena::GuardsHold(smaller_, smaller_bytes_));
    findings.Count(whole, "wrote outside of the buffers: " + Describe(shape_));
  }

  Bytes Output() const { return Bytes(output_, output_ + output_bytes()); }

 private:
  uint64_t element() const { return SizeOf(shape_.dtype); }
  uint64_t input_bytes() const { return part_.input_count() * element(); }
  uint64_t output_bytes() const { return part_.output_count() * element(); }

  const Bytes& Input() {
    if (input_values_.empty() && part_.input_count() > 0) input_values_ = part_.Input();
    return input_values_;
  }

  bool Mapped(uint64_t which) const {
    if (shape_.placement != Placement::kMixed) return shape_.placement == Placement::kMapped;
    return Hash(shape_.seed, static_cast<uint64_t>(rank_), 500 + which) % 2 == 0;
  }

  void PlaceBuffers(Arena& arena) {
    if (!part_.in_place()) {
      larger_bytes_ = input_bytes();
      smaller_bytes_ = output_bytes();
      larger_ = input_ = arena.Take(Mapped(0), larger_bytes_, element());
      smaller_ = output_ = arena.Take(Mapped(1), smaller_bytes_, element());
      return;
    }
    larger_bytes_ = std::max(input_bytes(), output_bytes());
    larger_ = input_ = output_ = arena.Take(Mapped(0), larger_bytes_, element());
    const bool input_inside = shape_.kind == Kind::kAllGather || shape_.kind == Kind::kGather;
    (input_inside ? input_ : output_) += part_.offset() * element();
  }

  void CheckOutput(Findings& findings) {
    const Bytes expected = part_.ExpectedOutput();
    const uint64_t e = element();
    uint64_t i = 0;
    while (i < expected.size() && std::memcmp(output_ + i, expected.data() + i, e) == 0) i += e;
    std::ostringstream text;
    if (i < expected.size()) {
      text << "rank " << rank_ << ": element " << i / e << " is " << Hex(output_ + i, e)
           << ", expected " << Hex(expected.data() + i, e) << ": " << Describe(shape_);
    }
    findings.Count(i == expected.size(), text.str());
  }

  const Shape shape_;
  const int rank_;
  const Part part_;
  Bytes input_values_;
  unsigned char *input_ = nullptr, *output_ = nullptr;
  // The buffers as taken from the arena. An operation in place has only one.
  unsigned char *larger_ = nullptr, *smaller_ = nullptr;
  uint64_t larger_bytes_ = 0, smaller_bytes_ = 0;
  std::unique_ptr<Started> started_;
};

constexpr uint64_t kArenaBytes = 16 << 20;

// A sequence of pseudo-random numbers that depends only on the seed.
class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  uint64_t Below(uint64_t n) { return Hash(seed_, ++drawn_) % n; }
  bool Flip() { return Below(2) == 0; }
  template <typename T, size_t n>
  T Of(const T (&choices)[n]) {
    return choices[Below(n)];
  }

 private:
  uint64_t seed_, drawn_ = 0;
};

constexpr Placement kPlacements[] = {Placement::kPrivate, Placement::kMapped, Placement::kMixed};
constexpr uint64_t kSmallCounts[] = {0, 1, 7, 999, 1000, 1001, 1023, 1024, 1025, 4097};
constexpr uint64_t kLargeCount = 100'003;

// The number of variants of a shape: in place, counts by rank, placement and scale.
constexpr int kVariants = 24;

void SetVariant(Shape& shape, int variant) {
  shape.in_place = variant % 2 != 0;
  shape.by_rank = variant / 2 % 2 != 0;
  shape.placement = kPlacements[variant / 4 % 3];
  if (variant / 12 % 2 != 0 && shape.dtype != DType::kBool && Combines(shape.kind)) {
    shape.scale = {0.5, 2};
  }
}

class EveryKind {
 public:
  enum class Variants { kOfAllTypes, kOfOneType };

  EveryKind(Ranks& ranks, Findings& findings, Variants variants)
      : ranks_(ranks), findings_(findings), variants_(variants), arena_(ranks, kArenaBytes) {}

  void Run() {
    for (const Kind kind : kKinds) {
      for (const DType dtype : kDTypes) {
        for (const ReduceOp op : kReduceOps) {
          if (Combines(kind) || op == ReduceOp::kSum) RunSizes(kind, dtype, op);
        }
      }
    }
  }

 private:
  // With kOfOneType, the dtype with all variants differs by kind and op.
  bool HasAllVariants(Kind kind, DType dtype, ReduceOp op) const {
    if (op != ReduceOp::kSum && op != ReduceOp::kAverage) return false;
    const size_t chosen =
        (5 * static_cast<size_t>(kind) + 3 * static_cast<size_t>(op)) % std::size(kDTypes);
    return variants_ == Variants::kOfAllTypes || dtype == kDTypes[chosen];
  }

  // Two odd sizes run with all variants. Each other size runs with one variant, in turn.
  void RunSizes(Kind kind, DType dtype, ReduceOp op) {
    for (const uint64_t count : kSmallCounts) {
      const bool in_full = (count == 7 || count == 1001) && HasAllVariants(kind, dtype, op);
      for (int v = 0; v < (in_full ? kVariants : 1); ++v) RunOne(kind, dtype, op, count);
    }
    if (op != ReduceOp::kSum) return;
    // If each rank has its own part, a smaller size is enough to find a mistake.
    const bool of_whole = Combines(kind) || kind == Kind::kBroadcast;
    RunOne(
        kind, dtype, op,
        of_whole ? kLargeCount : kLargeCount / static_cast<uint64_t>(ranks_.size()));
  }

  void RunOne(Kind kind, DType dtype, ReduceOp op, uint64_t count) {
    Shape shape{.kind = kind, .dtype = dtype, .op = op};
    shape.root = turn_ % ranks_.size();
    shape.count = count;
    shape.seed = static_cast<uint64_t>(turn_);
    SetVariant(shape, turn_ * 7 % kVariants);
    ++turn_;
    arena_.Reset();
    Trial(ranks_, arena_, shape).Finish(findings_);
  }

  Ranks& ranks_;
  Findings& findings_;
  const Variants variants_;
  Arena arena_;
  int turn_ = 0;
};

Shape RandomShape(Draw& draw, int size, bool any_values) {
  Shape shape{.kind = draw.Of(kKinds), .dtype = draw.Of(kDTypes), .op = draw.Of(kReduceOps)};
  shape.root = static_cast<int>(draw.Below(static_cast<uint64_t>(size)));
  // Each order of magnitude is equally likely.
  shape.count = draw.Below(uint64_t{1} << (1 + draw.Below(13)));
  shape.seed = draw.Below(UINT64_MAX);
  SetVariant(shape, static_cast<int>(draw.Below(kVariants)));
  if (any_values && draw.Flip()) {
    shape.values = Values::kAny;
    if (shape.scale.before != 1) shape.scale = {0.3, 1.7};
  }
  return shape;
}

void Shuffle(std::vector<size_t>& order, Draw& draw) {
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw.Below(i)]);
}

// Runs a few random collectives to check that a communicator works.
void CheckBriefly(Ranks& ranks, Findings& findings, uint64_t seed) {
  CheckRandomOperations(ranks, findings, seed, 12, /*any_values=*/false);
}

// --- messages -----------------------------------------------------------------------------------

struct Message {
  uint64_t round;
  int from, to;

  DType dtype() const { return kDTypes[Hash(round, Pair(), 1) % 13]; }
  uint64_t count() const { return Hash(round, Pair(), 2) % 4 == 0 ? Large() : Small(); }
  Bytes Values() const {
    return MakeValues(Values::kAny, dtype(), ReduceOp::kSum, round * 64 + Pair(), from, 0, count());
  }

 private:
  uint64_t Pair() const { return static_cast<uint64_t>(from * 8 + to); }
  uint64_t Small() const { return Hash(round, Pair(), 3) % 50; }
  uint64_t Large() const { return Hash(round, Pair(), 4) % 20'000; }
};

// One message, seen from one of its two ranks.
class Transfer {
 public:
  Transfer(Ranks& ranks, Arena& arena, const Message& message)
      : message_(message), bytes_(message.count() * SizeOf(message.dtype())) {
    const bool sends = message.from == ranks.rank();
    const bool mapped = Hash(message.round, static_cast<uint64_t>(ranks.rank()), 5) % 2 == 0;
    data_ = arena.Take(mapped, bytes_, SizeOf(message.dtype()));
    const Buffer buffer(data_, message.count(), message.dtype());
    if (sends && bytes_ > 0) std::memcpy(data_, message.Values().data(), bytes_);
    started_ =
        sends ? ranks.StartSend(buffer, message.to) : ranks.StartReceive(buffer, message.from);
  }

  void Finish(Findings& findings) {
    started_->Wait();
    std::ostringstream text;
    text << "message " << message_.round << " from rank " << message_.from << " to rank "
         << message_.to << " differs";
    findings.Count(
        Bytes(data_, data_ + bytes_) == message_.Values() && Arena::GuardsHold(data_, bytes_),
        text.str());
  }

 private:
  Message message_;
  uint64_t bytes_;
  unsigned char* data_;
  std::unique_ptr<Started> started_;
};

void StartAll(Ranks& ranks, Arena& arena, uint64_t round, std::vector<Transfer>& transfers) {
  for (int peer = 0; peer < ranks.size(); ++peer) {
    if (peer == ranks.rank()) continue;
    transfers.emplace_back(ranks, arena, Message{round, ranks.rank(), peer});
    transfers.emplace_back(ranks, arena, Message{round, peer, ranks.rank()});
  }
}

// --- communicators of fewer ranks ---------------------------------------------------------------

void CheckSplit(Ranks& ranks, Findings& findings) {
  const int rank = ranks.rank(), size = ranks.size();
  // Even and odd ranks form two parts, each in descending order of the ranks.
  const auto part = ranks.Split(rank % 2, -rank);
  const int members = (size + 1 - rank % 2) / 2;
  findings.Count(part != nullptr && part->size() == members, "split: wrong number of ranks");
  findings.Count(part->rank() == members - 1 - rank / 2, "split: ordered otherwise than by key");
  CheckBriefly(*part, findings, 31);
  // With equal keys, the order is by rank. The last rank has a negative colour and gets no part.
  const auto but_last = ranks.Split(rank == size - 1 ? -1 : 7, 0);
  findings.Count(
      (but_last == nullptr) == (rank == size - 1), "split: a negative colour got a part");
  if (but_last == nullptr) return;
  findings.Count(
      but_last->rank() == rank && but_last->size() == size - 1, "split: wrong rank or size");
  CheckBriefly(*but_last, findings, 32);
}

void CheckSubset(Ranks& ranks, Findings& findings) {
  const int rank = ranks.rank(), size = ranks.size();
  std::vector<int> listed;
  for (int r = size - 1; r > 0; --r) listed.push_back(r);  // in descending order, without rank 0
  const auto subset = ranks.Subset(listed);
  findings.Count((subset == nullptr) == (rank == 0), "subset: who is not listed got one");
  if (subset == nullptr) return;
  findings.Count(subset->rank() == size - 1 - rank, "subset: ordered otherwise than listed");
  CheckBriefly(*subset, findings, 33);
  const auto again = subset->Duplicate();  // a duplicate of a subset
  findings.Count(again->rank() == subset->rank(), "duplicate: another rank");
  CheckBriefly(*again, findings, 34);
}

// The pairs {0, 1}, {1, 2} and {0, 2}. Each rank runs an operation on both of its pairs at once,
// and starts the two in an order that differs by rank.
void CheckOverlapping(Ranks& ranks, Findings& findings) {
  if (ranks.size() < 3) return;
  std::unique_ptr<Ranks> pairs[3];
  for (int k = 0; k < 3; ++k)
    pairs[k] = ranks.Subset({std::min(k, (k + 1) % 3), std::max(k, (k + 1) % 3)});
  for (uint64_t round = 0; round < 20 && ranks.rank() < 3; ++round) {
    std::vector<std::vector<double>> data(3);
    std::vector<std::unique_ptr<Started>> started(3);
    for (int i = 0; i < 3; ++i) {
      const auto k = static_cast<size_t>((i + ranks.rank()) % 3);
      if (pairs[k] == nullptr) continue;
      data[k].assign(round % 2 == 0 ? 3 : 30'000, static_cast<double>(ranks.rank() + 1));
      const Buffer buffer(data[k].data(), data[k].size());
      started[k] = pairs[k]->Start({.kind = Kind::kAllReduce, .input = buffer, .output = buffer});
    }
    for (size_t k = 0; k < 3; ++k) {
      if (started[k] == nullptr) continue;
      started[k]->Wait();
      const double expected = static_cast<double>(k + 1 + (k + 1) % 3 + 1);
      findings.Count(
          data[k] == std::vector<double>(data[k].size(), expected), "overlapping pairs: wrong sum");
    }
  }
  ranks.StartBarrier()->Wait();
}

void CheckDuplicate(Ranks& ranks, Findings& findings) {
  const auto other = ranks.Duplicate();
  int32_t a = 1, b = 10;
  const Buffer first(&a, 1), second(&b, 1);
  const auto on_first = ranks.Start({.kind = Kind::kAllReduce, .input = first, .output = first});
  const auto on_second =
      other->Start({.kind = Kind::kAllReduce, .input = second, .output = second});
  // Even and odd ranks wait in opposite orders.
  (ranks.rank() % 2 == 0 ? on_first : on_second)->Wait();
  (ranks.rank() % 2 == 0 ? on_second : on_first)->Wait();
  findings.Count(a == ranks.size() && b == 10 * ranks.size(), "a duplicate interleaves");
}

}  // namespace

void Findings::Count(bool right, const std::string& text) {
  ++checks;
  if (right) return;
  ++wrong;
  if (texts.size() < 5) texts.push_back(text);
}

void CheckEveryKind(Ranks& ranks, Findings& findings) {
  EveryKind(ranks, findings, EveryKind::Variants::kOfAllTypes).Run();
}
void CheckEveryKindInTurn(Ranks& ranks, Findings& findings) {
  EveryKind(ranks, findings, EveryKind::Variants::kOfOneType).Run();
}
void CheckEveryKindIfFull(Ranks& ranks, Findings& findings) {
  RunsInFull() ? CheckEveryKind(ranks, findings) : CheckEveryKindInTurn(ranks, findings);
}
bool RunsInFull() { return std::getenv("DTRUN_TEST_FULL") != nullptr; }

void CheckRandomOperations(
    Ranks& ranks, Findings& findings, uint64_t seed, int operations, bool any_values) {
  Arena arena(ranks, kArenaBytes);
  Draw draw(seed);                                              // the same on all ranks
  Draw order(Hash(seed, static_cast<uint64_t>(ranks.rank())));  // different on each rank
  while (operations > 0) {
    arena.Reset();
    std::vector<std::unique_ptr<Trial>> trials;
    std::vector<size_t> finish;
    for (uint64_t left = 1 + draw.Below(12); left > 0 && operations > 0; --left, --operations) {
      trials.push_back(
          std::make_unique<Trial>(ranks, arena, RandomShape(draw, ranks.size(), any_values)));
      finish.push_back(finish.size());
      if (order.Flip()) trials[order.Below(trials.size())]->Test();
    }
    Shuffle(finish, order);
    for (const size_t i : finish) trials[i]->Finish(findings);
  }
}

void CheckSameBits(Ranks& ranks, Findings& findings) {
  Arena arena(ranks, kArenaBytes);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct}) {
      for (const uint64_t count : {uint64_t{5}, uint64_t{10'007}}) {
        std::vector<uint64_t> digests;
        for (const Placement placement : kPlacements) {
          Shape shape{.kind = Kind::kAllReduce, .dtype = dtype, .op = op, .count = count};
          shape.placement = placement;
          shape.values = Values::kAny;
          arena.Reset();
          Trial trial(ranks, arena, shape);
          Findings not_the_tree;  // ignored: a hierarchical backend may add in another order
          trial.Finish(not_the_tree);
          uint64_t digest = 0;
          for (const unsigned char byte : trial.Output()) digest = Hash(digest, byte);
          digests.push_back(digest);
        }
        uint64_t mine = digests[0];
        std::vector<uint64_t> all(static_cast<size_t>(ranks.size()));
        ranks
            .Start(
                {.kind = Kind::kAllGather,
                 .input = Buffer(&mine, 1),
                 .output = Buffer(all.data(), all.size())})
            ->Wait();
        digests.insert(digests.end(), all.begin(), all.end());
        const bool same = digests == std::vector<uint64_t>(digests.size(), mine);
        findings.Count(
            same,
            std::string("different bits on ranks or in runs: ") + NameOf(dtype) + " " + NameOf(op));
      }
    }
  }
}

void CheckMessages(Ranks& ranks, Findings& findings) {
  Arena arena(ranks, kArenaBytes), for_messages(ranks, kArenaBytes);
  std::vector<Transfer> under_way;
  for (uint64_t round = 0; round < 24; ++round) {
    // Each rank starts its messages before, between or after the collectives of the round.
    const uint64_t when = Hash(round, static_cast<uint64_t>(ranks.rank()), 9) % 3;
    const auto start_at = [&](uint64_t point) {
      if (when == point) StartAll(ranks, for_messages, round, under_way);
    };
    arena.Reset();
    start_at(0);
    Shape shape{.kind = Kind::kAllReduce, .count = 3000, .seed = round};
    Trial first(ranks, arena, shape);
    start_at(1);
    shape.kind = Kind::kAllGather;
    Trial second(ranks, arena, shape);
    first.Finish(findings);
    second.Finish(findings);
    start_at(2);
    // Four rounds are in flight at once.
    if (round % 4 == 3) {
      for (Transfer& transfer : under_way) transfer.Finish(findings);
      under_way.clear();
      for_messages.Reset();
    }
  }
}

void CheckSubCommunicators(Ranks& ranks, Findings& findings) {
  CheckDuplicate(ranks, findings);
  if (ranks.size() == 1) return;
  CheckSplit(ranks, findings);
  CheckSubset(ranks, findings);
  CheckOverlapping(ranks, findings);
}

}  // namespace dtrun::testing
