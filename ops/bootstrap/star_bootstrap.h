#ifndef DTRUN_OPS_BOOTSTRAP_STAR_BOOTSTRAP_H_
#define DTRUN_OPS_BOOTSTRAP_STAR_BOOTSTRAP_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "ops/bootstrap/bootstrap.h"
#include "ops/bootstrap/local_socket.h"
#include "ops/bootstrap/segment.h"

namespace dtrun::ops {

// A star: one rank, the hub, has a connection to every other rank. JoinLocally and JoinAtStore
// differ in the kind of the connections and in the greeting. Everything else is here.

/// The comments describe `number` and the bytes of a frame.
enum class FrameKind : uint32_t {
  kGreeting,   ///< number: rank; bytes: depend on the kind of the connection
  kAllHere,    ///< the hub has all ranks
  kReady,      ///< the hub has begun a gather
  kPart,       ///< bytes: what one rank brings to a gather
  kAll,        ///< bytes: the parts of all ranks
  kError,      ///< number: ErrorCode; bytes: the text of the error
  kChallenge,  ///< bytes: random bytes; the first frame of a hub that asks for a proof
  kProven      ///< bytes: the hub's proof
};

/// One message on a stream.
struct Frame {
  FrameKind kind = FrameKind::kGreeting;
  int32_t number = 0;
  std::string bytes = {};
  mutable std::string digest = {};  ///< of the bytes; computed by the first sealed stream
};

/// Sends and receives frames over a non-blocking stream socket. Checks lengths before it allocates
/// memory. Not thread-safe.
class FrameStream {
 public:
  /// `peer` names the other end in errors. A received frame has at most `most_bytes`.
  FrameStream(FileDescriptor socket, uint64_t most_bytes, std::string peer);

  enum class State {
    kPartial,  ///< the next frame is not complete
    kWhole,    ///< `frame()` is complete; the next Read continues with the next frame
    kEnded,    ///< the other end is closed
  };
  /// Reads the available bytes of at most one frame. Throws Error kSystem, also for a frame that is
  /// too long, for a wrong seal and for bytes that are not a frame.
  State Read();
  Frame& frame() { return frame_; }

  /// Queues a frame, which several streams can share.
  void Send(std::shared_ptr<const Frame> frame);
  void Send(Frame frame) { Send(std::make_shared<const Frame>(std::move(frame))); }
  /// Sends as many bytes as the socket accepts. Returns false if the other end is gone. Throws
  /// Error kSystem.
  bool Flush();
  bool sending() const { return !outgoing_.empty(); }
  /// Says that no frame follows. The other end still gets the frames that have been sent.
  void EndSending();

  /// From now on, each frame ends with an HMAC over its number in the stream, its header and its
  /// bytes. So nobody without the keys can alter, repeat, reorder or insert frames.
  void Seal(const std::string& send_key, const std::string& receive_key);

  int socket() const { return socket_.get(); }
  const std::string& peer() const { return peer_; }
  void set_peer(const std::string& peer) { peer_ = peer; }
  void set_most_bytes(uint64_t most_bytes) { most_bytes_ = most_bytes; }

 private:
  struct Outgoing {
    std::string header, seal;
    std::shared_ptr<const Frame> frame;
    uint64_t sent = 0;
  };

  std::optional<State> Fill(std::string& target, uint64_t size);

  FileDescriptor socket_;
  uint64_t most_bytes_;
  std::string peer_;
  std::string header_, seal_;  // of the frame that arrives
  Frame frame_;
  bool whole_ = false;
  std::deque<Outgoing> outgoing_;
  std::string send_key_, receive_key_;  // empty: no seals
  uint64_t frames_sent_ = 0, frames_received_ = 0;
};

/// The settings of one rank of a star. See LocalMeeting.
struct StarSettings {
  int rank = 0, size = 1;
  std::string place;  ///< of this process, such as "process 12"
  std::chrono::seconds timeout, warning_after;
  std::function<void(const std::string& text)> warn;
  uint64_t most_of_rank = 0;  ///< bytes that one rank may bring to a gather
  uint64_t most_of_all = 0;   ///< bytes that all ranks may bring to a gather
};

/// "rank 2 (process 12)"
std::string NameAt(int rank, const std::string& place);

/// A process that has connected to the hub, but has not told its rank.
struct Stranger {
  FrameStream stream;
  std::string place;                         ///< such as "process 12"
  Deadline deadline = Deadline::max();       ///< of its greeting
  std::string address = {}, challenge = {};  ///< TCP only
};

/// The rank that a stranger claims to be, and the number of ranks that it expects.
struct RankClaim {
  int rank = 0;
  std::string size;
};

/// Decides which processes may connect to the hub. There is one kind of door per kind of
/// connection.
class Door {
 public:
  virtual ~Door() = default;
  /// Accepts the next waiting connection, and adds it to `strangers` unless the door refuses it.
  /// Returns false if no connection waits.
  virtual bool Accept(int listener, std::list<Stranger>& strangers) = 0;
  /// Checks the first frame of a stranger. Returns nullopt if the hub must close the connection.
  virtual std::optional<RankClaim> Check(Stranger& stranger, const Frame& greeting) = 0;
  /// The hub closes the connection because of `reason`.
  virtual void Drop(const Stranger& stranger, const std::string& reason) = 0;
};

/// Waits at `listener` for all other ranks, and returns the bootstrap of the hub. A negative
/// listener: there are no other ranks. Throws the errors of JoinLocally.
std::unique_ptr<Bootstrap> GatherAtHub(
    const StarSettings& settings, FileDescriptor listener, Door& door);

/// The bootstrap of a rank that is not the hub.
class Spoke : public Bootstrap {
 public:
  /// `warning`: when to warn that the hub does not answer.
  Spoke(const StarSettings& settings, FrameStream hub, Deadline warning);

  /// Waits for a frame of the hub, and meanwhile sends queued frames. Returns nullopt if the hub is
  /// gone. Throws Error kTimeout, and the error that the hub reports.
  std::optional<Frame> Receive(Deadline deadline);
  /// Waits until the hub has all ranks. Called once, after the greeting.
  void AwaitAllRanks(Deadline deadline);
  FrameStream& hub() { return hub_; }
  Deadline warning() const { return warning_; }

  int rank() const override { return settings_.rank; }
  int size() const override { return settings_.size; }
  std::vector<std::string> AllGather(const std::string& bytes) override;
  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override;

 private:
  Frame Expect(FrameKind kind, Deadline deadline);

  StarSettings settings_;
  FrameStream hub_;
  Deadline warning_;
};

/// A running hub answers within this time, even if the user wants to be warned earlier.
inline constexpr std::chrono::seconds kLeastWarning{1};

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_BOOTSTRAP_STAR_BOOTSTRAP_H_
