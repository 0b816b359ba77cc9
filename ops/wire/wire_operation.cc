// An operation uses only messages of bytes that do not block, and begins with headers. Each rank
// immediately sends one header, with its call, to each other rank. If the data for that rank is
// small, the header also holds the data. When all headers have come, every rank knows the calls of
// all ranks. So all ranks find the same disagreement, or none. Then the rest of the data moves
// (wire_transfer.cc, wire_move.cc). By then, each sender and receiver knows that the other has
// started the operation. A small operation takes the time of one message. A large operation takes
// one message more than its data needs.
//
// Operations run side by side, in one communicator and in several. A header names its operation,
// and the receiver of data has chosen the tags of the data.

#include "ops/wire/wire_operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::wire {

using base::Text;

WireOperation::WireOperation(
    std::shared_ptr<Group> group, Collective collective, Channel channel, uint64_t sequence)
    : Operation(group->members, sequence, CallOf(collective, group->rank)),
      group_(std::move(group)),
      collective_(std::move(collective)),
      channel_(channel) {}

Operation::Progress WireOperation::Advance() {
  if (!posted_) {
    Post();
    posted_ = true;
  }
  group_->endpoint->wire->Poll(polled_);
  CheckLost();
  if (!agreed_) {
    if (!AllCame() || outbox_->open > 0) return Progress::kNone;
    try {
      transfer_ = Agree();
    } catch (const Error&) {
      Finish();
      throw;
    }
    agreed_ = true;
    SetMoving();
    if (transfer_ != nullptr) transfer_->Start();
  }
  if (transfer_ != nullptr && !transfer_->Done()) {
    const bool advanced = transfer_->Advance();
    if (!transfer_->Done()) return advanced ? Progress::kSome : Progress::kNone;
  }
  Finish();
  return Progress::kDone;
}

// A lost rank ends the operations that need it. So that no other rank waits for this one, the first
// operation that ends tells all ranks of the communicator.
void WireOperation::CheckLost() {
  const Endpoint& endpoint = *group_->endpoint;
  const std::vector<LostPeer>& lost = endpoint.wire->lost();
  if (lost.empty() && endpoint.mailroom->losses() == 0) return;
  for (const LostPeer& peer : lost) {
    const auto& ranks = group_->job_ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), peer.rank);
    if (found == ranks.end()) continue;
    const auto rank = static_cast<int>(found - ranks.begin());
    const bool moves = transfer_ != nullptr && !transfer_->Done();
    if (agreed_ ? moves : Awaits(rank)) Lose(rank, peer.why);
  }
  const LossNotice& notice = mailbox().loss;
  if (!notice.why.empty()) Lose(notice.lost_rank, notice.why);
}

void WireOperation::Lose(int rank, const std::string& why) {
  TellLoss(*group_, outbox_, rank, why);
  const std::string who = rank < 0 ? "" : Text(members().List({rank}), " is lost: ");
  throw Error(
      ErrorCode::kPeerLost, Text(
                                "gave up: ", NameOperation(call(), sequence(), members()),
                                ", cannot be finished: ", who, why));
}

void TellLoss(
    Group& group, const std::shared_ptr<Outbox>& outbox, int rank, const std::string& why) {
  if (std::exchange(group.told_loss, true)) return;
  std::vector<int> others;
  for (int peer = 0; peer < group.size; ++peer) {
    if (peer != group.rank && peer != rank) others.push_back(peer);
  }
  SendNote(
      group, outbox,
      {.channel = Channel::kLoss,
       .source = group.rank,
       .number = rank,
       .text = why.substr(0, 1000)},
      others);
}

void WireOperation::Finish() {
  Forget();
  if (transfer_ != nullptr) transfer_->Release();
  if (tags_ != 0) group_->endpoint->tags.Give(tags_);
}

std::string WireOperation::Disagree() const {
  return Text(
      "the ranks disagree on ", channel_ == Channel::kCollective ? "collective #" : "message #",
      sequence(), members().name == "world" ? "" : " of " + members().name, ": ");
}

Header WireOperation::OwnHeader(bool has_data, uint64_t data_bytes) const {
  const Envelope envelope = {
      .context = group_->context,
      .sequence = sequence(),
      .bytes = 0,
      .source = group_->rank,
      .tags = tags_,
      .channel = channel_,
      .has_data = has_data ? 1 : 0,
      .call = call(),
  };
  return Header(envelope, collective_.send_counts, collective_.receive_counts, data_bytes);
}

Called WireOperation::OwnCalled() const {
  const auto table = [](const Counts& counts) { return counts.empty() ? nullptr : counts.data(); };
  return {
      .call = &call(),
      .sends = table(collective_.send_counts),
      .receives = table(collective_.receive_counts)};
}

void WireOperation::SendHeader(const Header& header, int peer) {
  ++outbox_->open;
  outbox_->memory.push_back(header);
  group_->endpoint->wire->Send(
      group_->job_ranks[static_cast<size_t>(peer)], Mailroom::kTag, header.memory().get(),
      header.envelope().bytes, Wire::Mode::kBuffered, outbox_, 0);
}

// --- collectives --------------------------------------------------------------------------------

namespace {

// The data of `source` for `destination`, as far as the source's own call says: elements of its
// input.
Range Brings(const Calls& calls, const Call& call, int source, int destination) {
  switch (static_cast<CollectiveKind>(call.kind)) {
    case CollectiveKind::kAllReduce: return {0, call.count};
    case CollectiveKind::kReduce: return {0, destination == call.root ? call.count : 0};
    case CollectiveKind::kReduceScatter: return calls.Share(destination);
    default: return calls.InInput(source, destination);
  }
}

// Whether `destination` must receive data outside the headers, as far as its own call says.
bool TakesMore(const Calls& calls, const Call& call, int size, int destination) {
  const uint64_t element = SizeOf(static_cast<DType>(call.dtype));
  if (Combines(static_cast<CollectiveKind>(call.kind))) {
    return !FitsHeader(call.count * element, size);
  }
  for (int source = 0; source < size; ++source) {
    if (!FitsHeader(calls.InOutput(source, destination).count * element, size)) return true;
  }
  return false;
}

}  // namespace

CollectiveOperation::CollectiveOperation(std::shared_ptr<Group> group, Collective collective)
    : WireOperation(group, std::move(collective), Channel::kCollective, ++group->collectives) {}

void CollectiveOperation::Post() {
  const int size = group().size, rank = group().rank;
  const auto p = static_cast<size_t>(size);
  // Assumes that all ranks have made the same call as this rank.
  const std::vector<Called> alike(p, OwnCalled());
  const Calls calls(alike.data(), size);
  if (TakesMore(calls, call(), size, rank)) TakeTags();
  std::shared_ptr<Arrivals>& arrivals = mailbox().collectives[sequence()];
  if (arrivals == nullptr) arrivals = std::make_shared<Arrivals>();
  arrivals_ = arrivals;
  arrivals_->by_rank.resize(p);
  arrivals_->by_rank[static_cast<size_t>(rank)] = OwnHeader(false, 0);
  ++arrivals_->count;
  for (int i = 1; i < size; ++i) {
    const int peer = (rank + i) % size;
    const Range range = Brings(calls, call(), rank, peer);
    const uint64_t bytes = range.count * element();
    const bool fits = FitsHeader(bytes, size);
    const Header header = OwnHeader(fits, fits ? bytes : 0);
    if (fits && bytes > 0) {
      const char* input = static_cast<const char*>(collective().input.data);
      std::memcpy(header.data(size), input + range.begin * element(), bytes);
    }
    SendHeader(header, peer);
  }
}

bool CollectiveOperation::AllCame() const { return arrivals_->count == group().size; }

bool CollectiveOperation::Awaits(int rank) const {
  return !arrivals_->by_rank[static_cast<size_t>(rank)];
}

void CollectiveOperation::Forget() { mailbox().collectives.erase(sequence()); }

std::vector<int> CollectiveOperation::Missing() const {
  std::vector<int> missing;
  for (int r = 0; r < group().size; ++r) {
    if (arrivals_ == nullptr ? r != group().rank : !arrivals_->by_rank[static_cast<size_t>(r)]) {
      missing.push_back(r);
    }
  }
  return missing;
}

std::shared_ptr<Transfer> CollectiveOperation::Agree() {
  const int size = group().size;
  Agreed agreed{
      .group = shared_group(),
      .collective = collective(),
      .headers = arrivals_->by_rank,
      .called = {}};
  for (const Header& header : agreed.headers) agreed.called.push_back(header.called(size));
  const Calls calls = agreed.calls();
  if (!calls.Agree()) {
    throw Error(ErrorCode::kMismatch, Disagree() + calls.Disagreement(members()));
  }
  if (Combines(collective().kind)) return Combine(std::move(agreed));
  if (base::OnlyMeets(collective().kind)) return nullptr;
  const bool broadcast = collective().kind == CollectiveKind::kBroadcast && size > 1;
  if (broadcast && !FitsHeader(call().count * element(), size)) return Broadcast(std::move(agreed));
  return Move(std::move(agreed));
}

// --- messages -----------------------------------------------------------------------------------

uint64_t MessageOperation::NextSequence(Group& group, const Collective& collective) {
  auto& counts = collective.kind == CollectiveKind::kSend ? group.sends : group.receives;
  counts.resize(static_cast<size_t>(group.size));
  return ++counts[static_cast<size_t>(collective.root)];
}

MessageOperation::MessageOperation(std::shared_ptr<Group> group, Collective collective)
    : WireOperation(
          group, collective,
          collective.kind == CollectiveKind::kSend ? Channel::kSend : Channel::kReceive,
          NextSequence(*group, collective)) {}

std::map<std::pair<int, uint64_t>, Header>& MessageOperation::headers() const {
  return sends() ? mailbox().receives : mailbox().sends;
}

void MessageOperation::Post() {
  const uint64_t bytes = call().count * element();
  const bool fits = FitsHeader(bytes, group().size);
  if (!sends() && !fits) TakeTags();
  const bool brings = sends() && fits;
  own_ = OwnHeader(brings, brings ? bytes : 0);
  if (brings && bytes > 0) {
    std::memcpy(own_.data(group().size), collective().input.data, bytes);
  }
  SendHeader(own_, collective().root);
}

bool MessageOperation::AllCame() const { return headers().count(key()) != 0; }

bool MessageOperation::Awaits(int rank) const { return rank == collective().root && !AllCame(); }

void MessageOperation::Forget() { headers().erase(key()); }

std::vector<int> MessageOperation::Missing() const {
  return AllCame() ? std::vector<int>{} : std::vector<int>{collective().root};
}

std::shared_ptr<Transfer> MessageOperation::Agree() {
  const Header& other = headers().at(key());
  const Call &mine = call(), &others = other.envelope().call;
  if (mine.dtype != others.dtype || mine.count != others.count) {
    const auto side = [this](int rank, const char* does, const Call& what) {
      return Text(
          members().List({rank}), does, what.count, " elements of ",
          NameOf(static_cast<DType>(what.dtype)));
    };
    const Call& sent = sends() ? mine : others;
    const Call& expected = sends() ? others : mine;
    const int self = group().rank, peer = collective().root;
    throw Error(
        ErrorCode::kMismatch, Text(
                                  Disagree(), side(sends() ? self : peer, " sends ", sent), ", ",
                                  side(sends() ? peer : self, " expects ", expected)));
  }
  Agreed agreed{.group = shared_group(), .collective = collective(), .headers = {}, .called = {}};
  agreed.headers.resize(static_cast<size_t>(group().size));
  agreed.headers[static_cast<size_t>(group().rank)] = own_;
  agreed.headers[static_cast<size_t>(collective().root)] = other;
  return MoveMessage(std::move(agreed));
}

// --- the ranks that are left --------------------------------------------------------------------

// In each attempt, every rank sends the set of lost ranks that it knows to all other ranks that it
// does not take for lost. If all sets are equal, the ranks agree. Otherwise, and if a rank is lost
// before its set has come, the ranks try again with the union of the sets. The set only grows, so
// there are at most as many attempts as ranks.

namespace {

// A proposal: the offered context, then the lost ranks.
std::string TextOf(uint64_t offer, const std::set<int>& lost) {
  std::string text(reinterpret_cast<const char*>(&offer), sizeof offer);
  for (const int32_t rank : lost) text.append(reinterpret_cast<const char*>(&rank), sizeof rank);
  return text;
}

uint64_t OfferIn(std::string_view text) {
  uint64_t offer = 0;
  std::memcpy(&offer, text.data(), sizeof offer);
  return offer;
}

std::set<int> LostIn(std::string_view text) {
  std::set<int> lost;
  for (size_t at = sizeof(uint64_t); at + sizeof(int32_t) <= text.size(); at += sizeof(int32_t)) {
    int32_t rank = 0;
    std::memcpy(&rank, text.data() + at, sizeof rank);
    lost.insert(rank);
  }
  return lost;
}

}  // namespace

ReformOperation::ReformOperation(
    std::shared_ptr<Group> group, std::shared_ptr<const Members> members, uint64_t offer,
    std::shared_ptr<Survivors> survivors)
    : Operation(std::move(members), 1, CallOf({.kind = CollectiveKind::kBarrier}, group->rank)),
      group_(std::move(group)),
      offer_(offer),
      survivors_(std::move(survivors)) {}

Operation::Progress ReformOperation::Advance() {
  group_->endpoint->wire->Poll(polled_);
  LookForLost();
  if (!proposed_) Propose();
  if (!Missing().empty()) {
    const bool in_vain = std::any_of(
        asked_.begin(), asked_.end(), [this](int rank) { return lost_.count(rank) != 0; });
    if (in_vain) proposed_ = false;
    return in_vain ? Progress::kSome : Progress::kNone;
  }
  return Compare() ? Progress::kDone : Progress::kSome;
}

void ReformOperation::LookForLost() {
  for (const LostPeer& peer : group_->endpoint->wire->lost()) {
    const auto& ranks = group_->job_ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), peer.rank);
    if (found != ranks.end()) lost_.insert(static_cast<int>(found - ranks.begin()));
  }
  const Mailbox& box = group_->endpoint->mailroom->Box(group_->context);
  if (box.loss.lost_rank >= 0) lost_.insert(box.loss.lost_rank);
}

void ReformOperation::Propose() {
  ++attempt_;
  proposed_ = true;
  asked_.clear();
  for (int rank = 0; rank < group_->size; ++rank) {
    if (rank != group_->rank && lost_.count(rank) == 0) asked_.push_back(rank);
  }
  SendNote(
      *group_, outbox_,
      {.channel = Channel::kReform,
       .sequence = attempt_,
       .source = group_->rank,
       .text = TextOf(offer_, lost_)},
      asked_);
}

// Returns true if all sets are equal.
bool ReformOperation::Compare() {
  const auto& proposals = group_->endpoint->mailroom->Box(group_->context).proposals;
  const std::set<int> mine = LostIn(outbox_->memory.back().text());
  uint64_t context = offer_;
  bool equal = true;
  for (const int rank : asked_) {
    const std::string_view text = proposals.at({attempt_, rank}).text();
    const std::set<int> others = LostIn(text);
    equal &= others == mine;
    lost_.insert(others.begin(), others.end());
    if (rank == asked_.front() && rank < group_->rank) context = OfferIn(text);
  }
  if (lost_.count(group_->rank) != 0)
    throw Error(ErrorCode::kPeerLost, "the other ranks have lost this rank, and go on without it");
  if (!equal) {
    proposed_ = false;
    return false;
  }
  survivors_->context = context;
  for (int rank = 0; rank < group_->size; ++rank) {
    if (mine.count(rank) == 0) survivors_->ranks.push_back(rank);
  }
  return true;
}

std::vector<int> ReformOperation::Missing() const {
  const auto& proposals = group_->endpoint->mailroom->Box(group_->context).proposals;
  std::vector<int> missing;
  for (const int rank : asked_) {
    if (proposals.count({attempt_, rank}) == 0) missing.push_back(rank);
  }
  return missing;
}

}  // namespace dtrun::ops::wire
