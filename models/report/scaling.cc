#include "models/report/scaling.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/message_text.h"
#include "models/report/markup.h"

namespace dtrun::models {
namespace {

double RateOf(const TimedEpoch& epoch) {
  if (epoch.examples == 0 || !std::isfinite(epoch.seconds) || epoch.seconds <= 0) {
    RefuseArgument(Text(
        "an epoch of ", epoch.examples, " examples in ", epoch.seconds,
        " s; expected examples and a time"));
  }
  return static_cast<double>(epoch.examples) / epoch.seconds;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double RateOf(const ScalingRun& run) {
  try {
    return MedianRate(run.epochs);
  } catch (const Error& error) {
    RefuseArgument(Text(run.ranks, run.ranks == 1 ? " rank: " : " ranks: ", error.what()));
  }
}

}  // namespace

double MedianRate(const std::vector<TimedEpoch>& epochs) {
  if (epochs.size() < 2) {
    RefuseArgument(Text(
        epochs.size(), epochs.size() == 1 ? " epoch" : " epochs",
        "; expected at least 2, since the first one warms up and does not count"));
  }
  std::vector<double> rates;
  for (size_t i = 1; i < epochs.size(); ++i) rates.push_back(RateOf(epochs[i]));
  return Median(std::move(rates));
}

std::vector<ScalingRow> ScalingTable(const std::vector<ScalingRun>& runs) {
  std::vector<ScalingRow> rows;
  for (const ScalingRun& run : runs) {
    if (run.ranks < 1) RefuseArgument(Text("a run on ", run.ranks, " ranks; expected at least 1"));
    rows.push_back({.ranks = run.ranks, .examples_per_s = RateOf(run)});
  }
  std::sort(rows.begin(), rows.end(), [](const ScalingRow& a, const ScalingRow& b) {
    return a.ranks < b.ranks;
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && rows[i].ranks == rows[i - 1].ranks)
      RefuseArgument(Text("two runs on ", rows[i].ranks, " ranks; expected one of each"));
    const double one = rows[0].examples_per_s / rows[0].ranks;
    rows[i].efficiency = rows[i].examples_per_s / rows[i].ranks / one;
    rows[i].speed_up = rows[i].efficiency * rows[i].ranks;
  }
  return rows;
}

namespace {

using Json = nlohmann::ordered_json;

// Returns a member's number, which must be positive and finite.
double PositiveNumber(const Json& object, const char* name) {
  const auto member = object.find(name);
  const bool good = member != object.end() && member->is_number() &&
                    std::isfinite(member->get<double>()) && member->get<double>() > 0;
  if (good) return member->get<double>();
  const std::string found = member == object.end() ? "nothing" : member->dump();
  throw Error(
      ErrorCode::kInvalidArgument, Text("\"", name, "\": ", found, "; expected a number above 0"));
}

TimedEpoch ParseEpoch(const Json& epoch) {
  const double seconds = PositiveNumber(epoch, "seconds");
  const double examples = epoch.contains("examples")
                              ? PositiveNumber(epoch, "examples")
                              : PositiveNumber(epoch, "images_per_s") * seconds;
  return {static_cast<uint64_t>(std::llround(std::min(examples, 1e18))), seconds};
}

ScalingRun ParseRun(const Json& result) {
  ScalingRun run;
  run.ranks = static_cast<int>(std::min(PositiveNumber(result, "ranks"), 1e9));
  if (!result.contains("epochs") || !result["epochs"].is_array())
    throw Error(ErrorCode::kInvalidArgument, "\"epochs\": expected a list");
  for (const Json& epoch : result["epochs"]) {
    if (!epoch.is_object())
      throw Error(ErrorCode::kInvalidArgument, "\"epochs\": expected a list of objects");
    run.epochs.push_back(ParseEpoch(epoch));
  }
  return run;
}

constexpr double kBarWidth = 40;

// "######    |": the length is the speed-up, and the mark is the ideal speed-up.
std::string Bar(const ScalingRow& row, double widest) {
  const auto columns = [&](double speed_up) {
    return static_cast<size_t>(std::lround(std::clamp(speed_up / widest, 0.0, 1.0) * kBarWidth));
  };
  const size_t length = columns(row.speed_up), ideal = columns(row.ranks);
  std::string bar(length, '#');
  if (bar.size() < ideal) bar.resize(ideal, ' ');
  bar.insert(bar.begin() + static_cast<ptrdiff_t>(ideal), '|');
  return bar;
}

std::string Right(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

}  // namespace

ScalingRun ParseScalingRun(const std::string& json, const std::string& source) {
  const Json result = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  try {
    if (!result.is_object())
      throw Error(ErrorCode::kInvalidArgument, "not JSON, or not an object; expected a trainer's");
    return ParseRun(result);
  } catch (const Error& error) {
    throw Error(error.code(), Text(source, ": ", error.what()));
  }
}

std::string ScalingText(const std::vector<ScalingRow>& rows, const std::string& example) {
  const std::string unit = example + "s/s";
  double widest = 1;
  for (const ScalingRow& row : rows)
    widest = std::max({widest, row.speed_up, static_cast<double>(row.ranks)});
  const size_t width = std::max<size_t>(unit.size(), 10);
  std::string text = Right("ranks", 7) + "  " + Right(unit, width) + Right("speed-up", 11) +
                     Right("efficiency", 13);
  text += "\n";
  for (const ScalingRow& row : rows) {
    text += Right(Text(row.ranks), 7) + "  " + Right(WithThousands(row.examples_per_s), width) +
            Right(Fixed(row.speed_up, 2), 11) + Right(Percent(row.efficiency, 1), 13) + "   " +
            Bar(row, widest) + "\n";
  }
  return text + "A bar that reaches its | is ideal.\n";
}

std::string ScalingJson(
    const std::vector<ScalingRow>& rows,
    const std::vector<std::pair<std::string, std::string>>& facts) {
  Json result;
  for (const auto& [name, value] : facts) result[name] = value;
  result["scaling"] = Json::array();
  for (const ScalingRow& row : rows) {
    result["scaling"].push_back(
        {{"ranks", row.ranks},
         {"examples_per_s", row.examples_per_s},
         {"speed_up", row.speed_up},
         {"efficiency", row.efficiency}});
  }
  return result.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dtrun::models
