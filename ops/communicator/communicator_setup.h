#ifndef DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_SETUP_H_
#define DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_SETUP_H_

#include <functional>
#include <string>

#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"

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

namespace dtrun::ops::cuda {

/// Collective: what `ask` returns, or throws as an Error, on the first rank where that is not "",
/// with the rank; "" when there is none. The same on all ranks.
std::string FirstObjection(Communicator& host, const std::function<std::string()>& ask);

/// Collective: does a step of a setup that may fail on this rank alone. Throws Error kUnavailable
/// on all ranks when it has failed on one.
void AgreeOn(Communicator& host, const std::function<void()>& step);

/// Collective: compares what the ranks of `host` have called, by whatever backend it is done.
/// Throws Error kMismatch, on all ranks, with who called what.
void AgreeOnCall(Communicator& host, const Collective& collective);

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_SETUP_H_
