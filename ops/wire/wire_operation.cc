// An operation uses only messages of bytes that do not block, and begins with headers. Each rank
// immediately sends one header, with its call, to each other rank. If the data for that rank is
// small, the header also holds the data. In large communicators, headers go through relays instead:
// that takes more steps, but fewer messages. When all headers have come, every rank knows the calls
// of all ranks. So all ranks find the same disagreement, or none. Then the rest of the data moves
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

namespace {

constexpr std::chrono::seconds kRelayPatience{1};

}  // namespace

WireOperation::WireOperation(
    std::shared_ptr<Group> group, Collective collective, Channel channel, uint64_t sequence)
    : Operation(group->members, sequence, CallOf(collective, group->rank)),
      group_(std::move(group)),
      collective_(std::move(collective)),
      channel_(channel) {}

// An operation that was given up ends with the engine. Without Drop, the wire would keep the
// transfer, and the transfer the wire.
WireOperation::~WireOperation() {
  if (transfer_ != nullptr && !transfer_->Done()) group_->endpoint->wire->Drop(*transfer_);
}

Operation::Progress WireOperation::Advance() {
  if (!posted_) {
    Post();
    posted_ = true;
  }
  group_->endpoint->wire->Poll(polled_);
  CheckLost();
  if (!agreed_) {
    Spread();
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
    const int rank = group_->RankOf(peer.rank);
    if (rank < 0) continue;
    const bool moves = transfer_ != nullptr && !transfer_->Done();
    if (agreed_ ? moves : Awaits(rank)) Lose({rank, rank, peer.why});
  }
  const LossNotice& notice = mailbox().loss;
  if (!notice.why.empty()) Lose(notice);
}

void WireOperation::Lose(const LossNotice& notice) {
  TellLoss(*group_, outbox_, notice);
  const Error cause = notice.InWords(members());
  throw Error(
      ErrorCode::kPeerLost,
      Text(
          "gave up: ", NameOperation(call(), sequence(), members()),
          ", cannot be finished: ", cause.what()),
      cause.ranks());
}

void TellLoss(Group& group, const std::shared_ptr<Outbox>& outbox, const LossNotice& notice) {
  if (std::exchange(group.told_loss, true)) return;
  std::vector<int> others;
  for (int peer = 0; peer < group.size; ++peer) {
    if (peer != group.rank && peer != notice.lost_rank) others.push_back(peer);
  }
  SendNote(
      *group.endpoint, group.context, group.job_ranks, outbox,
      {.channel = Channel::kLoss,
       .sequence = static_cast<uint64_t>(notice.named_rank + 1),
       .source = group.rank,
       .number = notice.lost_rank,
       .text = notice.why.substr(0, 1000)},
      others);
}

std::vector<int> WireOperation::Awaited() const {
  const bool moves = transfer_ != nullptr && !transfer_->Done();
  return moves ? transfer_->Awaited() : std::vector<int>{};
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

// Whether this rank must receive data outside the headers, as far as its own call says.
bool TakesMore(const Calls& calls, const Call& call, const Group& group) {
  const uint64_t element = SizeOf(static_cast<DType>(call.dtype));
  const auto kind = static_cast<CollectiveKind>(call.kind);
  if (Combines(kind)) return !group.InHeader(kind, call.count * element);
  for (int source = 0; source < group.size; ++source) {
    if (!group.InHeader(kind, calls.InOutput(source, group.rank).count * element)) return true;
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
  if (TakesMore(calls, call(), group())) TakeTags();
  Mailbox& box = mailbox();
  box.started = std::max(box.started, sequence());
  std::shared_ptr<Arrivals>& arrivals = box.collectives[sequence()];
  if (arrivals == nullptr) arrivals = std::make_shared<Arrivals>();
  arrivals_ = arrivals;
  arrivals_->by_rank.resize(p);
  const auto header_for = [&](int peer) {
    const Range range = Brings(calls, call(), rank, peer);
    const uint64_t bytes = range.count * element();
    const CollectiveKind kind = collective().kind;
    const bool fits = group().HeadersBringData(kind) && group().InHeader(kind, bytes);
    Header header = OwnHeader(fits, fits ? bytes : 0);
    if (fits && bytes > 0) {
      const char* input = static_cast<const char*>(collective().input.data);
      std::memcpy(header.data(size), input + range.begin * element(), bytes);
    }
    return header;
  };
  relays_ = group().relays();
  arrivals_->by_rank[static_cast<size_t>(rank)] =
      relays_ ? header_for((rank + 1) % size) : OwnHeader(false, 0);
  ++arrivals_->count;
  for (int i = 1; !relays_ && i < size; ++i)
    SendHeader(header_for((rank + i) % size), (rank + i) % size);
}

// Relays: in the round of distance d = 1, 2, 4, ..., this rank has the headers of the d ranks from
// itself on, and sends them to the rank d places before it (Bruck et al., "Efficient algorithms for
// all-to-all communications in multiport message-passing systems", 1997).
void CollectiveOperation::Spread() {
  if (!relays_) return;
  const int size = group().size, rank = group().rank;
  const auto& headers = arrivals_->by_rank;
  const auto at = [&](int distance) { return static_cast<size_t>((rank + distance) % size); };
  while (have_ < size && headers[at(have_)]) ++have_;
  for (; distance_ < size; distance_ *= 2) {
    const int count = std::min(distance_, size - distance_);
    if (have_ < count) break;
    std::vector<Header> bundle;
    for (int i = 0; i < count; ++i) bundle.push_back(headers[at(i)]);
    SendBundle(bundle, (rank + size - distance_) % size);
  }
  if (have_ == size || told_) return;
  // A rank that is late, or lost, keeps the headers of others back. After a while, all ranks tell
  // all others that they have come. So reports name the right ranks.
  const auto now = std::chrono::steady_clock::now();
  if (posted_at_ == decltype(posted_at_)()) posted_at_ = now;
  if (now - posted_at_ < kRelayPatience) return;
  told_ = true;
  for (int i = 1; i < size; ++i) SendHeader(headers[at(0)], (rank + i) % size);
}

void CollectiveOperation::SendBundle(const std::vector<Header>& headers, int peer) {
  const uint64_t most = group().endpoint->mailroom->slot_bytes() - sizeof(Envelope);
  const auto padded = [](const Header& header) { return (header.envelope().bytes + 7) / 8 * 8; };
  for (size_t first = 0; first < headers.size();) {
    uint64_t bytes = 0;
    size_t last = first;
    while (last < headers.size() && bytes + padded(headers[last]) <= most)
      bytes += padded(headers[last++]);
    if (last - first < 2) {
      SendHeader(headers[first++], peer);
      continue;
    }
    const Header bundle(
        {.context = group().context,
         .sequence = sequence(),
         .bytes = 0,
         .source = group().rank,
         .tags = 0,
         .channel = Channel::kBundle,
         .has_data = 0,
         .call = {}},
        {}, {}, bytes);
    char* data = bundle.data(group().size);
    for (; first < last; ++first) {
      std::memcpy(data, headers[first].memory().get(), headers[first].envelope().bytes);
      data += padded(headers[first]);
    }
    SendHeader(bundle, peer);
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
  if (broadcast && !agreed.InHeader(call().count * element())) return Broadcast(std::move(agreed));
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
  const bool fits = group().InHeader(collective().kind, bytes);
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

}  // namespace dtrun::ops::wire
