// Each host has one agent: a child process on this machine, or a process that ssh starts on another
// host. dtrun sends each agent the job and its ranks. When the last agent is ready, all agents are
// asked for their routes to each other. Their frames then update the reports, the output and the
// clock offsets. A host is lost when its connection ends, or when it is silent for host_timeout.

#include "launcher/job/host_agents.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "base/trace.h"
#include "base/trace_json.h"
#include "base/version.h"
#include "launcher/engines/launch_engine.h"
#include "launcher/job/supervisor.h"
#include "launcher/support/host_system.h"
#include "launcher/support/json_number.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {

using base::JsonText;
using base::ParseJson;

/// The offset of another host's monotonic clock, from pings and answers (Cristian's algorithm): the
/// other host answered at some time between the two, so the shortest round trip is the most exact.
/// Pure.
class HostClock {
 public:
  /// A ping was sent and answered at these times of this host's clock; `theirs_ns` is the other
  /// host's clock at its answer.
  void Add(int64_t asked_ns, int64_t theirs_ns, int64_t answered_ns) {
    const int64_t half = (answered_ns - asked_ns) / 2;
    if (half < 0 || (looks_++ > 0 && half >= best_.uncertainty_ns)) return;
    best_ = {theirs_ns - (asked_ns + half), half};
  }

  int looks() const { return looks_; }
  const base::ClockOffset& offset() const { return best_; }

 private:
  base::ClockOffset best_;
  int looks_ = 0;
};

namespace {

using base::Text;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

// How long an agent may take to end after its channel is closed.
constexpr std::chrono::seconds kAgentEnds{3};
// Between two tries to reach a host: as many seconds as it has failed, up to a limit.
constexpr std::chrono::seconds kBetweenTries{1};
constexpr int kMostBetweenTries = 5;

std::vector<std::string> NamesOf(const std::vector<base::HostSlots>& hosts) {
  std::vector<std::string> names;
  for (const base::HostSlots& host : hosts) names.push_back(host.name);
  return names;
}

}  // namespace

struct HostAgents::Host {
  int number;
  std::string name;
  bool remote;
  int slots;
  HostRanks ranks = {};
  bool is_late = false;      // not of the plan
  std::string address = {};  // for the other hosts; "": not known
  pid_t process = -1;
  std::unique_ptr<Complaints> complaints = nullptr;
  std::unique_ptr<FrameStream> stream = nullptr;
  Clock::time_point heard = Clock::now();
  Clock::time_point pinged = {};
  bool ready = false, done = false, gone = false, stopped = false, forgotten = false;
  bool owes_progress = false;  // was asked and has not answered
  std::optional<LaunchError> refusal = std::nullopt;
  int failures = 0;             // of ssh to find the host
  std::string last_words = {};  // of ssh, after a failure
  std::optional<Clock::time_point> next_try = std::nullopt;
  HostClock clock = {};
  StoppedHelper stopped_process = {};
  struct Received {
    int rank;
    std::string path;
    uint64_t bytes = 0;
  };
  std::vector<Received> traces = {};
};

HostAgents::HostAgents(Poller& poller, AgentPlan plan, Output& output)
    : poller_(poller),
      plan_(std::move(plan)),
      output_(output),
      survey_(NamesOf(plan_.hosts), plan_.on_this_machine),
      wait_until_(Clock::now() + plan_.host_wait) {
  int rank = 0;
  for (size_t i = 0; i < plan_.hosts.size(); ++i) {
    Host& host = Make(plan_.hosts[i], plan_.on_this_machine[i]);
    const bool is_spare = i + plan_.spares >= plan_.hosts.size();
    while (!is_spare && static_cast<int>(host.ranks.size()) < host.slots) host.ranks.insert(rank++);
    Start(host);
  }
}

HostAgents::Host& HostAgents::Make(const base::HostSlots& host, bool on_this_machine) {
  hosts_.push_back(std::make_unique<Host>(Host{
      .number = static_cast<int>(hosts_.size()),
      .name = host.name,
      .remote = !on_this_machine,
      .slots = host.slots}));
  return *hosts_.back();
}

HostAgents::~HostAgents() {
  for (const auto& host : hosts_) {
    host->stream.reset();  // makes the agent end
    host->complaints.reset();
    // The ssh process may not notice that its channel is closed.
    if (host->remote && !host->done) kill(-host->process, SIGKILL);
    AwaitChild(host->process, kAgentEnds);
  }
}

void HostAgents::Start(Host& host) {
  std::vector<std::string> words;
  if (host.remote) {
    words = plan_.remote_shell;
    words.insert(words.end(), {SshHost(host.name), plan_.remote_agent});
    if (plan_.by_scheduler) words.emplace_back(kIsStep);
  } else {
    words = {plan_.agent};
  }
  const AgentProcess child = StartAgentProcess(words);
  host.process = child.process;
  host.complaints = std::make_unique<Complaints>(poller_, child.complaints);
  host.stream = std::make_unique<FrameStream>(
      poller_, child.channel, child.channel,
      [this, &host](const Frame& frame) { Hear(host, frame); },
      [this, &host](const std::string& why) { HearEnd(host, why); });
  if (host.remote && plan_.by_scheduler) host.stream->SetWindow();
  json ranks = json::array();
  for (const int rank : host.ranks) ranks.push_back(rank);
  const json job = {
      {"version", base::kVersion},
      {"job", plan_.job},
      {"host", host.number},
      {"folder", host.remote ? "" : plan_.folder},
      {"remote_folder",
       host.is_late ? Text(plan_.remote_folder, '-', host.number) : plan_.remote_folder},
      {"daemon", host.remote ? plan_.daemon : ""},
      {"ranks", ranks},
      {"program", plan_.program},
      {"cwd", plan_.cwd},
      {"survey", host.is_late ? host.remote : !survey_.complete()},
      {"stdin", plan_.stdin_to_rank_0 && host.number == 0},
      {"host_timeout_ms", host.remote ? plan_.host_timeout.count() : 0},
      {"secret", plan_.secret},
      {"restarts", plan_.restarts},
      {"in_place", plan_.in_place}};
  host.stream->Send({FrameType::kJob, -1, JsonText(job)});
}

void HostAgents::Hear(Host& host, const Frame& frame) {
  if (host.forgotten) return;  // the ranks run on another host now
  host.heard = Clock::now();
  if (frame.type == FrameType::kProgress) host.owes_progress = false;
  try {
    const auto body = [&] { return ParseJson(frame.body); };
    switch (frame.type) {
      case FrameType::kReady: HearReady(host, frame); break;
      case FrameType::kRoutes: survey_.HearRoutes(static_cast<size_t>(host.number), body()); break;
      case FrameType::kRefused: {
        std::string text = body().at("text");
        if (host.remote) text = Text(host.name, ": ", text);
        host.refusal =
            LaunchError(static_cast<ExitCode>(WholeNumber(body(), "code", 1, 255)), text);
        break;
      }
      case FrameType::kOutput:
        CheckRank(frame, host.ranks);
        if (frame.body.empty()) break;
        if (frame.body.size() == 1) output_.End(frame.rank, frame.body[0]);
        if (frame.body.size() > 1)
          output_.Write(frame.rank, frame.body[0], std::string_view(frame.body).substr(1));
        break;
      case FrameType::kStarted:
      case FrameType::kEnded:
      case FrameType::kFlight:
      case FrameType::kNoticed:
      case FrameType::kState:
      case FrameType::kProgress:
        reports_.Hear(frame, host.ranks, MonotonicNs(), ClockOf(host));
        break;
      case FrameType::kTrace: HearTrace(host, frame); break;
      case FrameType::kPong: HearPong(host, frame); break;
      case FrameType::kStopped: host.stopped = true; break;
      case FrameType::kTold:
        if (on_told_) on_told_(host.name);
        break;
      case FrameType::kTaken:
        if (on_taken_) {
          const auto bytes = WholeNumber(body(), "bytes", 0, INT64_MAX);
          on_taken_(static_cast<size_t>(bytes), body().at("open"));
        }
        break;
      case FrameType::kDone: host.done = true; break;
      default: break;
    }
  } catch (const json::exception& error) {
    throw LaunchError(ExitCode::kInternal, error.what());
  }
}

// When the last host is ready, asks every agent how it reaches the other hosts.
void HostAgents::HearReady(Host& host, const Frame& frame) {
  host.ready = true;
  if (!epoch_.empty()) host.stream->Send({FrameType::kEpoch, -1, epoch_});
  if (host.is_late && host.remote)
    host.address = NetworkSurvey::AddressIn(ParseJson(frame.body).at("networks"));
  if (host.is_late || survey_.complete()) return;  // all hosts are this machine
  const json facts = ParseJson(frame.body).at("networks");
  if (!survey_.HearFacts(static_cast<size_t>(host.number), facts)) return;
  for (const auto& each : hosts_) {
    const json peers = survey_.PeersOf(static_cast<size_t>(each->number));
    each->stream->Send({FrameType::kPeers, -1, JsonText(peers)});
  }
}

void HostAgents::HearEnd(Host& host, const std::string& why) {
  const bool known = std::exchange(host.gone, true);  // Beat has given the host up
  if (host.done || known) return;
  // At the end of the job, the last reports about this host's ranks may be missing.
  if (ending_ && host.remote && host.ready)
    lost_at_end_ = Text("the connection to ", host.name, " was lost");
  if (ending_) return;
  std::string reason = why.empty() ? host.complaints->LastLine() : why;
  if (!host.ready) {
    host.complaints->Drain();
    if (why.empty()) reason = host.complaints->LastLine();
    if (!why.empty()) reason = why + " (does its shell print when somebody logs in?)";
    if (!host.refusal && MayAnswerLater(reason) && IsWaitedFor(host)) {
      host.next_try = Clock::now() + kBetweenTries * std::min(++host.failures, kMostBetweenTries);
      host.last_words = reason;
      return;
    }
    if (host.failures > 0) reason += Text(" (--host-wait ", plan_.host_wait.count(), ')');
    if (!host.refusal)
      host.refusal = LaunchError(
          ExitCode::kUnavailable,
          host.remote ? Text(
                            "host ", host.name, " cannot be used: ",
                            reason.empty() ? "its remote shell ended without a message" : reason)
                      : Text("the agent of this host could not be started: ", reason));
    return;
  }
  losses_.push_back(
      {static_cast<size_t>(host.number),
       Text(
           "host ", host.name, " was lost: ",
           reason.empty() ? "its agent has ended, or the connection to the agent" : reason)});
}

bool HostAgents::Ready() const {
  for (const auto& host : hosts_)
    if (host->refusal) throw LaunchError(*host->refusal);
  return survey_.complete() &&
         std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) { return host->ready; });
}

bool HostAgents::IsWaitedFor(const Host& host) const {
  return host.remote && !host.is_late && !ending_ && Clock::now() < wait_until_;
}

void HostAgents::TryAgain() {
  for (const auto& host : hosts_) {
    if (!host->next_try || Clock::now() < *host->next_try) continue;
    host->next_try.reset();
    host->stream.reset();
    host->complaints.reset();
    AwaitChild(host->process, kAgentEnds);
    host->gone = false;
    Start(*host);
  }
}

std::string HostAgents::NotFound() const {
  constexpr size_t kMostNamed = 3;
  std::vector<std::string> named;
  size_t others = 0;
  for (const auto& host : hosts_) {
    if (host->failures == 0 || host->ready) continue;
    if (named.size() == kMostNamed)
      ++others;
    else
      named.push_back(Text(host->name, " (", host->last_words, ')'));
  }
  const std::string text = base::Join(named, ", ");
  return others > 0 ? Text(text, " and ", others, others == 1 ? " other" : " others") : text;
}

std::string HostAgents::Silent() const {
  std::vector<std::string> silent, without_routes;
  for (const auto& host : hosts_) {
    if (!host->ready) silent.push_back(host->name);
    if (!survey_.HasRoutes(static_cast<size_t>(host->number))) without_routes.push_back(host->name);
  }
  return base::Join(silent.empty() ? without_routes : silent, ", ");
}

std::string HostAgents::Without(const std::set<std::string>& addresses) const {
  std::vector<std::string> without;
  for (const auto& host : hosts_) {
    if (host->is_late) continue;
    const auto& own = survey_.hosts()[static_cast<size_t>(host->number)].interfaces;
    const bool known = std::any_of(own.begin(), own.end(), [&](const Interface& interface) {
      return addresses.contains(interface.address);
    });
    if (host->remote && !known) without.push_back(host->name);
  }
  return base::Join(without, ", ");
}

void HostAgents::Beat() {
  for (const auto& host : hosts_) {
    if (!host->remote || !host->ready || host->gone) continue;
    // Each answer wakes the caller, which calls Beat again. Without a pause between pings, the
    // caller would never sleep.
    if (Clock::now() - host->pinged >= plan_.host_timeout / 8) {
      host->pinged = Clock::now();
      Ping(*host);
    }
    if (paused_ || Clock::now() - host->heard <= plan_.host_timeout) continue;
    host->gone = true;  // no longer waited for
    losses_.push_back(
        {static_cast<size_t>(host->number),
         Text(
             "host ", host->name, " was lost: no message from the host for ",
             std::chrono::duration_cast<std::chrono::seconds>(plan_.host_timeout).count(), " s")});
  }
}

std::string HostAgents::SilentAtEnd() const {
  for (const auto& host : hosts_)
    if (host->remote && host->ready && !host->done && !host->gone)
      return Text("host ", host->name, " was lost: it did not answer at the end of the job");
  return "";
}

bool HostAgents::SomeHostIsSilent() const {
  return std::any_of(hosts_.begin(), hosts_.end(), [&](const auto& host) {
    return host->remote && !host->gone && Clock::now() - host->heard > plan_.host_timeout / 6;
  });
}

void HostAgents::ContinueStopped() {
  for (const auto& host : hosts_)
    if (!host->gone && !host->done) host->stopped_process.Look(host->process);
}

std::optional<int64_t> HostAgents::ClockOf(const Host& host) {
  if (!host.remote) return 0;
  return host.clock.looks() > 0 ? std::optional(host.clock.offset().offset_ns) : std::nullopt;
}

std::string HostAgents::ForgetLostHost(bool also_ended) {
  Host& host = *hosts_[lost_host()];
  reports_.LoseHost(host.ranks, MonotonicNs(), also_ended);
  host.forgotten = host.gone = true;
  host.ranks.clear();
  losses_.pop_front();
  return host.name;
}

void HostAgents::TellEnded(int rank) {
  hosts_.front()->stream->Send({FrameType::kRankEnded, rank});
}

void HostAgents::BeginEpoch(int epoch, const std::string& why, const std::string& variables) {
  const json body = {{"epoch", epoch}, {"why", why}, {"variables", variables}};
  epoch_ = JsonText(body);
  for (const auto& host : hosts_)
    if (host->ready && !host->gone) host->stream->Send({FrameType::kEpoch, -1, epoch_});
}

void HostAgents::Restart(
    int rank, const RankCommand& command, const std::vector<std::string>& place) {
  const json body = {
      {"words", command.words},
      {"variables", command.variables},
      {"folder", command.folder},
      {"place", place}};
  for (const auto& host : hosts_)
    if (host->ranks.contains(rank)) host->stream->Send({FrameType::kRestart, rank, JsonText(body)});
}

void HostAgents::ExpectStart(int rank) { Restart(rank, {}, {}); }

void HostAgents::SignalRank(int rank, int signal) {
  for (const auto& host : hosts_)
    if (host->ranks.contains(rank) && IsUsable(*host))
      host->stream->Send({FrameType::kFault, rank, JsonText(json{{"signal", signal}})});
}

void HostAgents::Add(const base::HostSlots& host, bool on_this_machine) {
  Host& added = Make(host, on_this_machine);
  added.is_late = true;
  Start(added);
}

std::vector<std::pair<std::string, std::string>> HostAgents::TakeRefusals() {
  std::vector<std::pair<std::string, std::string>> refusals;
  for (const auto& host : hosts_) {
    if (!host->is_late || !host->refusal) continue;
    refusals.emplace_back(host->name, host->refusal->what());
    host->refusal.reset();
    host->forgotten = host->gone = true;
  }
  return refusals;
}

// The agent ends all processes of its host when its channel ends.
void HostAgents::Drop(const std::string& name, const std::string& why) {
  for (const auto& host : hosts_) {
    if (host->name != name || !IsUsable(*host)) continue;
    host->gone = true;
    host->stream->Send(
        {FrameType::kEnd, -1, JsonText(json{{"flights", false}, {"traces", false}})});
    losses_.push_back({static_cast<size_t>(host->number), why});
  }
}

bool HostAgents::IsUsable(const Host& host) { return !host.gone && !host.refusal; }

bool HostAgents::Uses(const std::string& name) const {
  return std::any_of(hosts_.begin(), hosts_.end(), [&](const auto& host) {
    return host->name == name && IsUsable(*host);
  });
}

std::vector<FreeHost> HostAgents::free_hosts() const {
  std::vector<FreeHost> free;
  for (const auto& host : hosts_) {
    const int slots = host->slots - static_cast<int>(host->ranks.size());
    if (host->ready && IsUsable(*host) && slots > 0)
      free.push_back({host->number, host->name, slots});
  }
  return free;
}

int HostAgents::coming_slots() const {
  int slots = 0;
  for (const auto& host : hosts_)
    if (!host->ready && IsUsable(*host)) slots += host->slots;
  return slots;
}

void HostAgents::Assign(int rank, int host) {
  hosts_[static_cast<size_t>(host)]->ranks.insert(rank);
}

std::vector<std::string> HostAgents::names() const {
  std::vector<std::string> names;
  for (const auto& host : hosts_)
    if (IsUsable(*host)) names.push_back(host->name);
  return names;
}

const std::string& HostAgents::name(int host) const {
  return hosts_[static_cast<size_t>(host)]->name;
}

const std::string& HostAgents::address(int host) const {
  return hosts_[static_cast<size_t>(host)]->address;
}

void HostAgents::SetAddresses(const std::vector<std::string>& addresses) {
  for (size_t i = 0; i < addresses.size(); ++i) hosts_[i]->address = addresses[i];
}

// On a busy host, questions would arrive faster than the agent answers them, and other frames would
// wait behind them.
void HostAgents::AskProgress() {
  for (const auto& host : hosts_) {
    if (!host->ready || host->gone || std::exchange(host->owes_progress, true)) continue;
    host->stream->Send({FrameType::kAskProgress});
  }
}

void HostAgents::SetPaused(bool paused) {
  if (paused == paused_) return;
  paused_ = paused;
  for (const auto& host : hosts_) {
    host->stream->SetPaused(paused);
    host->heard = Clock::now();
  }
}

void HostAgents::SendToAll(FrameType type) {
  for (const auto& host : hosts_)
    if (host->ready) host->stream->Send({type});
}

void HostAgents::GiveNotice() {
  reports_.ForgetAnswers();
  SendToAll(FrameType::kNotice);
}

NoticeAnswers HostAgents::answers() const {
  HostRanks ranks;
  for (const auto& host : hosts_)
    if (!host->gone && !host->forgotten) ranks.insert(host->ranks.begin(), host->ranks.end());
  return reports_.answers(ranks, MonotonicNs());
}

void HostAgents::Stop() {
  for (const auto& host : hosts_) host->stopped = false;
  SendToAll(FrameType::kStop);
}

bool HostAgents::Stopped() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) {
    return host->stopped || !host->ready || host->gone;
  });
}

void HostAgents::Continue() {
  SendToAll(FrameType::kContinue);
  for (const auto& host : hosts_) host->heard = Clock::now();
}

void HostAgents::SendInput(std::string bytes) {
  hosts_.front()->stream->Send({FrameType::kInput, 0, std::move(bytes)});
}

// Traces of this machine's ranks are already here, so only other hosts send theirs.
void HostAgents::End(LastWords wanted) {
  ending_ = true;
  trace_folder_ = std::move(wanted.trace_folder);
  for (const auto& host : hosts_) {
    if (host->is_late && !host->ready) host->gone = true;
    const bool traces = host->remote && !trace_folder_.empty();
    const json body = {{"flights", wanted.flights}, {"traces", traces}};
    host->stream->Send({FrameType::kEnd, -1, JsonText(body)});
  }
}

// Appends the part to the file of the host's last trace. The ranks of a host may have left it since
// they wrote their traces, so all numbers are taken.
void HostAgents::HearTrace(Host& host, const Frame& frame) {
  const auto refuse = [&](const char* why) {
    throw LaunchError(
        ExitCode::kInternal, Text("the agent on ", host.name, " sent ", why, " rank ", frame.rank));
  };
  if (trace_folder_.empty()) refuse("a trace that was not wanted, of");
  if (frame.body.empty()) {
    host.traces.push_back(
        {frame.rank, Text(trace_folder_, "/trace.", host.number, '.', host.traces.size())});
    std::ofstream(host.traces.back().path, std::ios::binary | std::ios::trunc);
    return;
  }
  if (host.traces.empty()) refuse("a part before the begin of the trace of");
  auto& trace = host.traces.back();
  trace.bytes += frame.body.size();
  if (trace.bytes > base::TraceBytes(base::kMostTraceSlots))
    refuse("more data than there can be in the trace of");
  std::ofstream file(trace.path, std::ios::binary | std::ios::app);
  file.write(frame.body.data(), static_cast<std::streamsize>(frame.body.size()));
  traced_ = Clock::now();
}

// ---- Clocks -------------------------------------------------------------------------------------

void HostAgents::Ping(Host& host) {
  host.stream->Send({FrameType::kPing, -1, JsonText(json{{"sent_ns", MonotonicNs()}})});
}

void HostAgents::LookAtClocks() {
  for (const auto& host : hosts_)
    if (host->remote && host->ready && !host->gone) Ping(*host);
}

void HostAgents::HearPong(Host& host, const Frame& frame) {
  constexpr int kLooks = 8;
  const int64_t now = MonotonicNs();
  const json body = ParseJson(frame.body);
  host.clock.Add(
      WholeNumber(body, "sent_ns", 0, now), WholeNumber(body, "now_ns", 0, INT64_MAX), now);
  if (host.clock.looks() < kLooks) Ping(host);
}

std::vector<HostAgents::Trace> HostAgents::traces() const {
  std::vector<Trace> traces;
  for (const auto& host : hosts_)
    for (const auto& trace : host->traces)
      traces.push_back({trace.rank, trace.path, host->clock.offset()});
  return traces;
}

bool HostAgents::Done() const {
  return std::all_of(
      hosts_.begin(), hosts_.end(), [](const auto& host) { return host->done || host->gone; });
}

std::vector<pid_t> HostAgents::processes() const {
  std::vector<pid_t> processes;
  for (const auto& host : hosts_) processes.push_back(host->process);
  return processes;
}

}  // namespace dtrun::launcher
