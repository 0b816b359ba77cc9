#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_VARIABLE_CLIENT_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_VARIABLE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ops/bootstrap/segment.h"
#include "runtime/parameter_server/message_stream.h"
#include "runtime/parameter_server/server_job.h"
#include "runtime/parameter_server/server_plan.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

/// A rank's end of all parameter servers, as dtrun/parameter_server.h describes it: a worker's, or
/// that of one who only reads. Not thread-safe.
class ParameterClient {
 public:
  /// Returns when all servers have let it in. Throws Error kMismatch: a server has other variables;
  /// kPeerLost, kTimeout, kSystem.
  ParameterClient(
      const ServerJob& job, const std::vector<Tensor>& variables, uint64_t min_partition_bytes,
      PeerRole role);
  ~ParameterClient();

  /// Of variable `index`, in memory of this object: what Pull fills and Push takes.
  Buffer value(size_t index) const;
  Buffer gradient(size_t index) const;

  /// The step before is done; the next one, or nothing when there is none left.
  std::optional<uint64_t> NextStep();
  /// Fills all values; a worker has said by it that it begins to compute a gradient. The version of
  /// the first server's.
  uint64_t Pull();
  /// Returns when all servers have applied the gradient. Its staleness on the first one.
  uint64_t Push();
  /// What the servers' optimizers keep, server by server.
  TensorFile ReadState();
  ServerProgress Progress();

 private:
  void Enter(int server, const TcpPlace& place);
  void Ask(int server, MessageHeader header, const Pieces& pieces = {});
  void Await(int server, MessageKind kind, const MessageStream::Target& target = nullptr);
  Pieces PiecesOf(int server, uint64_t half) const;
  bool is_remote(int server) const { return !job_.shares_host(server); }
  MessageStream& stream(int server) { return *streams_[static_cast<size_t>(server)]; }
  PeerDeadline Deadline() const;

  ServerJob job_;
  PeerRole role_;
  VariableLayout layout_;
  std::vector<Buffer> shapes_;  // of the variables, without data
  std::shared_ptr<ops::Segment> memory_;
  std::vector<std::unique_ptr<MessageStream>> streams_;  // by server
};

}  // namespace dtrun::runtime

#endif
