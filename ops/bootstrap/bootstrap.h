#ifndef DTRUN_OPS_BOOTSTRAP_BOOTSTRAP_H_
#define DTRUN_OPS_BOOTSTRAP_BOOTSTRAP_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/bootstrap/segment.h"

namespace dtrun::ops {

class SegmentExchange;

/// All that a backend may ask for before it exists. Every call is collective over the ranks of the
/// communicator to be, in the same order. Implementations: MPI, a unix socket of one host
/// (JoinLocally), an existing communicator, some ranks of another bootstrap, threads of one
/// process (tests).
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The bytes of every rank in rank order; lengths may differ.
  virtual std::vector<std::string> AllGather(const std::string& bytes) = 0;
  /// How the ranks of `ranks` (this, or a subset of it), which share a host, hand each other
  /// memory.
  virtual std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) = 0;
};

/// Lets some ranks of a bootstrap talk by means of gathers over all of it. Several such groups may
/// exist at the same time, one on each rank, and need different numbers of gathers: every rank
/// calls `Finish` in the end, also one that belongs to no group or has failed.
class SubsetBootstrap : public Bootstrap {
 public:
  /// `ranks`: of `parent`, in the order that they get here.
  SubsetBootstrap(Bootstrap& parent, std::vector<int> ranks)
      : parent_(parent), ranks_(std::move(ranks)) {}

  int rank() const override;
  int size() const override { return static_cast<int>(ranks_.size()); }
  /// Throws Error kSystem when a rank of the group has called `Finish`: it has failed.
  std::vector<std::string> AllGather(const std::string& bytes) override;
  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override;

  /// This rank wants nothing more; returns when that is true of all ranks of the parent.
  void Finish();

 private:
  Bootstrap& parent_;
  std::vector<int> ranks_;
};

/// Hands memory from rank to rank within one host.
class SegmentExchange {
 public:
  virtual ~SegmentExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Collective: every rank brings one segment, or none (null), and gets everybody's, in rank
  /// order.
  virtual std::vector<std::shared_ptr<Segment>> AllGather(std::shared_ptr<Segment> mine) = 0;
  /// Collective: one more of the same kind, for the ranks of `bootstrap`, which
  /// are all among these.
  virtual std::unique_ptr<SegmentExchange> ConnectAnother(Bootstrap& bootstrap) = 0;
};

/// Between processes: file descriptors over unix sockets in the abstract namespace (gone with the
/// processes, and scoped to the network namespace). Rank 0 is the hub. Only processes of the same
/// user are let in.
std::unique_ptr<SegmentExchange> ConnectSocketExchange(
    Bootstrap& bootstrap, std::chrono::seconds timeout);

/// Hands file descriptors from rank to rank within one host, of whatever they are.
class DescriptorExchange {
 public:
  virtual ~DescriptorExchange() = default;
  /// Collective: every rank brings a descriptor, or none (a negative number), and gets those of the
  /// others, by rank; there is none at its own place.
  virtual std::vector<FileDescriptor> AllGather(int mine) = 0;
};

/// In the same way; ranks may be threads of one process, too.
std::unique_ptr<DescriptorExchange> ConnectDescriptorExchange(
    Bootstrap& bootstrap, std::chrono::seconds timeout);

/// Where the ranks of one host meet, and who of them this one is.
struct LocalMeeting {
  std::string name;  ///< any bytes, the same on all ranks and on those of no other job
  int rank = 0, size = 1;
  std::chrono::seconds timeout{600};       ///< of each wait
  std::chrono::seconds warning_after{30};  ///< of waiting for ranks to come
  /// Told once which ranks have not come, on one rank; and which rank does not answer. May be
  /// empty.
  std::function<void(const std::string& text)> warn = {};
  /// Which rank a process of this host was started as, before that process says so itself. May be
  /// empty.
  std::function<std::optional<int>(int process)> rank_of = {};
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

#endif  // DTRUN_OPS_BOOTSTRAP_BOOTSTRAP_H_
