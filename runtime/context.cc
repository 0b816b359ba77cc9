// Init goes through four steps: read what the launcher said, join the job (through MPI, unless this
// is a world of one), agree with all other ranks on version, launch and options, and build the
// engine and the communicator of all ranks.

#include "runtime/context.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "base/flight_record.h"
#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"
#include "ops/backend.h"
#include "runtime/cpus.h"

namespace dtrun::runtime {
namespace {

using base::Text;

// What dtrun says of ranks that disagree or stall; see docs/options.md.
constexpr int kAbortCode = 76;

// Launchers that MPI can ask: Open MPI's own, and those that speak PMIx (srun --mpi=pmix, prun).
bool StartedByMpiLauncher(const base::GetEnv& get) {
  const std::string size = get("OMPI_COMM_WORLD_SIZE").value_or("");
  return size.empty() ? get("PMIX_RANK").has_value() : size != "1";
}

std::string OwnHostName() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Everything that has to be equal on all ranks, a line each.
std::vector<std::string> AgreedLines(const base::LaunchEnv* launch, const base::Options& options) {
  std::vector<std::string> lines = base::AgreedOptions(options);
  lines.insert(lines.begin(), Text("version=", base::kVersion));
  lines.push_back(Text("job=", launch == nullptr ? "(not started by dtrun)" : launch->job));
  return lines;
}

// Names the first line that differs, with its two values.
[[noreturn]] void ThrowDisagreement(const std::vector<std::string>& all, size_t other) {
  const std::vector<std::string> first = base::Split(all[0], '\n'),
                                 second = base::Split(all[other], '\n');
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    const std::string a = i < first.size() ? first[i] : "nothing",
                      b = i < second.size() ? second[i] : "nothing";
    if (a == b) continue;
    throw Error(
        ErrorCode::kMismatch,
        Text(
            "the ranks were started differently: rank 0 has ", a, ", rank ", other, " has ", b,
            " (is a DTRUN_ variable set on one host only?)"));
  }
  throw Error(ErrorCode::kMismatch, "the ranks were started differently");
}

ops::WireDType WireDTypeOf(const std::string& option) {
  if (option == "f16") return ops::WireDType::kF16;
  return option == "bf16" ? ops::WireDType::kBF16 : ops::WireDType::kNone;
}

// Compute threads for a rank that nobody told: what OMP_NUM_THREADS says, or its share of the
// host's CPUs.
int DefaultThreads(const base::GetEnv& get, int cpus_of_host, int local_size) {
  const auto asked = base::ParseInteger(get("OMP_NUM_THREADS").value_or(""));
  if (asked && *asked >= 1 && *asked <= 4096) return static_cast<int>(*asked);
  return std::max(1, cpus_of_host / local_size);
}

}  // namespace

Context::Context(
    const base::GetEnv& get, const std::vector<std::pair<std::string, std::string>>& given)
    : launch_(base::ReadLaunchEnv(get)), options_(base::ReadOptions(get, given)) {
  JoinJob(get);
  log_ = base::StderrSink(topology_.size == 1 ? -1 : topology_.rank, options_.log_level);
  StartEngine(get);
}

void Context::JoinJob(const base::GetEnv& get) {
  terminal_columns_ = launch_ ? launch_->terminal_columns : 0;
  const int expected = launch_ ? base::RankCount(launch_->hosts) : 1;
  if (!StartedByMpiLauncher(get)) {
    if (expected > 1) {
      throw Error(
          ErrorCode::kInvalidArgument, Text(
                                           "the environment says that dtrun started ", expected,
                                           " ranks, but mpirun did not start this process; start "
                                           "it with dtrun, or unset DTRUN_JOB"));
    }
    placement_ = PlaceByHostList(
        launch_ ? launch_->hosts : std::vector<base::HostSlots>{{OwnHostName(), 1}});
    topology_ = TopologyOf(placement_, 0);
    return;
  }

  mpi_ = ops::JoinMpiJob("", std::chrono::seconds(options_.timeout_s));
  Agree();
  ops::Bootstrap& bootstrap = mpi_->bootstrap();
  if (launch_) {
    placement_ = PlaceByHostList(launch_->hosts);
  } else {
    std::vector<int> leaders;
    for (const std::string& leader : bootstrap.AllGather(Text(mpi_->host_leader()))) {
      leaders.push_back(static_cast<int>(base::ParseInteger(leader).value_or(0)));
    }
    placement_ = PlaceByLeaders(leaders, bootstrap.AllGather(mpi_->host_name()));
  }
  topology_ = TopologyOf(placement_, bootstrap.rank());
}

void Context::Agree() {
  ops::Bootstrap& bootstrap = mpi_->bootstrap();
  const std::string mine = base::Join(AgreedLines(launch_ ? &*launch_ : nullptr, options_), "\n");
  const std::vector<std::string> all = bootstrap.AllGather(mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) ThrowDisagreement(all, rank);
  }
  if (launch_ && base::RankCount(launch_->hosts) != bootstrap.size()) {
    throw Error(
        ErrorCode::kMismatch, Text(
                                  "dtrun started ", base::RankCount(launch_->hosts),
                                  " ranks, but MPI has ", bootstrap.size()));
  }
}

void Context::StartEngine(const base::GetEnv& get) {
  // The CPUs of this host are those of its ranks together: each may be bound to some.
  std::vector<std::string> masks = {AllowedCpus()};
  const int own_cpus = CountUnion(masks);
  if (mpi_ != nullptr) {
    const std::vector<std::string> all = mpi_->bootstrap().AllGather(masks[0]);
    masks.clear();
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const int my_host = placement_.host_of_rank[static_cast<size_t>(topology_.rank)];
      if (placement_.host_of_rank[rank] == my_host) masks.push_back(all[rank]);
    }
  }
  const int allowed_cpus = CountUnion(masks);
  const int host_cpus = std::min(allowed_cpus, CpuQuota().value_or(allowed_cpus));
  threads_ = launch_ && launch_->threads > 0 ? launch_->threads
                                             : DefaultThreads(get, host_cpus, topology_.local_size);

  engine_ = std::make_unique<ops::Engine>(
      ops::EngineOptions{
          .stall_warning = std::chrono::seconds(options_.stall_warning_s),
          .timeout = std::chrono::seconds(options_.timeout_s),
          .may_spin = topology_.local_size <= host_cpus,
          .recorder = MakeRecorder(),
          .peer_records = PeerRecords(),
          .on_give_up = OnGiveUp()},
      clock_, log_);
  ops::Members members = ops::Members::World(topology_.size);
  for (const int host : placement_.host_of_rank) {
    if (placement_.hosts.size() == 1) break;
    members.hosts.push_back(placement_.hosts[static_cast<size_t>(host)].name);
  }
  const ops::World world{
      .bootstrap = mpi_ == nullptr ? nullptr : &mpi_->bootstrap(),
      .mpi = mpi_.get(),
      .host_of_rank = placement_.host_of_rank,
      .members = std::move(members),
      .wire = WireDTypeOf(options_.wire_dtype),
  };
  world_ = ops::CreateWorldCommunicator(world, *engine_, options_.backend, log_);

  const bool allowed =
      mpi_ == nullptr || mpi_->engine_thread_allowed() || world_->backend() == std::string("shm");
  if (options_.engine_thread == "on" && !allowed) {
    throw Error(
        ErrorCode::kUnavailable,
        Text(
            "engine_thread=on needs MPI at MPI_THREAD_MULTIPLE, or initialised by dtrun; found ",
            mpi_->thread_level()));
  }
  // A thread beside those that compute needs a core of its own, on every rank of this host.
  const bool worth_it = topology_.size > 1 && threads_ < own_cpus &&
                        topology_.local_size * (threads_ + 1) <= host_cpus;
  if (options_.engine_thread == "on" || (options_.engine_thread == "auto" && worth_it && allowed)) {
    engine_->StartThread();
  }
}

// Another host than the launcher's has no such folder; then nobody but this process reads it.
std::shared_ptr<ops::FlightRecorder> Context::MakeRecorder() const {
  const int rank = topology_.rank;
  const std::string& host =
      placement_.hosts[static_cast<size_t>(placement_.host_of_rank[static_cast<size_t>(rank)])]
          .name;
  if (launch_ && !launch_->flight_folder.empty()) {
    const std::string path = base::FlightFile(launch_->flight_folder, rank);
    try {
      return ops::FlightRecorder::InFile(path, rank, host);
    } catch (const Error& error) {
      log_(base::LogLevel::kInfo, Text("the flight record stays in this process: ", error.what()));
    }
  }
  return ops::FlightRecorder::InMemory(rank, host);
}

ops::PeerRecords Context::PeerRecords() const {
  if (!launch_ || launch_->flight_folder.empty()) return nullptr;
  return [folder = launch_->flight_folder](int world_rank) {
    return base::ReadFlightFile(base::FlightFile(folder, world_rank));
  };
}

std::function<void(const std::string&)> Context::OnGiveUp() const {
  if (options_.on_stall != "abort" || mpi_ == nullptr) return nullptr;
  return [log = log_, mpi = mpi_.get()](const std::string& error) {
    log(base::LogLevel::kError, Text("ends the job (on_stall=abort): ", error));
    mpi->Abort(kAbortCode);
  };
}

Context::~Context() {
  // One that gave up has said so.
  const bool unfinished = !shut_down_ && world_ != nullptr && !engine_->gave_up();
  if (unfinished && topology_.size > 1) {
    log_(
        base::LogLevel::kError,
        "left without Shutdown(); the other ranks may still wait for this one");
  }
}

void Context::Shutdown() {
  if (shut_down_) throw Error(ErrorCode::kInvalidArgument, "Shutdown() was called twice");
  shut_down_ = true;
  // Who is lost or stalled would be waited for here once more, and by MPI_Finalize without end.
  if (engine_->gave_up()) return;
  world_->Barrier();
  if (mpi_ != nullptr) mpi_->Finalize();
  // On other hosts than the launcher's its folder is not there, and nobody would read the note.
  if (launch_ && !launch_->shutdown_note.empty()) std::ofstream(launch_->shutdown_note).flush();
}

}  // namespace dtrun::runtime
