#ifndef DTRUN_DISTRIBUTED_OPTIMIZER_H_
#define DTRUN_DISTRIBUTED_OPTIMIZER_H_

#include <dtrun/communicator.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <memory>
#include <string>
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

/// Wraps an optimizer so that each step uses the gradients of all ranks: they are reduced in
/// buckets while the backward pass still runs, and `Step()` waits for them before the inner step.
/// No negotiation, no cycle; no copy of gradients that live in its block.
///
///   optimizer.MarkReady(i)   optional: as soon as the gradient of parameter i is complete
///   optimizer.Step()         reduces what was not marked, waits, and lets the inner optimizer step
///
/// Parameters without gradient memory get it here, in a block that every rank of the host maps. Not
/// thread-safe. The inner optimizer outlives it and keeps the gradient memory it gave; use it no
/// more after this object is gone.
class DistributedOptimizer : public Optimizer {
 public:
  /// Collective: all ranks wrap optimizers of the same parameters. `options.op` is kAverage unless
  /// the loss is already divided by the global batch: then kSum.
  DistributedOptimizer(Communicator& communicator, Optimizer& inner, ReducerOptions options = {})
      : inner_(inner), reducer_(communicator, GradientsOf(inner), options) {
    std::vector<Parameter>& parameters = inner_.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].gradient = reducer_.gradient(i);
  }

  void MarkReady(size_t i) { reducer_.MarkReady(i); }

  void Step() override {
    reducer_.Wait();
    inner_.Step();
  }

  std::vector<Parameter>& parameters() override { return inner_.parameters(); }
  std::vector<NamedBuffer> state() override { return inner_.state(); }

 private:
  static std::vector<Gradient> GradientsOf(Optimizer& optimizer) {
    std::vector<Gradient> gradients;
    for (const Parameter& parameter : optimizer.parameters()) {
      Buffer gradient = parameter.gradient;
      if (gradient.data == nullptr)
        gradient = Buffer(nullptr, parameter.value.count, parameter.value.dtype);
      gradients.push_back({parameter.name, gradient});
    }
    return gradients;
  }

  Optimizer& inner_;
  GradientReducer reducer_;
};

}  // namespace dtrun

#endif
