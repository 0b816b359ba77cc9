#ifndef DTRUN_OPS_WIRE_WIRE_GROUP_H_
#define DTRUN_OPS_WIRE_WIRE_GROUP_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtrun/error.h"
#include "ops/collective/collective.h"
#include "ops/wire/wire.h"

namespace dtrun::ops::wire {

/// The sequence that an operation's number belongs to. The last five are no operations. kLeave: the
/// source starts no more operations. kLoss: see LossNotice, with `lost_rank` in `tags`,
/// `named_rank` plus one in `sequence`, and the reason as data. kReform, kReformed: see
/// wire_reform.cc. kBundle: the data is a sequence of headers.
enum class Channel : int32_t {
  kCollective,
  kSend,
  kReceive,
  kLeave,
  kLoss,
  kReform,
  kReformed,
  kBundle
};

/// The fixed part of a header.
struct Envelope {
  uint64_t context;   ///< of the communicator
  uint64_t sequence;  ///< of the operation, in its channel
  uint64_t bytes;     ///< of the whole header
  int32_t source;     ///< rank in the communicator
  int32_t tags;       ///< first tag on which `source` receives data of this operation; 0: none
  Channel channel;
  int32_t has_data;  ///< whether the header holds the source's data for its receiver
  Call call;
};

/// The message from one rank to another at the start of an operation. It holds the sender's call,
/// its counts by rank, and its data if there is little. Copies share the memory.
class Header {
 public:
  Header() = default;
  /// Copies the counts by rank of the call. The caller writes the data.
  Header(
      const Envelope& envelope, const Counts& sends, const Counts& receives, uint64_t data_bytes);
  /// Copies a header that has come.
  explicit Header(const char* bytes);

  explicit operator bool() const { return memory_ != nullptr; }
  const Envelope& envelope() const { return *reinterpret_cast<const Envelope*>(memory_.get()); }
  /// `size`: of the communicator.
  Called called(int size) const;
  char* data(int size) const;
  /// The bytes after the envelope, for a header without counts.
  std::string_view text() const {
    return {
        reinterpret_cast<const char*>(memory_.get()) + sizeof(Envelope),
        envelope().bytes - sizeof(Envelope)};
  }
  const std::shared_ptr<uint64_t[]>& memory() const { return memory_; }

 private:
  std::shared_ptr<uint64_t[]> memory_;
};

/// The headers of one collective that have come so far.
struct Arrivals {
  std::vector<Header> by_rank;
  int count = 0;
};

/// The notice of a rank that a communicator cannot be used any more.
struct LossNotice {
  int lost_rank = -1;    ///< in the communicator; -1: the sender's own wire has lost none
  int named_rank = -1;   ///< the rank that `why` is about; -1: not known
  std::string why = {};  ///< "": there is no notice

  /// Error kPeerLost for a rank of the communicator.
  Error InWords(const Members& members) const;
};

/// The headers for one communicator. They may come before their operations start on this rank, and
/// before the communicator exists on this rank.
struct Mailbox {
  std::unordered_map<uint64_t, std::shared_ptr<Arrivals>> collectives;  // by sequence
  uint64_t started = 0;                                                 // the latest of them here
  std::map<std::pair<int, uint64_t>, Header> sends, receives;           // by source and sequence
  LossNotice loss = {};
  std::map<std::pair<uint64_t, int>, Header> proposals = {};  // kReform, by attempt and source
  std::string reformed = {};                                  // kReformed; "": none
};

/// The agreement of ranks that have formed a communicator anew.
struct ReformResult {
  uint64_t attempt = 0;
  std::string text = {};
  int rank = 0;                     ///< of this process, in the old communicator
  std::vector<int> job_ranks = {};  ///< of the old communicator
};

/// The headers that an operation has sent. `open` is the number of headers that the wire needs.
struct Outbox : Listener {
  void Ended(uint64_t) override { --open; }
  int open = 0;
  std::vector<Header> memory = {};
};

/// Receives every header that comes to this process, and puts it into its mailbox. Several receives
/// from any source are open all the time.
class Mailroom : public Listener, public std::enable_shared_from_this<Mailroom> {
 public:
  static constexpr int kTag = 0;
  /// The most bytes of data in a header: 64 KiB divided by `size`, but at least 4 KiB. Up to this
  /// limit, all ranks can send data to each other at once as fast as in any other way. Below 4 KiB,
  /// one more message for the data would not pay.
  static uint64_t DataLimit(int size);

  /// `size`: of the job.
  Mailroom(Wire& wire, int size);
  void Open();

  /// The most bytes of a message to a mailroom.
  uint64_t slot_bytes() const { return slot_bytes_; }

  Mailbox& Box(uint64_t context);
  /// Removes the mailbox of a communicator that is gone, at the next call of Box. Thread-safe.
  void Drop(uint64_t context);

  void Ended(uint64_t slot) override;

  /// Keeps the result for ranks that make a later attempt.
  void KeepResult(uint64_t context, ReformResult result);
  /// The proposals that have come after their communicator was formed anew: context and source.
  /// Each is returned once.
  std::vector<std::pair<uint64_t, int>> TakeLateProposals();
  const ReformResult& result(uint64_t context) const { return results_.at(context); }

  /// The number of notices of lost ranks that have come.
  int losses() const { return losses_; }

  /// The ranks of the job that have announced that they start no more operations.
  const std::vector<int>& left() const { return left_; }

 private:
  void Post(uint64_t slot);
  void Deliver(Header header);
  static void DeliverCollective(Mailbox& box, Header header);

  Wire& wire_;
  uint64_t slot_bytes_;
  std::vector<std::unique_ptr<char[]>> slots_;
  std::unordered_map<uint64_t, Mailbox> boxes_;         // by context
  std::unordered_map<uint64_t, ReformResult> results_;  // by context of the old communicator
  std::vector<std::pair<uint64_t, int>> late_proposals_;
  std::vector<int> left_;
  int losses_ = 0;
  std::mutex mutex_;
  std::vector<uint64_t> dropped_;  // guarded by mutex_
};

/// Blocks of tags for the data of operations. The receiver of data chooses the tags, so tags must
/// differ only among the operations under way on one rank.
class Tags {
 public:
  /// The tags of one operation: two steps of at most this many pieces under way.
  static constexpr int kPieces = 64;
  static constexpr int kBlock = 2 * kPieces;

  explicit Tags(int largest) : last_(largest - kBlock + 1) {}
  /// The first tag of a free block. Throws Error kUnavailable if all blocks are taken.
  int Take();
  void Give(int tags) { free_.push_back(tags); }

 private:
  int last_;           // the last block starts here or before
  int next_ = kBlock;  // not taken so far; the first block is reserved
  std::vector<int> free_;
};

/// Memory for data on its way, kept for the next operation: fresh pages cost more than a copy.
class Scratch {
 public:
  struct Block {
    std::unique_ptr<char[]> data;
    uint64_t bytes = 0;
  };
  Block Take(uint64_t bytes);
  void Give(Block block);

 private:
  std::vector<Block> blocks_;
};

/// The state that all communicators of this process share. Used under the engine's lock, once there
/// is an engine.
struct Endpoint {
  /// `relays_from`: see Settings.
  Endpoint(std::unique_ptr<Wire> of_job, int size, int relays_from = 0)
      : wire(std::move(of_job)),
        mailroom(std::make_shared<Mailroom>(*wire, size)),
        tags(wire->largest_tag()),
        relays_from_ranks(relays_from) {
    mailroom->Open();
  }

  /// A number for a new communicator, different from all others of the job: it has this rank and
  /// the count of numbers that this rank has given. Thread-safe.
  uint64_t NewContext(int job_rank) {
    constexpr int kRankBits = 24;
    return named++ << kRankBits | static_cast<uint64_t>(job_rank);
  }

  std::unique_ptr<Wire> wire;
  std::shared_ptr<Mailroom> mailroom;
  Tags tags;
  Scratch scratch;
  int relays_from_ranks;
  std::atomic<uint64_t> named{1};
};

/// The state that the operations of one communicator share on this rank.
struct Group {
  ~Group() { endpoint->mailroom->Drop(context); }
  /// The rank here of a rank of the job; -1: it is not a member.
  int RankOf(int job_rank) const;
  /// Whether headers of collectives go through relays.
  bool relays() const;
  /// Whether headers bring data. A relayed header brings the same data to all ranks.
  bool HeadersBringData(CollectiveKind kind) const;
  /// Whether all of this much data of a rank for another one is in the header.
  bool InHeader(CollectiveKind kind, uint64_t bytes) const {
    return bytes == 0 || (HeadersBringData(kind) && bytes <= Mailroom::DataLimit(size));
  }
  /// Notes the ranks for which an operation has waited too long. Later operations waited for the
  /// first, so their ranks do not count.
  void NoteLate(const std::vector<int>& ranks) {
    if (late.empty()) late.insert(ranks.begin(), ranks.end());
  }

  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<const Members> members;
  uint64_t context = 0;  ///< different for every communicator of the job
  int rank = 0, size = 1;
  std::vector<int> job_ranks;  ///< by rank
  bool told_loss = false;      ///< this rank has sent its notice of a lost rank
  std::set<int> late = {};     ///< the ranks for which an operation has waited too long
  // The operations started so far. The communicator's thread counts them.
  uint64_t collectives = 0;
  std::vector<uint64_t> sends = {}, receives = {};  // by peer
};

/// A header without a call: what a rank tells the other ranks of a communicator outside operations.
struct Note {
  Channel channel = Channel::kLeave;
  uint64_t sequence = 0;
  int source = 0;  ///< as the receivers of this channel expect it
  int number = 0;
  std::string text = {};
};

/// Sends the note to the ranks `to` of the communicator with this context and these ranks. `outbox`
/// keeps it until it has left.
void SendNote(
    Endpoint& endpoint, uint64_t context, const std::vector<int>& job_ranks,
    const std::shared_ptr<Outbox>& outbox, const Note& note, const std::vector<int>& to);

}  // namespace dtrun::ops::wire

#endif  // DTRUN_OPS_WIRE_WIRE_GROUP_H_
