#ifndef DTRUN_OPS_TCP_TCP_WIRE_H_
#define DTRUN_OPS_TCP_TCP_WIRE_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/process.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/bootstrap/tcp_socket.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/tcp/tcp_handshake.h"
#include "ops/wire/wire.h"

namespace dtrun::ops::tcp {

/// The wire over TCP: one connection for each pair of ranks that exchange messages, made when one
/// of them sends first. Both ends prove that they belong to the job. The bytes are not encrypted.
class TcpWire : public wire::Wire {
 public:
  /// Collective over `bootstrap`, the ranks of the job. Throws Error kUnavailable if no address of
  /// this host is known, and kSystem.
  TcpWire(Bootstrap& bootstrap, Engine& engine, const wire::Settings& settings);
  ~TcpWire() override;
  TcpWire(const TcpWire&) = delete;
  TcpWire& operator=(const TcpWire&) = delete;

  void Send(
      int rank, int tag, const void* data, uint64_t bytes, Mode mode,
      std::shared_ptr<wire::Listener> listener, uint64_t key) override;
  void Receive(
      int rank, int tag, void* data, uint64_t bytes, std::shared_ptr<wire::Listener> listener,
      uint64_t key) override;
  void Poll(uint64_t& seen) override;
  bool needs_polling() const override { return false; }
  bool Arm() override;
  uint64_t events() const override { return events_; }
  const std::vector<wire::LostPeer>& lost() const override { return lost_; }
  void Doubt(int rank) override;
  void Drop(const wire::Listener& listener) override;
  void Close(const wire::Listener& listener) override;
  bool usable() const override { return !closed_; }
  int largest_tag() const override { return INT32_MAX; }
  uint64_t message_bytes() const override { return 256 << 10; }

 private:
  // What is told to whom when a message has ended.
  struct End {
    std::shared_ptr<wire::Listener> listener;
    uint64_t key = 0;
  };
  // The bytes before each message. `id` is not 0 if the receiver answers with kTaken.
  struct Frame {
    uint32_t kind;
    int32_t tag;
    uint64_t bytes, id;
  };
  // kUnheard: the sender ends the connection because it hears nothing from the other end.
  enum Kind : uint32_t { kMessage = 0x6d736731, kTaken, kBye, kUnheard };

  struct Outgoing {
    Frame frame;
    const char* data = nullptr;
    uint64_t sent = 0;  // of the frame and the data
    End end = {};
    bool ends_when_sent = false;
  };
  struct Posted {
    char* data = nullptr;
    uint64_t bytes = 0;
    End end = {};
  };
  // A message that came before its receive.
  struct Early {
    Frame frame;
    std::unique_ptr<char[]> data;
    bool whole = false;
    std::unique_ptr<Posted> receive = nullptr;  // started while the message was coming
  };
  struct Peer {
    int rank = 0;
    TcpPlace place = {};
    FileDescriptor socket;
    std::unique_ptr<ClientHandshake> handshake = nullptr;  // while this rank connects
    bool connected = false, writable = true;
    bool flushes_later = false;   // its queue is sent at the end of Progress
    base::TimePoint called = {};  // when the handshake began
    base::TimePoint retry = {};   // of a connection that the peer has refused
    std::deque<Outgoing> queue = {};
    std::unordered_map<uint64_t, End> untaken = {};  // synchronous messages, by id
    uint64_t ids = 0;
    std::unordered_map<int, std::deque<Posted>> posted = {};  // by tag
    std::deque<std::shared_ptr<Early>> early = {};
    // the message that is coming
    Frame frame = {};
    uint64_t frame_had = 0, left = 0;
    char* target = nullptr;
    std::unique_ptr<Posted> receive = nullptr;
    std::shared_ptr<Early> arriving = nullptr;
    bool paused = false;     // `frame` is whole, but its message has not begun
    std::string stash = {};  // bytes after that frame
    std::string error = {};  // why the peer is lost
    base::TimePoint failed = {};
    bool said_bye = false;
    bool lost = false;  // in lost_
  };
  struct Guest {
    FileDescriptor socket;
    ServerHandshake handshake;
    base::TimePoint deadline;
  };

  void Progress();
  void FlushLater();
  void TellEnded();
  void Watch(base::TimePoint now);

  void Connect(Peer& peer);
  void Adopt(Peer& peer, FileDescriptor socket);
  void Accept();
  void HearGuest(uint64_t number);
  void HearConnecting(Peer& peer);
  bool HasCall(const Peer& peer) const { return peer.connected || peer.handshake != nullptr; }

  void Register(int socket, uint64_t name, bool writes);
  void WaitToWrite(Peer& peer, bool wait);
  void Flush(Peer& peer);
  void Sent(Peer& peer, uint64_t bytes);
  void Read(Peer& peer);
  void Parse(Peer& peer, const char* data, uint64_t bytes);
  bool BeginMessage(Peer& peer);
  void Resume();
  void BeginData(Peer& peer);
  void EndMessage(Peer& peer);
  void Finish(End end);
  void Answer(Peer& peer, uint64_t id);
  void Enqueue(Peer& peer, Outgoing message);

  bool IsSilent(const Peer& peer, base::TimePoint now) const;
  static void SayUnheard(const Peer& peer);
  void Fail(Peer& peer, const std::string& error);
  void Lose(Peer& peer);
  static std::string WhyOf(const Peer& peer, int error);

  int rank_;
  wire::Settings settings_;
  std::string job_key_;
  FileDescriptor listener_, poll_;
  std::vector<Peer> peers_;  // by rank
  std::unordered_map<uint64_t, std::unique_ptr<Guest>> guests_;
  uint64_t guests_named_ = 0;
  std::unordered_map<int, std::deque<Posted>> posted_;  // from any source, by tag
  std::vector<char> staging_;
  std::vector<End> ended_;
  std::vector<wire::LostPeer> lost_;
  std::set<std::string> doubted_;  // addresses of hosts that may not answer
  int failed_ = 0;                 // peers that have failed and are not in lost_ yet
  base::TimePoint next_look_ = {}, watched_ = {};
  uint64_t polls_ = 0, events_ = 0;
  bool closed_ = false, reading_ = false;
  std::vector<int> flushed_later_, paused_;  // ranks
  std::unique_ptr<wire::Waker> waker_;
};

/// A communicator of all ranks of `bootstrap`, on any number of hosts, over TCP. Collective. Throws
/// the errors of TcpWire.
std::unique_ptr<Communicator> CreateTcpCommunicator(
    Bootstrap& bootstrap, Engine& engine, Members members, const wire::Settings& settings);

}  // namespace dtrun::ops::tcp

#endif  // DTRUN_OPS_TCP_TCP_WIRE_H_
