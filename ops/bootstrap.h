#ifndef DTRUN_OPS_BOOTSTRAP_H_
#define DTRUN_OPS_BOOTSTRAP_H_

#include <memory>
#include <string>
#include <vector>

namespace dtrun::ops {

class SegmentExchange;

/// All that a backend may ask for before it exists. Every call is collective over the ranks of the
/// communicator to be, in the same order. Implementations: MPI, a unix socket of one host
/// (local_bootstrap.h), an existing communicator, some ranks of another bootstrap, threads of one
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

}  // namespace dtrun::ops

#endif
