#include "models/callbacks/progress_bar.h"

#include <cmath>
#include <cstdio>
#include <utility>

namespace dtrun::models {
namespace {

using Number = unsigned long long;

// "[=====>....]"
std::string Bar(uint64_t done, uint64_t all) {
  constexpr uint64_t kWidth = 24;
  const uint64_t filled = done * kWidth / all;
  std::string bar(filled, '=');
  if (filled < kWidth) bar += '>';
  bar.resize(kWidth, '.');
  return "[" + bar + "]";
}

bool IsAboutSpeed(const std::string& name) {
  return name == "seconds" || name == "images_per_s" || name == "exposed_share" ||
         name == "learning_rate";
}

// ", loss 0.2500, accuracy 0.8000": the loss comes first, numbers of the validation come last.
std::string NumbersOf(const Logs& logs) {
  std::string trained, validated;
  for (const auto& [name, value] : logs) {
    if (IsAboutSpeed(name)) continue;
    const std::string part = Format(", %s %.4f", name.c_str(), value);
    const bool validates = name.rfind("val_", 0) == 0;
    if (name == "loss" || name == "val_loss")
      (validates ? validated : trained).insert(0, part);
    else
      (validates ? validated : trained) += part;
  }
  return trained + validated;
}

}  // namespace

std::string EpochLine(uint64_t epoch, uint64_t epochs, const Logs& logs, int ranks) {
  std::string line = Format("Epoch %llu/%llu:", Number{epoch}, Number{epochs});
  const std::string numbers = NumbersOf(logs);
  line += numbers.empty() ? "" : numbers.substr(1);
  const auto seconds = logs.find("seconds"), rate = logs.find("images_per_s"),
             exposed = logs.find("exposed_share");
  if (seconds != logs.end()) line += Format(", %.1f s", seconds->second);
  if (rate != logs.end()) line += Format(", %.0f images/s", rate->second);
  if (exposed != logs.end() && ranks > 1)
    line += Format(", communication exposed %.1f %%", 100 * exposed->second);
  return line;
}

std::string ProgressLine(const EpochProgress& p, const Logs& logs, int columns) {
  std::string line =
      Format("Epoch %llu/%llu %llu", Number{p.epoch}, Number{p.epochs}, Number{p.batch});
  if (p.steps > 0) {
    const auto done = static_cast<double>(p.batch - p.resumed_at);
    const double left = p.seconds / done * static_cast<double>(p.steps - p.batch);
    line += Format("/%llu %s", Number{p.steps}, Bar(p.batch, p.steps).c_str());
    line += Format(" %.0f s left", std::ceil(left));
  }
  line += NumbersOf(logs);
  line += Format(", %.0f images/s", static_cast<double>(p.examples) / p.seconds);
  return line.substr(0, static_cast<size_t>(columns > 1 ? columns - 1 : 0));
}

ProgressBar::ProgressBar(ProgressBarOptions options) : options_(std::move(options)) {}

void ProgressBar::OnEpochBegin(Run& run) {
  progress_ = {run.position.epoch + 1, run.epochs, 0, run.steps, run.position.batch};
  start_ = std::chrono::steady_clock::now();
  next_ = 0;
}

void ProgressBar::OnBatchEnd(Run& run, const Logs& logs) {
  progress_.batch = run.position.batch;
  progress_.examples += run.global_batch;
  if (!run.is_rank_0() || options_.columns == 0) return;
  constexpr double kInterval = 0.1;
  progress_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (progress_.seconds < next_) return;
  next_ = progress_.seconds + kInterval;
  std::printf("\r\033[K%s", ProgressLine(progress_, logs, options_.columns).c_str());
  std::fflush(stdout);
  drawn_ = true;
}

void ProgressBar::OnTestBegin(Run&) { Remove(); }

void ProgressBar::OnEpochEnd(Run& run, Logs& logs) {
  Remove();
  if (run.is_rank_0() && options_.print)
    options_.print(EpochLine(run.position.epoch, run.epochs, logs, run.world().size()));
}

void ProgressBar::Remove() {
  if (!std::exchange(drawn_, false)) return;
  std::printf("\r\033[K");
  std::fflush(stdout);
}

}  // namespace dtrun::models
