#ifndef DTRUN_LAUNCHER_AGENT_HOST_RANKS_H_
#define DTRUN_LAUNCHER_AGENT_HOST_RANKS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/protocol/frame.h"
#include "launcher/support/host_system.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

// ---- Start --------------------------------------------------------------------------------------

/// How the wrapper of a rank was started, so that the agent can start it again.
class RankStart {
 public:
  RankStart() = default;
  /// Reads the command, the environment and the folder with which running process `wrapper` was
  /// started. Empty if the system does not tell.
  static RankStart Of(pid_t wrapper);
  /// This command, in this process's environment with `variables` (NAME=value), in `folder`.
  RankStart(
      std::vector<std::string> command, const std::vector<std::string>& variables,
      std::string folder);

  /// Starts the command as a child of this process, in a process group of its own. It dies with
  /// this process. The values in `changed` (NAME=value) replace variables of the start. Throws
  /// LaunchError kInternal.
  void Again(const std::vector<std::string>& changed) const;

 private:
  std::vector<std::string> command_, environment_;
  std::string folder_;
};

/// Removes the files in job folder `folder` that the earlier process of `rank` has left, so that
/// they do not count for its next process.
void ForgetNotes(const std::string& folder, int rank);

/// Takes notice of the ends of this process's children.
void ReapChildren();

// ---- State --------------------------------------------------------------------------------------

/// The state of a rank that the agent can see without the rank's help: whether it waits in Init,
/// has joined the job, or is stopped. Also continues the rank's wrapper if a signal has stopped it.
class RankView {
 public:
  RankView() = default;
  /// `folder` is the job's folder on this host.
  RankView(const std::string& folder, int rank, pid_t wrapper);

  /// Sets the process of the rank's program. The view shows it until the program calls Init.
  void SetProgram(pid_t program) { process_ = program; }

  /// Returns the body of a kState frame if the state has changed. Called twice a second, and more
  /// often after the loss of a rank.
  std::optional<std::string> Look();

 private:
  bool ReadNote(const std::string& file);

  std::string note_;  // path from ShutdownNote
  pid_t wrapper_ = -1, process_ = -1;
  StoppedHelper stopped_wrapper_ = {};
  bool in_init_ = false, joined_ = false, stopped_ = false;
  int timeout_s_ = 0, warning_s_ = 0, epoch_ = 0;
  std::string told_;
};

// ---- End ----------------------------------------------------------------------------------------

/// Sends `signal` to the process group of `process`, unless it is this process's own group.
void SignalGroupOf(pid_t process, int signal);

/// Kills this user's processes on this host with DTRUN_JOB=`job` in their environment, except this
/// process.
void KillProcessesOf(const std::string& job);

/// Whether `process` cannot be the engine or its daemon on this host, which are started after this
/// process: it has ended, it has started this process, or it is older. The parent of a wrapper is
/// such a process if its daemon has ended: dtrun or process 1, whose other children are not of the
/// job.
bool IsOutsideOfJob(pid_t process);

/// Descendants of a process that may outlive it, with another environment and another session.
/// Remembers each one while it runs.
class LeftOvers {
 public:
  /// Adds the descendants of `process` (unless it IsOutsideOfJob) and forgets ended ones.
  void Look(pid_t process);
  /// Kills the remembered processes that still run.
  void Kill() const;

 private:
  std::map<pid_t, uint64_t> starts_;  // start time by process id
};

// ---- Records ------------------------------------------------------------------------------------

/// A kFlight frame for each flight record in `folder`, with the record unchanged.
std::vector<Frame> FlightFrames(const std::string& folder);

/// Passes the ranks' traces in `folder` to `use`, as kTrace frames (protocol/frame.h).
void ForEachTracePart(const std::string& folder, const std::function<void(Frame)>& use);

/// A kProgress frame from the flight records in `folder`.
Frame ProgressFrame(const std::string& folder);

// ---- Streams ------------------------------------------------------------------------------------

/// The output of the ranks of one host: the read ends of their stdout and stderr.
class RankStreams {
 public:
  /// `send` gets kOutput frames.
  RankStreams(Poller& poller, std::function<void(Frame frame)> send);
  ~RankStreams();
  RankStreams(const RankStreams&) = delete;
  RankStreams& operator=(const RankStreams&) = delete;

  /// Takes ownership of `file`, the read end of stream `number` (1 or 2) of `rank`.
  void Adopt(int file, int rank, int number);
  /// While paused, the agent reads nothing, so the ranks have to wait.
  void SetPaused(bool paused);
  /// Whether all streams have ended.
  bool empty() const { return streams_.empty(); }

 private:
  struct Stream {
    int rank, number;
  };

  void Pass(int file);

  Poller& poller_;
  std::function<void(Frame)> send_;
  std::map<int, Stream> streams_;  // by descriptor
  bool paused_ = false;
};

/// The stdin of a rank's program: a pipe, and a queue of the bytes that the pipe has not taken yet.
class RankInput {
 public:
  /// `on_taken` gets the number of bytes that have left the queue, and whether the program can read
  /// more. Throws LaunchError kInternal.
  RankInput(Poller& poller, std::function<void(size_t bytes, bool open)> on_taken);
  ~RankInput();
  RankInput(const RankInput&) = delete;
  RankInput& operator=(const RankInput&) = delete;

  /// The read end, for the program. Call CloseReader once the program has it: only then does
  /// RankInput notice that the program has closed its stdin.
  int reader() const { return reader_; }
  void CloseReader();

  /// Queues bytes for the program. Empty bytes end the stdin after the queue.
  void Add(std::string_view bytes);

 private:
  void Update();
  void Write();
  void CloseWriter();

  Poller& poller_;
  std::function<void(size_t, bool)> on_taken_;
  int reader_ = -1, writer_ = -1;
  std::string queue_;
  bool at_end_ = false;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_AGENT_HOST_RANKS_H_
