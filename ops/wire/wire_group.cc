#include "ops/wire/wire_group.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::wire {

int Tags::Take() {
  if (!free_.empty()) {
    const int tags = free_.back();
    free_.pop_back();
    return tags;
  }
  if (next_ > last_) {
    throw Error(
        ErrorCode::kUnavailable,
        base::Text(
            "more than ", next_ / kBlock - 1,
            " operations with data under way at once: there are no more tags"));
  }
  return std::exchange(next_, next_ + kBlock);
}

Scratch::Block Scratch::Take(uint64_t bytes) {
  const auto fits = std::find_if(blocks_.begin(), blocks_.end(), [bytes](const Block& block) {
    return block.bytes >= bytes && block.bytes / 4 <= bytes;
  });
  if (fits == blocks_.end()) return {std::make_unique_for_overwrite<char[]>(bytes), bytes};
  Block block = std::move(*fits);
  blocks_.erase(fits);
  return block;
}

void Scratch::Give(Block block) {
  constexpr size_t kKept = 4;
  if (block.bytes == 0) return;
  if (blocks_.size() == kKept) blocks_.erase(blocks_.begin());
  blocks_.push_back(std::move(block));
}

// A header is one message: envelope, counts sent by rank, counts received by rank, data. An
// envelope carries context, channel and sequence. So one tag serves all headers, and headers may
// come in any order. The number of communicators and operations has no limit.

namespace {

constexpr uint64_t kSlots = 16;
constexpr uint64_t kLeastData = 4096, kMostDataOfAll = 64 << 10;  // bytes

uint64_t TableBytes(const Call& call, int size) {
  const int tables = (call.tables & Call::kSends ? 1 : 0) + (call.tables & Call::kReceives ? 1 : 0);
  return static_cast<uint64_t>(tables) * static_cast<uint64_t>(size) * sizeof(uint64_t);
}

}  // namespace

Header::Header(
    const Envelope& envelope, const Counts& sends, const Counts& receives, uint64_t data_bytes) {
  static_assert(sizeof(Envelope) % sizeof(uint64_t) == 0);
  const uint64_t fixed = sizeof(Envelope) / sizeof(uint64_t);
  const uint64_t words = fixed + sends.size() + receives.size();
  memory_ = std::make_shared_for_overwrite<uint64_t[]>(words + (data_bytes + 7) / 8);
  auto* copy = new (memory_.get()) Envelope(envelope);
  copy->bytes = words * sizeof(uint64_t) + data_bytes;
  std::copy(sends.begin(), sends.end(), &memory_[fixed]);
  std::copy(receives.begin(), receives.end(), &memory_[fixed + sends.size()]);
}

Header::Header(const char* bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes + offsetof(Envelope, bytes), sizeof length);
  memory_ = std::make_shared_for_overwrite<uint64_t[]>((length + 7) / 8);
  std::memcpy(memory_.get(), bytes, length);
}

Called Header::called(int size) const {
  const Call& call = envelope().call;
  const uint64_t* table = &memory_[sizeof(Envelope) / sizeof(uint64_t)];
  Called called{.call = &call};
  if (call.tables & Call::kSends) {
    called.sends = table;
    table += size;
  }
  if (call.tables & Call::kReceives) called.receives = table;
  return called;
}

char* Header::data(int size) const {
  return reinterpret_cast<char*>(memory_.get()) + sizeof(Envelope) +
         TableBytes(envelope().call, size);
}

uint64_t Mailroom::DataLimit(int size) {
  return std::max(kLeastData, kMostDataOfAll / static_cast<uint64_t>(size));
}

Mailroom::Mailroom(Wire& wire, int size)
    : wire_(wire),
      slot_bytes_(
          sizeof(Envelope) + 2 * static_cast<uint64_t>(size) * sizeof(uint64_t) + DataLimit(1)) {}

void Mailroom::Open() {
  for (uint64_t slot = 0; slot < kSlots; ++slot) {
    slots_.push_back(std::make_unique_for_overwrite<char[]>(slot_bytes_));
    Post(slot);
  }
}

Mailbox& Mailroom::Box(uint64_t context) {
  std::lock_guard lock(mutex_);
  for (const uint64_t gone : dropped_) boxes_.erase(gone);
  dropped_.clear();
  return boxes_[context];
}

void Mailroom::Drop(uint64_t context) {
  std::lock_guard lock(mutex_);
  dropped_.push_back(context);
}

void Mailroom::Post(uint64_t slot) {
  wire_.Receive(Wire::kAnySource, kTag, slots_[slot].get(), slot_bytes_, shared_from_this(), slot);
}

void Mailroom::Ended(uint64_t slot) {
  Header header(slots_[slot].get());
  Post(slot);
  if (header.envelope().channel != Channel::kBundle) return Deliver(std::move(header));
  for (std::string_view rest = header.text(); rest.size() >= sizeof(Envelope);) {
    Header one(rest.data());
    rest.remove_prefix(std::min(rest.size(), (one.envelope().bytes + 7) / 8 * 8));
    Deliver(std::move(one));
  }
}

void Mailroom::Deliver(Header header) {
  const Envelope& envelope = header.envelope();
  if (envelope.channel == Channel::kLeave) {
    left_.push_back(envelope.source);
    return;
  }
  if (envelope.channel == Channel::kReform && results_.count(envelope.context) != 0) {
    if (envelope.sequence > results_[envelope.context].attempt)
      late_proposals_.emplace_back(envelope.context, envelope.source);
    return;
  }
  Mailbox& box = Box(envelope.context);
  if (envelope.channel == Channel::kReformed) {
    box.reformed = header.text();
    return;
  }
  if (envelope.channel == Channel::kLoss) {
    box.loss = {envelope.tags, static_cast<int>(envelope.sequence) - 1, std::string(header.text())};
    ++losses_;
    return;
  }
  if (envelope.channel == Channel::kReform) {
    box.proposals.emplace(std::pair(envelope.sequence, envelope.source), std::move(header));
    return;
  }
  const auto key = std::pair(envelope.source, envelope.sequence);
  switch (envelope.channel) {
    case Channel::kSend: box.sends.emplace(key, std::move(header)); return;
    case Channel::kReceive: box.receives.emplace(key, std::move(header)); return;
    case Channel::kCollective:
    case Channel::kLeave:
    case Channel::kLoss:
    case Channel::kReform:
    case Channel::kReformed:
    case Channel::kBundle: break;
  }
  DeliverCollective(box, std::move(header));
}

// A header may come twice if headers go through relays, and the second time after the end of its
// operation.
void Mailroom::DeliverCollective(Mailbox& box, Header header) {
  const uint64_t sequence = header.envelope().sequence;
  if (sequence <= box.started && box.collectives.count(sequence) == 0) return;
  std::shared_ptr<Arrivals>& arrivals = box.collectives[sequence];
  if (arrivals == nullptr) arrivals = std::make_shared<Arrivals>();
  const auto source = static_cast<size_t>(header.envelope().source);
  if (arrivals->by_rank.size() <= source) arrivals->by_rank.resize(source + 1);
  if (arrivals->by_rank[source]) return;
  arrivals->by_rank[source] = std::move(header);
  ++arrivals->count;
}

Error LossNotice::InWords(const Members& members) const {
  const std::string who = lost_rank < 0 ? "" : members.List({lost_rank}) + " is lost: ";
  const std::vector<int> named = named_rank < 0 ? std::vector<int>() : std::vector{named_rank};
  return Error(ErrorCode::kPeerLost, who + why, members.InWorld(named));
}

int Group::RankOf(int job_rank) const {
  const auto found = std::find(job_ranks.begin(), job_ranks.end(), job_rank);
  return found == job_ranks.end() ? -1 : static_cast<int>(found - job_ranks.begin());
}

// Direct: each rank sends p - 1 headers, which are one message on their way. Through relays: one
// header after another, as many as the logarithm of p.
bool Group::relays() const {
  if (endpoint->relays_from_ranks > 0) return size >= endpoint->relays_from_ranks;
  const Wire::Cost cost = endpoint->wire->message_cost();
  const int rounds = std::bit_width(static_cast<unsigned>(size - 1));
  return (size - 1) * cost.cpu_us + cost.way_us > rounds * (cost.cpu_us + cost.way_us);
}

bool Group::HeadersBringData(CollectiveKind kind) const {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
         kind == CollectiveKind::kBroadcast || base::IsMessage(kind) || !relays();
}

void Mailroom::KeepResult(uint64_t context, ReformResult result) {
  for (const auto& [of, proposal] : Box(context).proposals)
    if (of.first > result.attempt) late_proposals_.emplace_back(context, of.second);
  results_.emplace(context, std::move(result));
}

std::vector<std::pair<uint64_t, int>> Mailroom::TakeLateProposals() {
  return std::exchange(late_proposals_, {});
}

void SendNote(
    Endpoint& endpoint, uint64_t context, const std::vector<int>& job_ranks,
    const std::shared_ptr<Outbox>& outbox, const Note& note, const std::vector<int>& to) {
  const Header header(
      {.context = context,
       .sequence = note.sequence,
       .bytes = 0,
       .source = note.source,
       .tags = note.number,
       .channel = note.channel,
       .has_data = 0,
       .call = {}},
      {}, {}, note.text.size());
  note.text.copy(header.data(static_cast<int>(job_ranks.size())), note.text.size());
  outbox->memory.push_back(header);
  for (const int rank : to) {
    ++outbox->open;
    endpoint.wire->Send(
        job_ranks[static_cast<size_t>(rank)], Mailroom::kTag, header.memory().get(),
        header.envelope().bytes, Wire::Mode::kBuffered, outbox, 0);
  }
}

}  // namespace dtrun::ops::wire
