#ifndef DTRUN_MODELS_SYNTHETIC_OPTIONS_H_
#define DTRUN_MODELS_SYNTHETIC_OPTIONS_H_

#include <cstdint>
#include <string>

namespace dtrun::models {

/// The command line of synthetic_benchmark, with its defaults.
struct SyntheticOptions {
  std::string model = "resnet50";
  uint64_t batch_size = 32;  ///< of one rank
  uint64_t num_warmup_batches = 10;
  uint64_t num_batches_per_iter = 10;
  uint64_t num_iters = 10;
  int image_size = 0;  ///< 0: the model's own
  bool synchronized = false;
  bool overlap = true;  ///< of the reduction and the backward pass
  int threads = 0;      ///< 0: those that are this rank's own
  std::string json;     ///< "": no file
};

struct ParsedSyntheticOptions {
  SyntheticOptions options;
  std::string help;   ///< what --help prints; empty unless it was asked for
  std::string error;  ///< one line; empty when the command line is right
};

/// Neither prints nor exits, so that the ranks can agree on what to do first.
ParsedSyntheticOptions ParseSyntheticOptions(int argc, const char* const* argv);

/// What has to be equal on all ranks: "name=value" per line.
std::string SharedSettings(const SyntheticOptions& options);

}  // namespace dtrun::models

#endif
