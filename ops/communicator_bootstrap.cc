#include "ops/communicator_bootstrap.h"

#include "dtrun/error.h"
#include "ops/segment_exchange.h"

namespace dtrun::ops {

std::unique_ptr<SegmentExchange> CommunicatorBootstrap::ConnectSegmentExchange(Bootstrap&) {
  throw Error(
      ErrorCode::kUnavailable, "these ranks do not share a host, so they cannot share memory");
}

}  // namespace dtrun::ops
