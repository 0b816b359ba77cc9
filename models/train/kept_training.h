#ifndef DTRUN_MODELS_TRAIN_KEPT_TRAINING_H_
#define DTRUN_MODELS_TRAIN_KEPT_TRAINING_H_

#include <dtrun/context.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/callbacks/callback.h"

namespace dtrun::models {

/// The results of Fit, the same on all ranks.
struct History {
  std::vector<uint64_t> epochs;  ///< the epochs that ended in this run, from 0
  std::vector<Logs> logs;        ///< of each of these epochs
  /// The failed writes of callbacks, such as a checkpoint on a full disk. Training continued.
  std::vector<std::string> not_written;

  /// The values of one number, epoch by epoch. NaN for an epoch without the number.
  std::vector<double> Of(const std::string& name) const;
};

/// The state of a training in this process's own memory, for jobs that start lost ranks again
/// (RunElastic). When ranks are lost, Fit keeps the state after the last completed step here and
/// throws. In the next call of Fit, all ranks continue from the rank that has made the most steps.
/// No step is lost, as long as one rank is left.
///
/// If a loss ends all processes (`dtrun --restarts` with mpirun), the first rank of each host also
/// keeps the state in the host's memory after each step (Context::KeepState). The next processes
/// find it there. At most one step is lost.
///
/// The caller owns it, outside RunElastic, and passes it in FitOptions. If a replica has no whole
/// copy of the parameters (central storage, parameter servers), no state is kept. Training then
/// starts again, from its last checkpoint if there is one. Callbacks start anew, and the training
/// metrics of the current epoch leave out the examples that lost processes had counted. Not
/// thread-safe.
class KeptTraining {
 public:
  /// Says in which job the next call of Fit runs. Without it, the state does not survive this
  /// process. `job` outlives that call.
  void Attach(Context& job) { job_ = &job; }

  /// Whether Restore will find a state. Collective.
  bool IsKeptBySome(Communicator& world);
  /// Makes the state of the rank with the most steps the state of all ranks. Returns false, and
  /// changes nothing, if no rank has kept any. Collective.
  bool Restore(Run& run, History& history);

  /// Notes that this rank has computed its share of the step that follows.
  void BeginStep(Run& run);
  /// Notes that `run` is at the end of a step or of an epoch.
  void EndStep(Run& run);
  /// Keeps the state after the last EndStep. Local.
  void Keep(Run& run, const History& history);
  /// The same for the processes that take the place of this one, if this rank is to do that.
  void Store(Run& run, const History& history);

 private:
  void Load();
  static std::string NextName();

  struct Boundary {
    TrainingPosition position;
    uint64_t epoch_examples = 0;
    std::vector<double> sums = {};  // of the metrics
  };

  std::optional<Boundary> boundary_;  // none: no step has ended in this call of Fit
  std::vector<double> computed_;      // sums with the step that follows
  double learning_rate_ = 0;
  History history_;
  std::vector<std::vector<std::byte>> tensors_;  // empty: nothing is kept
  Context* job_ = nullptr;                       // null: not attached
  std::string name_ = NextName();                // of this training, the same in later processes
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_KEPT_TRAINING_H_
