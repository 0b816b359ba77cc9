#ifndef DTRUN_OPS_LOCAL_BOOTSTRAP_H_
#define DTRUN_OPS_LOCAL_BOOTSTRAP_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "ops/bootstrap.h"

namespace dtrun::ops {

/// Where the ranks of one host meet, and who of them this one is.
struct LocalMeeting {
  std::string name;  ///< any bytes, the same on all ranks and on those of no other job
  int rank = 0, size = 1;
  std::chrono::seconds timeout{600};       ///< of each wait
  std::chrono::seconds warning_after{30};  ///< of waiting for ranks to come
  /// Told once which ranks have not come, on one rank. May be empty.
  std::function<void(const std::string& text)> warn = {};
};

/// The ranks of one host without MPI, over a unix socket in the abstract namespace: nothing is left
/// of it, however its processes end. Only processes of this user are let in; the name is also that
/// of no other user's meeting.
///
/// Collective. Throws Error kTimeout that names who has not come, kInvalidArgument when two
/// processes are the same rank, kMismatch when they were told of different numbers of ranks,
/// kPeerLost, at once and naming the rank, when one ends meanwhile; kSystem. The gathers of what is
/// returned throw kTimeout, kPeerLost and kSystem. After an error it is unusable.
std::unique_ptr<Bootstrap> JoinLocally(const LocalMeeting& meeting);

}  // namespace dtrun::ops

#endif
