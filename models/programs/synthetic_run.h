#ifndef DTRUN_MODELS_PROGRAMS_SYNTHETIC_RUN_H_
#define DTRUN_MODELS_PROGRAMS_SYNTHETIC_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::models {

/// The command line of synthetic_benchmark, with its defaults.
struct SyntheticOptions {
  std::string model = "resnet50";
  uint64_t batch_size = 32;  ///< of one rank
  uint64_t num_warmup_batches = 10;
  uint64_t num_batches_per_iter = 10;
  uint64_t num_iters = 10;
  int image_size = 0;  ///< 0: the model's default
  bool synchronized = false;
  bool overlap = true;  ///< overlaps the reduction with the backward pass
  int threads = 0;      ///< 0: this rank's CPUs
  std::string json;     ///< "": no file
};

struct ParsedSyntheticOptions {
  SyntheticOptions options;
  std::string help;   ///< text of --help or --version, if given; else empty
  std::string error;  ///< one line; empty if the command line is valid
};

/// Does not print or exit, so that the ranks can first agree on the result.
ParsedSyntheticOptions ParseSyntheticOptions(int argc, const char* const* argv);

/// The options that must be equal on all ranks, one "name=value" per line.
std::string SharedSettings(const SyntheticOptions& options);

/// Images per second: the mean over the iterations, and 1.96 standard deviations of an iteration.
/// If the iterations are normally distributed, 95 % of them are within this deviation from the
/// mean.
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
/// A JSON object with model, ranks, threads, batch_size, parameters, images_per_s_per_rank,
/// images_per_s (each with _deviation) and iterations.
std::string ToJson(const SyntheticResult& result);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_SYNTHETIC_RUN_H_
