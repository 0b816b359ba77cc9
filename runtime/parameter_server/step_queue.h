#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_STEP_QUEUE_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_STEP_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

namespace dtrun::runtime {

/// The steps of a training, handed out to workers: each at least once. That of a worker which is
/// lost goes to another one, and is then done twice if its gradient had been applied already, by
/// all servers or by some. Pure.
class StepQueue {
 public:
  /// Steps [first, end). At most `most_out` are out at a time.
  StepQueue(uint64_t first, uint64_t end, uint64_t most_out);

  /// The next step for `worker`, which has none; nothing while it has to wait, or when all is over.
  std::optional<uint64_t> Take(int worker);
  /// Its step is done.
  void Done(int worker);
  /// It will not do its step, which is returned: it is the next one to be handed out.
  std::optional<uint64_t> Lose(int worker);

  /// No step is left, and none is out.
  bool over() const { return next_ >= end_ && again_.empty() && out_.empty(); }
  /// How many are done, those before `first` included.
  uint64_t done() const { return done_; }
  /// How many were handed out more than once.
  uint64_t repeated() const { return repeated_; }

 private:
  uint64_t next_, end_, most_out_, done_;
  uint64_t repeated_ = 0;
  std::deque<uint64_t> again_;
  std::map<int, uint64_t> out_;  // by worker
};

}  // namespace dtrun::runtime

#endif
