#include "launcher/report/progress_report.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "base/json.h"
#include "base/text.h"

namespace dtrun::launcher {
namespace {

using base::JsonText;
using base::ParseJson;
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
      Milliseconds(sums.exposed_ns, sums.steps), " of exposed communication (",
      Milliseconds(sums.late_ns, sums.steps), " of waiting for late ranks); ",
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

// The OpenMetrics 1.0 format: each family begins with its type, unit and help. The samples of a
// counter end with _total. The text ends with "# EOF".

namespace {

using base::FlightProgress;
using base::Text;

struct Family {
  const char* name;
  const char* type;
  const char* unit;  // "": none
  const char* help;
  std::function<std::string(const RankMetrics&)> value;
};

std::string SecondsText(int64_t ns) {
  char text[48];
  std::snprintf(text, sizeof text, "%.9f", static_cast<double>(ns) / 1e9);
  return text;
}

const std::vector<Family>& Families() {
  const auto seconds = [](auto pick) {
    return [pick](const RankMetrics& rank) { return SecondsText(pick(rank.progress)); };
  };
  const auto number = [](auto pick) {
    return [pick](const RankMetrics& rank) { return Text(pick(rank.progress)); };
  };
  using P = const FlightProgress&;
  static const std::vector<Family> families = {
      {"dtrun_rank_running", "gauge", "", "1 while the program of the rank runs, else 0.",
       [](const RankMetrics& rank) { return std::string(rank.running ? "1" : "0"); }},
      {"dtrun_steps", "counter", "", "Steps whose gradients were reduced.",
       number([](P p) { return p.reduced.steps; })},
      {"dtrun_examples", "counter", "", "Examples that the rank has reported as computed.",
       number([](P p) { return p.examples; })},
      {"dtrun_step_seconds", "counter", "seconds", "Duration of the steps.",
       seconds([](P p) { return p.reduced.total_ns; })},
      {"dtrun_compute_seconds", "counter", "seconds",
       "Part of the step time outside the reduction of gradients.",
       seconds([](P p) { return p.reduced.total_ns - p.reduced.exposed_ns; })},
      {"dtrun_exposed_seconds", "counter", "seconds",
       "Part of the step time in communication that computation did not hide.",
       seconds([](P p) { return p.reduced.exposed_ns; })},
      {"dtrun_late_seconds", "counter", "seconds",
       "Part of the exposed communication spent waiting for late ranks.",
       seconds([](P p) { return p.reduced.late_ns; })},
      {"dtrun_reduced_bytes", "counter", "bytes", "Gradients that were reduced.",
       number([](P p) { return p.reduced.bytes; })},
      {"dtrun_buckets", "counter", "", "Collectives that reduced gradients.",
       number([](P p) { return p.reduced.buckets; })},
      {"dtrun_waited_seconds", "counter", "seconds",
       "Waiting for other ranks in any call of dtrun.", seconds([](P p) { return p.waited_ns; })},
  };
  return families;
}

// `text` as UTF-8, with escapes for the three characters that may be escaped in a label.
std::string Label(const std::string& text) {
  using nlohmann::json;
  const std::string valid = ParseJson(JsonText(text));
  std::string label;
  for (const char c : valid) {
    if (c == '\\' || c == '"') label += '\\';
    label += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return label;
}

std::string Heading(const char* name, const char* type, const char* unit, const char* help) {
  return Text(
      "# TYPE ", name, ' ', type, '\n',
      unit[0] != '\0' ? Text("# UNIT ", name, ' ', unit, '\n') : "", "# HELP ", name, ' ', help,
      '\n');
}

std::string TextOf(const JobMetrics& job) {
  return Heading("dtrun_job_ranks", "gauge", "", "Ranks that the job has.") +
         Text("dtrun_job_ranks ", job.ranks, '\n') +
         Heading("dtrun_job_losses", "counter", "", "How often the job has lost ranks.") +
         Text("dtrun_job_losses_total ", job.losses, '\n') +
         Heading("dtrun_job_gains", "counter", "", "How often ranks have joined the running job.") +
         Text("dtrun_job_gains_total ", job.gains, '\n') +
         Heading(
             "dtrun_job_recovery_seconds", "counter", "seconds",
             "Time in which not all ranks worked, because ranks were lost or came.") +
         Text("dtrun_job_recovery_seconds_total ", SecondsText(job.recovery_ns), '\n') +
         Heading(
             "dtrun_job_lost_steps", "counter", "", "Completed steps that were computed again.") +
         Text("dtrun_job_lost_steps_total ", job.steps_lost, '\n');
}

}  // namespace

JobMetrics JobMetricsOf(const std::vector<Loss>& losses, int ranks, int64_t now_ns) {
  JobMetrics job = {.ranks = ranks};
  for (const Loss& loss : losses) {
    (loss.ranks.empty() ? job.gains : job.losses) += 1;
    job.steps_lost += std::max<int64_t>(loss.steps_lost, 0);
    job.recovery_ns += (loss.recovered_ns > 0 ? loss.recovered_ns : now_ns) - loss.lost_ns;
  }
  return job;
}

std::string OpenMetricsText(
    const std::vector<RankMetrics>& ranks, const std::vector<base::HostSlots>& hosts,
    const std::optional<JobMetrics>& job) {
  std::vector<std::string> labels;
  for (const base::HostSlots& host : hosts)
    for (int i = 0; i < host.slots; ++i)
      labels.push_back(Text("{rank=\"", labels.size(), "\",host=\"", Label(host.name), "\"}"));
  std::string text;
  for (const Family& family : Families()) {
    text += Heading(family.name, family.type, family.unit, family.help);
    const char* suffix = family.type == std::string("counter") ? "_total" : "";
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      text += Text(family.name, suffix, labels.at(rank), ' ', family.value(ranks[rank]), '\n');
  }
  return text + (job ? TextOf(*job) : "") + "# EOF\n";
}

}  // namespace dtrun::launcher
