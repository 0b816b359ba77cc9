#ifndef DTRUN_OPS_TCP_TCP_HANDSHAKE_H_
#define DTRUN_OPS_TCP_TCP_HANDSHAKE_H_

#include <cstdint>
#include <string>

namespace dtrun::ops::tcp {

// How both ends of a new connection prove that they belong to the job:
//
//   client  mark, its rank, the rank that it calls, 32 random bytes
//   server  32 random bytes, HMAC-SHA-256 of all of this with the job's key
//   client  another HMAC of the same
//   server  whether it takes the connection: it may have another one with this client
//
// A proof covers the random bytes of both ends, so a recorded handshake proves nothing later. All
// parts have fixed lengths. A wrong part ends the connection.

/// Sends and receives on a non-blocking socket. Each call of Continue goes on as far as the socket
/// allows.
class ClientHandshake {
 public:
  ClientHandshake(const std::string& key, int self, int peer);

  enum class State {
    kUnderWay,
    kTaken,    ///< the connection is ready
    kRefused,  ///< the server has another connection, or makes one itself
    kWrong,    ///< the server has not proved that it belongs to the job
    kEnded,    ///< the connection has ended
  };
  /// kEnded sets errno; 0: the server has closed the connection.
  State Continue(int socket);
  bool sends() const { return sent_ < out_.size(); }

 private:
  std::string key_, hello_, out_, in_;
  size_t sent_ = 0;
  bool proven_ = false;
};

class ServerHandshake {
 public:
  /// `ranks`: the number of ranks of the job.
  ServerHandshake(const std::string& key, int self, int ranks);

  enum class State {
    kUnderWay,
    kProven,  ///< `peer()` is proven: call Tell
    kEnded,   ///< the connection has ended, or is not of the job
  };
  State Continue(int socket);
  int peer() const { return peer_; }
  /// Tells the client whether this rank takes the connection. Returns false if the connection has
  /// ended.
  bool Tell(int socket, bool takes);

 private:
  std::string key_, in_, out_, both_;
  size_t sent_ = 0;
  int self_, ranks_, peer_ = -1;
};

}  // namespace dtrun::ops::tcp

#endif  // DTRUN_OPS_TCP_TCP_HANDSHAKE_H_
