#include "ops/mpi/mpi_module.h"

#include <mpi.h>

#include <chrono>
#include <thread>

#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"
#include "ops/mpi/mpi_calls.h"
#include "ops/mpi/mpi_operation.h"
#include "ops/segment_exchange.h"

namespace dtrun::ops {
namespace mpi {
namespace {

MPI_Comm DuplicateOf(MPI_Comm comm) {
  MPI_Comm duplicate = MPI_COMM_NULL;
  Check(MPI_Comm_dup(comm, &duplicate), "MPI_Comm_dup");
  Check(MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return duplicate;
}

// The communicators of MPI are not freed one by one, which would be collective; MPI_Finalize frees
// them.
class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, int rank, int size, Engine& engine, Members members)
      : Communicator(std::move(members)),
        engine_(engine),
        group_(std::make_shared<Group>(
            Group{.members = shared_members(), .comm = comm, .rank = rank, .size = size})) {}

  int rank() const override { return group_->rank; }
  int size() const override { return group_->size; }
  const char* backend() const override { return "mpi"; }
  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    Barrier();
    return AllocatePrivate(bytes);
  }
  std::unique_ptr<Communicator> Create(
      Bootstrap&, const std::vector<int>&, Members members) override {
    // MPI_Comm_dup blocks: nobody may depend on this rank's progress in an earlier operation
    // meanwhile.
    Barrier();
    return std::make_unique<MpiCommunicator>(
        DuplicateOf(group_->comm), rank(), size(), engine_, std::move(members));
  }

 protected:
  Work StartChecked(Collective collective) override {
    return engine_.Start(std::make_unique<MpiOperation>(group_, collective));
  }

 private:
  Engine& engine_;
  std::shared_ptr<Group> group_;
};

// Waits for one MPI call with a deadline; only for the time before an engine exists.
void WaitFor(Request& request, base::Duration timeout, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int tries = 0; !request.Test(); ++tries) {
    if (tries > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (std::chrono::steady_clock::now() > deadline) {
      throw Error(ErrorCode::kTimeout, base::Text("waited too long for the other ranks in ", what));
    }
  }
}

class MpiBootstrap : public Bootstrap {
 public:
  MpiBootstrap(MPI_Comm comm, int rank, int size, base::Duration timeout)
      : comm_(comm), rank_(rank), size_(size), timeout_(timeout) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::string> AllGather(const std::string& bytes) override {
    const auto p = static_cast<size_t>(size_);
    int length = Int(bytes.size());
    std::vector<int> lengths(p), offsets(p);
    Request request;
    Check(
        MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm_, request.get()),
        "MPI_Iallgather");
    WaitFor(request, timeout_, "Init");
    for (size_t r = 1; r < p; ++r) offsets[r] = offsets[r - 1] + lengths[r - 1];
    std::string all(static_cast<size_t>(offsets.back() + lengths.back()), '\0');
    Check(
        MPI_Iallgatherv(
            bytes.data(), length, MPI_BYTE, all.data(), lengths.data(), offsets.data(), MPI_BYTE,
            comm_, request.get()),
        "MPI_Iallgatherv");
    WaitFor(request, timeout_, "Init");
    std::vector<std::string> result;
    for (size_t r = 0; r < p; ++r) {
      result.push_back(
          all.substr(static_cast<size_t>(offsets[r]), static_cast<size_t>(lengths[r])));
    }
    return result;
  }

  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override {
    return ConnectSocketExchange(ranks, std::chrono::duration_cast<std::chrono::seconds>(timeout_));
  }

 private:
  MPI_Comm comm_;
  int rank_, size_;
  base::Duration timeout_;
};

class OpenMpiJob : public MpiJob {
 public:
  explicit OpenMpiJob(base::Duration timeout) {
    int initialized = 0;
    Check(MPI_Initialized(&initialized), "MPI_Initialized");
    initialized_by_us_ = initialized == 0;
    // Calls of MPI come from one thread at a time, the engine's lock sees to that.
    if (initialized_by_us_)
      Check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level_), "MPI_Init_thread");
    if (!initialized_by_us_) Check(MPI_Query_thread(&level_), "MPI_Query_thread");
    comm_ = DuplicateOf(MPI_COMM_WORLD);
    Check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    Check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    FindHost();
    bootstrap_ = std::make_unique<MpiBootstrap>(comm_, rank_, size_, timeout);
  }

  Bootstrap& bootstrap() override { return *bootstrap_; }
  int host_leader() const override { return host_leader_; }
  std::string host_name() const override { return host_name_; }
  bool engine_thread_allowed() const override {
    return level_ == MPI_THREAD_MULTIPLE || (initialized_by_us_ && level_ == MPI_THREAD_SERIALIZED);
  }
  std::string thread_level() const override {
    switch (level_) {
      case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
      case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
      case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
      case MPI_THREAD_MULTIPLE: return "MPI_THREAD_MULTIPLE";
    }
    return base::Text("MPI thread level ", level_);
  }

  std::unique_ptr<Communicator> CreateCommunicator(Engine& engine, Members members) override {
    return std::make_unique<MpiCommunicator>(
        DuplicateOf(comm_), rank_, size_, engine, std::move(members));
  }
  void Finalize() override {
    if (initialized_by_us_) Check(MPI_Finalize(), "MPI_Finalize");
  }
  void Abort(int code) override { MPI_Abort(comm_, code); }

 private:
  void FindHost() {
    MPI_Comm host = MPI_COMM_NULL;
    Check(
        MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type");
    host_leader_ = rank_;
    Check(MPI_Bcast(&host_leader_, 1, MPI_INT, 0, host), "MPI_Bcast");
    Check(MPI_Comm_free(&host), "MPI_Comm_free");
    char name[MPI_MAX_PROCESSOR_NAME] = {};
    int length = 0;
    Check(MPI_Get_processor_name(name, &length), "MPI_Get_processor_name");
    host_name_ = name;
  }

  bool initialized_by_us_ = false;
  int level_ = MPI_THREAD_SINGLE;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, host_leader_ = 0;
  std::string host_name_;
  std::unique_ptr<MpiBootstrap> bootstrap_;
};

}  // namespace
}  // namespace mpi

namespace {

const MpiModule kModule = {
    .version = base::kVersion,
    .join = [](base::Duration timeout) -> std::unique_ptr<MpiJob> {
      return std::make_unique<mpi::OpenMpiJob>(timeout);
    },
};

}  // namespace
}  // namespace dtrun::ops

extern "C" __attribute__((visibility("default"))) const dtrun::ops::MpiModule* dtrun_mpi_module() {
  return &dtrun::ops::kModule;
}
