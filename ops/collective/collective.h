#ifndef DTRUN_OPS_COLLECTIVE_COLLECTIVE_H_
#define DTRUN_OPS_COLLECTIVE_COLLECTIVE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/call.h"
#include "dtrun/types.h"

namespace dtrun::ops {

/// Who the ranks of a communicator are, for people: in errors, warnings and records.
struct Members {
  std::string name = "world";
  std::vector<int> world_ranks;    ///< by rank of the communicator
  std::vector<std::string> hosts;  ///< by rank of the communicator; empty when all share one

  /// All ranks of a job of `size`.
  static Members World(int size);
  /// Those of `ranks`, in that order, under this name followed by `suffix`.
  Members Subset(const std::vector<int>& ranks, const std::string& suffix) const;

  bool SharesHost() const;

  /// "rank 1", "ranks 1, 2 and 5": what these ranks of the communicator are called in the world,
  /// each with its host when there are several.
  std::string List(const std::vector<int>& ranks) const;
};

using base::Call;
using base::CollectiveKind;
using base::Combines;
using base::NameOf;
using base::UpdatesShares;

/// Elements by rank. Empty: the same number for every rank.
using Counts = std::vector<uint64_t>;

/// One collective as its caller asked for it. Which fields mean something:
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
/// The input and the output may be the same memory (all_reduce, reduce, broadcast), and the part of
/// one that is this rank's own may be the other (all_gather, reduce_scatter, gather, scatter); any
/// other overlap is refused. Without shares, reduce_scatter deals the elements as DealRows does.
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

/// "all_reduce (f32, 4 elements, sum)"
std::string Describe(const Collective& collective);

/// Clears the counts by rank that mean nothing to rank `rank` (the table above), such as the
/// receive counts of a gather elsewhere than at its root.
void DropIgnoredCounts(Collective& collective, int rank);

/// Throws Error kInvalidArgument, or kUnavailable for updates of shares on a GPU, unless rank
/// `rank` of `size` may start it.
void CheckArguments(const Collective& collective, int rank, int size);

/// Whether rank `rank` brings the input, and gets the output.
bool UsesInput(const Collective& collective, int rank);
bool UsesOutput(const Collective& collective, int rank);

/// The GPU that the buffers of rank `rank` lie on; negative: host memory. Only of checked ones.
int DeviceOf(const Collective& collective, int rank);
/// The stream that a collective on a GPU is enqueued into.
void* StreamOf(const Collective& collective, int rank);

/// A run of elements.
struct Range {
  uint64_t begin = 0, count = 0;
};

/// Of kinds that only move data, as the caller alone knows them: what rank `rank` of `size` sends to
/// `destination`, as elements of its input, and what it gets from `source`, as elements of its
/// output. Only of checked ones.
Range SentTo(const Collective& collective, int rank, int size, int destination);
Range ReceivedFrom(const Collective& collective, int rank, int size, int source);

/// How `rows` rows are dealt to `size` ranks: the first rows % size ranks get one row more. In
/// elements, `row_elements` to a row.
Counts DealRows(uint64_t rows, uint64_t row_elements, int size);

Call CallOf(const Collective& collective, int rank);

/// "collective #12, all_reduce (f32, 4 elements, sum)"; "message #3 of world/1, send (f32, 4
/// elements, to rank 1)".
std::string NameOperation(const Call& call, uint64_t sequence, const Members& members);

/// A call with its counts by rank (null where `tables` says that there are none).
struct Called {
  const Call* call = nullptr;
  const uint64_t* sends = nullptr;
  const uint64_t* receives = nullptr;
};

/// The calls of all ranks: whether they fit together, and what then goes where.
class Calls {
 public:
  /// `by_rank` is kept by the caller.
  Calls(const Called* by_rank, int size) : by_rank_(by_rank), size_(size) {}

  /// All ranks called the same, and every rank expects what the others bring.
  bool Agree() const;
  /// For people: who called what. Only after Agree() was false.
  std::string Disagreement(const Members& members) const;

  /// Of kinds that do not combine: what `source` sends to `destination`, as elements of its input
  /// and as elements of the other's output. Only after Agree() was true.
  Range InInput(int source, int destination) const;
  Range InOutput(int source, int destination) const;
  /// Of reduce_scatter and updates of shares: what rank `rank` owns of the input.
  Range Share(int rank) const;
  /// Elements of rank `rank`'s input, and of its output.
  uint64_t InputCount(int rank) const;
  uint64_t OutputCount(int rank) const;

 private:
  bool Move(int source, int destination) const;
  uint64_t PartOf(const Call& call) const;
  uint64_t Sends(int source, int destination) const;
  uint64_t Receives(int source, int destination) const;
  bool SameArguments() const;
  std::map<std::string, std::vector<int>> Descriptions(bool exactly) const;
  CollectiveKind kind() const { return static_cast<CollectiveKind>(by_rank_[0].call->kind); }
  const base::CollectiveTraits& traits() const { return base::TraitsOf(kind()); }
  const Called& at(int rank) const { return by_rank_[rank]; }

  const Called* by_rank_;
  int size_;
};

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_COLLECTIVE_COLLECTIVE_H_
