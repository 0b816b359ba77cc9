#ifndef DTRUN_OPS_MPI_MPI_GROUP_H_
#define DTRUN_OPS_MPI_MPI_GROUP_H_

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/mpi/mpi_messages.h"

namespace dtrun::ops::mpi {

/// To which row of numbers the number of an operation belongs. kLeave is no operation: the source
/// starts nothing more.
enum class Channel : int32_t { kCollective, kSend, kReceive, kLeave };

/// The fixed part of a header.
struct Envelope {
  uint64_t context;   ///< of the communicator
  uint64_t sequence;  ///< of the operation, in its channel
  uint64_t bytes;     ///< of the whole header
  int32_t source;     ///< rank in the communicator
  int32_t tags;       ///< first tag on which `source` takes the data of this operation; 0: none
  Channel channel;
  int32_t has_data;  ///< what `source` brings to the receiver of this header lies in it
  Call call;
};

/// What a rank tells another one at the start of an operation: its call, its counts by rank, and
/// the data itself when there is little. Copies share the memory.
class Header {
 public:
  Header() = default;
  /// Copies the call's tables; the data is the caller's to write.
  Header(
      const Envelope& envelope, const Counts& sends, const Counts& receives, uint64_t data_bytes);
  /// A header that has come.
  explicit Header(const char* bytes);

  explicit operator bool() const { return memory_ != nullptr; }
  const Envelope& envelope() const { return *reinterpret_cast<const Envelope*>(memory_.get()); }
  /// `size`: of the communicator.
  Called called(int size) const;
  char* data(int size) const;
  const std::shared_ptr<uint64_t[]>& memory() const { return memory_; }

 private:
  std::shared_ptr<uint64_t[]> memory_;
};

/// The headers of one collective, as far as they have come.
struct Arrivals {
  std::vector<Header> by_rank;
  int count = 0;
};

/// The headers for one communicator, which may come before its operations start here, and before
/// it is there itself.
struct Mailbox {
  std::unordered_map<uint64_t, std::shared_ptr<Arrivals>> collectives;  // by sequence
  std::map<std::pair<int, uint64_t>, Header> sends, receives;           // by source and sequence
};

/// The headers that an operation has sent, and how many of them MPI still needs.
struct Outbox : Listener {
  void Ended(uint64_t) override { --open; }
  int open = 0;
  std::vector<Header> memory = {};
};

/// Takes every header that comes to this process and lays it in its mailbox. Some receives, which
/// take a header from anybody, are open all the time.
class Mailroom : public Listener, public std::enable_shared_from_this<Mailroom> {
 public:
  static constexpr int kTag = 0;
  /// The most data that a header brings: as many bytes as `size` ranks may send to each other all
  /// at once and still be as quick as in any other way, and at least so much that a header more
  /// would not pay.
  static uint64_t DataLimit(int size);

  /// `size`: of the job.
  Mailroom(Messages& messages, int size);
  void Open();

  Mailbox& Box(uint64_t context);
  /// Forgets, soon, the mailbox of a communicator that is gone. Thread-safe.
  void Drop(uint64_t context);

  void Ended(uint64_t slot) override;

  /// Ranks of the job that have said that they start nothing more.
  const std::vector<int>& left() const { return left_; }

 private:
  void Post(uint64_t slot);

  Messages& messages_;
  uint64_t slot_bytes_;
  std::vector<std::unique_ptr<char[]>> slots_;
  std::unordered_map<uint64_t, Mailbox> boxes_;  // by context
  std::vector<int> left_;
  std::mutex mutex_;
  std::vector<uint64_t> dropped_;  // guarded by mutex_
};

/// Blocks of tags for the data of operations. The receiver of data names the tags, so they have to
/// be different only among the operations under way on one rank.
class Tags {
 public:
  /// Tags of one operation: two steps of this many pieces that may be under way.
  static constexpr int kPieces = 64;
  static constexpr int kBlock = 2 * kPieces;

  explicit Tags(int largest) : last_(largest - kBlock + 1) {}
  /// The first tag of a block. Throws Error kUnavailable when all are taken.
  int Take();
  void Give(int tags) { free_.push_back(tags); }

 private:
  int last_;           // the last block starts here at the latest
  int next_ = kBlock;  // never taken so far; the first block is for other things
  std::vector<int> free_;
};

/// Memory for what is on its way, kept for the next operation: fresh pages cost more than a copy.
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

/// What all communicators of this process share. Used under the engine's lock, once there is one.
struct Endpoint {
  Endpoint(MPI_Comm comm, int size)
      : messages(comm),
        mailroom(std::make_shared<Mailroom>(messages, size)),
        tags(messages.largest_tag()) {
    mailroom->Open();
  }

  Messages messages;
  std::shared_ptr<Mailroom> mailroom;
  Tags tags;
  Scratch scratch;
  std::atomic<uint64_t> named{1};  ///< communicators that this rank has given a context
};

/// What the operations of one communicator share on this rank.
struct Group {
  ~Group() { endpoint->mailroom->Drop(context); }

  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<const Members> members;
  uint64_t context = 0;  ///< different for every communicator of the job
  int rank = 0, size = 1;
  std::vector<int> job_ranks;  ///< by rank
  // Operations started so far; the communicator's thread counts.
  uint64_t collectives = 0;
  std::vector<uint64_t> sends = {}, receives = {};  // by peer
};

}  // namespace dtrun::ops::mpi

#endif  // DTRUN_OPS_MPI_MPI_GROUP_H_
