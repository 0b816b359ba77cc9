#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_VARIABLE_CLIENT_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_VARIABLE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ops/bootstrap/segment.h"
#include "runtime/parameter_server/message_stream.h"
#include "runtime/parameter_server/server_plan.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// The connections of a worker or a reader to all parameter servers. See dtrun/parameter_server.h.
/// Not thread-safe.
class ParameterClient {
 public:
  /// Returns when all servers have accepted this rank. Throws Error kMismatch if a server has other
  /// variables, or kPeerLost, kTimeout, kSystem.
  ParameterClient(
      const ServerJob& job, const std::vector<Tensor>& variables, const PartitionRule& rule,
      PeerRole role);
  /// Leaves in good order, unless an exception destroys this object.
  ~ParameterClient();

  /// The memory of variable `index`, owned by this object. Pull fills the value. Push sends the
  /// gradient.
  Buffer value(size_t index) const;
  Buffer gradient(size_t index) const;

  /// Reports the previous step as done, and returns the next step in [first, end); nullopt: no step
  /// below `end` is left. From then on, no worker gets a step below `first`.
  std::optional<uint64_t> NextStep(uint64_t first = 0, uint64_t end = UINT64_MAX);
  /// Fills all values, and returns the version of the first server's values. On a worker with a
  /// step, this call begins the computation of a gradient.
  uint64_t Pull();
  /// Returns when all servers have applied the gradient. The result is its staleness on the first
  /// server.
  uint64_t Push();
  /// The state of the servers' optimizers, server by server.
  TensorFile ReadState();
  ServerProgress Progress();

 private:
  void Enter(int server, const ops::TcpPlace& place);
  void Ask(int server, MessageHeader header, const Pieces& pieces = {});
  void Await(int server, MessageKind kind, const MessageStream::Target& target = nullptr);
  Pieces PiecesOf(int server, uint64_t half) const;
  bool is_remote(int server) const { return !job_.shares_host(server); }
  MessageStream& stream(int server) { return *streams_[static_cast<size_t>(server)]; }
  PeerDeadline Deadline() const;

  ServerJob job_;
  PeerRole role_;
  bool has_step_ = false;  // handed out, and not pushed yet
  int exceptions_;         // in flight when this object was made
  VariableLayout layout_;
  std::vector<Buffer> shapes_;  // of the variables, without data
  std::shared_ptr<ops::Segment> memory_;
  std::vector<std::unique_ptr<MessageStream>> streams_;  // by server
};

}  // namespace dtrun::runtime

#endif
