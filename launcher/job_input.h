#ifndef DTRUN_LAUNCHER_JOB_INPUT_H_
#define DTRUN_LAUNCHER_JOB_INPUT_H_

#include <cstddef>
#include <functional>
#include <string>

#include "launcher/poller.h"

namespace dtrun::launcher {

/// dtrun's own stdin on its way to a rank. It reads no more than the rank takes: at most kWindow
/// bytes are under way.
class JobInput {
 public:
  static constexpr size_t kWindow = 256 * 1024;

  /// `send` gets what was read, "" at the end.
  JobInput(Poller& poller, std::function<void(std::string bytes)> send);
  ~JobInput();
  JobInput(const JobInput&) = delete;
  JobInput& operator=(const JobInput&) = delete;

  /// The rank has taken so much, and will read more only if `open`.
  void Taken(size_t bytes, bool open);
  /// Called now and then: a terminal can be read by the job in its foreground alone.
  void Tick();

 private:
  void Update();
  void Read();

  Poller& poller_;
  std::function<void(std::string)> send_;
  size_t under_way_ = 0;
  bool ended_ = false, in_background_ = false;
};

}  // namespace dtrun::launcher

#endif
