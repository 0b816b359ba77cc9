#ifndef DTRUN_OPS_COMMUNICATOR_BOOTSTRAP_H_
#define DTRUN_OPS_COMMUNICATOR_BOOTSTRAP_H_

#include "ops/bootstrap.h"
#include "ops/communicator.h"

namespace dtrun::ops {

/// Lets ranks that can talk already set up another communicator. What it is given outlives it.
class CommunicatorBootstrap : public Bootstrap {
 public:
  explicit CommunicatorBootstrap(Communicator& communicator) : communicator_(communicator) {}

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  std::vector<std::string> AllGather(const std::string& bytes) override {
    return AllGatherBytes(communicator_, bytes);
  }
  /// Throws Error kUnavailable: only a backend that has shared memory can hand on some.
  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override;

 private:
  Communicator& communicator_;
};

}  // namespace dtrun::ops

#endif
