#ifndef DTRUN_MODELS_NETWORKS_NETWORK_H_
#define DTRUN_MODELS_NETWORKS_NETWORK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/layers/activations.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/layers/sequential.h"

namespace dtrun::models {

/// The learning rate from the beginning of `epoch` on. Epochs count from 0.
struct RateFromEpoch {
  uint64_t epoch = 0;
  double rate = 0;
  bool operator==(const RateFromEpoch&) const = default;
};

/// The default training settings of a network.
struct Recipe {
  std::string optimizer = "adam";                          ///< or "sgd"
  double momentum = 0;                                     ///< for sgd
  std::vector<RateFromEpoch> learning_rate = {{0, 1e-3}};  ///< the first entry is for epoch 0
  uint64_t batch_size = 64;                                ///< examples per rank and step
  uint64_t epochs = 1;
  uint64_t steps_per_epoch = 0;  ///< 0: as many as use every example once

  double RateOfEpoch(uint64_t epoch) const;
};

/// The layers of a network, the shape of its input, and its recipe.
struct Network {
  std::string name;
  Shape input;  ///< of one example
  LayerList layers;
  Recipe recipe;
  /// True if a layer needs a rank's whole share in one pass: see OptionsFor.
  bool needs_whole_share = false;
};

/// The sizes for which a network is made. 0: the published size.
struct NetworkOptions {
  int classes = 0;
  int image = 0;  ///< height and width of the input
  /// Normalise with the statistics of the global batch, if the network has normalisations.
  bool synchronized = false;
};

/// Makes a network by name:
///
///   A         conv 32, pool, conv 64, pool, dense 64, dense 10    121,930 parameters
///   B         conv 32, pool, dense 64, dense 10                   347,146
///   C         conv 32, conv 64, pool, dropout, dense 128, dropout, dense 10     1,199,882
///   D         reshape, conv 32, dense 128, dense 10             2,770,634, takes 784 values
///   mlp       flatten, dense 128, dropout, dense 10               101,770
///   resnet18  32 x 32 x 3, 10 classes                          11,173,962
///   resnet50  224 x 224 x 3, 1000 classes                      25,557,032
///
/// The first five are for images of 28 x 28 x 1 in 10 classes. Their convolutions are 3 x 3 with a
/// ReLU, and their pools are 2 x 2. Throws Error kInvalidArgument for an unknown name, with the
/// known names, and for options that the network does not have.
Network NetworkByName(const std::string& name, const NetworkOptions& options = {});

/// The names above, in the same order.
const std::vector<std::string>& NetworkNames();

/// Chooses micro-batches for a rank that has at most `share` examples per step. If the network
/// needs the whole share, one chunk holds all examples. Otherwise a chunk has at most the 8 x 16
/// examples of SequentialOptions.
SequentialOptions OptionsFor(const Network& network, uint64_t share, uint64_t seed);

/// Two convolutions with pooling and dropout, and two dense layers. Has 1,199,882 parameters for
/// images of 28x28 in 10 classes. Its accuracy on Fashion-MNIST's test set is about 0.92 after 8
/// epochs.
inline LayerList NetworkC(int classes) {
  return Layers(
      Conv2D(32, 3, Activation::kRelu), Conv2D(64, 3, Activation::kRelu), MaxPool2D(2),
      Dropout(0.25), Dense(128, Activation::kRelu), Dropout(0.5), Dense(classes));
}

struct ResNetOptions {
  /// True: blocks have three convolutions, 1 x 1, 3 x 3, and 1 x 1 to four times the filters.
  /// False: blocks have two convolutions, both 3 x 3.
  bool bottleneck = true;
  /// For images of about 32 x 32 (section 4.2 of the paper): the stem is a 3 x 3 convolution of
  /// stride 1 without pooling.
  bool small_images = false;
  std::vector<int> blocks = {3, 4, 6, 3};  ///< per stage; all but the first halve the image
  int width = 64;                          ///< filters of the stem
  int classes = 1000;
  bool synchronized = false;  ///< by the global batch, see BatchNormOptions
  double kernel_l2 = 0;       ///< regulariser of convolutions and the dense layer
};

/// A residual network: K. He et al., "Deep residual learning for image recognition", CVPR 2016,
/// table 1. The default is ResNet-50 with 25,557,032 parameters, for images of 224 x 224 x 3. This
/// is version 1.5: the 3 x 3 convolution of a bottleneck block has the stride, not the 1 x 1
/// convolution before it. Convolutions have no bias and start He-normal. The last gamma of each
/// block starts with 0 (see BatchNormOptions::initial_gamma).
///
///   conv 7x7 / 2, norm, max pool 3x3 / 2
///   per block of stage s, with w = width * 2^s and a norm after each convolution:
///     conv 1x1 w, conv 3x3 w, conv 1x1 4 * w; without bottlenecks: conv 3x3 w, conv 3x3 w
///   global mean, dense
LayerList ResNet(const ResNetOptions& options = {});

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_NETWORKS_NETWORK_H_
