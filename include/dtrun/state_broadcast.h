#ifndef DTRUN_STATE_BROADCAST_H_
#define DTRUN_STATE_BROADCAST_H_

#include <dtrun/communicator.h>
#include <dtrun/optimizer.h>

#include <vector>

namespace dtrun {

/// Makes the parameters of all ranks equal to those of rank `root`. Collective.
inline void BroadcastParameters(
    Communicator& communicator, const std::vector<Parameter>& parameters, int root = 0) {
  std::vector<Work> works;
  for (const Parameter& parameter : parameters)
    works.push_back(communicator.StartBroadcast(parameter.value, root));
  for (Work& work : works) work.Wait();
}

/// Makes named buffers of all ranks equal to those of rank `root`, for state of a model besides its
/// parameters, for example running statistics. Collective.
inline void BroadcastBuffers(
    Communicator& communicator, const std::vector<NamedBuffer>& buffers, int root = 0) {
  std::vector<Work> works;
  for (const NamedBuffer& buffer : buffers)
    works.push_back(communicator.StartBroadcast(buffer.buffer, root));
  for (Work& work : works) work.Wait();
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
