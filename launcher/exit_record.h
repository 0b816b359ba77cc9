#ifndef DTRUN_LAUNCHER_EXIT_RECORD_H_
#define DTRUN_LAUNCHER_EXIT_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"

namespace dtrun::launcher {

enum class RankEnd {
  kRunning,     ///< its wrapper has not seen it end
  kExited,      ///< `value` is the exit code
  kSignaled,    ///< `value` is the signal
  kNotStarted,  ///< `value` is the errno of exec
};

/// How one rank of this host ended: written by its wrapper into the job's folder, read by dtrun
/// when all is over.
struct ExitRecord {
  int rank = 0;
  RankEnd end = RankEnd::kRunning;
  int value = 0;
  int64_t time_ns = 0;       ///< when, on the host's monotonic clock
  bool in_order = false;     ///< it had called dtrun's Shutdown
  std::string gave_up = {};  ///< the error with which it gave up waiting for others; "": it did not

  bool operator==(const ExitRecord&) const = default;
};

/// The file that dtrun's Shutdown makes for this rank.
std::string ShutdownNote(const std::string& folder, int rank);

/// A file in the job's folder that says how the rank is; made when the rank starts. Where there is
/// no such folder, on another host, there is no file and Update does nothing.
class ExitRecordFile {
 public:
  ExitRecordFile(const std::string& folder, int rank);
  ~ExitRecordFile();
  ExitRecordFile(const ExitRecordFile&) = delete;
  ExitRecordFile& operator=(const ExitRecordFile&) = delete;

  bool exists() const { return file_ >= 0; }
  /// Also notes the time.
  void Update(RankEnd end, int value);

 private:
  int file_;
};

/// The records of all ranks that were started on this host, in no order.
std::vector<ExitRecord> ReadExitRecords(const std::string& folder);

/// What dtrun ends with when its job failed, and the line that says why: none where a rank that
/// left in good order has chosen its exit code, and has said why itself.
struct Verdict {
  int exit_code;
  std::string message;
};

/// Who failed first. `engine_code` is mpirun's exit code, not 0; `hosts` the placement, of which
/// `watched_ranks` ranks are on this machine and leave a record if they start. Ranks that mpirun
/// ended because of the first one are not counted.
Verdict JudgeFailure(
    const std::vector<ExitRecord>& records, int engine_code,
    const std::vector<base::HostSlots>& hosts, int watched_ranks);

/// "SIGSEGV"
std::string SignalName(int signal);

}  // namespace dtrun::launcher

#endif
