#ifndef DTRUN_TESTS_CONFORMANCE_RANKS_H_
#define DTRUN_TESTS_CONFORMANCE_RANKS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrun/types.h"

namespace dtrun::testing {

using Counts = std::vector<uint64_t>;

enum class Kind {
  kAllReduce,
  kReduceScatter,
  kReduce,
  kBroadcast,
  kAllGather,
  kAllToAll,
  kGather,
  kScatter,
};

constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kReduceScatter, Kind::kReduce, Kind::kBroadcast,
                           Kind::kAllGather, Kind::kAllToAll,      Kind::kGather, Kind::kScatter};

const char* NameOf(Kind kind);

/// The arguments of one collective. A broadcast has an input at the root and an output on the other
/// ranks.
struct Operation {
  Kind kind = Kind::kAllReduce;
  Buffer input = {}, output = {};
  ReduceOp op = ReduceOp::kSum;
  Scale scale = {};
  int root = 0;
  Counts send_counts = {}, receive_counts = {};
};

/// One started operation.
class Started {
 public:
  virtual ~Started() = default;
  virtual bool Test() = 0;
  virtual void Wait() = 0;
};

/// The interface that the conformance suite tests. The communicators of ops/ and of the public API
/// have adapters to it.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual std::unique_ptr<Started> Start(const Operation& operation) = 0;
  virtual std::unique_ptr<Started> StartBarrier() = 0;
  virtual std::unique_ptr<Started> StartSend(Buffer buffer, int peer) = 0;
  virtual std::unique_ptr<Started> StartReceive(Buffer buffer, int peer) = 0;

  /// Memory that collectives reach without a copy. Freed with the last pointer.
  virtual std::shared_ptr<void> Allocate(uint64_t bytes) = 0;
  virtual std::unique_ptr<Ranks> Duplicate() = 0;
  virtual std::unique_ptr<Ranks> Split(int colour, int key) = 0;
  virtual std::unique_ptr<Ranks> Subset(const std::vector<int>& ranks) = 0;
};

}  // namespace dtrun::testing

#endif
