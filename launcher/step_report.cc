#include "launcher/step_report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace dtrun::launcher {
namespace {

using base::StepTotals;
using base::Text;

std::string Format(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string Milliseconds(int64_t ns, uint64_t steps) {
  const double ms = static_cast<double>(ns) / 1e6 / static_cast<double>(steps);
  return Format(ms < 1 ? "%.3f ms" : "%.1f ms", ms);
}

std::string Bytes(uint64_t bytes, uint64_t steps) {
  const double each = static_cast<double>(bytes) / static_cast<double>(steps);
  if (each < 1e3) return Format("%.0f B", each);
  return each < 1e6 ? Format("%.1f kB", each / 1e3) : Format("%.1f MB", each / 1e6);
}

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

}  // namespace

std::string StepLine(const base::FlightProgress& progress) {
  const StepTotals& sums = progress.reduced;
  if (sums.steps == 0) return "";
  const std::string buckets =
      Format("%.4g", static_cast<double>(sums.buckets) / static_cast<double>(sums.steps));
  return Text(
      "rank ", progress.rank, ": ", sums.steps, sums.steps == 1 ? " step" : " steps", " of ",
      Milliseconds(sums.total_ns, sums.steps), ": ",
      Milliseconds(sums.total_ns - sums.exposed_ns, sums.steps), " of computing, ",
      Milliseconds(sums.exposed_ns, sums.steps), " of communication that it did not hide, ",
      Milliseconds(sums.late_ns, sums.steps), " of that waiting for late ranks; ",
      Bytes(sums.bytes, sums.steps), " in ", buckets, buckets == "1" ? " bucket" : " buckets",
      " a step");
}

nlohmann::json StepJson(const base::FlightProgress& progress) {
  const StepTotals& sums = progress.reduced;
  if (sums.steps == 0) return nullptr;
  return {
      {"steps", sums.steps},
      {"seconds", Seconds(sums.total_ns)},
      {"compute_seconds", Seconds(sums.total_ns - sums.exposed_ns)},
      {"exposed_seconds", Seconds(sums.exposed_ns)},
      {"late_seconds", Seconds(sums.late_ns)},
      {"bytes", sums.bytes},
      {"buckets", sums.buckets}};
}

}  // namespace dtrun::launcher
