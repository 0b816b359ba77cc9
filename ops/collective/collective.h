#ifndef DTRUN_OPS_COLLECTIVE_COLLECTIVE_H_
#define DTRUN_OPS_COLLECTIVE_COLLECTIVE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/call.h"
#include "dtrun/types.h"

namespace dtrun::ops {

/// The names of a communicator's ranks, for errors, warnings and records.
struct Members {
  std::string name = "world";
  std::vector<int> world_ranks;    ///< by rank of the communicator
  std::vector<std::string> hosts;  ///< by rank of the communicator; empty if all share one host

  /// All ranks of a job of `size` ranks.
  static Members World(int size);
  /// The members `ranks`, in that order. The name is this name followed by `suffix`.
  Members Subset(const std::vector<int>& ranks, const std::string& suffix) const;

  /// The world ranks of these ranks.
  std::vector<int> InWorld(std::vector<int> ranks) const;

  bool SharesHost() const;

  /// Names ranks of the communicator by their world ranks: "rank 1", "ranks 1, 2 and 5". If there
  /// are several hosts, each rank has its host.
  std::string List(const std::vector<int>& ranks) const;
};

using base::Call;
using base::CollectiveKind;
using base::Combines;
using base::NameOf;
using base::UpdatesShares;

/// Elements by rank. Empty: the same number for every rank.
using Counts = std::vector<uint64_t>;

/// One collective, as its caller requested it. The fields that each kind uses:
///
///   kind            input          output         send_counts      receive_counts
///   all_reduce      n              n
///   reduce_scatter  n              own share      shares, by rank
///   reduce          n              n, at root
///   broadcast       n, at root     n, elsewhere
///   all_gather      own n          all of them                     n by rank
///   all_to_all      n by rank      n by rank      to each rank     from each rank
///   gather          own n          all, at root                    n by rank, at root
///   scatter         all, at root   own n          n by rank, at root
///   send            n
///   receive                        n
///   reduce_update          n                 shares, by rank
///   reduce_update_gather   n       n         shares, by rank
///
/// The input and the output may be the same memory in all_reduce, reduce and broadcast. In
/// all_gather, reduce_scatter, gather and scatter, the smaller buffer may be this rank's own part
/// of the larger buffer. Any other overlap is refused. Without shares, reduce_scatter deals the
/// elements as DealRows does.
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Buffer input = {};
  Buffer output = {};
  ReduceOp op = ReduceOp::kSum;
  Scale scale = {};
  int divisor = 0;  ///< of an average; 0: the number of ranks
  int root = 0;     ///< or the peer of a message
  Counts send_counts = {};
  Counts receive_counts = {};
};

/// For example "all_reduce (f32, 4 elements, sum)".
std::string Describe(const Collective& collective);

/// Clears the counts by rank that rank `rank` does not use (see the table above). For example, only
/// the root of a gather uses the receive counts.
void DropIgnoredCounts(Collective& collective, int rank);

/// Checks that rank `rank` of `size` may start the collective. Otherwise throws Error
/// kInvalidArgument, or kUnavailable for an update of shares on a GPU.
void CheckArguments(const Collective& collective, int rank, int size);

/// True if rank `rank` has an input, or an output.
inline bool UsesInput(const Collective& collective, int rank) {
  return base::Contains(base::TraitsOf(collective.kind).inputs, rank == collective.root);
}
inline bool UsesOutput(const Collective& collective, int rank) {
  return base::Contains(base::TraitsOf(collective.kind).outputs, rank == collective.root);
}

/// The GPU on which the buffers of rank `rank` lie. Negative: host memory. For checked collectives.
int DeviceOf(const Collective& collective, int rank);
/// The stream into which a collective on a GPU is enqueued.
void* StreamOf(const Collective& collective, int rank);

/// A run of consecutive elements.
struct Range {
  uint64_t begin = 0, count = 0;
};

/// For kinds that only move data, from the caller's own arguments: the elements of rank `rank`'s
/// input that it sends to `destination`, and the elements of its output that come from `source`.
/// For checked collectives.
Range SentTo(const Collective& collective, int rank, int size, int destination);
Range ReceivedFrom(const Collective& collective, int rank, int size, int source);

/// For reductions, of checked collectives: the shares of a reduce_scatter by rank, and the elements
/// of the result that rank `rank` gets.
Counts SharesOf(const Collective& collective, int size);
Range ResultOf(const Collective& collective, int rank, int size);

/// Deals `rows` rows of `row_elements` elements to `size` ranks. The first rows % size ranks get
/// one row more. Returns elements.
Counts DealRows(uint64_t rows, uint64_t row_elements, int size);

Call CallOf(const Collective& collective, int rank);

/// For example "collective #12, all_reduce (f32, 4 elements, sum)" or "message #3 of world/1, send
/// (f32, 4 elements, to rank 1)".
std::string NameOperation(const Call& call, uint64_t sequence, const Members& members);

/// A call with its counts by rank. A pointer is null if `tables` says that there are no such
/// counts.
struct Called {
  const Call* call = nullptr;
  const uint64_t* sends = nullptr;
  const uint64_t* receives = nullptr;
};

/// The calls of all ranks. Decides if they agree, and which elements go where.
class Calls {
 public:
  /// `by_rank` outlives this object. Its entries may be replaced, but the first entry has a call
  /// from the start. Until Agree() returned true, the kind of that call is assumed for all ranks.
  Calls(const Called* by_rank, int size)
      : by_rank_(by_rank),
        size_(size),
        traits_(base::TraitsOf(static_cast<CollectiveKind>(by_rank[0].call->kind))) {}

  /// True if all ranks made the same call and every rank expects the counts that the others send.
  bool Agree() const;
  /// A text for people: which ranks made which call. Only after Agree() returned false.
  std::string Disagreement(const Members& members) const;

  /// For kinds that do not combine: the elements that `source` sends to `destination`, as a range
  /// of the source's input and as a range of the destination's output. Only after Agree() returned
  /// true.
  Range InInput(int source, int destination) const;
  Range InOutput(int source, int destination) const;
  /// For reduce_scatter and updates of shares: the part of the input that rank `rank` owns.
  Range Share(int rank) const;
  /// The elements of rank `rank`'s input, and of its output.
  uint64_t InputCount(int rank) const;
  uint64_t OutputCount(int rank) const;

 private:
  bool Move(int source, int destination) const;
  uint64_t PartOf(const Call& call) const;
  uint64_t Sends(int source, int destination) const;
  uint64_t Receives(int source, int destination) const;
  bool HaveTables() const;
  bool SameArguments() const;
  std::map<std::string, std::vector<int>> Descriptions(bool exactly) const;
  CollectiveKind kind() const { return traits_.kind; }
  const Called& at(int rank) const { return by_rank_[rank]; }

  const Called* by_rank_;
  int size_;
  const base::CollectiveTraits& traits_;
};

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_COLLECTIVE_COLLECTIVE_H_
