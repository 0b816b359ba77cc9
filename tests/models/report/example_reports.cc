#include "tests/models/report/example_reports.h"

#include <cmath>
#include <limits>
#include <string>

namespace dtrun::testing {
namespace {

using models::ReportEpoch;
using models::ReportRank;
using models::RunReport;
using models::ScalingRow;

ReportEpoch Epoch(int epoch) {
  const double rest = std::exp(-0.35 * epoch), wave = 0.004 * std::sin(2.1 * epoch);
  ReportEpoch result;
  result.loss = 0.18 + 0.5 * rest;
  result.accuracy = 0.94 - 0.2 * rest;
  result.validation_loss = 0.24 + 0.4 * rest + wave;
  result.validation_accuracy = 0.92 - 0.15 * rest - wave;
  result.examples_per_s = 6600 + 40 * std::sin(1.3 * epoch) - (epoch == 1 ? 900 : 0);
  result.seconds = 60000 / *result.examples_per_s;
  return result;
}

ReportRank Rank(int rank) {
  const double input = 0.4 + 0.2 * std::sin(rank);
  return {"node" + std::to_string(1 + rank / 8), {70 - input, 3 + std::cos(1.7 * rank), input}};
}

ScalingRow Scaling(int ranks) {
  const double efficiency = 1 / (1 + 0.03 * std::log2(ranks));
  return {ranks, 3300 * efficiency * ranks, efficiency * ranks, efficiency};
}

}  // namespace

RunReport ExampleReport(int epochs, int ranks) {
  RunReport report;
  report.title = "cnn_fmnist on " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  report.results = {
      {"test accuracy", "91.63 %"}, {"test loss", "0.2312"}, {"parameters", "9f86d081884c7d65"}};
  report.settings = {
      {"network",
       "conv2d 32 3x3 relu, conv2d 64 3x3 relu, max_pool2d 2x2, dropout 0.25, dense 128"},
      {"optimizer", "adam, learning rate 0.001"},
      {"data <dir>", "/usr/share/datasets/fashion-mnist & more"},
      {"hosts", "node1 (8)"},
      {"dtrun", "0.1.0"}};
  for (int epoch = 1; epoch <= epochs; ++epoch) report.epochs.push_back(Epoch(epoch));
  for (int rank = 0; rank < ranks; ++rank) report.ranks.push_back(Rank(rank));
  for (int n = 1; n <= ranks; n *= 2) report.scaling.push_back(Scaling(n));
  return report;
}

RunReport DivergedReport() {
  RunReport report = ExampleReport(8, 2);
  report.title = "A run that diverged";
  for (size_t i = 4; i < report.epochs.size(); ++i)
    report.epochs[i].loss = std::numeric_limits<double>::quiet_NaN();
  report.epochs[5].validation_loss = std::numeric_limits<double>::infinity();
  return report;
}

}  // namespace dtrun::testing
