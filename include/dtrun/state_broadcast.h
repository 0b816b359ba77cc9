#ifndef DTRUN_STATE_BROADCAST_H_
#define DTRUN_STATE_BROADCAST_H_

#include <dtrun/communicator.h>
#include <dtrun/optimizer.h>

#include <vector>

namespace dtrun {

namespace detail {

// At most two broadcasts are under way: while one moves its data, the ranks meet in the next one.
// So a network of many parameters takes two rows of a timeline, not one row per parameter.
inline void BroadcastInTurn(
    Communicator& communicator, const std::vector<Buffer>& buffers, int root) {
  std::vector<Work> works;
  for (const Buffer& buffer : buffers) {
    works.push_back(communicator.StartBroadcast(buffer, root));
    if (works.size() > 1) works[works.size() - 2].Wait();
  }
  if (!works.empty()) works.back().Wait();
}

}  // namespace detail

/// Makes the parameters of all ranks equal to those of rank `root`. Collective.
inline void BroadcastParameters(
    Communicator& communicator, const std::vector<Parameter>& parameters, int root = 0) {
  std::vector<Buffer> values;
  for (const Parameter& parameter : parameters) values.push_back(parameter.value);
  detail::BroadcastInTurn(communicator, values, root);
}

/// Makes named buffers of all ranks equal to those of rank `root`, for state of a model besides its
/// parameters, for example running statistics. Collective.
inline void BroadcastBuffers(
    Communicator& communicator, const std::vector<NamedBuffer>& buffers, int root = 0) {
  std::vector<Buffer> values;
  for (const NamedBuffer& buffer : buffers) values.push_back(buffer.buffer);
  detail::BroadcastInTurn(communicator, values, root);
}

/// Broadcasts parameters and buffers. Collective.
inline void BroadcastParameters(
    Communicator& communicator, const std::vector<Parameter>& parameters,
    const std::vector<NamedBuffer>& buffers, int root = 0) {
  BroadcastParameters(communicator, parameters, root);
  BroadcastBuffers(communicator, buffers, root);
}

/// Makes the optimizer's state (moments, step counts) of all ranks equal to that of rank `root`.
/// Collective.
inline void BroadcastOptimizerState(
    Communicator& communicator, Optimizer& optimizer, int root = 0) {
  BroadcastBuffers(communicator, optimizer.state(), root);
}

}  // namespace dtrun

#endif
