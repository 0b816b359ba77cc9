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

/// Makes the optimizer's state (moments, step counts) of all ranks equal to that of rank `root`.
/// Collective.
inline void BroadcastOptimizerState(
    Communicator& communicator, Optimizer& optimizer, int root = 0) {
  std::vector<Work> works;
  for (const NamedBuffer& state : optimizer.state())
    works.push_back(communicator.StartBroadcast(state.buffer, root));
  for (Work& work : works) work.Wait();
}

}  // namespace dtrun

#endif
