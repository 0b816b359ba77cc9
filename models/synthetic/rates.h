#ifndef DTRUN_MODELS_SYNTHETIC_RATES_H_
#define DTRUN_MODELS_SYNTHETIC_RATES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::models {

/// Images per second: the mean over the iterations, and 1.96 standard deviations of an iteration,
/// within which 95 % of them are if they are distributed normally.
struct Rate {
  double mean = 0, deviation = 0;
};

///   RateOf({9, 11})  ->  10 +- 1.96
Rate RateOf(const std::vector<double>& iterations);

struct SyntheticResult {
  std::string model;
  int ranks = 1, threads = 1;
  uint64_t batch_size = 0, parameters = 0;
  std::vector<double> images_per_s;  ///< of all ranks together, by iteration
};

/// "Img/sec per rank: 10.0 +-0.2\nTotal img/sec on 2 ranks: 20.0 +-0.4"
std::string SummaryOf(const SyntheticResult& result);
/// One object: model, ranks, threads, batch_size, parameters, images_per_s_per_rank, images_per_s
/// (each with _deviation) and iterations.
std::string ToJson(const SyntheticResult& result);

}  // namespace dtrun::models

#endif
