#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_MESSAGE_STREAM_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_MESSAGE_STREAM_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/bootstrap/segment.h"
#include "runtime/parameter_server/server_job.h"
#include "runtime/parameter_server/server_plan.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// What ranks and parameter servers say to each other. `number`, `value` and the bytes that follow
/// mean what stands here.
enum class MessageKind : uint32_t {
  // a rank to a server
  kHello = 1,      ///< number: rank, value: PeerRole; bytes: HelloText. With a file, the memory
                   ///< that both map
  kNext = 2,       ///< to the first server: my step is done if I had one, give me another one
  kPull = 3,       ///< the values, please. value: 1: I shall compute a gradient from them
  kPush = 4,       ///< here is a gradient; bytes: it, unless the memory is mapped
  kReadState = 5,  ///< what your optimizer keeps, please
  kProgress = 6,   ///< how far is everybody?
  kBye = 7,        ///< I leave in good order
  kProof = 8,      ///< bytes: 32 random ones, and the proof that the sender knows the secret
  // the answers
  kWelcome = 16,     ///< bytes: by server, where it listens for other hosts, in lines
  kRefused = 17,     ///< bytes: why; the connection ends
  kStep = 18,        ///< number: that step is yours
  kEnd = 19,         ///< there is no step left; to a server: all is done
  kValues = 20,      ///< number: version; bytes: they, unless the memory is mapped
  kPushed = 21,      ///< number: staleness of the gradient
  kState = 22,       ///< bytes: see EncodeTensors
  kProgressIs = 23,  ///< bytes: a ServerProgress
  kChallenge = 24,   ///< bytes: 32 random ones; the first message between hosts
  kProven = 25       ///< bytes: the server's own proof
};

enum class PeerRole : uint64_t { kWorker = 0, kReader = 1, kServer = 2 };

struct MessageHeader {
  uint32_t mark = 0;  ///< filled in by Send
  MessageKind kind = MessageKind::kHello;
  uint64_t number = 0, value = 0;
  uint64_t bytes = 0;  ///< that follow
};

/// A part of a message, in memory of its owner's.
struct Piece {
  char* data = nullptr;
  uint64_t bytes = 0;
};
using Pieces = std::vector<Piece>;
uint64_t BytesOf(const Pieces& pieces);

/// Messages over a stream socket, without ever waiting. Not thread-safe.
class MessageStream {
 public:
  explicit MessageStream(ops::FileDescriptor socket);

  /// Where the bytes of a message go that begins to arrive; none: into `text()`.
  using Target = std::function<Pieces(const MessageHeader&)>;
  enum class State { kPartial, kWhole, kEnded };
  /// Reads what is there, one message at most. kWhole: `header()` and `text()` are those of the
  /// message until the next call. Throws Error kSystem for what is no message, or longer than
  /// allowed.
  State Receive(const Target& target = nullptr);
  const MessageHeader& header() const { return header_; }
  const std::string& text() const { return text_; }
  /// A file that came with a message since the last call.
  ops::FileDescriptor TakeFile() { return std::move(file_); }

  /// Queues a message. What `pieces` point to does not change before all is sent. `file` goes with
  /// its first byte and stays open until then.
  void Send(MessageHeader header, const Pieces& pieces, int file = -1);
  void Send(MessageHeader header, std::string text = "", int file = -1);
  /// Sends what the socket takes; false when the other end is gone.
  bool Flush();
  bool sending() const { return !outgoing_.empty(); }

  int socket() const { return socket_.get(); }
  /// Of a text that the other end may send from now on.
  void set_most_text(uint64_t bytes) { most_text_ = bytes; }

 private:
  struct Outgoing {
    std::string own;  // header and text
    Pieces pieces;    // after them
    int file = -1;
    size_t piece = 0;  // 0: own
    uint64_t sent = 0;
  };

  bool ReadInto(char* data, uint64_t bytes, uint64_t& had, State& state);
  void BeginBody(const Target& target);

  ops::FileDescriptor socket_;
  ops::FileDescriptor file_;
  MessageHeader header_;
  uint64_t header_had_ = 0, most_text_ = uint64_t{4} << 30;
  std::string text_;
  Pieces body_;
  size_t body_piece_ = 0;
  uint64_t piece_had_ = 0;
  bool whole_ = false;
  std::deque<Outgoing> outgoing_;
};

/// Tensors of one dimension as the bytes of a message, and back. Throws Error kSystem for bytes
/// that are none. In front of each tensor stand its dtype, its count and the length of its name, 8
/// bytes each, then its name.
std::string EncodeTensors(const std::vector<Tensor>& tensors);
/// Adds them, and the memory that they lie in, to `tensors`.
void DecodeTensors(const std::string& bytes, TensorFile& tensors);

using PeerDeadline = std::chrono::steady_clock::time_point;

/// Connects to a server, as soon as it is there, and proves what a peer of another host has to
/// prove; `place` is where it listens for those. Null when `give_up` (asked now and then) says so.
/// Throws Error kTimeout, which names the server; kSystem.
std::unique_ptr<MessageStream> VisitServer(
    const ServerJob& job, int server, const TcpPlace& place, PeerDeadline deadline,
    const std::function<bool()>& give_up = nullptr);

/// Waits until a message is there as a whole, and sends meanwhile what is to be sent. False when
/// the other end is gone. Throws Error kTimeout with `late`; kSystem.
bool AwaitMessage(
    MessageStream& stream, PeerDeadline deadline, const std::string& late,
    const MessageStream::Target& target = nullptr);

/// What kHello carries: everything that has to be the same in all processes.
std::string HelloText(const VariableLayout& layout);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_PARAMETER_SERVER_MESSAGE_STREAM_H_
