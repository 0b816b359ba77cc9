#ifndef DTRUN_MODELS_CALLBACKS_TRAINING_STATE_H_
#define DTRUN_MODELS_CALLBACKS_TRAINING_STATE_H_

#include <dtrun/checkpoint.h>

#include <vector>

#include "models/callbacks/run.h"

namespace dtrun::models {

/// What a checkpoint holds of a run, so that it goes on as if it had not been broken off: the
/// parameters, the network's buffers and the optimizer's state ("optimizer/..."), and in its
/// metadata the position, the learning rate, the loss's scale if there is one, and what the metrics
/// of the epoch add up to on each rank. The order of examples and the dropout masks need nothing
/// more: they are functions of the position.

/// The values of the parameters and of the network's buffers.
std::vector<NamedTensor> WeightsOf(Run& run);
/// And the optimizer's state, to be saved; valid until the next step. Collective.
std::vector<NamedTensor> StateOf(Run& run);
/// The same to be loaded into; what was loaded counts after TakeState. Collective, both.
std::vector<NamedTensor> StateToLoad(Run& run);
void TakeState(Run& run);

/// Collective.
Metadata RemarksOf(Run& run);

/// Goes on where the metadata says. In the same number of ranks it is the same bit for bit; in
/// another, rank 0 has the sums of all. An epoch of another number of steps begins again. Without
/// a loss scale in it, `run.loss_scale` stays what it is. Throws
/// Error kInvalidArgument when the metadata is not that of a run.
void ResumeFrom(Run& run, const Metadata& metadata);

}  // namespace dtrun::models

#endif
