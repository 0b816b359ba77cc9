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
#include "runtime/parameter_server/server_job.h"
#include "runtime/parameter_server/server_plan.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {

struct TrainingPlan {
  uint64_t first_step = 0, steps = 0;  ///< steps [first_step, steps) are handed out
  std::optional<uint64_t> max_staleness = std::nullopt;
  uint64_t min_partition_bytes = 256 << 10;
  int workers = 1;  ///< ranks that are expected to come
  int readers = 0;  ///< likewise, besides the servers' own
};

/// One rank that holds variables, as dtrun/parameter_server.h describes it. A thread of its own
/// does everything: it waits for its connections alone, so that updates and copies never overlap
/// and need no lock.
class ParameterServer {
 public:
  /// Updates the own shards: `gradients[i]` is that of shard i.
  using Update = std::function<void(const std::vector<const void*>& gradients)>;

  /// Listens. The values of the own shards are those that `variables` have now.
  ParameterServer(
      const ServerJob& job, const std::vector<Tensor>& variables, const TrainingPlan& plan);
  ~ParameterServer();

  const std::vector<VariableShard>& shards() const { return shards_; }
  /// Of own shard `index`, for the updates; of the server's thread from Start to Finish.
  Buffer value(size_t index) const;

  /// Begins to serve. `state` is what readers are given besides the values.
  void Start(Update update, std::vector<Tensor> state);
  /// Returns when `step` steps are done, or all; of another server than the first, when the first
  /// one has finished. How many are done. Throws Error: what the server could not go on with.
  uint64_t WaitFor(uint64_t step);
  /// Returns when no rank is connected any more. Before it, all steps are done, or given up.
  void Finish();

  /// Any thread.
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
  void EndIfFinished();
  int Count(PeerRole role) const;
  bool AllHaveCome() const;
  void Publish();

  ServerJob job_;
  TrainingPlan plan_;
  VariableLayout layout_;
  std::vector<VariableShard> shards_;  // own
  std::vector<uint64_t> value_offsets_;
  std::vector<DType> dtypes_;  // by own shard
  std::shared_ptr<ops::Segment> values_;
  Update update_;
  std::vector<Tensor> state_;

  ops::FileDescriptor local_listener_, tcp_listener_, wake_;
  TcpPlace place_;
  std::list<Connection> peers_;
  Connection* first_ = nullptr;      // to the first server; null on itself
  std::vector<std::string> places_;  // by server, of those that have come
  StalenessGate gate_;
  StepQueue queue_;
  std::set<int> workers_seen_, readers_seen_;  // ranks
  bool finishing_ = false, ended_ = false;
  std::chrono::steady_clock::time_point finishing_since_;
  ServerStatistics statistics_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status status_;  // under the mutex
  std::thread thread_;
};

}  // namespace dtrun::runtime

#endif
