#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_VARIABLE_SERVER_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_VARIABLE_SERVER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ops/bootstrap/segment.h"
#include "runtime/parameter_server/message_stream.h"
#include "runtime/parameter_server/server_plan.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

struct TrainingPlan {
  /// Steps [first_step, steps) are handed out. With kOpen, the training ends when each worker has
  /// left in good order.
  uint64_t first_step = 0, steps = 0;
  static constexpr uint64_t kOpen = UINT64_MAX;
  std::optional<uint64_t> max_staleness = std::nullopt;
  PartitionRule partition = {};
  int workers = 1;  ///< the expected number of workers
  int readers = 0;  ///< the expected number of readers, without those of the servers
};

/// A rank that holds variables. See dtrun/parameter_server.h. One thread does all the work, so
/// updates and copies never overlap and need no lock. The thread waits only for its connections.
class ParameterServer {
 public:
  /// Updates the shards of this server. `gradients[i]` is the gradient of shard i.
  using Update = std::function<void(const std::vector<const void*>& gradients)>;

  /// Listens for connections. Copies the initial values of this server's shards from `variables`.
  ParameterServer(
      const ServerJob& job, const std::vector<Tensor>& variables, const TrainingPlan& plan);
  ~ParameterServer();

  const std::vector<VariableShard>& shards() const { return shards_; }
  /// The value of shard `index`. From Start to Finish, only the update function may use it.
  Buffer value(size_t index) const;

  /// Starts the server's thread. Ranks can read `state` besides the values.
  void Start(Update update, std::vector<Tensor> state);
  /// On the first server: waits until `step` steps or all steps are done, and returns the number of
  /// steps done. On another server: waits until the first server has finished. If the server has
  /// failed, throws its Error.
  uint64_t WaitFor(uint64_t step);
  /// Ends the service. Returns when no rank is connected any more. Call it when all steps are done
  /// or given up.
  void Finish();

  /// Thread-safe.
  ServerStatistics statistics() const;
  std::vector<uint64_t> staleness() const;

 private:
  struct Connection;
  struct Status {
    uint64_t done = 0;
    bool over = false, finishing = false, ended = false;
    std::exception_ptr error;
    ServerStatistics statistics;
    std::vector<uint64_t> staleness;
  };

  bool is_first() const { return job_.rank == 0; }
  void JoinFirst();
  void Serve();
  void ServeOnce();
  void PollFiles();
  void Accept(int listener, bool local);
  void HearFrom(Connection& peer);
  void Hear(Connection& peer);
  void HearProof(Connection& peer);
  void HearFirst();
  void HearHello(Connection& peer);
  std::string WhyRefused(const Connection& peer, const std::string& hello) const;
  void AdoptMemory(Connection& peer);
  void Welcome();
  void HandOutSteps();
  void GiveValues(Connection& peer);
  void ApplyGradients();
  void Apply(Connection& peer);
  void GiveState(Connection& peer);
  void GiveProgress(Connection& peer);
  Pieces PiecesOf(const Connection& peer, uint64_t half) const;
  void DropTheSilent();
  void Leave(Connection& peer);
  void LoseWorker(Connection& peer);
  bool is_complete() const;
  void CloseIfAllHaveLeft();
  void EndIfFinished();
  int Count(PeerRole role) const;
  bool AllHaveCome() const;
  void Publish();

  ServerJob job_;
  TrainingPlan plan_;
  VariableLayout layout_;
  std::vector<VariableShard> shards_;  // of this server
  std::vector<uint64_t> value_offsets_;
  std::vector<DType> dtypes_;  // by shard of this server
  std::shared_ptr<ops::Segment> values_;
  Update update_;
  std::vector<Tensor> state_;

  ops::FileDescriptor local_listener_, tcp_listener_, wake_;
  ops::TcpPlace place_;
  std::list<Connection> peers_;
  Connection* first_ = nullptr;      // to the first server; null on the first server
  std::vector<std::string> places_;  // by server; empty: not connected yet
  StalenessGate gate_;
  StepQueue queue_;
  std::set<int> workers_seen_, readers_seen_;  // ranks
  bool left_in_order_ = false;                 // a worker has left when no step was open
  bool finishing_ = false, ended_ = false;
  std::chrono::steady_clock::time_point finishing_since_;
  ServerStatistics statistics_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status status_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace dtrun::runtime

#endif
