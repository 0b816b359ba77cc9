#include "ops/collective/collective.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iomanip>
#include <map>
#include <numeric>
#include <sstream>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {
namespace {

using base::Contains;
using base::HasRoot;
using base::IsMessage;
using base::Text;
using base::TraitsOf;
using Layout = base::CollectiveTraits::Layout;
using Ranks = base::CollectiveTraits::Ranks;

// True for scatter: only the root has the parts of all ranks. Its calls count the elements of a
// part.
bool DealsRootsParts(const base::CollectiveTraits& traits) {
  return traits.input == Layout::kByRank && traits.inputs == Ranks::kRoot;
}

// True if each rank owns a part of the result.
bool HasShares(CollectiveKind kind) {
  return Combines(kind) && TraitsOf(kind).input == Layout::kByRank;
}

// The buffer that gives the type of the data.
const Buffer& Typed(const Collective& collective, int rank) {
  return UsesInput(collective, rank) ? collective.input : collective.output;
}

class Checker {
 public:
  Checker(const Collective& collective, int rank, int size)
      : c_(collective), traits_(base::TraitsOf(collective.kind)), rank_(rank), size_(size) {}

  void Check() const {
    if (base::OnlyMeets(c_.kind)) return;
    CheckPeer();
    const bool input = UsesInput(c_, rank_), output = UsesOutput(c_, rank_);
    if (input) CheckBuffer("the input", c_.input);
    if (output) CheckBuffer("the output", c_.output);
    if (input && output && c_.input.dtype != c_.output.dtype) {
      Refuse(Text(
          "the input is of ", NameOf(c_.input.dtype), ", but the output of ",
          NameOf(c_.output.dtype)));
    }
    if (Combines(c_.kind)) CheckArithmetic();
    if (input) CheckCount("the input", c_.input, ExpectedInput());
    if (output) CheckCount("the output", c_.output, ExpectedOutput());
    if (input && output) CheckPlaces();
    if (input && output) CheckOverlap();
  }

 private:
  // The number of elements that a buffer needs, and the reason.
  struct Expected {
    bool any = false;
    uint64_t count = 0;
    const char* why = "";
  };

  // Stands for "p ranks of n elements".
  static constexpr const char* kEach = "";

  [[noreturn]] void Refuse(
      const std::string& what, ErrorCode code = ErrorCode::kInvalidArgument) const {
    throw Error(code, Text(NameOf(c_.kind), ": ", what));
  }

  void CheckPeer() const {
    if (!HasRoot(c_.kind) && !IsMessage(c_.kind)) return;
    const char* name = IsMessage(c_.kind) ? "the peer" : "root";
    if (c_.root < 0 || c_.root >= size_) {
      Refuse(Text(name, " is ", c_.root, "; expected a rank from 0 to ", size_ - 1));
    }
    if (IsMessage(c_.kind) && c_.root == rank_) {
      Refuse(Text("the peer is ", rank_, ", this rank itself; expected another one"));
    }
  }

  void CheckBuffer(const char* which, const Buffer& buffer) const {
    if (SizeOf(buffer.dtype) == 0) {
      Refuse(Text(which, " has dtype ", static_cast<int>(buffer.dtype), ", which does not exist"));
    }
    if (buffer.data == nullptr && buffer.count > 0) {
      Refuse(Text(which, " is null but has ", buffer.count, " elements"));
    }
    uint64_t bytes = 0;
    const bool overflows = __builtin_mul_overflow(buffer.count, SizeOf(buffer.dtype), &bytes);
    if (overflows || bytes > INT64_MAX) {
      Refuse(Text(which, " has ", buffer.count, " elements: more than memory can hold"));
    }
    if (buffer.device >= 0 && UpdatesShares(c_.kind)) {
      Refuse(
          Text(which, " lies on GPU ", buffer.device, "; shares are updated in host memory alone"),
          ErrorCode::kUnavailable);
    }
  }

  static std::string Place(const Buffer& buffer) {
    if (buffer.device < 0) return "in host memory";
    return Text("on GPU ", buffer.device, " (stream ", buffer.stream, ")");
  }

  void CheckPlaces() const {
    const bool on_gpu = c_.input.device >= 0 || c_.output.device >= 0;
    if (!on_gpu) return;
    if (c_.input.device == c_.output.device && c_.input.stream == c_.output.stream) return;
    Refuse(Text(
        "the input lies ", Place(c_.input), ", the output ", Place(c_.output),
        "; expected both on one GPU and in one stream"));
  }

  void CheckArithmetic() const {
    if (c_.op == ReduceOp::kAdasum) {
      Refuse(
          "the reduce op is adasum, which only named tensors support; expected sum, average, min, "
          "max or product");
    }
    if (c_.op < ReduceOp::kSum || c_.op > ReduceOp::kProduct) {
      Refuse(Text("reduce op ", static_cast<int>(c_.op), " does not exist"));
    }
    const bool scaled = c_.scale.before != 1 || c_.scale.after != 1;
    if (!scaled) return;
    if (!std::isfinite(c_.scale.before) || !std::isfinite(c_.scale.after)) {
      Refuse(Text(
          "the scale is ", c_.scale.before, " before and ", c_.scale.after,
          " after; expected finite numbers"));
    }
    if (c_.input.dtype == DType::kBool) Refuse("bools cannot be scaled");
  }

  Expected Counted(const Counts& counts, const char* name) const {
    if (counts.size() != static_cast<size_t>(size_)) {
      Refuse(Text(
          name, ": found ", counts.size(), " counts; expected one for each of ", size_, " ranks"));
    }
    uint64_t sum = 0;
    for (const uint64_t count : counts) {
      if (__builtin_add_overflow(sum, count, &sum)) Refuse(Text(name, " overflows"));
    }
    return {true, sum, name};
  }

  Expected ExpectedInput() const {
    if (traits_.input == Layout::kPart)
      return UsesOutput(c_, rank_) ? OwnPart(c_.receive_counts) : Expected{};
    if (traits_.input == Layout::kWhole) return {};
    if (!c_.send_counts.empty() || UpdatesShares(c_.kind)) {
      return Counted(
          c_.send_counts,
          Combines(c_.kind) ? "the sum of the shares" : "the sum of the send counts");
    }
    if (Combines(c_.kind)) return {};
    if (traits_.output == Layout::kPart) return Each(c_.output.count);
    if (c_.input.count % Size() != 0) {
      Refuse(Text(
          "the input has ", c_.input.count, " elements, which ", size_,
          " ranks cannot share evenly; give counts"));
    }
    return {};
  }

  Expected ExpectedOutput() const {
    switch (traits_.output) {
      case Layout::kWhole:
        if (!Combines(c_.kind)) return {};
        return {true, c_.input.count, "as many as the input"};
      case Layout::kPart:
        if (Combines(c_.kind)) return {true, Shares()[Rank()], "this rank's share of the input"};
        return UsesInput(c_, rank_) ? OwnPart(c_.send_counts) : Expected{};
      case Layout::kByRank: break;
    }
    if (!c_.receive_counts.empty())
      return Counted(c_.receive_counts, "the sum of the receive counts");
    if (traits_.input == Layout::kPart) return Each(c_.input.count);
    if (!c_.send_counts.empty()) Refuse("found send counts, but no receive counts; expected both");
    return {true, c_.input.count, "as many as the input"};
  }

  Counts Shares() const {
    return c_.send_counts.empty() ? DealRows(c_.input.count, 1, size_) : c_.send_counts;
  }

  // The elements of all ranks together, if each rank has `count`.
  Expected Each(uint64_t count) const {
    Expected expected{true, 0, kEach};
    if (__builtin_mul_overflow(count, Size(), &expected.count)) {
      Refuse(Text(size_, " ranks of ", count, " elements are more than memory can hold"));
    }
    return expected;
  }

  Expected OwnPart(const Counts& counts) const {
    if (counts.size() != static_cast<size_t>(size_)) return {};
    return {true, counts[Rank()], "this rank's own count"};
  }

  void CheckCount(const char* which, const Buffer& buffer, const Expected& expected) const {
    if (!expected.any || buffer.count == expected.count) return;
    const std::string why =
        expected.why == kEach ? Text(size_, " ranks of ", expected.count / Size()) : expected.why;
    Refuse(
        Text(which, " has ", buffer.count, " elements; expected ", expected.count, " (", why, ")"));
  }

  void CheckOverlap() const {
    if (c_.input.bytes() == 0 || c_.output.bytes() == 0) return;
    const char* in = static_cast<const char*>(c_.input.data);
    const char* out = static_cast<const char*>(c_.output.data);
    if (in >= out + c_.output.bytes() || out >= in + c_.input.bytes()) return;
    if (IsInPlace(in, out)) return;
    Refuse("the input and the output overlap; expected the same memory or separate memory");
  }

  // True if both are the same memory, or if one is this rank's part of the side that lies by rank.
  bool IsInPlace(const char* in, const char* out) const {
    if (UpdatesShares(c_.kind)) return false;
    const uint64_t element = SizeOf(c_.input.dtype);
    if (traits_.input == Layout::kPart)
      return in == out + element * Before(c_.receive_counts, c_.input.count);
    if (traits_.output == Layout::kPart) {
      return out == in + element * (Combines(c_.kind) ? Before(Shares(), 0)
                                                      : Before(c_.send_counts, c_.output.count));
    }
    return traits_.input == Layout::kWhole && in == out;
  }

  uint64_t Before(const Counts& counts, uint64_t each) const {
    if (counts.empty()) return each * Rank();
    return std::accumulate(counts.begin(), counts.begin() + rank_, uint64_t{0});
  }

  uint64_t Rank() const { return static_cast<uint64_t>(rank_); }
  uint64_t Size() const { return static_cast<uint64_t>(size_); }

  const Collective& c_;
  const base::CollectiveTraits& traits_;
  int rank_, size_;
};

// The details that the description of a call rounds or omits: the exact scale and the divisor.
std::string Factors(const Call& call) {
  std::ostringstream text;
  text << std::setprecision(17) << " with factors " << call.before << " before and " << call.after
       << " after";
  if (call.divisor != 0) text << ", divided by " << call.divisor;
  return text.str();
}

std::string List(const uint64_t* counts, int size) {
  std::vector<std::string> texts;
  for (int r = 0; r < size; ++r) texts.push_back(Text(counts[r]));
  return base::Join(texts, ", ");
}

// The part of rank `rank` in a whole that lies by rank.
Range PartOf(Range whole, const Counts& counts, int rank, int size) {
  if (counts.empty()) {
    const uint64_t each = whole.count / static_cast<uint64_t>(size);
    return {each * static_cast<uint64_t>(rank), each};
  }
  const auto own = counts.begin() + rank;
  return {std::accumulate(counts.begin(), own, uint64_t{0}), *own};
}

}  // namespace

Counts SharesOf(const Collective& c, int size) {
  return c.send_counts.empty() ? DealRows(c.input.count, 1, size) : c.send_counts;
}

Range ResultOf(const Collective& c, int rank, int size) {
  if (c.kind != CollectiveKind::kReduceScatter) return {0, UsesOutput(c, rank) ? c.input.count : 0};
  const Counts shares = SharesOf(c, size);
  const auto own = shares.begin() + rank;
  return {std::accumulate(shares.begin(), own, uint64_t{0}), *own};
}

Counts DealRows(uint64_t rows, uint64_t row_elements, int size) {
  const auto p = static_cast<uint64_t>(size);
  Counts counts(p, rows / p * row_elements);
  for (uint64_t r = 0; r < rows % p; ++r) counts[r] += row_elements;
  return counts;
}

Range SentTo(const Collective& collective, int rank, int size, int destination) {
  if (!UsesInput(collective, rank) || !UsesOutput(collective, destination)) return {};
  const Range whole = {0, collective.input.count};
  if (TraitsOf(collective.kind).input != Layout::kByRank) return whole;
  return PartOf(whole, collective.send_counts, destination, size);
}

Range ReceivedFrom(const Collective& collective, int rank, int size, int source) {
  if (!UsesInput(collective, source) || !UsesOutput(collective, rank)) return {};
  const Range whole = {0, collective.output.count};
  if (TraitsOf(collective.kind).output != Layout::kByRank) return whole;
  return PartOf(whole, collective.receive_counts, source, size);
}

int DeviceOf(const Collective& collective, int rank) {
  if (base::OnlyMeets(collective.kind)) return collective.input.device;
  return Typed(collective, rank).device;
}

void* StreamOf(const Collective& collective, int rank) {
  if (base::OnlyMeets(collective.kind)) return collective.input.stream;
  return Typed(collective, rank).stream;
}

std::string Describe(const Collective& collective) {
  // The rank selects the input or the output, and only for kinds with a root. Without an input, the
  // description uses a rank that is not the root.
  const bool typed_by_output =
      collective.input.data == nullptr && !base::OnlyMeets(collective.kind);
  Call call = CallOf(collective, typed_by_output ? -1 : collective.root);
  return base::Describe(call);
}

void DropIgnoredCounts(Collective& collective, int rank) {
  const base::CollectiveTraits& traits = TraitsOf(collective.kind);
  if (traits.input != Layout::kByRank || !UsesInput(collective, rank))
    collective.send_counts.clear();
  if (traits.output != Layout::kByRank || !UsesOutput(collective, rank))
    collective.receive_counts.clear();
}

void CheckArguments(const Collective& collective, int rank, int size) {
  Checker(collective, rank, size).Check();
}

Call CallOf(const Collective& c, int rank) {
  const Buffer& typed = Typed(c, rank);
  Call call{};
  call.count = DealsRootsParts(TraitsOf(c.kind)) ? c.output.count : typed.count;
  call.before = c.scale.before;
  call.after = c.scale.after;
  call.root = c.root;
  call.divisor = c.divisor;
  call.kind = static_cast<uint8_t>(c.kind);
  call.dtype = static_cast<uint8_t>(typed.dtype);
  call.op = static_cast<uint8_t>(c.op);
  call.tables = static_cast<uint8_t>(
      (c.send_counts.empty() ? 0 : Call::kSends) |
      (c.receive_counts.empty() ? 0 : Call::kReceives));
  return call;
}

std::string NameOperation(const Call& call, uint64_t sequence, const Members& members) {
  return base::NameOperation(call, sequence, members.name);
}

// --- the calls of all ranks ---------------------------------------------------------------------

// The elements of one part, if no table gives the number.
uint64_t Calls::PartOf(const Call& call) const {
  const bool whole = traits_.input == Layout::kByRank && !DealsRootsParts(traits_);
  return whole ? call.count / static_cast<uint64_t>(size_) : call.count;
}

// True if data goes from `source` to `destination`. A root also sends to itself, but a backend may
// leave that part in place.
bool Calls::Move(int source, int destination) const {
  if (traits_.does != base::CollectiveTraits::Does::kMove) return false;
  const bool to_root = traits_.outputs == Ranks::kRoot;
  return Contains(traits_.inputs, source == at(source).call->root) &&
         (!to_root || destination == at(source).call->root);
}

uint64_t Calls::Sends(int source, int destination) const {
  if (!Move(source, destination)) return 0;
  const Called& called = at(source);
  const bool listed = traits_.input == Layout::kByRank && called.sends != nullptr;
  return listed ? called.sends[destination] : PartOf(*called.call);
}

uint64_t Calls::Receives(int source, int destination) const {
  if (!Move(source, destination)) return 0;
  const Called& called = at(destination);
  const bool listed = traits_.output == Layout::kByRank && called.receives != nullptr;
  return listed ? called.receives[source] : PartOf(*called.call);
}

bool Calls::HaveTables() const {
  bool tables = false;
  for (int r = 0; r < size_; ++r) tables |= at(r).call->tables != 0;
  return tables;
}

bool Calls::SameArguments() const {
  const Call& first = *at(0).call;
  bool same = true, same_count = true;
  for (int r = 1; r < size_; ++r) {
    const Call& call = *at(r).call;
    same &= call.kind == first.kind && call.dtype == first.dtype && call.op == first.op &&
            call.root == first.root && call.divisor == first.divisor &&
            call.before == first.before && call.after == first.after;
    same_count &= call.count == first.count;
  }
  if (!same) return false;
  const bool tables = HaveTables();
  const bool one_count = !tables || Combines(kind()) ||
                         (traits_.input == Layout::kWhole && traits_.output == Layout::kWhole);
  if (one_count && !same_count) return false;
  if (!tables || !HasShares(kind())) return true;
  for (int r = 0; r < size_; ++r) {
    if (at(r).sends == nullptr || !std::equal(at(r).sends, at(r).sends + size_, at(0).sends)) {
      return false;
    }
  }
  return true;
}

bool Calls::Agree() const {
  if (!SameArguments()) return false;
  if (Combines(kind()) || !HaveTables()) return true;
  for (int source = 0; source < size_; ++source) {
    for (int destination = 0; destination < size_; ++destination) {
      if (Sends(source, destination) != Receives(source, destination)) return false;
    }
  }
  return true;
}

// The ranks of each different call. `exactly` adds the details that a description rounds or omits.
std::map<std::string, std::vector<int>> Calls::Descriptions(bool exactly) const {
  std::map<std::string, std::vector<int>> calls;
  for (int r = 0; r < size_; ++r) {
    std::string text = base::Describe(*at(r).call);
    const auto kind = static_cast<CollectiveKind>(at(r).call->kind);
    if (HasShares(kind) && at(r).sends != nullptr)
      text += Text(" with shares of ", List(at(r).sends, size_));
    if (exactly) text += Factors(*at(r).call);
    calls[text].push_back(r);
  }
  return calls;
}

std::string Calls::Disagreement(const Members& members) const {
  if (SameArguments()) {
    for (int source = 0; source < size_; ++source) {
      for (int destination = 0; destination < size_; ++destination) {
        const uint64_t sent = Sends(source, destination);
        const uint64_t expected = Receives(source, destination);
        if (sent == expected) continue;
        return Text(
            traits_.name, ": ", members.List({source}), " sends ", sent, " elements to ",
            members.List({destination}), ", which expects ", expected);
      }
    }
  }
  std::map<std::string, std::vector<int>> calls = Descriptions(false);
  if (calls.size() == 1) calls = Descriptions(true);
  std::vector<std::string> sides;
  for (const auto& [call, ranks] : calls) {
    sides.push_back(Text(members.List(ranks), " called ", call));
  }
  return base::Join(sides, "; ");
}

Range Calls::InInput(int source, int destination) const {
  Range range{0, Sends(source, destination)};
  if (traits_.input == Layout::kByRank) {
    if (at(source).sends == nullptr) {
      range.begin = range.count * static_cast<uint64_t>(destination);
    } else {
      for (int d = 0; d < destination; ++d) range.begin += Sends(source, d);
    }
  }
  return range;
}

Range Calls::InOutput(int source, int destination) const {
  Range range{0, Receives(source, destination)};
  if (traits_.output == Layout::kByRank) {
    if (at(destination).receives == nullptr) {
      range.begin = range.count * static_cast<uint64_t>(source);
    } else {
      for (int s = 0; s < source; ++s) range.begin += Receives(s, destination);
    }
  }
  return range;
}

Range Calls::Share(int rank) const {
  const uint64_t count = at(0).call->count;
  const auto p = static_cast<uint64_t>(size_), r = static_cast<uint64_t>(rank);
  if (at(0).sends != nullptr) {
    Range range{0, at(0).sends[rank]};
    for (int i = 0; i < rank; ++i) range.begin += at(0).sends[i];
    return range;
  }
  return {count / p * r + std::min(count % p, r), count / p + (r < count % p ? 1 : 0)};
}

uint64_t Calls::InputCount(int rank) const {
  const Called& called = at(rank);
  if (Combines(kind())) return called.call->count;
  // The root gets a part in each kind. Without tables, all parts are equal.
  const uint64_t to_root = Sends(rank, called.call->root);
  if (traits_.input != Layout::kByRank) return to_root;
  if (called.sends == nullptr) return to_root * static_cast<uint64_t>(size_);
  uint64_t sum = 0;
  for (int d = 0; d < size_; ++d) sum += Sends(rank, d);
  return sum;
}

uint64_t Calls::OutputCount(int rank) const {
  if (Combines(kind())) {
    const Call& call = *at(rank).call;
    if (!Contains(traits_.outputs, rank == call.root)) return 0;
    return traits_.output == Layout::kPart ? Share(rank).count : call.count;
  }
  uint64_t sum = 0;
  for (int s = 0; s < size_; ++s) sum += Receives(s, rank);
  return sum;
}

Members Members::World(int size) {
  Members members;
  members.world_ranks.resize(static_cast<size_t>(size));
  std::iota(members.world_ranks.begin(), members.world_ranks.end(), 0);
  return members;
}

Members Members::Subset(const std::vector<int>& ranks, const std::string& suffix) const {
  Members subset;
  subset.name = name + suffix;
  for (const int rank : ranks) {
    subset.world_ranks.push_back(world_ranks[static_cast<size_t>(rank)]);
    if (!hosts.empty()) subset.hosts.push_back(hosts[static_cast<size_t>(rank)]);
  }
  return subset;
}

std::vector<int> Members::InWorld(std::vector<int> ranks) const {
  for (int& rank : ranks) rank = world_ranks[static_cast<size_t>(rank)];
  return ranks;
}

bool Members::SharesHost() const {
  return std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end();
}

std::string Members::List(const std::vector<int>& ranks) const {
  if (hosts.empty()) {
    std::vector<int> in_world;
    for (const int rank : ranks) in_world.push_back(world_ranks[static_cast<size_t>(rank)]);
    return base::RankList(in_world);
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = static_cast<size_t>(ranks[i]);
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += base::Text(world_ranks[rank], " (", hosts[rank], ")");
  }
  return text;
}

}  // namespace dtrun::ops
