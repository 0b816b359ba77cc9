#ifndef DTRUN_OPS_BOOTSTRAP_H_
#define DTRUN_OPS_BOOTSTRAP_H_

#include <memory>
#include <string>
#include <vector>

namespace dtrun::ops {

class SegmentExchange;

/// All that a backend may ask for before it exists. Every call is collective over the ranks of the
/// communicator to be, in the same order. Implementations: MPI, an existing communicator, threads
/// of one process (tests).
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The bytes of every rank in rank order; lengths may differ.
  virtual std::vector<std::string> AllGather(const std::string& bytes) = 0;
  /// How these ranks, which share a host, hand each other memory.
  virtual std::unique_ptr<SegmentExchange> ConnectSegmentExchange() = 0;
};

}  // namespace dtrun::ops

#endif
