#ifndef DTRUN_RUNTIME_JOB_RANK_AGREEMENT_H_
#define DTRUN_RUNTIME_JOB_RANK_AGREEMENT_H_

#include <functional>
#include <string>
#include <vector>

#include "ops/communicator/communicator_base.h"

namespace dtrun::runtime {

/// What all ranks were told and have to have alike, in lines: the options, then one for each item.
struct Listing {
  std::string owner;  ///< "the reducer"
  std::string items;  ///< "gradients to reduce"
  std::string item;   ///< "gradient"
  std::vector<std::string> lines;
};

/// Collective. Throws Error kMismatch on all ranks unless the lines are the same on all of them; it
/// names the first line that differs, and the ranks by what they have. Costs an all-gather of 16
/// bytes where they are the same. Returns whether `holds` is true on all ranks.
bool Agree(ops::Communicator& communicator, const Listing& listing, bool holds = true);

/// Collective: rank 0 calls `act`; all ranks get its result, or throw the Error that it threw.
std::string OnRootForAll(ops::Communicator& communicator, const std::function<std::string()>& act);

/// Collective: every rank calls `act`; all get the results of all, by rank, or throw the Error of
/// the first rank that threw one, with its name.
std::vector<std::string> OnAllForAll(
    ops::Communicator& communicator, const std::function<std::string()>& act);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_JOB_RANK_AGREEMENT_H_
