#ifndef DTRUN_MODELS_LAYERS_AVERAGE_BUFFERS_H_
#define DTRUN_MODELS_LAYERS_AVERAGE_BUFFERS_H_

#include <dtrun/communicator.h>
#include <dtrun/optimizer.h>

#include <vector>

namespace dtrun::models {

/// Makes the buffers of all ranks equal: each the mean over the ranks. For the moving averages of a
/// BatchNorm that is not synchronised, before all ranks evaluate or one saves them. Collective.
inline void AverageBuffers(Communicator& communicator, const std::vector<NamedBuffer>& buffers) {
  std::vector<Work> works;
  for (const NamedBuffer& buffer : buffers)
    works.push_back(communicator.StartAllReduce(buffer.buffer, ReduceOp::kAverage));
  for (Work& work : works) work.Wait();
}

}  // namespace dtrun::models

#endif
