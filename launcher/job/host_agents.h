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

/// What the agents have to know.
struct AgentPlan {
  std::string agent;                      ///< file of dtrun_agent, the same on all hosts
  std::vector<std::string> remote_shell;  ///< words in front of a host and a command
  std::string job;                        ///< its random name
  std::string folder;                     ///< of the job, on this machine
  std::string remote_folder = {};         ///< the name of that on others, by chance
  std::string daemon = {};                ///< file of the engine's that other hosts need; "": none
  std::vector<base::HostSlots> hosts;     ///< of the ranks
  std::vector<bool> on_this_machine;      ///< by host
  std::string program;                    ///< file of the ranks' program
  std::string cwd;
  bool stdin_to_rank_0 = false;
  std::chrono::milliseconds host_timeout{30'000};  ///< a host not heard of for so long is lost
  std::string secret = {};  ///< 32 bytes in hex, for the ranks of this job alone; "": none
};

/// The agents of a job's hosts, as dtrun sees them: starts them, has them check their host, gathers
/// what they tell of the ranks, and has them end what is left.
class HostAgents {
 public:
  /// Output of the ranks goes to `output`. Throws LaunchError kInternal.
  HostAgents(Poller& poller, AgentPlan plan, Output& output);
  ~HostAgents();

  /// All hosts are ready for their ranks. Throws LaunchError for the first one that is not and will
  /// not be: kUnavailable for a host that cannot be reached, and what its agent has refused.
  bool Ready() const;
  /// What they have told of their networks, by host. Empty of facts where all is this machine.
  const std::vector<HostNetworks>& networks() const { return survey_.hosts(); }
  /// The hosts that have not answered yet.
  std::string Silent() const;

  /// The other hosts none of whose addresses is among `addresses`, separated by commas.
  std::string Without(const std::set<std::string>& addresses) const;

  /// Sends and checks signs of life. Called every `host_timeout / 4` or more often.
  void Beat();
  /// Why the job cannot go on: "host h2 was lost: ..."; "" if it can.
  std::string lost() const { return losses_.empty() ? "" : losses_.front().why; }
  /// The connection to a host that ended while agents gave their last words; "": none did.
  const std::string& lost_at_end() const { return lost_at_end_; }
  /// A host that did not give its last words in time; "": all did.
  std::string SilentAtEnd() const;
  /// The number of that host.
  size_t lost_host() const { return losses_.front().host; }
  /// The job goes on without it.
  void SpareLostHost();
  /// A host has not answered for several signs of life: what is known of its ranks is not up to
  /// date.
  bool SomeHostIsSilent() const;
  /// Continues agents, or what leads to them, that something else has stopped.
  void ContinueStopped();

  /// Tells host 0 that `rank`, of any host, has ended: EndedNote of base/launch_env.h.
  void TellEnded(int rank);

  /// Asks how far the ranks are; the answers come later. What has come since the last call.
  void AskProgress();
  std::vector<base::FlightProgress> TakeProgress() { return reports_.TakeProgress(); }
  std::vector<base::FlightProgress> progress() const { return reports_.progress(); }
  /// Ranks whose program runs.
  int running() const { return reports_.running(); }

  /// While paused, nothing is read of what the ranks write, so that they have to wait.
  void SetPaused(bool paused);

  /// Tells the ranks that the job is going to be ended; what they have answered since.
  void GiveNotice();
  NoticeAnswers answers() const { return reports_.answers(); }

  /// Sends SIGTERM to the programs of all ranks. The engine hears of none of their ends.
  void Terminate() { SendToAll(FrameType::kTerminate); }

  /// Stops the ranks of all hosts; lets them go on. No host counts as lost for what it has not said
  /// before Continue.
  void Stop();
  bool Stopped() const;
  void Continue();

  /// What rank 0 reads from its stdin; "": it ends. `on_taken` learns how much of it the rank has
  /// taken, and whether it can take more.
  void SendInput(std::string bytes);
  void SetOnTaken(std::function<void(size_t bytes, bool open)> on_taken) {
    on_taken_ = std::move(on_taken);
  }

  /// Looks at the clocks of the other hosts, a few times each: the answers come later.
  void LookAtClocks();
  /// By host, as far as they have answered.
  std::vector<base::ClockOffset> clocks() const;

  /// Has all agents end their ranks, and tell what is `wanted` of them. What ranks of other hosts
  /// wrote for the timeline comes into this folder, as that of this machine's is in FlightFolder.
  struct LastWords {
    bool flights;
    std::string trace_folder;  ///< "": not wanted
  };
  void End(LastWords wanted);
  /// When a part of that came last.
  std::chrono::steady_clock::time_point traced() const { return traced_; }
  /// All agents have said all or are gone.
  bool Done() const;

  /// What is known of every rank whose wrapper was seen.
  std::vector<ExitRecord> records() const { return reports_.records(); }
  /// In rank order.
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
