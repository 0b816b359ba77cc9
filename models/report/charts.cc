#include "models/report/charts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "models/message_text.h"
#include "models/report/markup.h"

namespace dtrun::models {
namespace {

using Value = std::optional<double> ReportEpoch::*;
using ToText = std::function<std::string(double)>;

// A quantity over the epochs.
struct Curve {
  std::string name;
  LineStyle style;
  Value value;
};

std::string LegendEntry(
    const std::string& swatch, const std::string& name, const std::string& number) {
  const std::string value =
      number.empty() ? "" : " " + Element("span", {{"class", "number"}}, Escape(number));
  return Element("li", {}, swatch + " " + Escape(name) + value);
}

std::string Figure(
    const std::string& heading, const std::string& legend, const std::string& drawing,
    const std::string& caption) {
  return Element(
      "figure", {},
      Element("h3", {}, Escape(heading)) + Element("ul", {{"class", "legend"}}, legend) + drawing +
          (caption.empty() ? "" : Element("figcaption", {}, Escape(caption))));
}

ChartLine LineOf(const Curve& curve, const std::vector<ReportEpoch>& epochs, const ToText& text) {
  ChartLine line{curve.style, {}};
  for (size_t i = 0; i < epochs.size(); ++i) {
    const std::optional<double>& value = epochs[i].*curve.value;
    if (!value) continue;
    const std::string tip = Text("epoch ", i + 1, ", ", curve.name, ": ", text(*value));
    line.points.push_back({static_cast<double>(i + 1), *value, tip});
  }
  return line;
}

using MakeAxis = std::function<Axis(const Extent&)>;

// The legend shows the value of the last epoch that has a value.
std::string FigureOf(
    const std::string& heading, const std::vector<Curve>& curves,
    const std::vector<ReportEpoch>& epochs, const MakeAxis& y_axis, const ToText& text,
    const std::string& caption) {
  LineChart chart;
  Extent extent;
  std::string legend;
  bool broken = false;
  for (const Curve& curve : curves) {
    ChartLine line = LineOf(curve, epochs, text);
    if (line.points.empty()) continue;
    for (const ChartPoint& point : line.points) {
      extent.Add(point.y);
      broken = broken || !std::isfinite(point.y);
    }
    legend += LegendEntry(Swatch(curve.style), curve.name, text(line.points.back().y));
    chart.lines.push_back(std::move(line));
  }
  if (chart.lines.empty()) return "";
  chart.description = heading + " over the epochs";
  chart.x = CountAxis("epoch", static_cast<int>(epochs.size()));
  chart.y = y_axis(extent);
  const std::string crosses = broken ? "A cross marks a value that is not finite." : "";
  const std::string space = caption.empty() || crosses.empty() ? "" : ". ";
  return Figure(heading, legend, ToSvg(chart), caption + space + crosses);
}

// The epoch with the best finite value.
std::optional<size_t> BestEpoch(
    const std::vector<ReportEpoch>& epochs, Value value,
    const std::function<bool(double, double)>& better) {
  std::optional<size_t> best;
  for (size_t i = 0; i < epochs.size(); ++i) {
    const std::optional<double>& here = epochs[i].*value;
    if (!here || !std::isfinite(*here)) continue;
    if (!best || better(*here, *(epochs[*best].*value))) best = i;
  }
  return best;
}

std::string BestCaption(
    const std::string& what, const std::vector<ReportEpoch>& epochs, Value value,
    const std::function<bool(double, double)>& better, const ToText& text) {
  const std::optional<size_t> best = BestEpoch(epochs, value, better);
  if (!best || epochs.size() < 2) return "";
  return Text(what, ": ", text(*(epochs[*best].*value)), " in epoch ", *best + 1);
}

// The median that MedianRate computes, from known rates.
std::string MedianCaption(const std::vector<ReportEpoch>& epochs, const std::string& unit) {
  std::vector<double> rates;
  for (size_t i = 1; i < epochs.size(); ++i) {
    const std::optional<double>& rate = epochs[i].examples_per_s;
    if (rate && std::isfinite(*rate)) rates.push_back(*rate);
  }
  if (rates.empty()) return "";
  std::sort(rates.begin(), rates.end());
  const double median = (rates[(rates.size() - 1) / 2] + rates[rates.size() / 2]) / 2;
  return Text("Median of the epochs after the first: ", WithThousands(median), " ", unit);
}

}  // namespace

std::string LossFigure(const std::vector<ReportEpoch>& epochs) {
  return FigureOf(
      "Loss",
      {{"train", LineStyle::kFirst, &ReportEpoch::loss},
       {"validation", LineStyle::kSecond, &ReportEpoch::validation_loss}},
      epochs, [](const Extent& extent) { return RoundAxis("loss", extent); }, LossText,
      BestCaption(
          "Lowest validation loss", epochs, &ReportEpoch::validation_loss, std::less<>(),
          LossText));
}

std::string AccuracyFigure(const std::vector<ReportEpoch>& epochs) {
  return FigureOf(
      "Accuracy",
      {{"train", LineStyle::kFirst, &ReportEpoch::accuracy},
       {"validation", LineStyle::kSecond, &ReportEpoch::validation_accuracy}},
      epochs, [](const Extent& extent) { return PercentAxis("accuracy (%)", extent); },
      AccuracyText,
      BestCaption(
          "Highest validation accuracy", epochs, &ReportEpoch::validation_accuracy,
          std::greater<>(), AccuracyText));
}

std::string RateFigure(const std::vector<ReportEpoch>& epochs, const std::string& example) {
  const std::string unit = example + "s/s";
  return FigureOf(
      "Training speed", {{"all ranks", LineStyle::kFirst, &ReportEpoch::examples_per_s}}, epochs,
      [&](Extent extent) {
        extent.Add(0);
        return RoundAxis(unit, extent);
      },
      [&](double rate) { return WithThousands(rate) + " " + unit; }, MedianCaption(epochs, unit));
}

std::string TimeFigure(const std::vector<ReportRank>& ranks) {
  if (ranks.empty()) return "";
  const RankTime sum = SumOf(ranks);
  std::string legend;
  for (const TimePart& part : TimeParts()) {
    const std::string swatch =
        Element("span", {{"class", std::string("patch ") + part.style}, {"aria-hidden", "true"}});
    const double share = sum.total_s() > 0 ? sum.*part.seconds / sum.total_s() : 0;
    legend += LegendEntry(swatch, part.name, Percent(share, 1));
  }
  return Figure(
      "Training time of each rank", legend, TimeBars(ranks),
      ranks.size() > 1 ? "Percentages cover all ranks together." : "");
}

std::string ScalingFigure(const std::vector<ScalingRow>& rows, const std::string& example) {
  if (rows.empty()) return "";
  LineChart chart;
  ChartLine measured{LineStyle::kFirst, {}}, ideal{LineStyle::kIdeal, {}};
  double most = 1;
  for (const ScalingRow& row : rows) {
    const double ranks = std::log2(row.ranks);
    const std::string tip = Text(
        row.ranks, row.ranks == 1 ? " rank: " : " ranks: ", WithThousands(row.examples_per_s), " ",
        example, "s/s, speed-up ", Fixed(row.speed_up, 2));
    measured.points.push_back({ranks, std::log2(row.speed_up), tip});
    ideal.points.push_back({ranks, ranks, ""});
    if (std::isfinite(row.speed_up)) most = std::max({most, row.speed_up, double(row.ranks)});
  }
  chart.description = "Speed-up over the number of ranks, beside the ideal";
  chart.x = DoublingAxis("ranks", rows.back().ranks);
  chart.y = DoublingAxis("speed-up (times one rank)", most);
  chart.y.low = std::min(chart.y.low, std::log2(rows.front().speed_up));
  chart.lines = {ideal, measured};
  const std::string legend =
      LegendEntry(Swatch(LineStyle::kFirst), "measured", Fixed(rows.back().speed_up, 2)) +
      LegendEntry(Swatch(LineStyle::kIdeal), "ideal", Text(rows.back().ranks));
  return Figure("Speed-up", legend, ToSvg(chart), "Both axes double from line to line.");
}

namespace {

// Few ranks have thick bars. Many ranks have thin bars, and only some bars have a label.
struct Rows {
  double pitch = 0;
  size_t labelled_every = 1;
};

Rows RowsFor(size_t ranks) {
  if (ranks <= 8) return {26, 1};
  if (ranks <= 20) return {15, 1};
  return {std::max(3.0, std::min(8.0, 512 / static_cast<double>(ranks))), (ranks + 15) / 16};
}

Axis SecondsAxis(const std::vector<ReportRank>& ranks) {
  Extent extent;
  extent.Add(0);
  for (const ReportRank& rank : ranks) extent.Add(rank.time.total_s());
  if (extent.most <= 0) extent.Add(1);
  return RoundAxis("training time (s)", extent);
}

// Skips parts without a positive, finite length.
std::string Bar(
    const Frame& frame, const Axis& x, const ReportRank& rank, size_t index, double y,
    double height) {
  const TimeScale scale = TimeScaleFor(rank.time.total_s());
  std::string bar;
  double before = 0;
  for (const TimePart& part : TimeParts()) {
    const double seconds = rank.time.*part.seconds;
    if (!std::isfinite(seconds) || seconds <= 0) continue;
    const double from = x.Share(before) * frame.width, length = x.Share(seconds) * frame.width;
    before += seconds;
    const std::string tip = Text(
        "rank ", index, ", ", part.name, ": ", scale.Text(seconds), " ", scale.unit, ", ",
        Percent(seconds / rank.time.total_s(), 1));
    bar += Element(
        "rect",
        {{"class", part.style},
         {"x", Length(frame.left + from)},
         {"y", Length(y)},
         {"width", Length(std::max(length - 1, 0.5))},
         {"height", Length(height)}},
        Element("title", {}, Escape(tip)));
  }
  return bar;
}

}  // namespace

const std::vector<TimePart>& TimeParts() {
  static const std::vector<TimePart> parts = {
      {"compute", "compute", &RankTime::compute_s},
      {"exposed communication", "exposed", &RankTime::exposed_s},
      {"input wait", "input", &RankTime::input_wait_s}};
  return parts;
}

std::string TimeBars(const std::vector<ReportRank>& ranks) {
  const Rows rows = RowsFor(ranks.size());
  const Axis x = SecondsAxis(ranks);
  const Frame frame = FrameOf(40, rows.pitch * static_cast<double>(ranks.size()));
  const double thickness = rows.pitch * (rows.pitch > 10 ? 0.75 : 0.85);
  std::string content = TextAt(0, 12, Anchor::kStart, "label", "rank") + UprightGrid(frame, x);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const double top = frame.top + rows.pitch * static_cast<double>(rank);
    const double middle = top + rows.pitch / 2;
    if (rank % rows.labelled_every == 0)
      content += TextAt(frame.left - 6, middle + 4, Anchor::kEnd, "tick", Text(rank));
    content += Bar(frame, x, ranks[rank], rank, middle - thickness / 2, thickness);
  }
  return DrawingElement(
      frame, "Training time of each rank: compute, exposed communication, input wait", content);
}

RankTime SumOf(const std::vector<ReportRank>& ranks) {
  RankTime sum;
  for (const ReportRank& rank : ranks) {
    for (const TimePart& part : TimeParts()) sum.*part.seconds += rank.time.*part.seconds;
  }
  return sum;
}

}  // namespace dtrun::models
