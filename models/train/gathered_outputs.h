#ifndef DTRUN_MODELS_TRAIN_GATHERED_OUTPUTS_H_
#define DTRUN_MODELS_TRAIN_GATHERED_OUTPUTS_H_

#include <dtrun/communicator.h>

#include <cstdint>
#include <vector>

namespace dtrun::models {

/// One rank's part of the outputs for several global batches.
struct OutputShares {
  std::vector<float> outputs;    ///< of its share of each batch, one after the other
  std::vector<uint64_t> counts;  ///< floats of each batch
};

/// The outputs of all ranks in the order of the data: batch by batch, the shares of a batch in rank
/// order. On rank 0 alone unless `on_all_ranks`. Collective; all ranks have the same batches.
///   rank 0: {a0, b0}   rank 1: {a1, b1}  ->  {a0, a1, b0, b1}
std::vector<float> Gather(Communicator& world, OutputShares mine, bool on_all_ranks);

}  // namespace dtrun::models

#endif
