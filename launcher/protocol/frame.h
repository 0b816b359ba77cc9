#ifndef DTRUN_LAUNCHER_PROTOCOL_FRAME_H_
#define DTRUN_LAUNCHER_PROTOCOL_FRAME_H_

#include <cstdint>
#include <optional>
#include <string>

namespace dtrun::launcher {

/// The messages between dtrun's processes: dtrun itself, its host agents, the wrappers of ranks,
/// and dtrun_local on several hosts. The bodies of kOutput, kInput, kFlight, kTrace and those of
/// dtrun_local are bytes; all others are JSON.
enum class FrameType : uint8_t {
  // dtrun to an agent
  kJob = 1,       ///< {"version", "job", "host", "folder", "ranks", "program", "cwd", ...}
  kPing = 2,      ///< {"sent_ns"}: dtrun is alive; the time of its clock
  kEnd = 3,       ///< {"flights", "traces"}: end all processes, send the last reports, then kDone
  kNotice = 4,    ///< the job is going to end: tell the programs; also to a wrapper
  kStop = 5,      ///< stop the ranks, then answer kStopped
  kContinue = 6,  ///< continue the ranks
  kInput = 7,     ///< bytes for the stdin of rank 0; empty: its end
  kAskProgress = 8,  ///< send kProgress once
  kPeers = 9,        ///< the address of each host; "" for its own or if not known
  kRankEnded = 10,   ///< to host 0: a rank on any host has ended (EndedNote)
  kTerminate = 11,   ///< SIGTERM to the ranks; also to a wrapper, which then outlives its program
  kEpoch = 12,       ///< {"epoch", "why", "variables"}: ranks were lost; all meet again (EpochFile)
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
  kTrace = 29,     ///< the next part of a rank's trace for the timeline
  kState = 30,     ///< {"init", "joined", "epoch", "stopped", "timeout_s", "warning_s"}: a running
                   ///< rank's RankState, after each change
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
};

struct Frame {
  FrameType type = FrameType::kPing;
  int32_t rank = -1;  ///< the rank that the frame is about; -1: none
  std::string body = {};

  bool operator==(const Frame&) const = default;
};

/// The longest body, in bytes.
inline constexpr size_t kMostBody = 1 << 20;

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

}  // namespace dtrun::launcher

#endif
