// Init has three steps: read the launcher's settings, join the job (joined_job.cc), and build the
// engine and the communicator of all ranks.

#include "runtime/job/job_context.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>

#include "base/flight_record.h"
#include "base/text.h"
#include "base/trace.h"
#include "base/version.h"
#include "dtrun/error.h"
#include "ops/backends/backends.h"
#include "ops/bootstrap/local_socket.h"
#include "runtime/job/join_plan.h"
#include "runtime/job/topology.h"

namespace dtrun::runtime {
namespace {

using base::Text;

// The exit code of a job that a stall or a lost peer ended; see docs/reference/options.md.
constexpr int kAbortCode = 76;

ops::WireDType WireDTypeOf(const std::string& option) {
  if (option == "f16") return ops::WireDType::kF16;
  return option == "bf16" ? ops::WireDType::kBF16 : ops::WireDType::kNone;
}

// The number of compute threads if the launcher has set none: OMP_NUM_THREADS, or this rank's share
// of the host's CPUs.
int DefaultThreads(const base::GetEnv& get, int cpus_of_host, int local_size) {
  const auto asked = base::ParseInteger(get("OMP_NUM_THREADS").value_or(""));
  if (asked && *asked >= 1 && *asked <= 4096) return static_cast<int>(*asked);
  return std::max(1, cpus_of_host / local_size);
}

// Tells the launcher, while it exists, that this rank waits in Init for the other ranks, and for
// how long. A communicator of the caller may have fewer ranks than the launcher started. Then the
// launcher cannot know the missing ranks, so there is no note.
class InitNote {
 public:
  InitNote(const std::optional<base::LaunchEnv>& launch, const ops::MpiHandle& handle) {
    const bool waits = launch && !launch->shutdown_note.empty() && launch->servers == 0;
    if (waits && handle.comm == nullptr) note_ = launch->shutdown_note;
  }
  void Write(const base::Options& options, uint32_t epoch) const {
    if (note_.empty()) return;
    std::ofstream(base::InitNote(note_)) << getpid() << ' ' << options.timeout_s << ' '
                                         << options.stall_warning_s << ' ' << epoch << '\n';
  }
  // Renames the file instead of writing a new one, because the disk may be full by now.
  ~InitNote() {
    if (note_.empty()) return;
    const bool failed = std::uncaught_exceptions() > 0;
    if (failed) unlink(base::InitNote(note_).c_str());
    if (!failed) std::rename(base::InitNote(note_).c_str(), base::JoinedNote(note_).c_str());
  }
  InitNote(const InitNote&) = delete;
  InitNote& operator=(const InitNote&) = delete;

 private:
  std::string note_;
};

}  // namespace

Context::Context(
    const base::GetEnv& of_process, const std::vector<std::pair<std::string, std::string>>& given,
    const ops::MpiHandle& handle)
    : launch_(WantsToBeAlone(of_process) ? std::nullopt : LaunchOf(of_process)),
      options_(base::ReadOptions(of_process, given)) {
  const InitNote note(launch_, handle);
  const base::GetEnv get = EnterEpoch(of_process, [&] { note.Write(options_, epoch()); });
  terminal_columns_ = launch_ ? launch_->terminal_columns : 0;
  std::optional<ops::AbandonScope> abandon;
  if (epoch_ != nullptr) abandon.emplace([this] { return epoch_->WhyOver(); });
  job_ = JoinJob(get, launch_, options_, handle, epoch());
  log_ = base::StderrSink(topology().size == 1 ? -1 : launch_rank(), options_.log_level);
  ChooseInstructionSet();
  StartEngine(get);
  if (job_.apart) FindServers(get);
}

int Context::launch_size() const {
  return launch_ && launch_->launch_size > 0 ? launch_->launch_size : topology().size;
}

int Context::HostOfLaunchRank(int rank) const {
  const std::vector<int>& hosts = job_.placement.host_of_rank;
  const std::vector<int>& ranks = job_.members.world_ranks;
  const auto place =
      job_.apart ? rank : std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  return place >= 0 && static_cast<size_t>(place) < hosts.size() ? hosts[static_cast<size_t>(place)]
                                                                 : -1;
}

uint32_t Context::epoch() const {
  if (epoch_ != nullptr) return epoch_->number();
  return launch_ ? static_cast<uint32_t>(launch_->epoch) : 0;
}

bool Context::keeps_state() const {
  return launch_ && !launch_->kept_state.empty() && !job_.apart && topology().local_rank == 0;
}

// A full /dev/shm is no reason to end a training that has lost no rank.
void Context::KeepState(const std::string& name, uint64_t step, const void* state, size_t bytes) {
  if (!keeps_state()) return;
  try {
    base::WriteKeptState(launch_->kept_state, name, step, state, bytes);
  } catch (const Error& error) {
    if (std::exchange(warned_of_keeping_, true)) return;
    log_(
        base::LogLevel::kWarning,
        Text(error.what(), "; after a loss, training goes on from an earlier step"));
  }
}

const base::KeptState* Context::LoadState(const std::string& name) {
  kept_.reset();
  if (keeps_state()) kept_ = base::ReadKeptState(launch_->kept_state);
  if (kept_ && kept_->name != name) kept_.reset();
  return kept_ ? &*kept_ : nullptr;
}

// Waits for an epoch of which this process is a rank. Returns its environment. Calls `tell` in each
// epoch.
base::GetEnv Context::EnterEpoch(
    const base::GetEnv& of_process, const std::function<void()>& tell) {
  constexpr std::chrono::hours kOnePatience{1};
  for (;;) {
    epoch_ = JobEpoch::Of(launch_);
    tell();
    if (epoch_ == nullptr) return of_process;
    const base::GetEnv get = epoch_->Environment(of_process);
    launch_ = LaunchOf(get);
    if (base::RankOf(*launch_, launch_->rank) >= 0) return get;
    while (!epoch_->AwaitEnd(kOnePatience)) continue;
  }
}

// From here on, the option reduce_isa names the instruction set in use.
void Context::ChooseInstructionSet() {
  const ops::InstructionSet chosen =
      ops::ChooseInstructionSet(options_.reduce_isa, ops::InstructionSetsHere(), job_.bootstrap());
  ops::UseInstructionSet(chosen);
  options_.reduce_isa = chosen.name;
}

// The first server listens at MASTER_ADDR and MASTER_PORT, the address at which frameworks meet.
void Context::FindServers(const base::GetEnv& get) {
  ServerJob& servers = servers_.emplace();
  servers.job = launch_->job;
  servers.rank = topology().rank;
  servers.size = topology().size;
  servers.servers = launch_->servers;
  servers.evaluator = launch_->evaluator;
  servers.host_of_rank = job_.placement.host_of_rank;
  for (const base::HostSlots& host : hosts()) servers.host_names.push_back(host.name);
  servers.timeout = std::chrono::seconds(options_.timeout_s);
  servers.log = log_;
  if (!launch_->shutdown_note.empty())
    servers.has_ended = [note = launch_->shutdown_note](int rank) {
      std::error_code unknown;
      return std::filesystem::exists(base::EndedNote(note, rank), unknown);
    };
  if (!servers.several_hosts()) return;
  servers.first = ops::TcpPlace::Read(
      Text(get("MASTER_ADDR").value_or(""), ' ', get("MASTER_PORT").value_or("")));
  if (servers.first.host.empty())
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "MASTER_ADDR is '", get("MASTER_ADDR").value_or(""), "' and MASTER_PORT '",
            get("MASTER_PORT").value_or(""),
            "'; expected an address of the first host and a port, where parameter server 0 "
            "listens"));
  servers.secret = JobSecret(*launch_);
}

// Counts the CPUs that the ranks of this host may use together, because each rank may be bound to
// some of the CPUs. A CPU quota lowers the number.
int Context::CountHostCpus() const {
  std::vector<std::string> masks = {AllowedCpus()};
  if (ops::Bootstrap* bootstrap = job_.bootstrap()) {
    const std::vector<std::string> all = bootstrap->AllGather(masks[0]);
    const std::vector<int>& hosts = job_.placement.host_of_rank;
    masks.clear();
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (hosts[rank] == hosts[static_cast<size_t>(topology().rank)]) masks.push_back(all[rank]);
    }
  }
  const int allowed = CountUnion(masks);
  return std::min(allowed, CpuQuota().value_or(allowed));
}

void Context::StartEngine(const base::GetEnv& get) {
  const int host_cpus = CountHostCpus();
  threads_ = launch_ && launch_->threads > 0
                 ? launch_->threads
                 : DefaultThreads(get, host_cpus, topology().local_size);
  engine_ = std::make_unique<ops::Engine>(
      ops::EngineOptions{
          .stall_warning = std::chrono::seconds(options_.stall_warning_s),
          .timeout = std::chrono::seconds(options_.timeout_s),
          .may_spin = topology().local_size <= host_cpus,
          .recorder = MakeRecorder(),
          .peer_records = PeerRecords(),
          .on_give_up = OnGiveUp()},
      clock_, log_);
  if (epoch_ != nullptr) epoch_->Watch(*engine_);
  MakeTimeline();
  const bool several = topology().size > 1 && !job_.apart;
  const ops::World world{
      .bootstrap = several ? job_.bootstrap() : nullptr,
      .mpi = several ? job_.mpi.get() : nullptr,
      .host_of_rank = job_.placement.host_of_rank,
      .members = job_.members,
      .wire = WireDTypeOf(options_.wire_dtype),
      .transport = options_.transport,
      .settings =
          {.address = job_.own_place.address,
           .interface = job_.own_place.interface,
           .ports = options_.tcp_ports,
           .secret = job_.secret,
           .lost_after = PeerTimeout()},
      .devices = {.backend = options_.device_backend, .memory_bytes = options_.gpu_memory_bytes},
  };
  world_ = ops::CreateWorldCommunicator(world, *engine_, options_.backend, log_);
  WatchLeavers();
  StartEngineThread(host_cpus);
}

// If dtrun watches the hosts, it ends the job when a host is silent, and names the host. So this
// rank waits longer.
std::chrono::seconds Context::PeerTimeout() const {
  constexpr std::chrono::seconds kLauncherFirst{5};
  const std::chrono::seconds set(options_.peer_timeout_s);
  return launch_ ? set + kLauncherFirst : set;
}

void Context::WatchLeavers() {
  engine_->WatchLeavers(
      {.self = launch_rank(),
       .leave = [this] { world_->Leave(); },
       .leavers =
           [this] {
             std::vector<int> ranks = world_->Left();
             for (int& rank : ranks)
               rank = world_->members().world_ranks[static_cast<size_t>(rank)];
             return ranks;
           }});
}

// Starts the engine's thread if it helps and is allowed. Otherwise notes why not.
void Context::StartEngineThread(int host_cpus) {
  const bool demanded = options_.engine_thread == "on";
  // The engine's thread needs a free CPU beside the compute threads, on every rank of this host.
  const bool room =
      threads_ < CountUnion({AllowedCpus()}) && topology().local_size * (threads_ + 1) <= host_cpus;
  const bool mpi_allows =
      job_.mpi == nullptr || !job_.mpi->carries() || job_.mpi->engine_thread_allowed();
  if (options_.engine_thread == "off") {
    no_overlap_ = "engine_thread=off";
  } else if ((topology().size == 1 || job_.apart) && !demanded) {
    no_overlap_ = "there is no other rank";
  } else if (!room && !demanded) {
    no_overlap_ = Text(
        "a thread of dtrun's needs a CPU of its own, and ", topology().local_size, " ranks of ",
        threads_, " threads share ", host_cpus, " CPUs");
  } else if (!mpi_allows) {
    no_overlap_ = Text(
        "a thread of dtrun's may call MPI only at MPI_THREAD_MULTIPLE, and MPI is at ",
        job_.mpi->thread_level());
    if (demanded)
      throw Error(ErrorCode::kUnavailable, Text("engine_thread=on is not possible: ", no_overlap_));
    if (topology().rank == 0)
      log_(
          base::LogLevel::kWarning,
          Text(
              "operations move only while dtrun is called, not while backward runs: ",
              no_overlap_));
  }
  if (no_overlap_.empty()) engine_->StartThread();
}

std::string Context::Describe() const {
  std::vector<std::string> options;
  for (const auto& [name, value] : base::OptionValues(options_))
    options.push_back(Text(name, "=", value));
  const Topology& t = topology();
  return Text(
      "dtrun ", base::kVersion, "; rank ", t.rank, " of ", t.size, ", local ", t.local_rank, " of ",
      t.local_size, ", host ", t.cross_rank, " of ", t.cross_size, "; joined ", job_.description,
      "; backend ", world_->backend(), "; ", threads_,
      " compute threads; overlap with the caller's own work: ",
      no_overlap_.empty() ? "on" : Text("off, because ", no_overlap_), "; ",
      base::Join(options, " "));
}

// The folder exists only on the launcher's host. On other hosts, the record stays in memory.
std::shared_ptr<ops::FlightRecorder> Context::MakeRecorder() const {
  const int rank = launch_rank();
  if (launch_ && !launch_->flight_folder.empty()) {
    const std::string path = base::FlightFile(launch_->flight_folder, rank);
    if (epoch() > 0) ::unlink(path.c_str());  // this process made it in an earlier epoch
    try {
      return ops::FlightRecorder::InFile(path, rank, HostName());
    } catch (const Error& error) {
      log_(base::LogLevel::kInfo, Text("the flight record stays in this process: ", error.what()));
    }
  }
  return ops::FlightRecorder::InMemory(rank, HostName());
}

const std::string& Context::HostName() const {
  const int host = job_.placement.host_of_rank[static_cast<size_t>(topology().rank)];
  return job_.placement.hosts[static_cast<size_t>(host)].name;
}

// Runs before the first operation, so that a timeline of the whole job contains all operations.
void Context::MakeTimeline() {
  timeline_ = std::make_unique<Timeline>(
      TraceBuffer::Owner{launch_rank(), topology().size, HostName(), epoch()}, *engine_);
  if (!launch_ || !launch_->timeline || launch_->flight_folder.empty()) return;
  const std::string& folder = launch_->flight_folder;
  for (const base::FoundTrace& trace : base::FindTraces(folder))  // of a killed process
    if (trace.rank == launch_rank() && trace.epoch < epoch()) base::TrimTraceFile(trace.path);
  try {
    timeline_->StartInFile(base::TraceFile(folder, launch_rank(), epoch()));
  } catch (const Error& error) {
    log_(base::LogLevel::kWarning, Text("this rank is not in the timeline: ", error.what()));
  }
}

void Context::StartTimeline(const std::string& path) {
  if (job_.apart)
    throw Error(
        ErrorCode::kUnavailable,
        "StartTimeline needs all ranks, but a job with parameter servers may lose ranks; start the "
        "job with dtrun --timeline instead");
  timeline_->Start(*world_, job_.placement.host_of_rank, path);
}

ops::PeerRecords Context::PeerRecords() const {
  if (!launch_ || launch_->flight_folder.empty()) return nullptr;
  return [folder = launch_->flight_folder](int world_rank) {
    return base::ReadFlightFile(base::FlightFile(folder, world_rank));
  };
}

std::function<void(const std::string&)> Context::OnGiveUp() const {
  if (options_.on_stall != "abort" || job_.bootstrap() == nullptr) return nullptr;
  return [log = log_, mpi = job_.mpi.get()](const std::string& error) {
    log(base::LogLevel::kError, Text("ends the job (on_stall=abort): ", error));
    if (mpi != nullptr) mpi->Abort(kAbortCode);
    // The launcher ends the other ranks, or the other ranks give up.
    ::_exit(kAbortCode);
  };
}

Context::~Context() {
  // The engine's thread looks for leavers until the engine ends, which is after the communicator.
  if (engine_ != nullptr) engine_->WatchLeavers({});
  // A rank that gave up has reported its error.
  const bool unfinished = !shut_down_ && world_ != nullptr && !engine_->gave_up();
  if (unfinished && topology().size > 1) {
    log_(
        base::LogLevel::kError,
        "left without Shutdown(); the other ranks may still wait for this one");
  }
}

bool Context::AwaitRecovery(ErrorCode code) {
  const bool recovers = epoch_ != nullptr && epoch_->AwaitEnd(PatienceAfter(code));
  shut_down_ = shut_down_ || recovers;
  return recovers;
}

void Context::Shutdown() {
  if (shut_down_) throw Error(ErrorCode::kInvalidArgument, "Shutdown() was called twice");
  shut_down_ = true;
  // A shutdown collective would wait again for the lost or stalled rank. MPI_Finalize would wait
  // for it without end.
  if (epoch_ != nullptr && epoch_->AwaitEnd(std::chrono::milliseconds(0))) throw *epoch_->WhyOver();
  if (engine_->gave_up()) return;
  std::exception_ptr lost_timeline;  // the timeline's error, thrown after the rest of the shutdown
  try {
    if (timeline_->stoppable()) timeline_->Stop();
  } catch (const Error&) {
    lost_timeline = std::current_exception();
  }
  if (engine_->gave_up()) {
    if (lost_timeline != nullptr) std::rethrow_exception(lost_timeline);
    return;
  }
  engine_->Leave(world_->Start({.kind = ops::CollectiveKind::kShutdown}));
  if (job_.mpi != nullptr) job_.mpi->Finalize();
  // The folder exists only on the launcher's host. On other hosts the write fails, which does no
  // harm.
  if (launch_ && !launch_->shutdown_note.empty()) std::ofstream(launch_->shutdown_note).flush();
  if (lost_timeline != nullptr) std::rethrow_exception(lost_timeline);
}

}  // namespace dtrun::runtime
