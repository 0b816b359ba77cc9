// dtrun_agent: dtrun's process on each host of a job, a child of dtrun or started by ssh. It talks
// to dtrun over its stdin and stdout, so the channel is as private as the connection that started
// it. When dtrun is gone for any reason, the channel ends. The agent then ends all processes of the
// job on this host.
//
// With --step, a scheduler has started the agent, and announces the end of the job with SIGTERM.
// The agent passes that on to dtrun, which gives the ranks of all hosts a notice.
//
// The wrapper of each rank connects to the agent's socket, hands over the program's output and
// reports how the program ended. The agent forwards all of it to dtrun. If dtrun does not keep up,
// the agent stops reading from the ranks.
//
// In a job of many hosts, agents start further agents (AgentTree), and pass on the frames between
// dtrun and those. An agent stays until those below it have ended.

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/elastic_files.h"
#include "base/flight_record.h"
#include "base/json.h"
#include "base/launch_env.h"
#include "base/text.h"
#include "base/version.h"
#include "launcher/agent/host_ranks.h"
#include "launcher/agent/relay.h"
#include "launcher/engines/executables.h"
#include "launcher/engines/mpirun.h"
#include "launcher/networks/network_survey.h"
#include "launcher/protocol/agent_link.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/protocol/frame.h"
#include "launcher/protocol/job_folder.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {
namespace {

using base::AsciiJsonText;
using base::JsonText;
using base::ParseJson;
using base::Text;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr size_t kMostQueued = 1 << 20;
constexpr milliseconds kDrainTime{1000};
// The same for the agents below, whose last reports may be large.
constexpr milliseconds kDrainTimeBelow{5000};
constexpr milliseconds kBetweenLooks{500};
// After the loss of a rank, dtrun wants to know soon when all ranks have joined again.
constexpr milliseconds kBetweenQuickLooks{20};
constexpr std::chrono::seconds kQuickLooks{10};

// A wrapper's connection.
struct Wrapper {
  FrameReader reader;
  std::vector<int> files;  // received descriptors, until its hello
  pid_t process = -1;
  pid_t program = -1;
  pid_t starter = -1;   // its parent: Open MPI's daemon, mpirun or dtrun_local; -1: has ended
  int rank = -1;        // -1 until its hello
  MemoryCgroup memory;  // cgroup of its program
  RankView view;
  bool ended = false;
};

class Agent {
 public:
  Agent()
      : dtrun_(
            poller_, STDIN_FILENO, STDOUT_FILENO, [this](const Frame& frame) { Obey(frame); },
            [this](const std::string&) { dtrun_is_gone_ = true; }) {}

  // A scheduler has started this process, and announces the end of the job with SIGTERM.
  void ServeAsStep() {
    dtrun_.SayWhatCame();
    told_to_end_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    poller_.Watch(told_to_end_, POLLIN, [this](short) {
      eventfd_t count;
      if (eventfd_read(told_to_end_, &count) == 0) dtrun_.Send({FrameType::kTold});
    });
    struct sigaction action = {};
    action.sa_handler = [](int) { eventfd_write(told_to_end_, 1); };
    sigaction(SIGTERM, &action, nullptr);
  }

  int Run() {
    while (!dtrun_is_gone_ && (!done_ || !relay_.empty())) {
      // After kStop, dtrun is stopped and sends no pings.
      const bool silent = host_timeout_.count() > 0 && !stopped_;
      const milliseconds longest = silent ? host_timeout_ / 4 : milliseconds(-1);
      const milliseconds until_look = IsQuiet() ? longest : between_looks();
      const milliseconds until_bundle = relay_.Flush(std::chrono::steady_clock::now());
      const bool bundle_first =
          until_bundle.count() >= 0 && (until_look.count() < 0 || until_bundle < until_look);
      poller_.Wait(bundle_first ? until_bundle : until_look);
      if (silent && std::chrono::steady_clock::now() - heard_ > host_timeout_) break;
      LookAtRanks();
      streams_.SetPaused(dtrun_.queued() > kMostQueued);
      relay_.SetPaused(dtrun_.queued() > kMostQueued);
      if (ending_ && !done_) FinishIfPossible();
    }
    if (!done_) KillRanks();
    relay_.Flush(std::chrono::steady_clock::time_point::max());
    dtrun_.Flush();
    EndDaemon();
    return done_ ? 0 : 1;
  }

 private:
  static inline int told_to_end_ = -1;  // an eventfd, for the handler of SIGTERM

  static bool IsRunning(pid_t process) {
    const auto view = ViewProcess(process);
    return view && view->running();
  }

  // Open MPI's daemon on another host ends when mpirun tells it to or is gone. A stopped daemon
  // cannot end, so it is killed.
  void EndDaemon() {
    if (!own_folder_ || daemon_ <= 0) return;
    const auto end_by = std::chrono::steady_clock::now() + kDrainTime;
    while (IsRunning(daemon_) && std::chrono::steady_clock::now() < end_by)
      std::this_thread::sleep_for(milliseconds(10));
    if (IsRunning(daemon_)) kill(daemon_, SIGKILL);
    RemoveSessionFolder(session_folder_);
  }

  static pid_t StarterOf(pid_t wrapper) {
    const pid_t parent = ViewProcess(wrapper).value_or(ProcessView()).parent;
    return IsOutsideOfJob(parent) ? -1 : parent;
  }

  // Whether only frames and the silence of dtrun have to be noticed.
  bool IsQuiet() const { return wrappers_.empty() && !ending_ && relay_.empty(); }

  milliseconds between_looks() const {
    return std::chrono::steady_clock::now() < quick_until_ ? kBetweenQuickLooks : kBetweenLooks;
  }

  void LookAtRanks() {
    const auto now = std::chrono::steady_clock::now();
    if (restarts_) ReapChildren();
    if (stopped_ || now - looked_ < between_looks()) return;
    looked_ = now;
    relay_.Look();
    if (daemon_ > 0) stopped_daemon_.Look(daemon_);
    left_overs_.Look(daemon_);
    for (auto& [connection, wrapper] : wrappers_) {
      if (wrapper.rank < 0 || wrapper.ended) continue;
      if (auto state = wrapper.view.Look())
        dtrun_.Send({FrameType::kState, wrapper.rank, *std::move(state)});
    }
  }

  void Obey(const Frame& frame) {
    heard_ = std::chrono::steady_clock::now();
    try {
      if (frame.type == FrameType::kInput) {
        if (input_) input_->Add(frame.body);
        return;
      }
      if (frame.type == FrameType::kVia || frame.type == FrameType::kAll) {
        relay_.Pass(frame);
        if (frame.type == FrameType::kAll)
          for (const Frame& inner : FramesIn(frame.body)) Obey(inner);
        return;
      }
      const json body = frame.body.empty() ? json::object() : ParseJson(frame.body);
      if (frame.type == FrameType::kJob) TakeJob(body);
      if (frame.type == FrameType::kPing)
        dtrun_.Send(
            {FrameType::kPong, -1,
             JsonText(json{{"sent_ns", body.at("sent_ns")}, {"now_ns", MonotonicNs()}})});
      if (frame.type == FrameType::kPeers)
        dtrun_.Send({FrameType::kRoutes, -1, JsonText(NetworkSurvey::OwnRoutes(body))});
      if (frame.type == FrameType::kAskProgress) dtrun_.Send(ProgressFrame(FlightFolder(folder_)));
      if (frame.type == FrameType::kEnd) BeginEnd(body.at("flights"), body.at("traces"));
      if (frame.type == FrameType::kNotice) PassToWrappers({FrameType::kNotice});
      if (frame.type == FrameType::kTerminate) Terminate();
      if (frame.type == FrameType::kRankEnded)
        std::ofstream(base::EndedNote(ShutdownNote(folder_, 0), frame.rank)).flush();
      if (frame.type == FrameType::kEpoch && epochs_) {
        const uint32_t epoch = body.at("epoch");
        if (epoch > 0) quick_until_ = std::chrono::steady_clock::now() + kQuickLooks;
        epochs_->Publish(epoch, {body.at("why"), body.at("lost")}, body.at("variables"));
      }
      if (frame.type == FrameType::kRestart && !ending_) Restart(frame.rank, body);
      if (frame.type == FrameType::kFault)
        for (const auto& [connection, wrapper] : wrappers_)
          if (wrapper.rank == frame.rank && wrapper.program > 0 && !wrapper.ended)
            kill(wrapper.program, body.at("signal"));
      if (frame.type == FrameType::kStop || frame.type == FrameType::kContinue)
        SetStopped(frame.type == FrameType::kStop);
    } catch (const LaunchError& error) {
      Refuse(error.code(), error.what());
    } catch (const std::exception& error) {
      Refuse(ExitCode::kInternal, Text("invalid message from dtrun: ", error.what()));
    }
  }

  void Refuse(ExitCode code, const std::string& text) {
    dtrun_.Send(
        {FrameType::kRefused, -1,
         JsonText(json{{"code", static_cast<int>(code)}, {"text", text}})});
  }

  void TakeJob(const json& body) {
    const std::string version = body.at("version");
    if (version != base::kVersion)
      throw LaunchError(
          ExitCode::kUnavailable, Text(
                                      "found dtrun ", base::kVersion, "; expected dtrun ", version,
                                      ", as on the host where the job was started; install the "
                                      "same version on all hosts"));
    job_ = body.at("job");
    host_timeout_ = milliseconds(body.at("host_timeout_ms").get<int64_t>());
    for (const int rank : body.at("ranks")) expected_.insert(rank);
    cwd_ = body.at("cwd");
    CheckLimits(LimitsOfHost(), static_cast<int>(expected_.size()));
    CheckProgram(body.at("program"), cwd_);
    CheckDaemon(body.at("daemon"));
    folder_ = body.at("folder");
    if (folder_.empty()) {
      own_folder_ = std::make_unique<JobFolder>(FolderBase(), body.at("remote_folder"));
      folder_ = own_folder_->path();
    }
    if (const std::string secret = body.at("secret"); !secret.empty()) WriteSecret(folder_, secret);
    restarts_ = body.at("restarts");
    in_place_ = body.at("in_place");
    if (in_place_) {
      epochs_ = base::EpochFile::Create(EpochPath(folder_, body.at("host")));
      prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans of ranks come here, where they are found
    }
    if (body.at("stdin").get<bool>())
      input_ = std::make_unique<RankInput>(poller_, [this](size_t bytes, bool open) {
        dtrun_.Send({FrameType::kTaken, 0, JsonText(json{{"bytes", bytes}, {"open", open}})});
      });
    Listen(body.at("host"));
    json ready = {{"pid", getpid()}};
    if (body.at("survey").get<bool>()) ready["networks"] = NetworkSurvey::OwnFacts();
    dtrun_.Send({FrameType::kReady, -1, AsciiJsonText(ready)});
    relay_.Start(body);
  }

  void Listen(int host) {
    const int listener = ListenForRanks(job_, host);
    poller_.Watch(listener, POLLIN, [this, listener](short) { Accept(listener); });
  }

  // Reports a missing program before any rank of any host starts.
  static void CheckProgram(const std::string& program, const std::string& cwd) {
    std::error_code error;
    if (program.front() != '/') std::filesystem::current_path(cwd, error);
    if (error)
      throw LaunchError(
          ExitCode::kNotFound, Text(
                                   "folder ", cwd, " does not exist; expected the folder of ",
                                   program, " at the same path on all hosts"));
    FindProgram(program, "");
  }

  // Names the host without the daemon. mpirun's own message would name all hosts.
  static void CheckDaemon(const std::string& file) {
    if (file.empty() || access(file.c_str(), X_OK) == 0) return;
    throw LaunchError(
        ExitCode::kUnavailable,
        Text(
            "cannot run Open MPI's ", file, ": ", std::strerror(errno),
            "; expected Open MPI at the same path as on the host where the job was started"));
  }

  void Accept(int listener) {
    const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0) return;
    const pid_t process = TrustedPeer(connection);
    if (process < 0) {
      close(connection);
      return;
    }
    wrappers_[connection].process = process;
    poller_.Watch(connection, POLLIN, [this, connection](short) { Hear(connection); });
  }

  void Hear(int connection) {
    Wrapper& wrapper = wrappers_.at(connection);
    char bytes[4096];
    const ssize_t got = ReceiveWithFiles(connection, bytes, sizeof bytes, wrapper.files);
    if (got < 0) return;
    if (got == 0) return Leave(connection);
    wrapper.reader.Feed(bytes, static_cast<size_t>(got));
    try {
      while (const std::optional<Frame> frame = wrapper.reader.Next())
        HearFrame(connection, wrapper, *frame);
    } catch (const std::exception&) {
      Leave(connection);  // a wrapper does not send such bytes
    }
  }

  void HearFrame(int connection, Wrapper& wrapper, const Frame& frame) {
    if (frame.type == FrameType::kHello) {
      if (wrapper.rank >= 0 || wrapper.files.size() != 2 || expected_.erase(frame.rank) == 0)
        throw LaunchError(
            ExitCode::kInternal, Text(
                                     "found a second or unknown rank ", frame.rank,
                                     "; expected each rank of this host once"));
      wrapper.rank = frame.rank;
      wrapper.starter = StarterOf(wrapper.process);
      ForgetNotes(folder_, frame.rank);
      wrapper.view = RankView(folder_, frame.rank, wrapper.process);
      if (in_place_) starts_.try_emplace(frame.rank, RankStart::Of(wrapper.process));
      if (wrapper.starter > 0 && wrapper.starter != getpid()) daemon_ = wrapper.starter;
      session_folder_ = frame.body;
      for (int i = 0; i < 2; ++i)
        streams_.Adopt(wrapper.files[static_cast<size_t>(i)], frame.rank, i + 1);
      wrapper.files.clear();
      const std::string welcome =
          Encode({FrameType::kWelcome, frame.rank, JsonText(json{{"folder", folder_}})});
      const bool reads = input_ && frame.rank == 0;
      SendWithFiles(
          connection, welcome, reads ? std::vector<int>{input_->reader()} : std::vector<int>{});
      if (reads) input_->CloseReader();
      if (stopped_) SignalGroupOf(wrapper.process, SIGSTOP);
      send(connection, told_.data(), told_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (frame.type == FrameType::kTakes && wrapper.rank >= 0) {
      dtrun_.Send({FrameType::kNoticed, wrapper.rank, frame.body});
    } else if (frame.type == FrameType::kProgram && wrapper.rank >= 0) {
      const pid_t program = ParseJson(frame.body).at("pid");
      wrapper.program = program;
      wrapper.memory = MemoryCgroup::Of(program);
      wrapper.view.SetProgram(program);
      dtrun_.Send({FrameType::kStarted, wrapper.rank, frame.body});
    } else if (frame.type == FrameType::kExit && wrapper.rank >= 0) {
      SayEnded(wrapper, ParseJson(frame.body));
    }
  }

  void SayEnded(Wrapper& wrapper, const json& told) {
    // Whether the program had joined the job decides what its end means.
    if (auto state = wrapper.view.Look(); state && restarts_)
      dtrun_.Send({FrameType::kState, wrapper.rank, *std::move(state)});
    wrapper.ended = true;
    left_overs_.Look(daemon_);
    std::error_code ignored;
    json body = {
        {"end", told.at("end")},
        {"value", told.at("value")},
        {"age_ns", AgeOf(told)},
        {"at_ns", MonotonicNs() - AgeOf(told)},
        {"in_order", std::filesystem::exists(ShutdownNote(folder_, wrapper.rank), ignored)},
        {"orphaned", !IsRunning(wrapper.starter)},
        {"alone", told.value("alone", false)}};
    if (restarts_) AddSteps(wrapper.rank, body);
    if (told.at("value") != 0) body["facts"] = JsonOf(FactsOf(wrapper, told));
    dtrun_.Send({FrameType::kEnded, wrapper.rank, JsonText(body)});
    if (!restarts_) return;
    expected_.insert(wrapper.rank);
    if (in_place_) SignalGroupOf(wrapper.process, SIGKILL);  // processes that the program has left
  }

  void AddSteps(int rank, json& body) const {
    const auto progress = base::ReadFlightProgress(base::FlightFile(FlightFolder(folder_), rank));
    if (progress && progress->rank == rank) body["step"] = progress->step;
    if (const auto step = base::ReadKeptStep(KeptStateFile(folder_))) body["kept_step"] = *step;
  }

  void Restart(int rank, const json& start) {
    for (const auto& [connection, wrapper] : wrappers_)
      if (wrapper.rank == rank && !wrapper.ended) return;
    expected_.insert(rank);
    quick_until_ = std::chrono::steady_clock::now() + kQuickLooks;
    if (start.at("words").empty()) return ClearForStart();
    starts_.try_emplace(rank, start.at("words"), start.at("variables"), start.at("folder"))
        .first->second.Again(start.at("place"));
  }

  // The engine and all its ranks have ended. Its next start has another daemon on this host, which
  // may run already.
  void ClearForStart() {
    for (const auto& [connection, wrapper] : wrappers_)
      if (!wrapper.ended) return;
    left_overs_.Kill();
    if (own_folder_) RemoveSessionFolder(session_folder_);
    ClearMemoryFolder(folder_);
    daemon_ = -1;
  }

  // The host's clock decides which rank ended first, not the arrival of the frames.
  static int64_t AgeOf(const json& told) {
    const int64_t now = MonotonicNs();
    return std::clamp(now - told.value("at_ns", now), int64_t{0}, now);
  }

  EndFacts FactsOf(const Wrapper& wrapper, const json& told) const {
    EndFacts facts;
    wrapper.memory.AddTo(facts);
    facts.address_limit = told.value("address_limit", int64_t{0});
    facts.space = FreeSpaceOf({FolderBase(), "/dev/shm", cwd_});
    return facts;
  }

  // A killed wrapper has not reported how its program ended.
  void Leave(int connection) {
    Wrapper& wrapper = wrappers_.at(connection);
    if (wrapper.rank >= 0 && !wrapper.ended)
      SayEnded(wrapper, {{"end", static_cast<int>(RankEnd::kRunning)}, {"value", 0}});
    for (const int file : wrapper.files) close(file);
    poller_.Forget(connection);
    close(connection);
    wrappers_.erase(connection);
  }

  // A wrapper that has not said hello gets the frame after its welcome.
  void PassToWrappers(const Frame& frame) {
    const std::string bytes = Encode(frame);
    told_ += bytes;
    for (const auto& [connection, wrapper] : wrappers_)
      if (wrapper.rank >= 0)
        send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // A stopped program handles its SIGTERM only after it continues.
  void Terminate() {
    stopped_ = false;
    PassToWrappers({FrameType::kTerminate});
    for (const auto& [connection, wrapper] : wrappers_) SignalGroupOf(wrapper.process, SIGCONT);
  }

  void SetStopped(bool stopped) {
    stopped_ = stopped;
    for (const auto& [connection, wrapper] : wrappers_)
      SignalGroupOf(wrapper.process, stopped ? SIGSTOP : SIGCONT);
    if (stopped) dtrun_.Send({FrameType::kStopped});
  }

  void KillRanks() {
    for (const auto& [connection, wrapper] : wrappers_) SignalGroupOf(wrapper.process, SIGKILL);
    KillProcessesOf(job_);
    left_overs_.Look(daemon_);
    left_overs_.Kill();
  }

  // Ends the ranks. Waits only kDrainTime for processes outside the job that keep a stream open.
  void BeginEnd(bool flights, bool traces) {
    if (ending_) return;
    ending_ = true;
    send_flights_ = flights;
    send_traces_ = traces;
    end_by_ = std::chrono::steady_clock::now() + kDrainTime;
    KillRanks();
    FinishIfPossible();
    // Later than `end_by_`, so that the last reports come first.
    host_timeout_ = relay_.empty() ? 2 * kDrainTime : kDrainTimeBelow;
  }

  void FinishIfPossible() {
    const bool late = std::chrono::steady_clock::now() > end_by_;
    if (!late && (!streams_.empty() || !wrappers_.empty())) return;
    dtrun_.Send(ProgressFrame(FlightFolder(folder_)));
    if (send_flights_)
      for (Frame& frame : FlightFrames(FlightFolder(folder_))) dtrun_.Send(std::move(frame));
    if (send_traces_) SendTraces();
    dtrun_.Send({FrameType::kDone});
    done_ = true;
  }

  // Traces are large, so the agent waits as long as dtrun takes them.
  void SendTraces() {
    ForEachTracePart(FlightFolder(folder_), [this](Frame part) {
      dtrun_.Send(part);
      if (dtrun_.queued() > kMostQueued) dtrun_.Flush();
    });
  }

  Poller poller_;
  FrameStream dtrun_;
  std::string job_, folder_, cwd_;
  pid_t daemon_ = -1;           // the wrappers' parent on this host
  std::string session_folder_;  // of Open MPI's daemon, which removes it unless killed
  std::unique_ptr<JobFolder> own_folder_;
  std::set<int> expected_;           // ranks without a wrapper yet
  std::map<int, Wrapper> wrappers_;  // by connection
  RankStreams streams_{poller_, [this](Frame frame) { dtrun_.Send(frame); }};
  Relay relay_{
      [this](const std::vector<std::string>& words, OnFrame on_frame, OnLinkEnd on_end) {
        auto link =
            std::make_unique<AgentProcess>(poller_, words, std::move(on_frame), std::move(on_end));
        link->KillAtEnd();
        return link;
      },
      [this](const Frame& frame) { dtrun_.Send(frame); }};
  std::unique_ptr<RankInput> input_;  // stdin of rank 0
  StoppedHelper stopped_daemon_;
  LeftOvers left_overs_;                     // descendants of daemon_
  bool restarts_ = false;                    // lost ranks are started again,
  bool in_place_ = false;                    // each by this agent, while the engine goes on
  std::unique_ptr<base::EpochFile> epochs_;  // with in_place_
  std::map<int, RankStart> starts_;          // by rank, with in_place_
  std::chrono::steady_clock::time_point quick_until_ = {};
  bool stopped_ = false, dtrun_is_gone_ = false;
  std::string told_;  // encoded frames to all wrappers
  std::chrono::steady_clock::time_point looked_ = {};
  bool ending_ = false, send_flights_ = false, send_traces_ = false, done_ = false;
  milliseconds host_timeout_{0};  // after such a silence, dtrun is gone; 0: no limit
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point end_by_{};
};

}  // namespace
}  // namespace dtrun::launcher

int main(int argc, char** argv) {
  // dtrun handles the signals of the terminal and of a shutdown.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2})
    ::signal(signal, SIG_IGN);
  if (isatty(STDIN_FILENO) != 0) {
    std::fputs("dtrun: dtrun_agent is started by dtrun, not by hand\n", stderr);
    return static_cast<int>(dtrun::launcher::ExitCode::kUsage);
  }
  try {
    dtrun::launcher::Agent agent;
    if (argc == 2 && std::string(argv[1]) == dtrun::launcher::kIsStep) agent.ServeAsStep();
    return agent.Run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrun: %s\n", error.what());
    return static_cast<int>(dtrun::launcher::ExitCode::kInternal);
  }
}
