#include "models/report/time_bars.h"

#include <algorithm>
#include <cmath>

#include "models/report/drawing.h"
#include "models/report/markup.h"
#include "models/report/number_text.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

// Few ranks have thick bars, many thin ones, with a label on some of them.
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

// A part of no length, or of one that is not finite, is not drawn.
std::string Bar(
    const Frame& frame, const Axis& x, const ReportRank& rank, size_t index, double y,
    double height) {
  std::string bar;
  double before = 0;
  for (const TimePart& part : TimeParts()) {
    const double seconds = rank.time.*part.seconds;
    if (!std::isfinite(seconds) || seconds <= 0) continue;
    const double from = x.Share(before) * frame.width, length = x.Share(seconds) * frame.width;
    before += seconds;
    const std::string tip = Text(
        "rank ", index, ", ", part.name, ": ", Significant(seconds, 4), " s, ",
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
