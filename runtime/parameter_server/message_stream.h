#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_MESSAGE_STREAM_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_MESSAGE_STREAM_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "ops/bootstrap/segment.h"
#include "ops/bootstrap/tcp_socket.h"
#include "runtime/parameter_server/server_plan.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

// Connections between ranks and parameter servers. On one host, they use unix sockets in the
// abstract namespace, and the kernel identifies the user of the peer. Between hosts, they use TCP,
// and both sides prove that they know the job's secret. All sockets are non-blocking and close with
// their process, so an end of file means that the peer is lost.

/// The name of a parameter server in errors of TCP sockets.
inline constexpr char kListener[] = "a parameter server";

/// Listens on the unix socket of `server`. Throws Error kSystem.
ops::FileDescriptor ListenLocally(const std::string& job, int server);

/// Connects to the unix socket of `server`. Returns -1 if no process listens there yet. Throws
/// Error kSystem for any other failure, and if a process of another user listens there.
ops::FileDescriptor ConnectLocally(const std::string& job, int server);

/// Accepts the next waiting connection. Returns -1 if none waits. Closes a unix connection from
/// another user, and returns -1.
ops::FileDescriptor AcceptFrom(int listener, bool local);

/// The proof that its sender knows the secret. `both` is the random bytes of both sides.
std::string ClientProof(const std::string& secret, const std::string& both);
std::string ServerProof(const std::string& secret, const std::string& both);

/// The description of the job's parameter servers for one process. Ranks [0, servers) are servers
/// and hold the variables.
struct ServerJob {
  std::string job;  ///< a random, unique name
  int rank = 0, size = 1, servers = 1;
  bool evaluator = false;               ///< the last rank is no worker, but evaluates
  std::vector<int> host_of_rank;        ///< by rank
  std::vector<std::string> host_names;  ///< by host
  ops::TcpPlace first;                  ///< of server 0; unused if all ranks share a host
  std::string secret;                   ///< known to all ranks; proven between hosts
  /// Returns true if the launcher knows that the rank has ended. No server waits for such a rank.
  std::function<bool(int rank)> has_ended = [](int) { return false; };
  std::chrono::seconds timeout{600};  ///< of each wait for a peer's answer
  base::LogSink log = [](base::LogLevel, const std::string&) {};

  bool several_hosts() const { return host_names.size() > 1; }
  bool shares_host(int other) const {
    return host_of_rank[static_cast<size_t>(rank)] == host_of_rank[static_cast<size_t>(other)];
  }
  /// "rank 2 on h1"
  std::string Name(int of_rank) const;
};

/// Throws Error kPeerLost after a short delay. The connections of a process end before the process
/// itself. The delay lets the launcher see the end of the culprit before the failures of its peers.
[[noreturn]] void ThrowPeerLost(const std::string& text);
/// Throws this error for a lost server.
[[noreturn]] void ThrowServerLost(const ServerJob& job, int server);

/// The progress of a training, as the first server knows it.
struct ServerProgress {
  uint64_t steps_done = 0, steps = 0;
  uint64_t workers = 0;   ///< connected now
  uint64_t finished = 0;  ///< 1: no step and no checkpoint will follow
};

/// Counts of a server's work, and the time that the work took.
struct ServerStatistics {
  uint64_t updates = 0, pulls = 0;
  uint64_t repeated_steps = 0, lost_workers = 0;
  double update_s = 0;  ///< in the optimizer
  double copy_s = 0;    ///< copying values for ranks
  double cpu_s = 0;     ///< total CPU time of the server's thread
};

/// The messages between ranks and parameter servers. The comments describe `number`, `value` and
/// the bytes after the header.
enum class MessageKind : uint32_t {
  // requests of a rank
  kHello = 1,      ///< number: rank; value: PeerRole; bytes: HelloText; file: memory that both map
  kNext = 2,       ///< to the first server: the current step, if any, is done; requests a step in
                   ///< [number, value)
  kPull = 3,       ///< requests the values; value: 1 if a gradient will be computed from them
  kPush = 4,       ///< bytes: a gradient, unless the memory is mapped
  kReadState = 5,  ///< requests the state of the optimizer
  kProgress = 6,   ///< requests a ServerProgress
  kBye = 7,        ///< the rank leaves in good order
  kProof = 8,      ///< bytes: 32 random bytes, and the proof that the sender knows the secret
  // answers of a server
  kWelcome = 16,     ///< bytes: the ops::TcpPlace of each server, one per line
  kRefused = 17,     ///< bytes: the reason; the connection ends
  kStep = 18,        ///< number: the step that is handed out
  kEnd = 19,         ///< to a worker: no step is left; to a server: the first server finishes
  kValues = 20,      ///< number: version; bytes: the values, unless the memory is mapped
  kPushed = 21,      ///< number: staleness of the gradient
  kState = 22,       ///< bytes: see EncodeTensors
  kProgressIs = 23,  ///< bytes: a ServerProgress
  kChallenge = 24,   ///< bytes: 32 random bytes; the first message between hosts
  kProven = 25       ///< bytes: the server's proof
};

enum class PeerRole : uint64_t { kWorker = 0, kReader = 1, kServer = 2 };

struct MessageHeader {
  uint32_t mark = 0;  ///< filled in by Send
  MessageKind kind = MessageKind::kHello;
  uint64_t number = 0, value = 0;
  uint64_t bytes = 0;  ///< the number of bytes after the header
};

/// A part of a message. It does not own its memory.
struct Piece {
  char* data = nullptr;
  uint64_t bytes = 0;
};
using Pieces = std::vector<Piece>;
uint64_t BytesOf(const Pieces& pieces);

/// Sends and receives messages over a stream socket, and never blocks. Not thread-safe.
class MessageStream {
 public:
  explicit MessageStream(ops::FileDescriptor socket);

  /// Returns the memory for the bytes of a message that begins to arrive. If it returns no pieces,
  /// the bytes go into `text()`.
  using Target = std::function<Pieces(const MessageHeader&)>;
  enum class State { kPartial, kWhole, kEnded };
  /// Reads the available bytes of at most one message. kWhole: `header()` and `text()` describe the
  /// message until the next call. kEnded: the connection has ended. Throws Error kSystem if the
  /// bytes are not a message, or the message is too long.
  State Receive(const Target& target = nullptr);
  const MessageHeader& header() const { return header_; }
  const std::string& text() const { return text_; }
  /// Takes the last received file. Invalid if no file has come since the last call.
  ops::FileDescriptor TakeFile() { return std::move(file_); }

  /// Queues a message. The memory of `pieces` must not change until the message is sent. `file` is
  /// sent with the first byte, and must stay open until then.
  void Send(MessageHeader header, const Pieces& pieces, int file = -1);
  void Send(MessageHeader header, std::string text = "", int file = -1);
  /// Sends as many bytes as the socket accepts. Returns false if the connection has ended.
  bool Flush();
  bool sending() const { return !outgoing_.empty(); }

  int socket() const { return socket_.get(); }
  /// The maximum size of a text that the peer may send from now on.
  void set_most_text(uint64_t bytes) { most_text_ = bytes; }

 private:
  struct Outgoing {
    std::string own;  // header and text
    Pieces pieces;    // sent after `own`
    int file = -1;
    size_t piece = 0;  // 0: own; i + 1: pieces[i]
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

/// Encodes tensors of one dimension as the bytes of a message. Each tensor is its dtype, its count
/// and the length of its name (8 bytes each), then its name and its data.
std::string EncodeTensors(const std::vector<Tensor>& tensors);
/// Appends the decoded tensors and their memory to `tensors`. Throws Error kSystem if the bytes are
/// invalid.
void DecodeTensors(const std::string& bytes, TensorFile& tensors);

using PeerDeadline = std::chrono::steady_clock::time_point;

/// Connects to a server, and retries until the server listens. If the server is on another host, it
/// listens at `place`, and both sides prove that they know the secret. Returns null if `give_up`,
/// which is called after each failed attempt, returns true. Throws Error kTimeout, which names the
/// server, or kSystem.
std::unique_ptr<MessageStream> VisitServer(
    const ServerJob& job, int server, const ops::TcpPlace& place, PeerDeadline deadline,
    const std::function<bool()>& give_up = nullptr);

/// Waits for a whole message, and meanwhile sends queued messages. Returns false if the connection
/// has ended. Throws Error kTimeout with the text `late`, or kSystem.
bool AwaitMessage(
    MessageStream& stream, PeerDeadline deadline, const std::string& late,
    const MessageStream::Target& target = nullptr);

/// The text of kHello: all settings that must be equal in all processes.
std::string HelloText(const VariableLayout& layout);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_PARAMETER_SERVER_MESSAGE_STREAM_H_
