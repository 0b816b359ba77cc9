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

#include "base/flight_record.h"
#include "base/launch_env.h"
#include "base/trace_json.h"
#include "launcher/job/interruption.h"
#include "launcher/job/rank_reports.h"
#include "launcher/networks/network_survey.h"
#include "launcher/output/output.h"
#include "launcher/protocol/agent_connection.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// The job as its agents need it.
struct AgentPlan {
  std::string agent;                      ///< path of dtrun_agent, the same on all hosts
  std::vector<std::string> remote_shell;  ///< words before a host and a command
  std::string job;                        ///< the job's random name
  std::string folder;                     ///< of the job, on this machine
  std::string remote_folder = {};         ///< random name of the job's folder on other hosts
  std::string daemon = {};                ///< path of the engine's daemon on other hosts; "": none
  std::vector<base::HostSlots> hosts;     ///< with ranks
  std::vector<base::HostSlots> spares;    ///< after them: hosts without ranks, with free slots
  std::vector<bool> on_this_machine;      ///< by host, the spares after the others
  std::string program;                    ///< path of the ranks' program
  std::string cwd;
  bool stdin_to_rank_0 = false;
  std::chrono::milliseconds host_timeout{30'000};  ///< a host silent for this long is lost
  std::string secret = {};  ///< 32 bytes in hex, known only to this job's ranks; "": none
  bool restarts = false;    ///< lost ranks are started again
};

/// The agents of a job's hosts, seen from dtrun. Starts the agents, gathers their reports about
/// hosts and ranks, and tells them to end the job.
class HostAgents {
 public:
  /// Writes the output of the ranks to `output`. Throws LaunchError kInternal.
  HostAgents(Poller& poller, AgentPlan plan, Output& output);
  ~HostAgents();

  /// Whether all hosts are ready for their ranks. Throws LaunchError for the first host that cannot
  /// become ready: kUnavailable if the host cannot be reached, otherwise the error of its agent.
  bool Ready() const;
  /// The networks of the hosts, by host. The entries are empty if all hosts are this machine.
  const std::vector<HostNetworks>& networks() const { return survey_.hosts(); }
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
  /// Removes the first lost host: the job goes on without its ranks.
  void SpareLostHost();
  /// Whether a host has missed several pings. The reports about its ranks may then be out of date.
  bool SomeHostIsSilent() const;
  /// Continues the processes of agents, or the ssh processes that lead to them, if a signal has
  /// stopped them.
  void ContinueStopped();

  /// Tells all hosts that the job continues in epoch `epoch`; `why` names the lost ranks, and
  /// `variables` (EpochFile) replace those of the launch.
  void BeginEpoch(int epoch, const std::string& why, const std::string& variables);
  /// How the wrapper of a rank is started on a host that has not started it before.
  struct RankCommand {
    std::vector<std::string> words, variables;  ///< the variables as NAME=value
    std::string folder;
  };
  /// Starts `rank`, which has ended, again on its host.
  void Restart(int rank, const RankCommand& command);
  /// Gives the ranks of the first lost host to a spare host that runs and has enough slots. Returns
  /// its number; nullopt: there is none. The ranks count as lost with their host. From then on, the
  /// spare host has the number of the lost host.
  std::optional<size_t> TakeOver();
  /// Forgets the first lost host if it is an unused spare; false: it is not.
  bool ForgetLostSpare();

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
  NoticeAnswers answers() const { return reports_.answers(); }

  /// Sends SIGTERM to the programs of all ranks. Their wrappers go on, so the engine does not see
  /// the programs end.
  void Terminate() { SendToAll(FrameType::kTerminate); }

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
  /// The clock offsets measured so far, by host.
  std::vector<base::ClockOffset> clocks() const;

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
  void SendToAll(FrameType type);
  void Hear(Host& host, const Frame& frame);
  void HearReady(Host& host, const Frame& frame);
  void HearEnd(Host& host, const std::string& why);
  void HearTrace(const Frame& frame);
  void HearPong(Host& host, const Frame& frame);
  static void Ping(Host& host);
  static std::optional<int64_t> ClockOf(const Host& host);

  Poller& poller_;
  AgentPlan plan_;
  Output& output_;
  std::vector<std::unique_ptr<Host>> hosts_;
  NetworkSurvey survey_;
  RankReports reports_;
  std::function<void(size_t, bool)> on_taken_;
  struct Loss {
    size_t host;
    std::string why;
  };
  std::deque<Loss> losses_;
  std::string lost_at_end_, trace_folder_;
  std::map<int, uint64_t> traced_bytes_;  // by rank
  std::chrono::steady_clock::time_point traced_ = {};
  bool ending_ = false, paused_ = false;
};

}  // namespace dtrun::launcher

#endif
