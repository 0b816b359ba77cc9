#ifndef DTRUN_LAUNCHER_JOB_HOST_AGENTS_H_
#define DTRUN_LAUNCHER_JOB_HOST_AGENTS_H_

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/elastic_files.h"
#include "base/flight_record.h"
#include "base/launch_env.h"
#include "base/trace_json.h"
#include "launcher/job/rank_reports.h"
#include "launcher/job/supervisor.h"
#include "launcher/networks/network_survey.h"
#include "launcher/output/output.h"
#include "launcher/protocol/agent_link.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/protocol/frame.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// The job as its agents need it.
struct AgentPlan {
  std::string agent;                      ///< path of dtrun_agent, the same on all hosts
  std::string remote_agent = {};          ///< that path as `remote_shell` needs it
  std::vector<std::string> remote_shell;  ///< words before a host and the path of a program
  bool by_scheduler = false;              ///< the remote shell is a scheduler's: see kIsStep
  size_t fanout = 0;                      ///< of the AgentTree; 0: dtrun starts all agents
  std::string job;                        ///< the job's random name
  std::string folder;                     ///< of the job, on this machine
  std::string remote_folder = {};         ///< random name of the job's folder on other hosts
  std::string daemon = {};                ///< path of the engine's daemon on other hosts; "": none
  std::vector<base::HostSlots> hosts;     ///< with the ranks in order, then the spares
  size_t spares = 0;                      ///< that many of the hosts have free slots and no ranks
  std::vector<bool> on_this_machine;      ///< by host
  std::string program;                    ///< path of the ranks' program
  std::string cwd;
  bool stdin_to_rank_0 = false;
  std::chrono::seconds host_wait{0};               ///< how long a host may take until ssh finds it
  std::chrono::milliseconds host_timeout{30'000};  ///< a host silent for this long is lost
  std::string secret = {};  ///< 32 bytes in hex, known only to this job's ranks; "": none
  bool restarts = false;    ///< lost ranks are started again,
  bool in_place = false;    ///< each by the agent of its host
};

/// A host with room for ranks.
struct FreeHost {
  int number;
  std::string name;
  int slots;  ///< free
};

/// The agents of a job's hosts, seen from dtrun. Starts the agents, gathers their reports about
/// hosts and ranks, and tells them to end the job. Hosts are numbered from 0 as they come, and keep
/// their numbers.
class HostAgents {
 public:
  /// Writes the output of the ranks to `output`. Throws LaunchError kInternal.
  HostAgents(Poller& poller, AgentPlan plan, Output& output);
  ~HostAgents();

  /// Whether all hosts of the plan are ready for their ranks. Throws LaunchError for the first that
  /// cannot become ready: kUnavailable if the host cannot be reached, otherwise the error of its
  /// agent.
  bool Ready() const;
  /// Gives up hosts that ssh cannot reach, and asks hosts again that ssh has not found.
  void TryAgain();
  /// The hosts that ssh has not found, each with ssh's words; "": none.
  std::string NotFound() const;
  /// The networks of the hosts, by host. The entries are empty if all hosts are this machine.
  const std::vector<HostNetworks>& networks() const { return survey_.hosts(); }
  /// Whether hosts could reach the hosts below them; false: dtrun had to reach some of those
  /// itself.
  bool hosts_reach_others() const { return hosts_reach_others_; }
  /// The hosts that have not answered yet.
  std::string Silent() const;

  /// The other hosts that have no address in `addresses`, separated by commas.
  std::string Without(const std::set<std::string>& addresses) const;

  /// Pings the other hosts and finds lost ones. Call it every `host_timeout / 4` or more often.
  void Beat();
  /// Why the job cannot go on: "host h2 was lost: ..."; "": it can.
  std::string lost() const { return losses_.empty() ? "" : losses_.front().why; }
  /// The connection that was lost while the agents sent their last frames, as text; "": none.
  const std::string& lost_at_end() const { return lost_at_end_; }
  /// A host that did not send its last frame in time; "": none.
  std::string SilentAtEnd() const;
  /// The number of the first lost host. Requires a lost host (`lost()` is not "").
  size_t lost_host() const { return losses_.front().host; }
  /// Removes the first lost host: the job goes on without its ranks. `also_ended`: counts also
  /// those of its ranks as lost that had failed and were to be started again. Returns its name.
  std::string ForgetLostHost(bool also_ended = false);
  /// Whether a host has missed several pings. The reports about its ranks may then be out of date.
  bool SomeHostIsSilent() const;
  /// Continues the processes of agents, or the ssh processes that lead to them, if a signal has
  /// stopped them.
  void ContinueStopped();

  /// Tells all hosts that the job continues in epoch `epoch`. `variables` (EpochFile) replace those
  /// of the launch.
  void BeginEpoch(int epoch, const base::EpochCause& why, const std::string& variables);
  /// How the wrapper of a rank is started on a host that has not started it before.
  struct RankCommand {
    std::vector<std::string> words, variables;  ///< the variables as NAME=value
    std::string folder;
  };
  /// Tells the agent of `rank`, which does not run, that the engine is going to start it.
  void ExpectStart(int rank);
  /// Starts `rank`, which does not run, on its host. `place` (NAME=value) has the variables of the
  /// rank that change from start to start.
  void Restart(int rank, const RankCommand& command, const std::vector<std::string>& place);

  /// Sends a signal to the program of a rank, as a fault on purpose (--inject).
  void SignalRank(int rank, int signal);

  /// Starts the agent of one more host, with free slots. If that fails, the job goes on.
  void Add(const base::HostSlots& host, bool on_this_machine);
  /// Why hosts that were added cannot be used, by name. Each is returned once.
  std::vector<std::pair<std::string, std::string>> TakeRefusals();
  /// Ends the processes of host `name` and counts the host as lost, because of `why`.
  void Drop(const std::string& name, const std::string& why);
  /// Whether host `name` has an agent that runs or is being started.
  bool Uses(const std::string& name) const;
  /// The ready hosts with free slots, and the free slots of hosts that are not ready yet.
  std::vector<FreeHost> free_hosts() const;
  int coming_slots() const;
  /// Gives `rank` to a host that has a free slot. It is no other host's.
  void Assign(int rank, int host);
  /// The hosts that run or are being started.
  std::vector<std::string> names() const;
  const std::string& name(int host) const;
  /// The address of a host for the other hosts; "": not known.
  const std::string& address(int host) const;
  void SetAddresses(const std::vector<std::string>& addresses);

  /// Tells host 0 that `rank`, on any host, has ended: EndedNote of base/launch_env.h.
  void TellEnded(int rank);

  /// Asks the agents for the progress of the ranks. The answers come later; TakeProgress returns
  /// those since its last call.
  void AskProgress();
  std::vector<base::FlightProgress> TakeProgress() { return reports_.TakeProgress(); }
  std::vector<base::FlightProgress> progress() const { return reports_.progress(); }
  /// The number of ranks with a running program.
  int running() const { return reports_.running(); }

  /// While paused, dtrun reads no output of the ranks, so the ranks have to wait.
  void SetPaused(bool paused);

  /// Tells the ranks that the job is going to end. `answers` counts their answers since then.
  void GiveNotice();
  NoticeAnswers answers() const;

  /// Sends SIGTERM to the programs of all ranks. Their wrappers go on, so the engine does not see
  /// the programs end.
  void Terminate() { SendToAll(FrameType::kTerminate); }

  /// `on_told` gets the name of a host whose agent was told to end.
  void SetOnTold(std::function<void(const std::string& host)> on_told) {
    on_told_ = std::move(on_told);
  }

  /// Stops the ranks of all hosts until Continue. Silence before Continue does not make a host
  /// lost.
  void Stop();
  bool Stopped() const;
  void Continue();

  /// Sends bytes for the stdin of rank 0; "" ends the stdin. `on_taken` gets the number of bytes
  /// that the rank has taken, and whether the rank can take more.
  void SendInput(std::string bytes);
  void SetOnTaken(std::function<void(size_t bytes, bool open)> on_taken) {
    on_taken_ = std::move(on_taken);
  }

  /// Starts to measure the clock offsets of the other hosts. The answers come later.
  void LookAtClocks();

  /// Makes all agents end their ranks and send their last reports. Flight records are sent if
  /// `flights`. Traces of other hosts' ranks are written into `trace_folder`; those of this machine
  /// are in FlightFolder.
  struct LastWords {
    bool flights;
    std::string trace_folder;  ///< "": no traces
  };
  void End(LastWords wanted);
  /// When the last part of a trace came.
  std::chrono::steady_clock::time_point traced() const { return traced_; }

  /// The traces of other hosts' ranks.
  struct Trace {
    int rank;
    std::string path;
    base::ClockOffset clock;  ///< of the rank's host
  };
  std::vector<Trace> traces() const;
  /// Whether all agents have sent their last frame or are gone.
  bool Done() const;

  /// The records of all ranks whose wrappers have connected to an agent.
  std::vector<ExitRecord> records() const { return reports_.records(); }
  /// The flight records, in rank order.
  std::vector<base::FlightRecord> flights() const { return reports_.flights(); }
  std::vector<pid_t> processes() const;

 private:
  struct Host;

  void Start(Host& host);
  nlohmann::json JobOf(const Host& host) const;
  bool IsWaitedFor(const Host& host) const;
  Host& Make(const base::HostSlots& host, bool on_this_machine);
  static bool IsUsable(const Host& host);
  void Send(const Host& host, const Frame& frame);
  void SendDown(const Host& host, const Frame& frame);
  void SendToAll(FrameType type);
  void HearLink(Host& host, const Frame& frame);
  void Hear(Host& host, const Frame& frame);
  void HearReady(Host& host, const Frame& frame);
  void HearEnd(Host& host, const LinkEnd& end);
  void HearSilence(Host& host);
  void HearTrace(Host& host, const Frame& frame);
  void HearPong(Host& host, const Frame& frame);
  static Frame Ping();
  static std::optional<int64_t> ClockOf(const Host& host);

  Poller& poller_;
  AgentPlan plan_;
  Output& output_;
  AgentTree tree_;
  std::vector<std::unique_ptr<Host>> hosts_;
  NetworkSurvey survey_;
  RankReports reports_;
  std::function<void(size_t, bool)> on_taken_;
  std::function<void(const std::string&)> on_told_;
  struct Loss {
    size_t host;
    std::string why;
  };
  std::deque<Loss> losses_;
  std::chrono::steady_clock::time_point wait_until_;  // for hosts that ssh does not find
  std::chrono::steady_clock::time_point pinged_ = {};
  std::string lost_at_end_, trace_folder_;
  std::chrono::steady_clock::time_point traced_ = {};
  bool ending_ = false, paused_ = false;
  bool hosts_reach_others_ = true;
  std::string epoch_;  // the body of the last kEpoch frame; "": none
};

}  // namespace dtrun::launcher

#endif
