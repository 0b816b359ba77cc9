#ifndef DTRUN_MODELS_CALLBACKS_TIMELINE_H_
#define DTRUN_MODELS_CALLBACKS_TIMELINE_H_

#include <dtrun/context.h>

#include <cstdint>
#include <string>

#include "models/callbacks/callback.h"

namespace dtrun::models {

struct TimelineOptions {
  std::string path = "timeline.json";
  uint64_t first_step = 1;  ///< of all epochs, from 0; the very first one is like no other
  uint64_t steps = 10;
};

/// Writes what all ranks do in some steps into one file for Chrome or Perfetto: see
/// Context::StartTimeline. Training that ends before it, ends the timeline.
class Timeline : public Callback {
 public:
  /// Throws Error kInvalidArgument when path is empty or steps is 0. `job` outlives it.
  Timeline(Context& job, TimelineOptions options);

  std::string name() const override { return "Timeline"; }
  void OnBatchBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnTrainEnd(Run& run, const Logs& logs) override;

 private:
  void Stop();

  Context& job_;
  TimelineOptions options_;
  bool runs_ = false;
};

/// Tells the launcher how far this rank has come, for `dtrun --progress`.
class ReportProgress : public Callback {
 public:
  /// `job` outlives it.
  explicit ReportProgress(Context& job) : job_(job) {}
  std::string name() const override { return "ReportProgress"; }
  void OnBatchEnd(Run& run, const Logs& logs) override;

 private:
  Context& job_;
  uint64_t examples_ = 0;
};

}  // namespace dtrun::models

#endif
