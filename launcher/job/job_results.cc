#include "launcher/job/job_results.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "base/trace.h"
#include "base/trace_json.h"
#include "launcher/report/flight_report.h"
#include "launcher/report/progress_report.h"

namespace dtrun::launcher {
namespace {

constexpr std::chrono::seconds kBetweenMetrics{2};

}  // namespace

JobResults::JobResults(const Options& options, std::vector<base::HostSlots> hosts)
    : hosts_(std::move(hosts)) {
  if (!options.flight_record.empty()) flights_.emplace(options.flight_record);
  if (!options.timeline.empty()) timeline_.emplace(options.timeline);
  if (options.metrics_file.empty()) return;
  metrics_.emplace(options.metrics_file);
  const auto ranks = static_cast<size_t>(base::RankCount(hosts_));
  metrics_->Replace(OpenMetricsText(std::vector<RankMetrics>(ranks), hosts_));
}

// Writes the answers to the previous AskProgress, then asks again. If a disk is full for a while,
// the job goes on: Finish reports the error.
void JobResults::Tick(std::chrono::steady_clock::time_point now, HostAgents& agents) {
  if (!metrics_ || now - asked_ < kBetweenMetrics) return;
  asked_ = now;
  try {
    WriteMetrics(agents);
  } catch (const LaunchError&) {
  }
  agents.AskProgress();
}

void JobResults::WriteMetrics(const HostAgents& agents) {
  std::vector<RankMetrics> ranks(static_cast<size_t>(base::RankCount(hosts_)));
  for (const ExitRecord& record : agents.records())
    ranks.at(static_cast<size_t>(record.rank)).running = record.pid > 0 && record.time_ns == 0;
  for (const base::FlightProgress& progress : agents.progress())
    ranks.at(static_cast<size_t>(progress.rank)).progress = progress;
  metrics_->Replace(OpenMetricsText(ranks, hosts_, job_));
}

void JobResults::WriteTimeline(
    const JobStory& story, const HostAgents& agents, const TracePlaces& traces) {
  std::vector<base::TraceSource> sources;
  timeline_is_empty_ = true;
  const std::vector<base::ClockOffset> clocks = agents.clocks();
  int rank = 0;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    const std::string& folder = traces.on_this_machine[host] ? traces.here : traces.elsewhere;
    for (int i = 0; i < hosts_[host].slots; ++i, ++rank)
      sources.push_back({clocks[host], [this, path = base::TraceFile(folder, rank)] {
                           std::optional<base::RankTrace> trace;
                           base::WithTraceFile(path, [&](const void* data, size_t bytes) {
                             trace = base::ReadTrace(data, bytes);
                           });
                           if (trace) timeline_is_empty_ = false;
                           return trace;
                         }});
  }
  const nlohmann::json command = story.command;
  base::WriteTraceJson(
      sources,
      {{"np", base::Text(rank)},
       {"command", command.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)},
       {"exit_code", base::Text(story.verdict.exit_code)}},
      [&](const std::string& piece) { timeline_->Add(piece); });
  timeline_->Close();
}

std::vector<LaunchError> JobResults::Finish(
    const JobStory& story, const HostAgents& agents, const TracePlaces& traces) {
  std::vector<LaunchError> errors;
  const auto write = [&](bool wanted, const std::function<void()>& file) {
    try {
      if (wanted) file();
    } catch (const LaunchError& error) {
      errors.push_back(error);
    }
  };
  write(flights_.has_value(), [&] {
    flights_->Write(FlightJson(story.flights, base::RankCount(hosts_)));
  });
  write(metrics_.has_value(), [&] { WriteMetrics(agents); });
  write(timeline_.has_value(), [&] { WriteTimeline(story, agents, traces); });
  return errors;
}

}  // namespace dtrun::launcher
