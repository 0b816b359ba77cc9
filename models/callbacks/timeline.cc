#include "models/callbacks/timeline.h"

#include <utility>

namespace dtrun::models {

Timeline::Timeline(Context& job, TimelineOptions options)
    : job_(job), options_(std::move(options)) {
  if (options_.path.empty())
    throw Error(ErrorCode::kInvalidArgument, "Timeline: path is '', expected a file name");
  if (options_.steps == 0)
    throw Error(ErrorCode::kInvalidArgument, "Timeline: steps is 0, expected at least 1");
}

void Timeline::OnBatchBegin(Run& run) {
  if (run.position.step != options_.first_step) return;
  job_.StartTimeline(options_.path);
  runs_ = true;
}

void Timeline::OnBatchEnd(Run& run, const Logs&) {
  if (run.position.step >= options_.first_step + options_.steps) Stop();
}

void Timeline::OnTrainEnd(Run&, const Logs&) { Stop(); }

void Timeline::Stop() {
  if (!std::exchange(runs_, false)) return;
  job_.StopTimeline();
}

void ReportProgress::OnBatchEnd(Run& run, const Logs&) {
  examples_ += run.examples;
  job_.ReportProgress(run.position.step, examples_);
}

}  // namespace dtrun::models
