#ifndef DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_SETUP_H_
#define DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_SETUP_H_

#include <functional>
#include <string>

#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"

namespace dtrun::ops {

/// Lets the ranks of a communicator set up another communicator. `communicator` outlives the
/// object.
class CommunicatorBootstrap : public Bootstrap {
 public:
  explicit CommunicatorBootstrap(Communicator& communicator) : communicator_(communicator) {}

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  std::vector<std::string> AllGather(const std::string& bytes) override {
    return AllGatherBytes(communicator_, bytes);
  }
  /// Throws Error kUnavailable: only a backend with shared memory can pass on shared memory.
  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override;

 private:
  Communicator& communicator_;
};

}  // namespace dtrun::ops

namespace dtrun::ops::cuda {

/// Collective: calls `ask` on every rank and returns the first non-empty text, preceded by its
/// rank. An Error that `ask` throws counts as its text. Returns "" if no rank objects. The same on
/// all ranks.
std::string FirstObjection(Communicator& host, const std::function<std::string()>& ask);

/// Collective: runs a step of a setup that may fail on single ranks. If the step fails on any rank,
/// throws Error kUnavailable on all ranks.
void AgreeOn(Communicator& host, const std::function<void()>& step);

/// Collective: compares the calls that the ranks of `host` made, on any backend. If they differ,
/// throws Error kMismatch on all ranks, with the call of each rank. If a rank does not come, the
/// errors of `host` name the call.
void AgreeOnCall(Communicator& host, const Collective& collective);

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_COMMUNICATOR_COMMUNICATOR_SETUP_H_
