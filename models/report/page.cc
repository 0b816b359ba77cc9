#include "models/report/page.h"

#include <optional>
#include <vector>

#include "models/report/charts.h"
#include "models/report/markup.h"
#include "models/report/number_text.h"
#include "models/report/page_style.h"
#include "models/report/time_bars.h"
#include "models/text.h"
#include "models/train/report.h"

namespace dtrun::models {
namespace {

std::string Section(const std::string& heading, const std::string& content) {
  if (content.empty()) return "";
  return Element("section", {}, Element("h2", {}, Escape(heading)) + content) + "\n";
}

// Cells are text. Numbers stand on the right, and so do their headings: all columns from
// `first_number` on.
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

// A long table scrolls on a screen, on which the keyboard can reach it, too.
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
  Table table{
      {"epoch", "loss", "accuracy", "validation loss", "validation accuracy",
       report.example + "s/s", "seconds"},
      0};
  const auto loss = [](double value) { return Significant(value, 4); };
  const auto accuracy = [](double value) { return Percent(value, 2); };
  const auto seconds = [](double value) { return Significant(value, 4); };
  for (const ReportEpoch& epoch : report.epochs) {
    table.rows.push_back(
        {Text(table.rows.size() + 1), Cell(epoch.loss, loss), Cell(epoch.accuracy, accuracy),
         Cell(epoch.validation_loss, loss), Cell(epoch.validation_accuracy, accuracy),
         Cell(epoch.examples_per_s, WithThousands), Cell(epoch.seconds, seconds)});
  }
  return Section("Epoch by epoch", ToMarkup(table));
}

std::string Curves(const RunReport& report) {
  const std::string figures = LossFigure(report.epochs) + AccuracyFigure(report.epochs) +
                              RateFigure(report.epochs, report.example);
  return figures.empty() ? ""
                         : Section("Training", Element("div", {{"class", "figures"}}, figures));
}

// "9.12 s, 91.2 %"
std::string PartOfTime(double seconds, double total) {
  return Text(Significant(seconds, 4), " s, ", Percent(total > 0 ? seconds / total : 0, 1));
}

std::string Times(const RunReport& report) {
  if (report.ranks.empty()) return "";
  Table table{{"host", "rank"}, 1};
  for (const TimePart& part : TimeParts()) table.headings.push_back(part.name);
  table.headings.push_back("in all");
  for (const ReportRank& rank : report.ranks) {
    std::vector<std::string> row = {rank.host, Text(table.rows.size())};
    for (const TimePart& part : TimeParts())
      row.push_back(PartOfTime(rank.time.*part.seconds, rank.time.total_s()));
    row.push_back(Significant(rank.time.total_s(), 4) + " s");
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

// The policy lets the page load nothing at all, wherever it is opened.
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

std::string ToHtml(const RunReport& report) {
  const std::string body = Element("h1", {}, Escape(report.title)) + "\n" +
                           Results(report.results) + Curves(report) + Times(report) +
                           Scaling(report) + Epochs(report) + Settings(report.settings);
  return Head(report.title) + "<body>\n<main>\n" + body + "</main>\n</body>\n</html>\n";
}

void WriteRunReport(const std::string& path, const RunReport& report) {
  WriteAtomically(path, ToHtml(report));
}

}  // namespace dtrun::models
