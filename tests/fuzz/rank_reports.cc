// The frames of a host agent about its ranks, and dtrun's report of a failed job.

#include "launcher/job/rank_reports.h"

#include <vector>

#include "launcher/engines/launch_engine.h"
#include "launcher/job/job_terminal.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/job_story.h"
#include "launcher/report/progress_report.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

namespace {

const std::vector<base::HostSlots> kHosts = {{"h1", 2}, {"h2", 3}};
const launcher::HostRanks kRanks = {2, 3, 4};  // of h2

void Report(const launcher::RankReports& reports, int engine_code) {
  launcher::JobStory story = {.command = {"./train"}, .hosts = kHosts, .started = {}};
  story.records = reports.records();
  story.flights = reports.flights();
  story.progress = reports.progress();
  for (const base::FlightProgress& progress : story.progress) launcher::StepLine(progress);
  for (const launcher::ExitRecord& record : story.records)
    fuzz::Expect(kRanks.contains(record.rank));
  constexpr int kCount = 3;
  fuzz::Expect(reports.running() <= kCount && reports.answers({}, 0).takers <= kCount);
  story.verdict = launcher::JudgeFailure(
      story.records, engine_code, kHosts,
      launcher::LaunchEngines().front()->Explain(engine_code, kHosts));
  story.verdict.culprit = launcher::CulpritOf(story.verdict, story.records, story.flights);
  for (const bool show_last_lines : {false, true}) launcher::FailureLines(story, show_last_lines);
  launcher::ReportJson(story);
}

}  // namespace

FUZZ_TARGET(rank_reports) {
  launcher::FrameReader reader;
  launcher::RankReports reports;
  launcher::ProgressMeter meter;
  std::chrono::steady_clock::time_point now;
  reader.Feed(reinterpret_cast<const char*>(data), size);
  fuzz::TakesOrRefuses([&] {
    while (const std::optional<launcher::Frame> frame = reader.Next()) {
      now += std::chrono::milliseconds(300);
      reports.Hear(*frame, kRanks, now.time_since_epoch().count());
      for (const base::FlightProgress& progress : reports.TakeProgress()) meter.Add(progress, now);
      meter.Line(reports.running());
    }
  });
  for (const int engine_code : {1, 143, 205}) Report(reports, engine_code);
  return 0;
}
