#include "models/train/messages.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace dtrun::models {
namespace {

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

using Count = unsigned long long;

// "[=====>....]"
std::string Bar(uint64_t done, uint64_t all) {
  constexpr uint64_t kWidth = 24;
  const uint64_t filled = done * kWidth / all;
  std::string bar(filled, '=');
  if (filled < kWidth) bar += '>';
  bar.resize(kWidth, '.');
  return "[" + bar + "]";
}

}  // namespace

std::string EpochLine(uint64_t epoch, uint64_t epochs, const EpochResult& r, int ranks) {
  const std::string line = Format(
      "Epoch %llu/%llu: loss %.4f, accuracy %.4f, test loss %.4f, test accuracy %.4f, %.1f s, %.0f "
      "images/s",
      Count{epoch}, Count{epochs}, r.loss, r.train_accuracy, r.test_loss, r.test_accuracy,
      r.seconds, r.images_per_s);
  return ranks == 1 ? line
                    : line + Format(", communication exposed %.1f %%", 100 * r.exposed_share);
}

std::string ResultLine(const TrainingResult& r, uint64_t test_images) {
  const std::string where = r.ranks == 1 ? "" : Format(" on all %d ranks", r.ranks);
  return Format(
      "Test: loss %.4f, accuracy %.4f on %llu images; parameters %s%s", r.test_loss,
      r.test_accuracy, Count{test_images}, r.parameter_digest.c_str(), where.c_str());
}

std::string ProgressLine(
    uint64_t epoch, uint64_t epochs, const StepReport& report, int ranks, int columns) {
  const double left = report.seconds / static_cast<double>(report.step) *
                      static_cast<double>(report.steps - report.step);
  const double images_per_s = static_cast<double>(report.share.examples) * ranks / report.seconds;
  const Tally& share = report.share;
  std::string line = Format(
      "Epoch %llu/%llu %llu/%llu ", Count{epoch}, Count{epochs}, Count{report.step},
      Count{report.steps});
  line += Bar(report.step, report.steps);
  line += Format(" %.0f s left", std::ceil(left));
  if (share.examples > 0)
    line += Format(", loss %.4f, accuracy %.4f", share.mean_loss(), share.accuracy());
  line += Format(", %.0f images/s", images_per_s);
  const auto most = static_cast<size_t>(columns > 1 ? columns - 1 : 0);
  return line.substr(0, most);
}

void ProgressPrinter::Draw(uint64_t epoch, const StepReport& report) {
  constexpr double kInterval = 0.1;
  if (report.step == 1) next_ = 0;
  if (report.seconds < next_) return;
  next_ = report.seconds + kInterval;
  std::printf("\r\033[K%s", ProgressLine(epoch, epochs_, report, ranks_, columns_).c_str());
  std::fflush(stdout);
}

void ProgressPrinter::Remove() {
  std::printf("\r\033[K");
  std::fflush(stdout);
}

}  // namespace dtrun::models
