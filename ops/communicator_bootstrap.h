#ifndef DTRUN_OPS_COMMUNICATOR_BOOTSTRAP_H_
#define DTRUN_OPS_COMMUNICATOR_BOOTSTRAP_H_

#include "ops/bootstrap.h"
#include "ops/communicator.h"
#include "ops/segment_exchange.h"

namespace dtrun::ops {

/// Lets ranks that can talk already set up another communicator. What it is given outlives it.
class CommunicatorBootstrap : public Bootstrap {
 public:
  /// `exchange` is one that these ranks have; null when they do not share a host.
  CommunicatorBootstrap(Communicator& communicator, SegmentExchange* exchange)
      : communicator_(communicator), exchange_(exchange) {}

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  std::vector<std::string> AllGather(const std::string& bytes) override;
  std::unique_ptr<SegmentExchange> ConnectSegmentExchange() override;

 private:
  Communicator& communicator_;
  SegmentExchange* exchange_;
};

}  // namespace dtrun::ops

#endif
