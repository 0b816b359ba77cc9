#ifndef DTRUN_OPS_BOOTSTRAP_BOOTSTRAP_H_
#define DTRUN_OPS_BOOTSTRAP_BOOTSTRAP_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/listen_filter.h"
#include "ops/bootstrap/segment.h"
#include "ops/bootstrap/tcp_socket.h"

namespace dtrun::ops {

class SegmentExchange;

/// How ranks exchange data before their communicator exists. Every call is collective over the
/// ranks of the future communicator, in the same order. Implementations: MPI, a unix socket of one
/// host (JoinLocally), TCP between hosts (JoinAtStore), an existing communicator, some ranks of
/// another bootstrap, threads of one process (tests).
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Gathers the bytes of every rank, in rank order. Lengths may differ.
  virtual std::vector<std::string> AllGather(const std::string& bytes) = 0;
  /// Connects the ranks of `ranks`, which share a host, so that they can share memory. `ranks` is
  /// this bootstrap or a subset of it.
  virtual std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) = 0;
};

/// Lets some ranks of a bootstrap exchange data through gathers over all of its ranks. Several such
/// groups may exist at the same time, one on each rank, and may need different numbers of gathers.
/// So every rank calls `Finish` in the end, also a rank that has no group or has failed.
class SubsetBootstrap : public Bootstrap {
 public:
  /// `ranks` lists ranks of `parent`, in the order of their ranks here.
  SubsetBootstrap(Bootstrap& parent, std::vector<int> ranks)
      : parent_(parent), ranks_(std::move(ranks)) {}

  int rank() const override;
  int size() const override { return static_cast<int>(ranks_.size()); }
  /// Throws Error kSystem if a rank of the group has called `Finish`, because that rank has failed.
  std::vector<std::string> AllGather(const std::string& bytes) override;
  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override;

  /// Says that this rank is done. Returns when all ranks of the parent are done.
  void Finish();

 private:
  Bootstrap& parent_;
  std::vector<int> ranks_;
};

/// Passes memory from rank to rank within one host.
class SegmentExchange {
 public:
  virtual ~SegmentExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Collective: every rank passes a segment, or null, and gets the segments of all ranks in rank
  /// order.
  virtual std::vector<std::shared_ptr<Segment>> AllGather(std::shared_ptr<Segment> mine) = 0;
  /// Collective: another exchange of the same kind, for the ranks of `bootstrap`, which all belong
  /// to this exchange.
  virtual std::unique_ptr<SegmentExchange> ConnectAnother(Bootstrap& bootstrap) = 0;
};

/// An exchange between processes. It passes file descriptors over unix sockets in the abstract
/// namespace, which end with the processes and belong to one network namespace. Rank 0 is the hub.
/// Only processes of the same user may connect.
std::unique_ptr<SegmentExchange> ConnectSocketExchange(
    Bootstrap& bootstrap, std::chrono::seconds timeout);

/// Passes file descriptors of any kind from rank to rank within one host.
class DescriptorExchange {
 public:
  virtual ~DescriptorExchange() = default;
  /// Collective: every rank passes a descriptor, or a negative number for none. Returns the
  /// descriptors of the other ranks, by rank. This rank's own entry is empty.
  virtual std::vector<FileDescriptor> AllGather(int mine) = 0;
};

/// The same for any descriptors. The ranks may also be threads of one process.
std::unique_ptr<DescriptorExchange> ConnectDescriptorExchange(
    Bootstrap& bootstrap, std::chrono::seconds timeout);

/// The meeting of the ranks of one host, and the rank of this process.
struct LocalMeeting {
  std::string name;  ///< any bytes; the same on all ranks, different for every other job
  int rank = 0, size = 1;
  std::chrono::seconds timeout{600};       ///< of each wait
  std::chrono::seconds warning_after{30};  ///< of the wait for missing ranks
  /// Called once on the hub with the ranks that have not come, and elsewhere with the rank that
  /// does not answer. May be empty.
  std::function<void(const std::string& text)> warn = {};
  /// Returns the rank as which a process of this host was started, before the process itself says
  /// so. May be empty.
  std::function<std::optional<int>(int process)> rank_of = {};
};

/// Connects the ranks of one host without MPI, over a unix socket in the abstract namespace. The
/// socket leaves no file, however its processes end. Only processes of this user may connect, and
/// the meetings of different users have different names.
///
/// Collective. Throws Error kTimeout, which names the missing ranks; kInvalidArgument if two
/// processes have the same rank; kMismatch if the processes expect different numbers of ranks;
/// kPeerLost, at once and with the rank, if a process ends meanwhile; kSystem. Gathers of the
/// result throw kTimeout, kPeerLost and kSystem. After an error the result is unusable.
std::unique_ptr<Bootstrap> JoinLocally(const LocalMeeting& meeting);

/// The meeting of ranks at a TCP address where rank 0 listens, and the rank of this process.
struct StoreMeeting {
  TcpPlace place;    ///< an address of rank 0's host, and a port
  std::string name;  ///< any bytes; the same on all ranks of the job
  int rank = 0, size = 1;
  /// Rank 0 and every other rank prove to each other that they know the secret. Later frames are
  /// sealed with it, so nobody on the network can alter them. The frames are not encrypted. "": no
  /// proof and no seal.
  std::string secret = {};
  /// Without a secret: the networks from which rank 0 accepts ranks, besides its own loopback.
  std::vector<base::AddressBlock> trusted = {};
  std::chrono::seconds timeout{600};       ///< of each wait
  std::chrono::seconds warning_after{30};  ///< of the wait for missing ranks
  /// Called once on rank 0 with the ranks that have not come, and elsewhere if rank 0 does not
  /// answer. On rank 0 also called once for each address from which rank 0 has refused a
  /// connection. May be empty.
  std::function<void(const std::string& text)> warn = {};
  /// Called on rank 0 with its port as soon as it listens. Then `place.port` may be 0 on rank 0:
  /// any free port. May be empty.
  std::function<void(int port)> listening = {};
  uint64_t most_bytes = 1 << 30;  ///< that all ranks together may bring to a gather
};

/// Connects ranks on any hosts without MPI. Rank 0 listens until all ranks have come. The other
/// ranks connect, and retry until the timeout. Connections from other programs end without an
/// effect on the ranks.
///
/// Collective. Throws the errors of JoinLocally. Other errors: kInvalidArgument for a rank or a
/// port out of range; kSystem if rank 0 cannot listen at the address; kMismatch if rank 0 belongs
/// to another job; kUnavailable if rank 0 or this rank does not know the secret, or if rank 0 does
/// not trust the address of this rank.
std::unique_ptr<Bootstrap> JoinAtStore(const StoreMeeting& meeting);

struct ThreadMeetings;

/// Ranks that are threads of one process. They share segments by address. Each thread makes its own
/// bootstrap with `Join`, all with the same ThreadRanks, which they keep alive. Thread-safe.
class ThreadRanks {
 public:
  explicit ThreadRanks(int size);

  int size() const { return size_; }
  /// The bootstrap of rank `rank`. Each rank joins once.
  std::unique_ptr<Bootstrap> Join(int rank) const;

 private:
  int size_;
  std::shared_ptr<ThreadMeetings> meetings_;
};

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_BOOTSTRAP_BOOTSTRAP_H_
