#ifndef DTRUN_MODELS_CALLBACKS_CALLBACK_H_
#define DTRUN_MODELS_CALLBACKS_CALLBACK_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/callbacks/run.h"

namespace dtrun::models {

/// What happens besides training, at its turns. Derive from it and override what you need.
///
/// Every rank has the same callbacks in the same order and calls them at the same turns, so a
/// callback may use the run's communicator; what is to be printed or written is rank 0's.
///
/// The logs of a batch are this rank's: "loss" and the metrics since the epoch began. Those of an
/// epoch, a test and the whole training are all ranks' together; a callback may add to an epoch's
/// logs for those after it and for the History, the same names on all ranks.
///
/// An error that a callback throws on one rank ends training on all of them, with its text and the
/// name of the callback in front.
class Callback {
 public:
  virtual ~Callback() = default;

  /// What errors call it: "EarlyStopping".
  virtual std::string name() const = 0;

  virtual void OnTrainBegin(Run&) {}
  virtual void OnTrainEnd(Run&, const Logs&) {}
  virtual void OnEpochBegin(Run&) {}
  /// After the epoch's validation.
  virtual void OnEpochEnd(Run&, Logs&) {}
  virtual void OnBatchBegin(Run&) {}
  virtual void OnBatchEnd(Run&, const Logs&) {}

  /// Of Evaluate, and of the validation in an epoch.
  virtual void OnTestBegin(Run&) {}
  virtual void OnTestEnd(Run&, const Logs&) {}
  virtual void OnTestBatchBegin(Run&) {}
  virtual void OnTestBatchEnd(Run&, const Logs&) {}

  virtual void OnPredictBegin(Run&) {}
  virtual void OnPredictEnd(Run&) {}
  virtual void OnPredictBatchBegin(Run&) {}
  virtual void OnPredictBatchEnd(Run&) {}
};

using CallbackList = std::vector<std::unique_ptr<Callback>>;

/// Callbacks(EarlyStopping({.patience = 2}), Throughput())
template <typename... Cs>
CallbackList Callbacks(Cs... callbacks) {
  CallbackList list;
  (list.push_back(std::make_unique<Cs>(std::move(callbacks))), ...);
  return list;
}

}  // namespace dtrun::models

#endif
