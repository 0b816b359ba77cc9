/// \file
/// dtrun for trainers on LibTorch, 1.13 or newer. Header-only: your compiler compiles it with your
/// LibTorch. The other headers of dtrun do not use LibTorch.
///
///     #include <dtrun/torch.h>                                                            // 1
///
///     dtrun::Context job = dtrun::Init();                                                 // 2
///     torch::optim::SGD sgd(model->parameters(), 0.1);
///     dtrun::torch::DistributedOptimizer optimizer(job.world(), sgd, *model);             // 3
///     auto sampler = dtrun::torch::DistributedSampler(job.world(), data.size().value());  // 4
///     ... the loop as it was, with `optimizer` in the place of `sgd` ...                  // 5
///     job.Shutdown();                                                                     // 6
///
/// After `backward()` every gradient holds the average over the ranks. Code between `backward()`
/// and `step()` (clipping, norms) therefore works as in one process. The reduction starts while
/// `backward()` still runs, bucket by bucket.
///
/// Write `dtrun::` in front of dtrun's names. `using namespace dtrun` makes `torch::` ambiguous.
#ifndef DTRUN_TORCH_H_
#define DTRUN_TORCH_H_

#include <dtrun/detail/torch_batch_norm.h>
#include <dtrun/detail/torch_checkpoint.h>
#include <dtrun/detail/torch_collectives.h>
#include <dtrun/detail/torch_kept.h>
#include <dtrun/detail/torch_loss_scale.h>
#include <dtrun/detail/torch_optimizer.h>
#include <dtrun/detail/torch_sampler.h>
#include <dtrun/detail/torch_sharded.h>
#include <dtrun/detail/torch_state.h>
#include <dtrun/detail/torch_tensors.h>
#include <dtrun/dtrun.h>

#endif
