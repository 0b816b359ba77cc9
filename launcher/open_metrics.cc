// The format: OpenMetrics 1.0. Each family begins with its type, unit and help; a counter's samples
// end with _total; the text ends with "# EOF".

#include "launcher/open_metrics.h"

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace dtrun::launcher {
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

std::string Seconds(int64_t ns) {
  char text[48];
  std::snprintf(text, sizeof text, "%.9f", static_cast<double>(ns) / 1e9);
  return text;
}

const std::vector<Family>& Families() {
  const auto seconds = [](auto pick) {
    return [pick](const RankMetrics& rank) { return Seconds(pick(rank.progress)); };
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
      {"dtrun_examples", "counter", "", "Examples that the rank says to have computed.",
       number([](P p) { return p.examples; })},
      {"dtrun_step_seconds", "counter", "seconds", "Duration of these steps.",
       seconds([](P p) { return p.reduced.total_ns; })},
      {"dtrun_compute_seconds", "counter", "seconds",
       "Of the steps, outside of the reduction of gradients.",
       seconds([](P p) { return p.reduced.total_ns - p.reduced.exposed_ns; })},
      {"dtrun_exposed_seconds", "counter", "seconds",
       "Of the steps, communication that was not hidden behind computation.",
       seconds([](P p) { return p.reduced.exposed_ns; })},
      {"dtrun_late_seconds", "counter", "seconds",
       "Of the exposed communication, waiting for ranks that were not there yet.",
       seconds([](P p) { return p.reduced.late_ns; })},
      {"dtrun_reduced_bytes", "counter", "bytes", "Gradients that were reduced.",
       number([](P p) { return p.reduced.bytes; })},
      {"dtrun_buckets", "counter", "", "Collectives that reduced them.",
       number([](P p) { return p.reduced.buckets; })},
      {"dtrun_waited_seconds", "counter", "seconds",
       "Waiting for other ranks in any call of dtrun.", seconds([](P p) { return p.waited_ns; })},
  };
  return families;
}

// As UTF-8, with what would end the label escaped. Only these three may be.
std::string Label(const std::string& text) {
  using nlohmann::json;
  const std::string valid =
      json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
  std::string label;
  for (const char c : valid) {
    if (c == '\\' || c == '"') label += '\\';
    label += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return label;
}

}  // namespace

std::string OpenMetricsText(
    const std::vector<RankMetrics>& ranks, const std::vector<base::HostSlots>& hosts) {
  std::vector<std::string> labels;
  for (const base::HostSlots& host : hosts)
    for (int i = 0; i < host.slots; ++i)
      labels.push_back(Text("{rank=\"", labels.size(), "\",host=\"", Label(host.name), "\"}"));
  std::string text;
  for (const Family& family : Families()) {
    text += Text("# TYPE ", family.name, ' ', family.type, '\n');
    if (family.unit[0] != '\0') text += Text("# UNIT ", family.name, ' ', family.unit, '\n');
    text += Text("# HELP ", family.name, ' ', family.help, '\n');
    const char* suffix = family.type == std::string("counter") ? "_total" : "";
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      text += Text(family.name, suffix, labels.at(rank), ' ', family.value(ranks[rank]), '\n');
  }
  return text + "# EOF\n";
}

}  // namespace dtrun::launcher
