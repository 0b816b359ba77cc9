#include "models/report/page.h"

#include <dtrun/objects.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "models/message_text.h"
#include "models/report/charts.h"
#include "models/report/markup.h"
#include "models/train/report.h"

namespace dtrun::models {

/// The style sheet of a report's page and its drawings. The colours are from M. Okabe and K. Ito,
/// "Color Universal Design" (2008): people with any colour vision can distinguish them. The dark
/// page uses lighter colours. Forms or order carry the same information as colours.
std::string PageStyle();

namespace {

std::string Section(const std::string& heading, const std::string& content) {
  if (content.empty()) return "";
  return Element("section", {}, Element("h2", {}, Escape(heading)) + content) + "\n";
}

// Cells are text. The columns from `first_number` on are numbers. Their cells and headings are
// aligned to the right.
struct Table {
  std::vector<std::string> headings;
  size_t first_number = 0;
  std::vector<std::vector<std::string>> rows = {};
};

std::string Row(
    const Table& table, const std::string& cell, const std::vector<std::string>& cells) {
  std::string row;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string name = i >= table.first_number ? "number" : "name";
    row += Element(cell, {{"class", name}}, Escape(cells[i]));
  }
  return Element("tr", {}, row) + "\n";
}

// A long table scrolls on a screen. The tabindex lets keyboard users scroll it too.
std::string ToMarkup(const Table& table) {
  std::string body;
  for (const std::vector<std::string>& row : table.rows) body += Row(table, "td", row);
  const std::string markup = Element(
      "table", {},
      Element("thead", {}, Row(table, "th", table.headings)) + Element("tbody", {}, body));
  return Element("div", {{"class", "scroll"}, {"tabindex", "0"}}, markup);
}

template <typename ToText>
std::string Cell(const std::optional<double>& value, const ToText& text) {
  return value ? text(*value) : "-";
}

std::string Results(const std::vector<ReportFact>& results) {
  std::string list;
  for (const ReportFact& fact : results)
    list += Element(
        "div", {}, Element("dt", {}, Escape(fact.name)) + Element("dd", {}, Escape(fact.value)));
  return list.empty() ? "" : Element("dl", {{"class", "results"}}, list) + "\n";
}

std::string Epochs(const RunReport& report) {
  if (report.epochs.empty()) return "";
  double longest_s = 0;
  for (const ReportEpoch& epoch : report.epochs)
    longest_s = std::max(longest_s, epoch.seconds.value_or(0));
  const TimeScale scale = TimeScaleFor(longest_s);
  Table table{
      {"epoch", "loss", "accuracy", "validation loss", "validation accuracy",
       report.example + "s/s", Text("time (", scale.unit, ")")},
      0};
  const auto time = [&](double seconds) { return scale.Text(seconds); };
  for (const ReportEpoch& epoch : report.epochs) {
    table.rows.push_back(
        {Text(table.rows.size() + 1), Cell(epoch.loss, LossText),
         Cell(epoch.accuracy, AccuracyText), Cell(epoch.validation_loss, LossText),
         Cell(epoch.validation_accuracy, AccuracyText), Cell(epoch.examples_per_s, WithThousands),
         Cell(epoch.seconds, time)});
  }
  return Section("Epoch by epoch", ToMarkup(table));
}

std::string Curves(const RunReport& report) {
  const std::string figures = LossFigure(report.epochs) + AccuracyFigure(report.epochs) +
                              RateFigure(report.epochs, report.example);
  return figures.empty() ? ""
                         : Section("Training", Element("div", {{"class", "figures"}}, figures));
}

// "9.12 (91.2 %)"
std::string PartOfTime(const TimeScale& scale, double seconds, double total) {
  return Text(scale.Text(seconds), " (", Percent(total > 0 ? seconds / total : 0, 1), ")");
}

std::string Times(const RunReport& report) {
  if (report.ranks.empty()) return "";
  double longest_s = 0;
  for (const ReportRank& rank : report.ranks) longest_s = std::max(longest_s, rank.time.total_s());
  const TimeScale scale = TimeScaleFor(longest_s);
  Table table{{"host", "rank"}, 1};
  for (const TimePart& part : TimeParts())
    table.headings.push_back(Text(part.name, " (", scale.unit, ")"));
  table.headings.push_back(Text("in all (", scale.unit, ")"));
  for (const ReportRank& rank : report.ranks) {
    std::vector<std::string> row = {rank.host, Text(table.rows.size())};
    for (const TimePart& part : TimeParts())
      row.push_back(PartOfTime(scale, rank.time.*part.seconds, rank.time.total_s()));
    row.push_back(scale.Text(rank.time.total_s()));
    table.rows.push_back(std::move(row));
  }
  return Section(
      "Where the time went",
      Element("div", {{"class", "figures beside"}}, TimeFigure(report.ranks) + ToMarkup(table)));
}

std::string Scaling(const RunReport& report) {
  if (report.scaling.empty()) return "";
  Table table{{"ranks", report.example + "s/s", "speed-up", "efficiency"}, 0};
  for (const ScalingRow& row : report.scaling) {
    table.rows.push_back(
        {Text(row.ranks), WithThousands(row.examples_per_s), Fixed(row.speed_up, 2),
         Percent(row.efficiency, 1)});
  }
  return Section(
      "Scaling", Element(
                     "div", {{"class", "figures beside"}},
                     ScalingFigure(report.scaling, report.example) + ToMarkup(table)));
}

std::string Settings(const std::vector<ReportFact>& settings) {
  if (settings.empty()) return "";
  std::string list;
  for (const ReportFact& fact : settings)
    list += Element("dt", {}, Escape(fact.name)) + Element("dd", {}, Escape(fact.value)) + "\n";
  return Section("Settings", Element("dl", {{"class", "settings"}}, list));
}

// The policy forbids the page to load any external resource.
std::string Head(const std::string& title) {
  return Text(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n",
      Element("title", {}, Escape(title)), "\n", Element("style", {}, PageStyle()), "\n</head>\n");
}

}  // namespace

std::string AccuracyText(double fraction) { return Percent(fraction, 2); }

// Losses that four decimals would hide, or that are no losses of use, have four digits.
std::string LossText(double loss) {
  const double size = std::abs(loss);
  const bool is_usual = size == 0 || (size >= 0.001 && size < 1000);
  return is_usual ? Fixed(loss, 4) : Significant(loss, 4);
}

std::string ToHtml(const RunReport& report) {
  const std::string body = Element("h1", {}, Escape(report.title)) + "\n" +
                           Results(report.results) + Curves(report) + Times(report) +
                           Scaling(report) + Epochs(report) + Settings(report.settings);
  return Head(report.title) + "<body>\n<main>\n" + body + "</main>\n</body>\n</html>\n";
}

void WriteRunReport(const std::string& path, const RunReport& report) {
  WriteAtomically(path, ToHtml(report));
}

RankTime SplitTrainingTime(double training_s, double exposed_s, double input_wait_s) {
  RankTime time;
  time.exposed_s = std::max(exposed_s, 0.0);
  time.input_wait_s = std::max(input_wait_s, 0.0);
  time.compute_s = std::max(training_s - time.exposed_s - time.input_wait_s, 0.0);
  return time;
}

std::vector<ReportRank> GatherRankTimes(Context& job, const RankTime& mine) {
  std::vector<ReportRank> ranks;
  for (const Host& host : job.hosts())
    ranks.insert(ranks.end(), static_cast<size_t>(host.slots), ReportRank{host.name, {}});
  const std::vector<double> numbers = {mine.compute_s, mine.exposed_s, mine.input_wait_s};
  const std::vector<std::vector<double>> all = AllGatherObjects(job.world(), numbers);
  ranks.resize(all.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    ranks[rank].time = {all[rank][0], all[rank][1], all[rank][2]};
  return ranks;
}

namespace {

constexpr char kLight[] = R"(
:root {
  --page: #ffffff; --card: #f6f8fa; --text: #1f2328; --quiet: #59636e; --grid: #d8dee4;
  --axis: #8c959f; --first: #0072b2; --second: #d55e00; --third: #b5508f;
})";

constexpr char kDark[] = R"(
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #0d1117; --card: #161b22; --text: #e6edf3; --quiet: #9aa4af; --grid: #2b323b;
    --axis: #6e7681; --first: #56b4e9; --second: #f0953f; --third: #e3a1c8;
  }
})";

constexpr char kPage[] = R"(
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 20px 16px 48px; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 16px; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 32px 0 12px; }
h3 { font-size: 1rem; margin: 0 0 4px; }
.results { display: flex; flex-wrap: wrap; gap: 12px; margin: 0; }
.results div { background: var(--card); border-radius: 8px; padding: 10px 16px; min-width: 0; }
.results dt { color: var(--quiet); font-size: 0.85rem; }
.results dd {
  margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
.figures {
  display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr));
}
.beside { align-items: start; grid-template-columns: minmax(320px, 1fr) minmax(0, 2fr); }
@media (max-width: 760px) {
  main { padding: 14px 10px 32px; }
  .beside { grid-template-columns: minmax(0, 1fr); }
}
figure {
  margin: 0; background: var(--card); border-radius: 8px; padding: 12px; min-width: 0;
  break-inside: avoid;
}
figcaption { color: var(--quiet); font-size: 0.85rem; }
.legend {
  list-style: none; margin: 0 0 4px; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 16px;
  font-size: 0.85rem;
}
.number { font-variant-numeric: tabular-nums; font-weight: 600; }
.swatch { vertical-align: middle; }
.patch { display: inline-block; width: 12px; height: 12px; vertical-align: -1px; }
.scroll { overflow: auto; max-height: 560px; }
table { border-collapse: collapse; font-size: 0.9rem; width: 100%; }
th, td { padding: 4px 10px; border-bottom: 1px solid var(--grid); text-align: left; }
th {
  position: sticky; top: 0; background: var(--page); color: var(--quiet); font-weight: 600;
  vertical-align: bottom;
}
td { white-space: nowrap; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 6em; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { font-weight: 400; }
.settings {
  display: grid; grid-template-columns: minmax(7em, max-content) minmax(0, 1fr); gap: 4px 16px;
  margin: 0; font-size: 0.9rem;
}
.settings dt { color: var(--quiet); }
.settings dd { margin: 0; overflow-wrap: anywhere; }
)";

constexpr char kDrawings[] = R"(
.drawing { display: block; width: 100%; max-width: 460px; height: auto; overflow: visible; }
svg text { font-size: 12px; fill: var(--quiet); font-variant-numeric: tabular-nums; }
svg .label { fill: var(--text); }
.grid { stroke: var(--grid); } .axis { stroke: var(--axis); }
path { fill: none; stroke-width: 2; stroke-linejoin: round; }
path.first { stroke: var(--first); }
path.second { stroke: var(--second); stroke-dasharray: 6 3; }
path.ideal { stroke: var(--axis); stroke-width: 1.5; stroke-dasharray: 2 3; }
path.cross { stroke-dasharray: none; stroke-width: 2.5; }
.mark.first { fill: var(--first); } .mark.second { fill: var(--second); }
.touch { fill: transparent; }
.compute { fill: var(--first); background: var(--first); }
.exposed { fill: var(--second); background: var(--second); }
.input { fill: var(--third); background: var(--third); }
)";

// Browsers do not print backgrounds, except for elements with this property.
constexpr char kPrint[] = R"(
@media print {
  body { font-size: 12px; }
  main { max-width: none; padding: 0; }
  .scroll { max-height: none; overflow: visible; }
  figure, .results div { border: 1px solid var(--grid); }
  tr { break-inside: avoid; }
  .patch { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)";

}  // namespace

std::string PageStyle() { return std::string(kLight) + kDark + kPage + kDrawings + kPrint; }

}  // namespace dtrun::models
