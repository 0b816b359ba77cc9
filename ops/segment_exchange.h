#ifndef DTRUN_OPS_SEGMENT_EXCHANGE_H_
#define DTRUN_OPS_SEGMENT_EXCHANGE_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "ops/bootstrap.h"
#include "ops/segment.h"

namespace dtrun::ops {

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

}  // namespace dtrun::ops

#endif
