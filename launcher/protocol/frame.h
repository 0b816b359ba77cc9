#ifndef DTRUN_LAUNCHER_PROTOCOL_FRAME_H_
#define DTRUN_LAUNCHER_PROTOCOL_FRAME_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// The messages between dtrun's processes: dtrun itself, its host agents, the wrappers of ranks,
/// and dtrun_local on several hosts. The bodies of kOutput, kInput, kFlight, kTrace and those of
/// dtrun_local are bytes; all others are JSON.
enum class FrameType : uint8_t {
  // dtrun to an agent
  kJob = 1,     ///< {"version", "job", "host", "folder", "ranks", "program", "cwd", ...}, and with
                ///< "below" the hosts whose agents this agent starts (agent/relay.cc)
  kPing = 2,    ///< {"sent_ns"}: dtrun is alive; the time of its clock
  kEnd = 3,     ///< {"flights", "traces"}: end all processes, send the last reports, then kDone
  kNotice = 4,  ///< the job is going to end: tell the programs; also to a wrapper
  kStop = 5,    ///< stop the ranks, then answer kStopped
  kContinue = 6,     ///< continue the ranks
  kInput = 7,        ///< bytes for the stdin of rank 0; empty: its end
  kAskProgress = 8,  ///< send kProgress once
  kPeers = 9,        ///< the address of each host; "" for its own or if not known
  kRankEnded = 10,   ///< to host 0: a rank on any host has ended (EndedNote)
  kTerminate = 11,   ///< SIGTERM to the ranks; also to a wrapper, which then outlives its program
  kEpoch = 12,       ///< {"epoch", "why", "lost", "variables"}: all meet again (EpochFile)
  kRestart = 13,  ///< {"words", "variables", "folder", "place"}: start the rank's wrapper, again or
                  ///< for the first time; "place" changes variables of the earlier start. Without
                  ///< words, the engine starts the wrapper: make room for it
  kFault = 14,    ///< {"signal"} for the program of a rank (--inject)
  // an agent to dtrun
  kReady = 16,    ///< {"pid", optional "networks"}: ranks may start
  kRefused = 17,  ///< {"code", "text"}: why no rank may start
  kStarted = 18,  ///< {"pid"} of a rank's program
  kOutput = 19,   ///< the stream (1 or 2), then the rank's bytes; none: its end
  /// {"end", "value", "age_ns", "at_ns", "in_order", "orphaned", "alone", "step", "kept_step",
  /// "facts"}: how a rank ended, how long ago, and when by the host's clock; the step that it had
  /// completed, and the step of the state that the host keeps, if any; facts only after a failure
  kEnded = 20,
  kFlight = 21,    ///< the flight record of a rank
  kPong = 22,      ///< the answer to kPing: {"sent_ns", "now_ns"}; now_ns is by the host's clock
  kDone = 23,      ///< the last frame
  kNoticed = 24,   ///< {"takes"}: whether the rank's program takes notices
  kStopped = 25,   ///< all ranks of this host are stopped
  kTaken = 26,     ///< {"bytes", "open"}: bytes of kInput taken; whether stdin takes more
  kProgress = 27,  ///< for each rank that has a flight record: {"rank", "step", "examples",
                   ///< "waited_ns", "reduced"}; sent a last time before kDone
  kTrace = 29,     ///< the next part of a rank's trace for the timeline; empty: a trace begins
  kState = 30,     ///< {"init", "joined", "epoch", "stopped", "timeout_s", "warning_s"}: a running
                   ///< rank's RankState, after each change
  kTold = 31,      ///< the agent got SIGTERM: the scheduler is going to end the job
  kRoutes = 28,    ///< the answer to kPeers: for each host, the own address that leads to it
  // a wrapper to its agent, and the agent's answer
  kHello = 32,  ///< two descriptors with the program's stdout and stderr; the body is the folder of
                ///< Open MPI's daemon (engines/mpirun.h)
  kWelcome = 33,  ///< {"folder"}: of the job on this host; optional descriptor: stdin
  kProgram = 34,  ///< {"pid"}: the program has started
  kExit = 35,     ///< {"end", "value", "at_ns", "address_limit", "alone"}: how and when it ended
  kTakes = 36,    ///< {"takes"}: answer to kNotice; sent again when it becomes true
  // dtrun_local to the dtrun_local of another host, and its answer
  kVariable = 48,  ///< NAME=value for the ranks
  kWord = 49,      ///< the next word of the ranks' command
  kLaunch = 50,    ///< the folder of the ranks: start all ranks of the host; `rank` is the first
  kSignal = 51,    ///< the number of a signal for the ranks
  kCode = 52,      ///< the exit code: of the first failed rank, or 0 after the last rank
  kReach = 53,     ///< the remote shell for the hosts of kBelow, as a line; `rank` is the fanout
  kBelow = 54,     ///< "NUMBER COUNT HOST": start the ranks of this host too; `rank` is the first
  // between a front and a holder (job/job_holder.cc). They also use kSignal, kRefused, kCode, and
  // kContinue: the front has read kHeld
  kAttach = 64,  ///< with the front's stdout and stderr: take the place of a lost front
  kHeld = 65,    ///< {"pid", "lost_ms"}: the job, and how long ago the last front was lost
  // between dtrun and agents that have started agents (AgentTree)
  kVia = 96,        ///< a frame for the agent of host `rank`, or from it in a kBundle, as bytes
  kAll = 97,        ///< a frame for this agent and all agents below it, as bytes
  kBundle = 98,     ///< kVia frames, as bytes
  kLostAgent = 99,  ///< {"why", "words"}: LinkEnd of an agent, from the agent that has started it
  // within a FrameStream
  kGot = 80,  ///< the number of bytes read since the last kGot: see FrameStream::SetWindow
};

/// Tells dtrun_agent and dtrun_local, as their only argument, that a scheduler, or the starter of
/// an MPI, has started them as a part of its job. A scheduler announces the end of the job with
/// SIGTERM to all parts of it.
inline constexpr char kIsStep[] = "--step";

struct Frame {
  FrameType type = FrameType::kPing;
  int32_t rank = -1;  ///< the rank that the frame is about; -1: none
  std::string body = {};

  bool operator==(const Frame&) const = default;
};

/// The longest body, in bytes. Frames with frames in their bodies may be kMostWrapping longer.
inline constexpr size_t kMostBody = 1 << 20;
inline constexpr size_t kMostWrapping = 1 << 10;

/// The frame as bytes: 4 of length, 1 of type, 4 of rank (little endian), then the body.
std::string Encode(const Frame& frame);

/// Splits a stream of bytes into frames.
class FrameReader {
 public:
  void Feed(const char* data, size_t bytes) { bytes_.append(data, bytes); }
  /// The next complete frame; nullopt: not yet complete. Throws LaunchError kInternal for bytes
  /// that are no frame. The reader is unusable after that.
  std::optional<Frame> Next();
  /// Whether only a part of a frame has come.
  bool in_frame() const { return start_ < bytes_.size(); }

 private:
  std::string bytes_;
  size_t start_ = 0;  // of the next frame
};

/// A non-blocking connection that carries frames. Owns its descriptors, which may be the same one.
class FrameStream {
 public:
  /// `on_frame` gets every frame. `on_end` is called once, when the other side is gone or sends
  /// bytes that are no frame; all frames sent before come first. `why` is the error; "" for a
  /// closed connection. Both are called while the poller waits. The stream may be destroyed in
  /// `on_end`, not in `on_frame`.
  FrameStream(
      Poller& poller, int in, int out, std::function<void(const Frame&)> on_frame,
      std::function<void(const std::string& why)> on_end);
  ~FrameStream();
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  /// Keeps at most kWindow bytes on the way. The other side has called SayWhatCame. Some schedulers
  /// lose bytes of a program's stdin if more bytes come than the program has read.
  void SetWindow() { has_window_ = true; }
  /// Tells the other side from time to time how many bytes have come.
  void SayWhatCame() { says_what_came_ = true; }
  static constexpr size_t kWindow = 16 * 1024;

  /// Queues the frame. Drops it if the other side is gone.
  void Send(const Frame& frame);
  /// The number of queued bytes that the other side has not taken.
  size_t queued() const { return queue_.size(); }
  /// While paused, the stream reads nothing, so the other side has to wait.
  void SetPaused(bool paused);
  /// Writes the queue. Gives up if the other side takes no bytes for a second.
  void Flush();

 private:
  void Update();
  void Read();
  void Write();
  size_t Allowed() const;
  void End(const std::string& why);

  Poller& poller_;
  int in_, out_;
  std::function<void(const Frame&)> on_frame_;
  std::function<void(const std::string&)> on_end_;
  FrameReader reader_;
  std::string queue_;
  bool paused_ = false, ended_ = false;
  bool is_deaf_ = false;  // the other side takes no more frames
  bool has_window_ = false, says_what_came_ = false;
  size_t on_the_way_ = 0;  // bytes written that the other side has not confirmed
  size_t came_ = 0;        // bytes read and not confirmed
};

// The wrapper of a rank connects to the agent of its host through an abstract Unix socket. Such a
// socket has no file and vanishes with its process. Both sides check that the other process belongs
// to the same user.

/// A listening socket for the agent of host number `host` of job `job`. Throws LaunchError
/// kInternal.
int ListenForRanks(const std::string& job, int host);

/// A connection to that agent. Throws LaunchError kInternal if there is no agent, or if it belongs
/// to another user.
int ConnectToAgent(const std::string& job, int host);

/// The same for any name. Connecting gives -1 if no process of this user listens there.
int ListenForUser(const std::string& name);
int ConnectToUser(const std::string& name);

/// The process at the other end of a connection; -1: it belongs to another user.
pid_t TrustedPeer(int connection);

/// Sends `bytes` with at most two descriptors. Throws LaunchError kInternal.
void SendWithFiles(int connection, const std::string& bytes, const std::vector<int>& files);

/// Receives at most `most` bytes and appends the descriptors that come with them. 0: the other side
/// is gone; negative: no data yet.
ssize_t ReceiveWithFiles(int connection, char* bytes, size_t most, std::vector<int>& files);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PROTOCOL_FRAME_H_
