#include "launcher/job/job_results.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "base/trace.h"
#include "base/trace_json.h"
#include "launcher/report/flight_report.h"
#include "launcher/report/progress_report.h"

namespace dtrun::launcher {
namespace {

using base::AsciiJsonText;

constexpr std::chrono::seconds kBetweenMetrics{2};

// The losses and gains, from the first end until all ranks worked together again.
base::TracedChanges ChangesOf(const JobStory& story) {
  base::TracedChanges changes = {.end_ns = MonotonicNs()};
  for (const Loss& loss : story.losses) {
    nlohmann::json details = {{"epoch", loss.epoch}, {"ranks", loss.ranks}};
    if (!loss.left.empty()) details["left"] = loss.left;
    if (!loss.joined.empty()) details["joined"] = loss.joined;
    if (loss.steps_lost >= 0) details["steps_lost"] = loss.steps_lost;
    const std::string members = AsciiJsonText(details);
    changes.changes.push_back(
        {.name = loss.why,
         .begin_ns = loss.lost_ns,
         .end_ns = loss.recovered_ns,
         .details = members.substr(1, members.size() - 2)});
  }
  return changes;
}

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
    const JobStory& story, const HostAgents& agents, const std::string& flight_folder) {
  std::vector<HostAgents::Trace> traces = agents.traces();
  for (const base::FoundTrace& trace : base::FindTraces(flight_folder))
    traces.push_back({trace.rank, trace.path, {}});
  std::stable_sort(
      traces.begin(), traces.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  timeline_is_empty_ = true;
  std::vector<base::TraceSource> sources;
  for (const HostAgents::Trace& place : traces)
    sources.push_back({place.clock, [this, path = place.path] {
                         std::optional<base::RankTrace> trace;
                         base::WithTraceFile(path, [&](const void* data, size_t bytes) {
                           trace = base::ReadTrace(data, bytes);
                         });
                         if (trace) timeline_is_empty_ = false;
                         return trace;
                       }});
  base::WriteTraceJson(
      sources,
      {{"np", base::Text(base::RankCount(hosts_))},
       {"command", AsciiJsonText(story.command)},
       {"exit_code", base::Text(story.verdict.exit_code)}},
      [&](const std::string& piece) { timeline_->Add(piece); }, ChangesOf(story));
  timeline_->Close();
}

std::vector<LaunchError> JobResults::Finish(
    const JobStory& story, const HostAgents& agents, const std::string& flight_folder) {
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
  write(timeline_.has_value(), [&] { WriteTimeline(story, agents, flight_folder); });
  return errors;
}

}  // namespace dtrun::launcher
