#ifndef DTRUN_RUNTIME_JOB_RANK_AGREEMENT_H_
#define DTRUN_RUNTIME_JOB_RANK_AGREEMENT_H_

#include <functional>
#include <string>
#include <vector>

#include "ops/communicator/communicator_base.h"

namespace dtrun::runtime {

/// Settings that must be equal on all ranks, as lines of text: the options, then one line per item.
struct Listing {
  std::string owner;  ///< "the reducer"
  std::string items;  ///< "gradients to reduce"
  std::string item;   ///< "gradient"
  std::vector<std::string> lines;
};

/// Collective. Throws Error kMismatch, on all ranks, if the lines differ between ranks. The error
/// names the first line that differs, and the ranks of each version. Returns true if `holds` is
/// true on all ranks. Equal listings cost one all-gather of 16 bytes per rank.
bool Agree(ops::Communicator& communicator, const Listing& listing, bool holds = true);

/// Collective. Rank 0 calls `act`. All ranks return its result, or throw its Error.
std::string OnRootForAll(ops::Communicator& communicator, const std::function<std::string()>& act);

/// Collective. Every rank calls `act`. All ranks return the results of all ranks, by rank. If a
/// rank fails, all ranks throw the Error of the first rank that failed. The error names that rank,
/// unless it is rank 0.
std::vector<std::string> OnAllForAll(
    ops::Communicator& communicator, const std::function<std::string()>& act);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_JOB_RANK_AGREEMENT_H_
