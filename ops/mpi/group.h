#ifndef DTRUN_OPS_MPI_GROUP_H_
#define DTRUN_OPS_MPI_GROUP_H_

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ops/members.h"
#include "ops/mpi/headers.h"
#include "ops/mpi/messages.h"

namespace dtrun::ops::mpi {

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

#endif
