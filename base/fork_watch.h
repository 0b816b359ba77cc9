#ifndef DTRUN_BASE_FORK_WATCH_H_
#define DTRUN_BASE_FORK_WATCH_H_

namespace dtrun::base {

/// Tells whether this is still the process that made it, at the cost of a comparison. A child that
/// was forked has copies of memory, but neither the threads nor the peers of its parent.
class ForkWatch {
 public:
  ForkWatch();
  bool forked() const;

 private:
  int generation_;
};

}  // namespace dtrun::base

#endif
