#ifndef DTRUN_OPS_MEMBERS_H_
#define DTRUN_OPS_MEMBERS_H_

#include <string>
#include <vector>

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

}  // namespace dtrun::ops

#endif
