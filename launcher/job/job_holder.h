#ifndef DTRUN_LAUNCHER_JOB_JOB_HOLDER_H_
#define DTRUN_LAUNCHER_JOB_JOB_HOLDER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// Bytes kept on the disk, in a file without a name, until somebody reads them.
class Spool {
 public:
  Spool() = default;
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  bool empty() const { return begin_ == end_; }
  /// Returns false if the disk has no room.
  bool Add(std::string_view bytes);
  /// The next bytes, at most `most`.
  std::string Take(size_t most);
  void Clear();

 private:
  int file_ = -1;
  int64_t begin_ = 0, end_ = 0;
};

/// An output stream of a job on its way to a file of the front (job_front.h), which may be lost and
/// replaced. Without a front, the output is kept in a Spool.
class HeldStream {
 public:
  /// Owns `from`, the read end of a pipe or terminal, and `to`, the front's file.
  HeldStream(Poller& poller, int from, int to);
  ~HeldStream();
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  /// The job has ended the stream, and all of it was written.
  bool is_done() const { return from_ < 0 && !waits(); }

  void LoseFront();
  /// The file of another front. Owns `to`.
  void SetFront(int to);
  /// Gives the job's terminal the size of the front's.
  void CopySize() const;

  /// The file does not take output any more: its reader has gone, or the front was lost.
  bool is_broken() const { return broken_at_.has_value(); }
  /// Call it now and then. If the front still runs some time after its file has broken, as in dtrun
  /// ... | head, the job learns of it.
  void Tick();
  /// Ends a stream that a process outside the job keeps open, unless output is on its way.
  void EndIfIdle();

 private:
  bool waits() const { return !queue_.empty() || !spool_.empty() || !behind_spool_.empty(); }
  void CloseFrom();
  void CloseTo();
  void Update();
  void Read();
  void Write();

  Poller& poller_;
  int from_, to_;  // -1: none
  // In the order in which they go out. The last one has bytes only if the disk is full.
  std::string queue_;
  Spool spool_;
  std::string behind_spool_;
  std::optional<std::chrono::steady_clock::time_point> broken_at_;
};

/// Becomes the holder of job `name`, runs `work` in a child process, and ends this process when a
/// front has the exit code, or none has come for `grace`. `connection` leads to the first front;
/// others connect to `listener`. Owns both.
[[noreturn]] void HoldJob(
    const std::string& name, std::chrono::seconds grace, int listener, int connection,
    const std::function<int()>& work);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_JOB_HOLDER_H_
