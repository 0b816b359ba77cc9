#ifndef DTRUN_LAUNCHER_PROTOCOL_FRAME_H_
#define DTRUN_LAUNCHER_PROTOCOL_FRAME_H_

#include <cstdint>
#include <optional>
#include <string>

namespace dtrun::launcher {

/// What dtrun, its host agents and the wrappers of ranks say to each other. The bodies of
/// kOutput, kInput, kFlight and kTrace are bytes, all others JSON.
enum class FrameType : uint8_t {
  // dtrun to an agent
  kJob = 1,          ///< {"version", "job", "host", "folder", "ranks", "program", "cwd", ...}
  kPing = 2,         ///< {"sent_ns"}: dtrun is there, and when it said so by its clock
  kEnd = 3,          ///< {"flights", "traces"}: end what still runs, say what is left to say of
                     ///< these, and kDone
  kNotice = 4,       ///< the job is going to be ended: tell the programs; also to a wrapper
  kStop = 5,         ///< stop the ranks, and kStopped
  kContinue = 6,     ///< let them go on
  kInput = 7,        ///< what rank 0 reads from its stdin; no bytes: it ends
  kAskProgress = 8,  ///< kProgress is wanted, once
  kPeers = 9,        ///< the addresses of all hosts; "" for its own
  kRankEnded = 10,   ///< to host 0: the rank, of any host, has ended (EndedNote)
  kTerminate = 11,   ///< SIGTERM to the ranks; also to a wrapper, which then outlives its program
  // an agent to dtrun
  kReady = 16,    ///< {"pid", perhaps "networks"}: ranks may start
  kRefused = 17,  ///< {"code", "text"}: why none may
  kStarted = 18,  ///< {"pid"} of a rank's program
  kOutput = 19,   ///< a byte for the stream (1 or 2), then what the rank wrote; none: it ends
  kEnded =
      20,  ///< {"end", "value", "age_ns", "at_ns", "in_order", "orphaned", "alone", "facts"}: how a
           ///< rank ended, how long ago, when by the host's clock; facts if badly
  kFlight = 21,    ///< a rank's flight record
  kPong = 22,      ///< the answer to kPing: {"sent_ns", "now_ns"}, the latter by the host's clock
  kDone = 23,      ///< the last frame
  kNoticed = 24,   ///< {"takes"}: whether the rank's program takes notices
  kStopped = 25,   ///< no rank of this host runs
  kTaken = 26,     ///< {"bytes", "open"}: of kInput; whether anybody may read more
  kProgress = 27,  ///< of each rank that has a record {"rank", "step", "examples", "waited_ns",
                   ///< "reduced"}; the last one before kDone
  kTrace = 29,     ///< the next part of what a rank has written for the timeline
  kState = 30,     ///< {"init", "joined", "stopped", "timeout_s", "warning_s"} of a running rank
                   ///< (RankState), when it has changed
  kRoutes = 28,    ///< the answer to kPeers: by host, the own address that leads to it
  // a wrapper to its agent, and the answer
  kHello = 32,    ///< with two file descriptors: what the program writes to stdout and stderr; the
                  ///< body is the folder of Open MPI's daemon (engines/mpirun.h)
  kWelcome = 33,  ///< {"folder"}: of the job on this host; perhaps with a descriptor, its stdin
  kProgram = 34,  ///< {"pid"}: the program runs
  kExit = 35,     ///< {"end", "value", "at_ns", "address_limit", "alone"}: it does no more, since
                  ///< when
  kTakes = 36,    ///< {"takes"}: the answer to kNotice, again once it has become true
};

struct Frame {
  FrameType type = FrameType::kPing;
  int32_t rank = -1;  ///< that it is about; -1: none
  std::string body = {};

  bool operator==(const Frame&) const = default;
};

/// No body is longer.
inline constexpr size_t kMostBody = 1 << 20;

/// 4 bytes of length, 1 of type, 4 of rank (little endian), the body.
std::string Encode(const Frame& frame);

/// Frames out of bytes that come in pieces.
class FrameReader {
 public:
  void Feed(const char* data, size_t bytes) { bytes_.append(data, bytes); }
  /// The next whole frame. Throws LaunchError kInternal for bytes that are none; it is of no use
  /// after that.
  std::optional<Frame> Next();
  /// Bytes of a frame have come, but not all.
  bool in_frame() const { return start_ < bytes_.size(); }

 private:
  std::string bytes_;
  size_t start_ = 0;  // of the next frame
};

}  // namespace dtrun::launcher

#endif
