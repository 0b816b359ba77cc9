// Each host has one agent: a child process on this machine, or a process that ssh starts on another
// host. dtrun sends each agent the job and its ranks. When the last agent is ready, all agents are
// asked for their routes to each other. Their frames then update the reports, the output and the
// clock offsets. A host is lost when its connection ends, or when it is silent for host_timeout.
//
// With many hosts, agents start further agents, and frames pass through them (AgentTree). If an
// agent cannot start another one, for example because the hosts have no keys for each other, dtrun
// starts that one itself. Hosts below a lost host are not lost for a reason of their own.

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

// Between two tries to reach a host: as many seconds as it has failed, up to a limit.
constexpr std::chrono::seconds kBetweenTries{1};
constexpr int kMostBetweenTries = 5;

std::vector<std::string> NamesOf(const std::vector<base::HostSlots>& hosts) {
  std::vector<std::string> names;
  for (const base::HostSlots& host : hosts) names.push_back(host.name);
  return names;
}

std::vector<int> NumbersOfOthers(const std::vector<bool>& on_this_machine) {
  std::vector<int> others;
  for (size_t i = 0; i < on_this_machine.size(); ++i)
    if (!on_this_machine[i]) others.push_back(static_cast<int>(i));
  return others;
}

}  // namespace

struct HostAgents::Host {
  int number;
  std::string name;
  bool remote;
  int slots;
  HostRanks ranks = {};
  bool is_late = false;                           // not of the plan
  std::string address = {};                       // for the other hosts; "": not known
  std::unique_ptr<AgentProcess> agent = nullptr;  // null: another agent has started it
  Clock::time_point heard = Clock::now();
  bool ready = false, done = false, gone = false, stopped = false, forgotten = false;
  bool owes_progress = false;  // was asked and has not answered
  std::optional<LaunchError> refusal = std::nullopt;
  int failures = 0;             // of ssh to find the host
  std::string last_words = {};  // of ssh, after a failure
  std::optional<Clock::time_point> next_try = std::nullopt;
  HostClock clock = {};
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
      tree_(NumbersOfOthers(plan_.on_this_machine), plan_.fanout),
      survey_(NamesOf(plan_.hosts), plan_.on_this_machine),
      wait_until_(Clock::now() + plan_.host_wait) {
  int rank = 0;
  for (size_t i = 0; i < plan_.hosts.size(); ++i) {
    Host& host = Make(plan_.hosts[i], plan_.on_this_machine[i]);
    const bool is_spare = i + plan_.spares >= plan_.hosts.size();
    while (!is_spare && static_cast<int>(host.ranks.size()) < host.slots) host.ranks.insert(rank++);
  }
  for (const auto& host : hosts_)
    if (tree_.above(host->number) < 0) Start(*host);
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
    if (host->agent == nullptr) continue;
    if (host->remote && !host->done) host->agent->KillAtEnd();
    host->agent.reset();
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
  host.agent = std::make_unique<AgentProcess>(
      poller_, words, [this, &host](const Frame& frame) { HearLink(host, frame); },
      [this, &host](const LinkEnd& end) { HearEnd(host, end); });
  if (host.remote && plan_.by_scheduler) host.agent->SetWindow();
  host.agent->Send({FrameType::kJob, -1, JsonText(JobOf(host))});
}

json HostAgents::JobOf(const Host& host) const {
  json job = {
      {"version", base::kVersion},
      {"job", plan_.job},
      {"host", host.number},
      {"folder", host.remote ? "" : plan_.folder},
      {"remote_folder",
       host.is_late ? Text(plan_.remote_folder, '-', host.number) : plan_.remote_folder},
      {"daemon", host.remote ? plan_.daemon : ""},
      {"ranks", host.ranks},
      {"program", plan_.program},
      {"cwd", plan_.cwd},
      {"survey", host.is_late ? host.remote : !survey_.complete()},
      {"stdin", plan_.stdin_to_rank_0 && host.number == 0},
      {"host_timeout_ms", host.remote ? plan_.host_timeout.count() : 0},
      {"secret", plan_.secret},
      {"restarts", plan_.restarts},
      {"in_place", plan_.in_place}};
  json below = json::array();
  for (const int number : tree_.below(host.number)) {
    const Host& other = *hosts_[static_cast<size_t>(number)];
    below.push_back(
        {{"host", number},
         {"name", SshHost(other.name)},
         {"first", other.ranks.empty() ? 0 : *other.ranks.begin()},
         {"count", other.ranks.size()}});
  }
  if (!below.empty())
    job["below"] = {
        {"words", plan_.remote_shell},
        {"agent", plan_.remote_agent},
        {"fanout", plan_.fanout},
        {"hosts", std::move(below)}};
  return job;
}

void HostAgents::Send(const Host& host, const Frame& frame) {
  const AgentTree::Routed routed = tree_.Route(host.number, frame);
  hosts_[static_cast<size_t>(routed.to)]->agent->Send(routed.frame);
}

// To the agent of `host`, which dtrun has started, and to all agents below it.
void HostAgents::SendDown(const Host& host, const Frame& frame) {
  if (tree_.below(host.number).empty())
    host.agent->Send(frame);
  else
    host.agent->Send({FrameType::kAll, -1, Encode(frame)});
}

void HostAgents::SendToAll(FrameType type) {
  for (const auto& host : hosts_)
    if (host->ready && host->agent != nullptr) SendDown(*host, {type});
}

// From the agent of `host`, or in a bundle from the agents below it.
void HostAgents::HearLink(Host& host, const Frame& frame) {
  if (frame.type != FrameType::kBundle) return Hear(host, frame);
  host.heard = Clock::now();
  for (const Frame& via : FramesIn(frame.body)) {
    bool is_below = false;
    for (int up = tree_.above(via.rank); up >= 0 && !is_below; up = tree_.above(up)) {
      hosts_[static_cast<size_t>(up)]->heard = Clock::now();
      is_below = up == host.number;
    }
    if (!is_below) continue;  // dtrun has started that agent itself in the meantime
    for (const Frame& inner : FramesIn(via.body))
      Hear(*hosts_[static_cast<size_t>(via.rank)], inner);
  }
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
      case FrameType::kLostAgent: {
        const json end = body();
        HearEnd(host, {end.at("why"), end.at("words")});
        break;
      }
      default: break;
    }
  } catch (const json::exception& error) {
    throw LaunchError(ExitCode::kInternal, error.what());
  }
}

// When the last host is ready, asks every agent how it reaches the other hosts.
void HostAgents::HearReady(Host& host, const Frame& frame) {
  host.ready = true;
  if (!epoch_.empty()) Send(host, {FrameType::kEpoch, -1, epoch_});
  if (host.is_late && host.remote)
    host.address = NetworkSurvey::AddressIn(ParseJson(frame.body).at("networks"));
  if (host.is_late || survey_.complete()) return;  // all hosts are this machine
  const json facts = ParseJson(frame.body).at("networks");
  if (!survey_.HearFacts(static_cast<size_t>(host.number), facts)) return;
  for (const auto& each : hosts_) {
    const json peers = survey_.PeersOf(static_cast<size_t>(each->number));
    Send(*each, {FrameType::kPeers, -1, JsonText(peers)});
  }
}

void HostAgents::HearEnd(Host& host, const LinkEnd& end) {
  const bool known = std::exchange(host.gone, true);  // Beat has given the host up
  for (const int number : tree_.below(host.number)) {
    Host& below = *hosts_[static_cast<size_t>(number)];
    if (below.ready) below.gone = true;
  }
  if (host.done || known) return;
  // At the end of the job, the last reports about this host's ranks may be missing.
  if (ending_ && host.remote && host.ready)
    lost_at_end_ = Text("the connection to ", host.name, " was lost");
  if (ending_) return;
  std::string reason = end.why.empty() ? end.words : end.why;
  if (!host.ready) {
    if (!host.refusal && tree_.above(host.number) >= 0) {
      tree_.Detach(host.number);
      hosts_reach_others_ = false;
      host.gone = false;
      return Start(host);
    }
    if (!end.why.empty()) reason += " (does its shell print when somebody logs in?)";
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
    if (!plan_.by_scheduler || host->agent == nullptr || host->ready || host->gone) continue;
    const std::string words = host->agent->words();
    if (!IsFailureOfSsh(words)) continue;
    host->agent->KillAtEnd();
    HearEnd(*host, {"", words});
  }
  for (const auto& host : hosts_) {
    if (!host->next_try || Clock::now() < *host->next_try) continue;
    host->next_try.reset();
    host->agent.reset();
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
    const int above = tree_.above(host->number);
    const bool can_answer = above < 0 || hosts_[static_cast<size_t>(above)]->ready;
    if (!host->ready && can_answer) silent.push_back(host->name);
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

// Each answer wakes the caller, which calls Beat again. Without a pause between pings, the caller
// would never sleep. If a host is out of reach, the hosts below it may be silent first: they are
// lost only if the hosts above them still answer.
void HostAgents::Beat() {
  const auto now = Clock::now();
  if (now - pinged_ >= plan_.host_timeout / 8) {
    pinged_ = now;
    LookAtClocks();
  }
  const auto is_silent = [&](int host, Clock::duration limit) {
    return now - hosts_[static_cast<size_t>(host)]->heard > limit;
  };
  for (const auto& host : hosts_) {
    if (!host->remote || !host->ready || host->gone || paused_) continue;
    if (!is_silent(host->number, plan_.host_timeout)) continue;
    int up = tree_.above(host->number);
    while (up >= 0 && !is_silent(up, plan_.host_timeout / 4)) up = tree_.above(up);
    if (up < 0) HearSilence(*host);
  }
}

void HostAgents::HearSilence(Host& host) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(plan_.host_timeout);
  host.gone = true;  // no longer waited for
  for (const int number : tree_.below(host.number))
    hosts_[static_cast<size_t>(number)]->gone = true;
  losses_.push_back(
      {static_cast<size_t>(host.number),
       Text(
           "host ", host.name, " was lost: no message from the host for ", seconds.count(), " s")});
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
    if (host->agent != nullptr && !host->gone && !host->done) host->agent->Look();
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

void HostAgents::TellEnded(int rank) { Send(*hosts_.front(), {FrameType::kRankEnded, rank}); }

void HostAgents::BeginEpoch(int epoch, const base::EpochCause& why, const std::string& variables) {
  const json body = {
      {"epoch", epoch}, {"why", why.text}, {"lost", why.lost}, {"variables", variables}};
  epoch_ = JsonText(body);
  for (const auto& host : hosts_)
    if (host->ready && !host->gone) Send(*host, {FrameType::kEpoch, -1, epoch_});
}

void HostAgents::Restart(
    int rank, const RankCommand& command, const std::vector<std::string>& place) {
  const json body = {
      {"words", command.words},
      {"variables", command.variables},
      {"folder", command.folder},
      {"place", place}};
  for (const auto& host : hosts_)
    if (host->ranks.contains(rank)) Send(*host, {FrameType::kRestart, rank, JsonText(body)});
}

void HostAgents::ExpectStart(int rank) { Restart(rank, {}, {}); }

void HostAgents::SignalRank(int rank, int signal) {
  for (const auto& host : hosts_)
    if (host->ranks.contains(rank) && IsUsable(*host))
      Send(*host, {FrameType::kFault, rank, JsonText(json{{"signal", signal}})});
}

void HostAgents::Add(const base::HostSlots& host, bool on_this_machine) {
  Host& added = Make(host, on_this_machine);
  added.is_late = true;
  try {
    Start(added);
  } catch (const LaunchError& error) {
    added.refusal = error;
    added.gone = true;
  }
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
    Send(*host, {FrameType::kEnd, -1, JsonText(json{{"flights", false}, {"traces", false}})});
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
    Send(*host, {FrameType::kAskProgress});
  }
}

void HostAgents::SetPaused(bool paused) {
  if (paused == paused_) return;
  paused_ = paused;
  for (const auto& host : hosts_) {
    if (host->agent != nullptr) host->agent->SetPaused(paused);
    host->heard = Clock::now();
  }
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
  Send(*hosts_.front(), {FrameType::kInput, 0, std::move(bytes)});
}

// Traces of this machine's ranks are already here, so only other hosts send theirs.
void HostAgents::End(LastWords wanted) {
  ending_ = true;
  trace_folder_ = std::move(wanted.trace_folder);
  for (const auto& host : hosts_) {
    if ((host->is_late || host->agent == nullptr) && !host->ready) host->gone = true;
    const bool traces = host->remote && !trace_folder_.empty();
    const json body = {{"flights", wanted.flights}, {"traces", traces}};
    if (host->agent != nullptr) SendDown(*host, {FrameType::kEnd, -1, JsonText(body)});
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

Frame HostAgents::Ping() {
  return {FrameType::kPing, -1, JsonText(json{{"sent_ns", MonotonicNs()}})};
}

void HostAgents::LookAtClocks() {
  for (const auto& host : hosts_)
    if (host->remote && host->ready && !host->gone && host->agent != nullptr)
      SendDown(*host, Ping());
}

void HostAgents::HearPong(Host& host, const Frame& frame) {
  constexpr int kLooks = 8;
  const int64_t now = MonotonicNs();
  const json body = ParseJson(frame.body);
  host.clock.Add(
      WholeNumber(body, "sent_ns", 0, now), WholeNumber(body, "now_ns", 0, INT64_MAX), now);
  if (host.clock.looks() < kLooks) Send(host, Ping());
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
  for (const auto& host : hosts_)
    if (host->agent != nullptr) processes.push_back(host->agent->process());
  return processes;
}

}  // namespace dtrun::launcher
