#ifndef DTRUN_MODELS_NETWORKS_NETWORK_H_
#define DTRUN_MODELS_NETWORKS_NETWORK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/layers/sequential.h"

namespace dtrun::models {

/// The learning rate from the beginning of `epoch` (counted from 0) on.
struct RateFromEpoch {
  uint64_t epoch = 0;
  double rate = 0;
  bool operator==(const RateFromEpoch&) const = default;
};

/// How a network is trained, unless its user knows better.
struct Recipe {
  std::string optimizer = "adam";                          ///< or "sgd"
  double momentum = 0;                                     ///< sgd's
  std::vector<RateFromEpoch> learning_rate = {{0, 1e-3}};  ///< the first one from epoch 0
  uint64_t batch_size = 64;                                ///< examples per rank and step
  uint64_t epochs = 1;
  uint64_t steps_per_epoch = 0;  ///< 0: as many as use every example once

  double RateOfEpoch(uint64_t epoch) const;
};

/// A network that can be built: layers, what they take, and its recipe.
struct Network {
  std::string name;
  Shape input;  ///< of one example
  LayerList layers;
  Recipe recipe;
  /// Whether a layer needs a rank's whole share in one pass: see OptionsFor.
  bool needs_whole_share = false;
};

/// What a network is made for. 0: what it was published for.
struct NetworkOptions {
  int classes = 0;
  int image = 0;  ///< height and width of the input
  /// Normalisations by the statistics of the global batch, where there are any.
  bool synchronized = false;
};

/// Networks by name:
///
///   A         conv 32, pool, conv 64, pool, dense 64, dense 10    121,930 parameters
///   B         conv 32, pool, dense 64, dense 10                   347,146
///   C         conv 32, conv 64, pool, dropout, dense 128, dropout, dense 10     1,199,882
///   D         reshape, conv 32, dense 128, dense 10             2,770,634, takes 784 values
///   mlp       flatten, dense 128, dropout, dense 10               101,770
///   resnet18  32 x 32 x 3, 10 classes                          11,173,962
///   resnet50  224 x 224 x 3, 1000 classes                      25,557,032
///
/// Convolutions are 3 x 3 and pools 2 x 2 with their ReLUs; the first five are for images of 28 x
/// 28 x 1 in 10 classes. Throws Error kInvalidArgument, with the known names, for another name, and
/// for options that the network does not have.
Network NetworkByName(const std::string& name, const NetworkOptions& options = {});

/// The names above, in that order.
const std::vector<std::string>& NetworkNames();

/// Micro-batches for a rank that has at most `share` examples of a step: all of them as one chunk
/// where the network needs that, else the 8 x 16 of SequentialOptions at most.
SequentialOptions OptionsFor(const Network& network, uint64_t share, uint64_t seed);

}  // namespace dtrun::models

#endif
