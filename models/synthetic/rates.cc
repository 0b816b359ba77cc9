#include "models/synthetic/rates.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "models/text.h"

namespace dtrun::models {
namespace {

Rate PerRank(const SyntheticResult& result) {
  const Rate total = RateOf(result.images_per_s);
  return {total.mean / result.ranks, total.deviation / result.ranks};
}

std::string ToString(const Rate& rate) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.1f +-%.1f", rate.mean, rate.deviation);
  return text;
}

}  // namespace

Rate RateOf(const std::vector<double>& iterations) {
  Rate rate;
  const auto count = static_cast<double>(iterations.size());
  for (const double value : iterations) rate.mean += value / count;
  double variance = 0;
  for (const double value : iterations) variance += std::pow(value - rate.mean, 2) / count;
  rate.deviation = 1.96 * std::sqrt(variance);
  return rate;
}

std::string SummaryOf(const SyntheticResult& result) {
  return Text(
      "Img/sec per rank: ", ToString(PerRank(result)), "\nTotal img/sec on ", result.ranks,
      result.ranks == 1 ? " rank: " : " ranks: ", ToString(RateOf(result.images_per_s)));
}

std::string ToJson(const SyntheticResult& result) {
  const Rate rank = PerRank(result), total = RateOf(result.images_per_s);
  const nlohmann::ordered_json json = {
      {"model", result.model},
      {"ranks", result.ranks},
      {"threads", result.threads},
      {"batch_size", result.batch_size},
      {"parameters", result.parameters},
      {"images_per_s_per_rank", rank.mean},
      {"images_per_s_per_rank_deviation", rank.deviation},
      {"images_per_s", total.mean},
      {"images_per_s_deviation", total.deviation},
      {"iterations", result.images_per_s}};
  return json.dump() + "\n";
}

}  // namespace dtrun::models
