// The exchange of failures between hosts, for a group that is one host's part of a larger group
// (hierarchical_device_group.h). dtrun_tell_hosts writes the state of this host's group. Another
// backend carries the state to the ranks of equal place on the other hosts. dtrun_hear_hosts reads
// the states of all hosts. It ends this host's group if a host has failed or has made a different
// call. Kernels that come to an ended group leave: see block_meeting.h.

#include "gpu/kernel.h"
#include "ops/cuda/kernel_protocol.h"

namespace dtrun::ops::cuda {
namespace {

__device__ inline Arena& ArenaOf(const VerdictArgs& args, int rank) {
  return *reinterpret_cast<Arena*>(args.group.arenas[rank]);
}

struct Verdict {
  uint32_t failure, host;
};

// Whether the ranks of a host have found `failure` themselves. The other failures are verdicts
// about several hosts: a verdict of one rank ends all ranks of its host, and a rank may be ended so
// before it tells its own state. The hosts that hear such a second-hand state must still find the
// cause.
__device__ inline bool IsFirstHand(uint64_t failure) {
  return failure == kDisagreed || failure == kTimedOut || failure == kLost ||
         failure == kGaveUpAcross;
}

__device__ inline uint32_t Elsewhere(uint64_t failure) {
  return failure == kDisagreed || failure == kHostsDisagreed || failure == kDisagreedElsewhere
             ? kDisagreedElsewhere
             : kFailedElsewhere;
}

// The cause comes first: a failure within a host, then a difference between this host and another.
__device__ inline Verdict Judge(const VerdictArgs& args) {
  if (gpu::LoadAcquire(&args.group.report->abort) != kNone) return {kGaveUpAcross, 0};
  for (int h = 0; h < args.hosts; ++h) {
    const HostState& state = args.states[h];
    if (IsFirstHand(state.failure)) return {Elsewhere(state.failure), static_cast<uint32_t>(h)};
  }
  for (int h = 0; h < args.hosts; ++h) {
    if (args.states[h].signature != args.signature)
      return {kHostsDisagreed, static_cast<uint32_t>(h)};
  }
  for (int h = 0; h < args.hosts; ++h) {
    const HostState& state = args.states[h];
    if (state.failure != kNone) return {Elsewhere(state.failure), static_cast<uint32_t>(h)};
  }
  return {kNone, 0};
}

// Other ranks of the host may do the same at the same time. So each rank writes only its own entry
// of `calls`: the entry of `by` is then written, whichever rank is the last.
__device__ inline void EndGroup(const VerdictArgs& args, const Verdict& verdict) {
  const int own = args.group.rank;
  for (int r = 0; r < args.group.size; ++r) {
    Poison& poison = ArenaOf(args, r).poison;
    poison.calls[own] = args.call;
    __threadfence_system();
    poison.by = static_cast<uint32_t>(own);
    poison.missing = verdict.host;
    gpu::StoreRelease(&poison.failure, verdict.failure);
  }
}

__device__ inline void TellHost(const VerdictArgs& args) {
  Poison& mine = ArenaOf(args, args.group.rank).poison;
  const uint32_t failure = gpu::LoadAcquire(&mine.failure);
  if (failure == kNone) return;
  Poison& report = args.group.report->poison;
  for (int r = 0; r < args.group.size; ++r) report.calls[r] = mine.calls[r];
  report.by = mine.by;
  report.missing = mine.missing;
  gpu::StoreRelease(&report.failure, failure);
}

}  // namespace
}  // namespace dtrun::ops::cuda

// Runs as one thread.
DTRUN_KERNEL(dtrun_tell_hosts, dtrun::ops::cuda::VerdictArgs) {
  using namespace dtrun::ops::cuda;
  uint32_t* failure = &ArenaOf(args, args.group.rank).poison.failure;
  args.states->signature = args.signature;
  args.states->failure = dtrun::gpu::LoadAcquire(failure);
}

// Runs as one thread.
DTRUN_KERNEL(dtrun_hear_hosts, dtrun::ops::cuda::VerdictArgs) {
  using namespace dtrun::ops::cuda;
  uint32_t* failure = &ArenaOf(args, args.group.rank).poison.failure;
  if (dtrun::gpu::LoadAcquire(failure) == kNone) {
    const Verdict verdict = Judge(args);
    if (verdict.failure != kNone) EndGroup(args, verdict);
  }
  TellHost(args);
}
