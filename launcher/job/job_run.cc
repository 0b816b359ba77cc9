// A job has three phases. First, each host gets an agent, which checks whether the host can run the
// program. Then the engine (mpirun) starts the ranks; their output and ends come through the
// agents. When the engine has ended, the agents end the remaining processes and send their last
// reports. With --restarts, an engine that cannot replace a lost rank is started again.

#include "launcher/job/job_run.h"

#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <set>

#include "base/flight_record.h"
#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/engines/engine_messages.h"
#include "launcher/hosts/hosts.h"
#include "launcher/job/elastic_ranks.h"
#include "launcher/job/host_agents.h"
#include "launcher/job/job_results.h"
#include "launcher/job/job_terminal.h"
#include "launcher/job/rank_watch.h"
#include "launcher/job/supervisor.h"
#include "launcher/output/output.h"
#include "launcher/plan/fault_plan.h"
#include "launcher/plan/job_plan.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/protocol/job_folder.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/progress_report.h"
#include "launcher/support/environment.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/poller.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long the agents may take to send their last reports.
constexpr std::chrono::seconds kLastWords{5};
// How long mpirun may take to end by itself after a host is lost: it waits for that host's daemon.
constexpr std::chrono::seconds kWithoutHost{1};
// After an engine has ended by itself, how long the ends of its ranks may take to come.
constexpr std::chrono::seconds kUntilLossIsKnown{2};
// From the first host that is not found to the line that names all of them.
constexpr milliseconds kUntilWaitIsSaid{700};
// How long mpirun may take to end once all ranks are done.
constexpr std::chrono::seconds kToEnd{2};

class Job {
 public:
  Job(Plan plan, const Options& options, JobStory& story)
      : plan_(std::move(plan)),
        options_(options),
        story_(story),
        folder_(FolderBase()),
        grace_(options.grace_s),
        supervisor_(
            poller_, grace_,
            {.notice =
                 [this] {
                   if (agents_) agents_->GiveNotice();
                 },
             .terminate =
                 [this] {
                   if (!agents_ || agents_->running() == 0) return false;
                   agents_->Terminate();
                   return true;
                 },
             .pause =
                 [this] {
                   if (pause_) pause_->Begin();
                 },
             .resume =
                 [this] {
                   if (pause_) pause_->Continue();
                 }}),
        output_(
            poller_, plan_.output, plan_.call.placement,
            [this] { supervisor_.Interrupt(SIGPIPE); }),
        results_(options, plan_.call.placement) {
    plan_.call.folder = folder_.path();
    argv_ = plan_.call.engine->Argv(plan_.call);  // reports usage errors before any process starts
  }

  int Run() {
    agents_.emplace(poller_, AgentsPlan(), output_);
    agents_->SetOnTold([this](const std::string& host) {
      if (supervisor_.interruption() == 0) Say(Text(host, " was told to end the job (SIGTERM)"));
      supervisor_.InterruptForHost();
    });
    ranks_.emplace(poller_, options_, plan_, *agents_, Say);
    pause_.emplace(*agents_);
    WaitForHosts();
    if (supervisor_.interruption() == 0) {
      ChooseNetworks();
      RunRanks();
    }
    EndHosts();
    NoteOwnFaults();
    output_.Drain();
    return Report();
  }

 private:
  AgentPlan AgentsPlan() const {
    std::error_code ignored;
    return {
        .agent = plan_.agent,
        .remote_agent = RemotePath(plan_.call.reach, plan_.agent),
        .remote_shell = RemoteShell(plan_.call.reach),
        .by_scheduler = !plan_.call.reach.parses_command,
        .fanout = plan_.call.reach.fanout,
        .job = plan_.job,
        .folder = folder_.path(),
        .remote_folder = plan_.call.remote_folder,
        .daemon = plan_.call.engine->Daemon(plan_.call),
        .hosts = AllHosts(),
        .spares = plan_.spares.size(),
        .on_this_machine = OnThisMachine(AllHosts()),
        .program = plan_.call.program.front(),
        .cwd = std::filesystem::current_path(ignored),
        .stdin_to_rank_0 = options_.stdin_to_rank_0,
        .host_wait = std::chrono::seconds(options_.host_wait_s),
        .host_timeout = std::chrono::seconds(options_.host_timeout_s),
        .secret = plan_.secret,
        .restarts = plan_.call.restarts,
        .in_place = plan_.call.restarts && !starts_again()};
  }

  // The hosts with ranks, then the spares.
  std::vector<base::HostSlots> AllHosts() const {
    std::vector<base::HostSlots> all = plan_.call.placement;
    all.insert(all.end(), plan_.spares.begin(), plan_.spares.end());
    return all;
  }

  // Whether a loss ends the engine, and dtrun calls it again.
  bool starts_again() const { return plan_.call.restarts && plan_.call.engine->starts_again(); }

  void WaitForHosts() {
    std::optional<Clock::time_point> say_at;
    if (options_.host_wait_s > 0)
      start_by_ = After(options_.host_wait_s + options_.start_timeout_s);
    while (!agents_->Ready() && supervisor_.interruption() == 0) {
      Wait(milliseconds(100));
      agents_->TryAgain();
      const std::string not_found = agents_->NotFound();
      if (!not_found.empty() && !say_at) say_at = Clock::now() + kUntilWaitIsSaid;
      if (!not_found.empty() && Clock::now() > *say_at) {
        Say(Text("waiting up to ", options_.host_wait_s, " s (--host-wait) for ", not_found));
        say_at = Clock::time_point::max();
      }
      if (!agents_->lost().empty()) throw LaunchError(ExitCode::kUnavailable, agents_->lost());
      if (Clock::now() > start_by_ && !agents_->Ready())
        throw LaunchError(
            ExitCode::kUnavailable, Text(
                                        "no answer from ", agents_->Silent(), " within ",
                                        options_.start_timeout_s, " s (--start-timeout)"));
    }
    if (options_.host_wait_s > 0) start_by_ = After(options_.start_timeout_s);
  }

  void ChooseNetworks() {
    for (const std::string& reason : SettleNetworks(agents_->networks(), plan_))
      if (options_.verbose) Say(reason);
    if (!agents_->hosts_reach_others()) plan_.call.reach.fanout = 0;
    argv_ = plan_.call.engine->Argv(plan_.call);
    plan_.call.engine->Prepare(plan_.call, plan_.environment);
    if (plan_.call.restarts) ranks_->Begin();
  }

  // Waits for events. The time limits do not count time in which the job is stopped.
  void Wait(milliseconds longest) {
    const auto begin = Clock::now();
    poller_.Wait(longest);
    // A wait that is much too long means that this process was stopped. The ranks may have been
    // stopped too.
    if (Clock::now() - begin > longest + milliseconds(1000)) rank_watch_.Restart(MonotonicNs());
    const Clock::duration stopped = pause_->Tick();
    if (stopped > Clock::duration::zero()) rank_watch_.Restart(MonotonicNs());
    for (Clock::time_point* limit : {&start_by_, &end_by_})
      if (*limit != Clock::time_point::max()) *limit += stopped;
  }

  std::string WhyNotStarted() const {
    std::vector<std::string> words = {
        Text("not all ranks had started after ", options_.start_timeout_s, " s (--start-timeout)")};
    const std::string hosts = agents_->Without(AddressesConnectedTo(supervisor_.process()));
    const LaunchEngine& engine = *plan_.call.engine;
    if (!hosts.empty() && !engine.is_own())
      words.push_back(Text(engine.program(), " has no connection to its daemon on ", hosts));
    if (!engine.more_words().empty()) words.push_back(engine.more_words());
    return base::Join(words, "; ");
  }

  // Checks the time limits, the hosts and the ranks. Open MPI starts no rank before it has reached
  // all hosts.
  void CheckTime() {
    const bool started =
        static_cast<int>(agents_->records().size()) >= base::RankCount(plan_.call.placement);
    if (started) start_by_ = Clock::time_point::max();
    if (Clock::now() > start_by_) End({static_cast<int>(ExitCode::kUnavailable), WhyNotStarted()});
    if (Clock::now() > end_by_)
      End(
          {static_cast<int>(ExitCode::kTimeout),
           Text("ended after ", options_.timeout_s, " s (--timeout)")});
    while (!agents_->lost().empty() && CanSpareHost()) {
      Say(agents_->lost() + "; the job goes on without its workers (--ps)");
      agents_->ForgetLostHost();
    }
    if (Recovers()) ranks_->ReplaceLostHosts();
    if (!agents_->lost().empty())
      End({static_cast<int>(ExitCode::kUnavailable), agents_->lost()}, kWithoutHost);
    const auto now = std::chrono::nanoseconds(Clock::now().time_since_epoch());
    const std::vector<ExitRecord> records = ranks_->recovery().OfMembers(agents_->records());
    if (const auto late = JudgeLate(records, ranks_->names(), grace_, now.count())) End(*late);
    CareForWorkers();
    Recover();
    WatchRanks();
  }

  // A rank that is lost in the grace time is started again too: the others cannot save without it.
  bool Recovers() const {
    const bool goes_on = supervisor_.interruption() == 0 || supervisor_.in_grace();
    return plan_.call.restarts && !ended_ && goes_on;
  }

  // Starts lost ranks again (--restarts). The engine goes on until dtrun tells it to end.
  void Recover() {
    if (!Recovers()) return;
    if (starts_again()) AskEngine();
    std::optional<Verdict> end = ranks_->Tick();
    const Recovery& recovery = ranks_->recovery();
    results_.SetJob(JobMetricsOf(recovery.losses(), recovery.ranks(), MonotonicNs()));
    if (ranks_->TakeChange()) {
      const std::vector<base::HostSlots> names = ranks_->names();
      output_.SetHosts(names);
      results_.SetHosts(names);
      rank_watch_ = RankWatch(names, ranks_->recovery().places().members());
    }
    // mpirun would take seconds to end by itself, and would print its own view of the loss.
    if (ranks_->TakeStop()) supervisor_.KillProcess();
    if (!end) return;
    const bool saved =
        HaveSaved(recovery.OfMembers(agents_->records()), recovery.ranks(), supervisor_.in_grace());
    if (end->exit_code == 0 && saved) end = PreemptedVerdict();
    End(*std::move(end), kWithoutHost);
  }

  // If wrappers were killed, the agents cannot tell which was the first.
  void AskEngine() {
    const std::vector<ExitRecord> records = agents_->records();
    const bool some_gone = std::any_of(records.begin(), records.end(), [](const auto& record) {
      return record.time_ns > 0 && IsGone(record);
    });
    const Recovery& recovery = ranks_->recovery();
    if (!some_gone || recovery.is_stopping() || !recovery.places().Homeless().empty()) return;
    if (messages_) messages_->Update();
    const EngineEnd engine = plan_.call.engine->Explain(
        1, ranks_->placement(), messages_ ? messages_->events() : events_);
    if (engine.first_lost >= 0) ranks_->Suspect(engine.first_lost);
  }

  // Warns of a job that would wait for ever, then ends it.
  void WatchRanks() {
    if (supervisor_.ContinueIfStopped())
      Say(Text(
          "warning: ", plan_.call.engine->program(), " (pid ", supervisor_.process(),
          ") was stopped by a signal from outside; dtrun continued the process"));
    agents_->ContinueStopped();
    if (options_.servers > 0 || ended_ || supervisor_.interruption() != 0) return;
    const Recovery& recovery = ranks_->recovery();
    if (agents_->SomeHostIsSilent() || recovery.is_paused() || recovery.is_stopping()) return;
    const std::vector<ExitRecord> records = ranks_->recovery().OfMembers(agents_->records());
    if (auto verdict = rank_watch_.Judge(records, MonotonicNs())) return End(*std::move(verdict));
    const bool engine_may_end = !plan_.call.restarts || starts_again();
    if (engine_may_end && rank_watch_.EngineHangs(records, MonotonicNs()))
      return EndHangingEngine(records);
    for (const std::string& line : rank_watch_.Warnings(records, MonotonicNs())) Say(line);
  }

  static Verdict PreemptedVerdict() {
    return {static_cast<int>(ExitCode::kPreempted), "pre-empted: the ranks had saved and ended"};
  }

  void EndHangingEngine(const std::vector<ExitRecord>& records) {
    const auto failed = [](const ExitRecord& record) {
      return HasFailed(record) || IsGone(record);
    };
    const std::string program = plan_.call.engine->program();
    if (std::none_of(records.begin(), records.end(), failed)) {
      Say(Text(
          "warning: all ranks have ended, but ", program, " was still running after ",
          RankWatch::kEngineReacts.count(), " s; dtrun ended ", program));
      return End({0, "", -1, true}, kWithoutHost);
    }
    const EngineEnd engine = plan_.call.engine->Explain(1, plan_.call.placement);
    End(JudgeFailure(records, 1, plan_.call.placement, engine), kWithoutHost);
  }

  bool CanSpareHost() const {
    return !ended_ && supervisor_.interruption() == 0 &&
           lost_workers_.CanSpare(agents_->lost_host(), agents_->records());
  }

  // In a job with servers, mpirun does not end the other ranks when one fails. dtrun decides that
  // here.
  void CareForWorkers() {
    if (options_.servers == 0 || ended_ || supervisor_.interruption() != 0) return;
    const std::vector<ExitRecord> records = agents_->records();
    TellEnded(records);
    const int64_t now_ns = MonotonicNs();
    for (const std::string& line : lost_workers_.Update(records, now_ns)) Say(line);
    if (auto server = lost_workers_.LostServer(records, now_ns)) End(*std::move(server));
    if (auto last = lost_workers_.LastOne(records, now_ns)) End(*std::move(last));
    EndWithoutLost(records);
  }

  // The first server waits for workers that have not connected yet. It must not wait for workers
  // that have ended.
  void TellEnded(const std::vector<ExitRecord>& records) {
    for (const ExitRecord& record : records)
      if (record.rank >= options_.servers && record.time_ns > 0 && told_.insert(record.rank).second)
        agents_->TellEnded(record.rank);
  }

  // After mpirun has lost a host, it does not end by itself, even if all ranks are done.
  void EndWithoutLost(const std::vector<ExitRecord>& records) {
    if (!lost_workers_.AllDone(records)) return;
    if (all_done_by_ == Clock::time_point::max()) all_done_by_ = Clock::now() + kToEnd;
    if (Clock::now() > all_done_by_) End({0, "", -1, true}, kWithoutHost);
  }

  // Ends the job with the verdict `why`. Only the first verdict counts.
  void End(Verdict why, std::chrono::seconds patience = Interruption::kKillAfter) {
    if (ended_) return;
    ended_ = std::move(why);
    supervisor_.End(patience);
  }

  void RunRanks() {
    StartEngine(argv_, plan_.environment);
    if (results_.wants_traces()) agents_->LookAtClocks();
    if (options_.progress) progress_.emplace(*agents_, output_);
    if (options_.stdin_to_rank_0) ReadInput();
    if (!plan_.faults.empty()) injector_.emplace(plan_.faults, Clock::now());
    do {
      while (!supervisor_.ended()) Tick();
      EndEngine();
    } while (StartAgain());
    progress_.reset();
  }

  void Tick() {
    Wait(Pause());
    Interrupt();
    if (supervisor_.ranks_terminate() && agents_->running() == 0) supervisor_.EndProcess();
    if (input_) input_->Tick();
    agents_->Beat();
    CheckTime();
    if (injector_) MakeFaults();
    CareForOutput();
    if (progress_) progress_->Tick(Clock::now());
    results_.Tick(Clock::now(), *agents_);
  }

  void StartEngine(const std::vector<std::string>& argv, const Variables& environment) {
    if (options_.verbose) Say(ShellLine(argv));
    const bool hides =
        plan_.call.recovers && plan_.call.quiet && plan_.call.engine->blames_lost_ranks();
    messages_.emplace(
        poller_, *plan_.call.engine, options_.verbose,
        [this](std::string_view lines) { output_.WriteOthers(lines); });
    folder_.SetUser(supervisor_.Start(argv, environment, hides ? -1 : messages_->writer()));
    messages_->HandedOver();
  }

  void EndEngine() {
    std::vector<pid_t> spared = agents_->processes();
    for (const pid_t process : ranks_->processes()) spared.push_back(process);
    spared.push_back(folder_.keeper());
    supervisor_.KillLeftOvers(spared);
    messages_->Finish();
    events_ = messages_->events();
    messages_.reset();
    folder_.SetUser(0);
  }

  // After a loss that has ended the engine: waits until all ranks have ended, and starts the engine
  // again. Returns false if the job is over.
  bool StartAgain() {
    if (!starts_again()) return false;
    const Clock::time_point known_by = Clock::now() + kUntilLossIsKnown;
    while (Recovers()) {
      if (const std::optional<Restart> start = ranks_->TakeStart()) {
        ClearAfterEngine(folder_.path());
        const Plan plan = PlanStartAgain(plan_, *start);
        StartEngine(plan.call.engine->Argv(plan.call), plan.environment);
        return true;
      }
      if (!ranks_->recovery().is_stopping() &&
          (supervisor_.wait_status() == 0 || Clock::now() > known_by))
        return false;
      if (Clock::now() > known_by) EndRanks();
      Tick();
    }
    return false;
  }

  // Ranks that outlive their engine.
  void EndRanks() {
    for (const ExitRecord& record : agents_->records())
      if (record.pid > 0 && record.time_ns == 0) agents_->SignalRank(record.rank, SIGKILL);
  }

  milliseconds Pause() const {
    milliseconds pause = output_.waiting() ? OutputLines::kPatience / 2 : milliseconds(500);
    if (injector_) pause = std::min(pause, injector_->Pause(Clock::now()));
    return pause;
  }

  void MakeFaults() {
    if (ended_ || supervisor_.interruption() != 0) return;
    for (const FaultInjector::Action& action : injector_->Take(Clock::now(), agents_->progress())) {
      if (!action.fault.empty()) NoteFault(action);
      if (action.signal != 0)
        agents_->SignalRank(action.rank, action.signal);
      else if (!action.host.empty())
        agents_->Drop(action.host, Text("host ", action.host, " was lost: --inject dropped it"));
    }
    if (injector_->wants_progress()) agents_->AskProgress();
  }

  void NoteFault(const FaultInjector::Action& action) {
    Say("--inject: " + action.fault);
    story_.injected.push_back(action.fault);
  }

  // The faults that ranks have made themselves since the last look.
  void NoteOwnFaults() {
    if (!injector_) return;
    for (const FaultInjector::Action& action : injector_->Take(Clock::now(), agents_->progress()))
      if (action.signal == 0 && action.host.empty()) NoteFault(action);
  }

  void ReadInput() {
    input_.emplace(poller_, [this](std::string bytes) { agents_->SendInput(std::move(bytes)); });
    agents_->SetOnTaken([this](size_t bytes, bool open) { input_->Taken(bytes, open); });
  }

  void Interrupt() {
    const bool in_grace = supervisor_.in_grace();
    supervisor_.Tick(agents_->answers());
    if (in_grace || !supervisor_.in_grace()) return;
    Say(Text(
        SignalName(supervisor_.interruption()), ": the ranks have ", grace_.count(),
        " s (--grace) to save and end; a second signal ends the ranks at once"));
  }

  void CareForOutput() {
    output_.Expire();
    agents_->SetPaused(output_.full());
    if (messages_) messages_->SetPaused(output_.full());
  }

  bool Failed() const {
    return supervisor_.interruption() != 0 || supervisor_.wait_status() != 0 || ended_;
  }

  void EndHosts() {
    agents_->End(
        {.flights = Failed() || results_.wants_flights(),
         .trace_folder = results_.wants_traces() ? folder_.path() : ""});
    const auto begin = Clock::now();
    while (!agents_->Done() && Clock::now() < std::max(begin, agents_->traced()) + kLastWords) {
      Wait(milliseconds(100));
      agents_->Beat();
      agents_->ContinueStopped();
      CareForOutput();
    }
  }

  // Reports are never to be read without it.
  void SayInjected() const {
    const size_t made = story_.injected.size(), planned = plan_.faults.size();
    if (planned == 0) return;
    if (made == 0) return Say("no fault was made on purpose (--inject): the job ended before");
    if (made < planned)
      return Say(Text(
          made, " of ", planned,
          " faults were made on purpose (--inject): the job ended before the others"));
    Say(Text(made, made == 1 ? " fault was" : " faults were", " made on purpose (--inject)"));
  }

  Verdict Judge() const {
    const int status = supervisor_.wait_status();
    std::vector<ExitRecord> counted = story_.records;
    const auto spared = std::erase_if(counted, [](const auto& record) { return record.spared; });
    const int ranks = plan_.call.restarts
                          ? ranks_->recovery().ranks()
                          : base::RankCount(plan_.call.placement) - static_cast<int>(spared);
    // A scheduler tells the ranks themselves, too. If dtrun hears of it when they have saved and
    // ended, it has ended an engine that was about to end.
    const bool is_told = supervisor_.interruption() != 0;
    const bool saved = status == 0 ? HaveSaved(counted, ranks, supervisor_.in_grace())
                                   : is_told && HaveSaved(counted, ranks, false);
    if (saved && !ended_) return PreemptedVerdict();
    if (ended_ && ended_->exit_code == static_cast<int>(ExitCode::kPreempted)) return *ended_;
    if (supervisor_.interruption() == SIGPIPE) return {128 + SIGPIPE, ""};
    if (supervisor_.interruption() != 0)
      return {
          128 + supervisor_.interruption(),
          Text("ended by ", SignalName(supervisor_.interruption()))};
    if (ended_) return *ended_;
    if (options_.servers > 0 && spared > 0 && lost_workers_.AllDone(story_.records))
      return {0, "", -1, true};
    // A signal killed mpirun: no rank is the culprit.
    if (WIFSIGNALED(status))
      return {
          static_cast<int>(ExitCode::kInternal),
          Text(
              plan_.call.engine->program(), " was killed by ", SignalName(WTERMSIG(status)),
              "; its ranks were ended")};
    if (WEXITSTATUS(status) != 0) return JudgeRanks(WEXITSTATUS(status));
    if (HasLostDaemon()) return JudgeRanks(static_cast<int>(ExitCode::kInternal));
    return {0, "", -1, true};
  }

  // An engine may end with code 0 although it has lost a daemon.
  bool HasLostDaemon() const {
    const bool survives = plan_.call.restarts || plan_.call.recovers;
    return !survives && plan_.call.engine->Explain(0, plan_.call.placement, events_).daemon > 0;
  }

  // A lost host explains failed ranks, but not a culprit that was killed by a signal.
  Verdict JudgeRanks(int engine_code) const {
    const EngineEnd engine = plan_.call.engine->Explain(engine_code, plan_.call.placement, events_);
    const int daemon_host = HostOfDaemon(engine.daemon, OnThisMachine(plan_.call.placement));
    const Verdict verdict =
        JudgeFailure(story_.records, engine_code, story_.hosts, engine, daemon_host);
    const std::string lost = agents_->lost().empty() ? agents_->lost_at_end() : agents_->lost();
    const ExitRecord* culprit = RecordOf(story_, verdict.culprit);
    const bool killed = culprit != nullptr && culprit->end == RankEnd::kSignaled;
    // mpirun may notice an unreachable host before dtrun does.
    if (const std::string silent = agents_->SilentAtEnd(); culprit == nullptr && !silent.empty())
      return {static_cast<int>(ExitCode::kUnavailable), silent};
    if (lost.empty() || killed) return verdict;
    return {static_cast<int>(ExitCode::kUnavailable), lost};
  }

  int Report() {
    if (supervisor_.interruption() == 0 && (!ended_ || ended_->exit_code == 0))
      for (const std::string& line : lost_workers_.AtEnd(agents_->records())) Say(line);
    story_.records = ranks_->recovery().Mark(lost_workers_.Mark(agents_->records()));
    story_.servers = options_.servers;
    story_.losses = ranks_->recovery().losses();
    story_.hosts = ranks_->names();
    story_.flights = agents_->flights();
    story_.progress = agents_->progress();
    if (options_.verbose) SaySteps();
    story_.verdict = Judge();
    story_.verdict.culprit = CulpritOf(story_.verdict, story_.records, story_.flights);
    const int culprit = story_.verdict.culprit;
    if (culprit >= 0) story_.last_lines = output_.LastLines(culprit);
    const bool hidden = culprit >= 0 && !output_.ShowsEndOf(culprit);
    for (const std::string& line : FailureLines(story_, hidden)) Say(line);
    if (const std::string line = LossLine(story_, MonotonicNs()); !line.empty()) Say(line);
    SayInjected();
    if (const std::string error = output_.stream_error(); !error.empty()) FailFor(error);
    if (!output_.file_error().empty())
      FailForFile(LaunchError(ExitCode::kNoResult, output_.file_error()));
    for (const LaunchError& error : results_.Finish(story_, *agents_, FlightFolder(folder_.path())))
      FailForFile(error);
    if (results_.timeline_is_empty())
      Say(Text("--timeline ", options_.timeline, ": empty, because no rank called dtrun's Init"));
    return story_.verdict.exit_code;
  }

  void SaySteps() {
    for (const base::FlightProgress& progress : story_.progress)
      if (const std::string line = StepLine(progress); !line.empty()) Say(line);
  }

  // The job's own failure takes precedence over an error of a result file.
  void FailForFile(const LaunchError& error) {
    Say(error.what());
    FailFor(error.what(), error.code());
  }

  void FailFor(const std::string& said, ExitCode code = ExitCode::kNoResult) {
    if (story_.verdict.exit_code == 0) story_.verdict = {static_cast<int>(code), said};
  }

  // 0: no limit.
  static Clock::time_point After(int seconds) {
    return seconds > 0 ? Clock::now() + std::chrono::seconds(seconds) : Clock::time_point::max();
  }

  Plan plan_;
  const Options& options_;
  JobStory& story_;
  std::vector<std::string> argv_;  // mpirun's
  JobFolder folder_;               // forks: must come before members that a child must not inherit
  Poller poller_;
  std::chrono::seconds grace_;
  Supervisor supervisor_;
  Output output_;
  JobResults results_;
  LostWorkers lost_workers_{options_.servers, plan_.call.placement};
  std::optional<HostAgents> agents_;
  std::optional<ElasticRanks> ranks_;
  std::optional<EngineMessages> messages_;
  std::optional<ProgressDisplay> progress_;
  std::optional<JobPause> pause_;
  std::optional<JobInput> input_;
  std::optional<FaultInjector> injector_;
  Clock::time_point start_by_ = After(options_.start_timeout_s);
  Clock::time_point end_by_ = After(options_.timeout_s);
  Clock::time_point all_done_by_ = Clock::time_point::max();
  RankWatch rank_watch_{plan_.call.placement};
  std::string events_;            // of the engine
  std::set<int> told_;            // ended ranks that the first host knows of
  std::optional<Verdict> ended_;  // why dtrun itself ended the job
};

}  // namespace

// The message may contain line breaks. It is printed as one line.
void Say(const std::string& message) {
  std::string line;
  for (char c : message) line += c == '\n' ? ' ' : c;
  std::cerr << Text("dtrun: ", line, '\n') << std::flush;
}

int RunJob(Plan plan, const Options& options, JobStory& story) {
  return Job(std::move(plan), options, story).Run();
}

}  // namespace dtrun::launcher
