#ifndef DTRUN_MODELS_NETWORKS_RESNET_H_
#define DTRUN_MODELS_NETWORKS_RESNET_H_

#include <vector>

#include "models/layers/sequential.h"

namespace dtrun::models {

struct ResNetOptions {
  /// Blocks of three convolutions, 1 x 1, 3 x 3 and 1 x 1 to four times the filters; else of two, 3
  /// x 3 both.
  bool bottleneck = true;
  /// For images of about 32 x 32 (section 4.2 of the paper): the stem is a 3 x 3 convolution of
  /// stride 1, and no pooling follows.
  bool small_images = false;
  std::vector<int> blocks = {3, 4, 6, 3};  ///< per stage; each stage halves the image
  int width = 64;                          ///< filters of the stem
  int classes = 1000;
  bool synchronized = false;  ///< normalisation by the global batch, see BatchNormOptions
  double kernel_l2 = 0;       ///< regulariser of convolutions and the dense layer
};

/// A residual network: K. He et al., "Deep residual learning for image recognition", CVPR 2016,
/// table 1; by default ResNet-50 with 25,557,032 parameters, for images of 224 x 224 x 3. In its
/// version 1.5: the first 3 x 3 convolution of a block has the stride, not the 1 x 1 before it.
/// Convolutions have no bias and start He-normal; the last gamma of each block starts with 0 (see
/// BatchNormOptions::initial_gamma).
///
///   conv 7x7 / 2, norm, max pool 3x3 / 2
///   per stage s and block: conv 1x1 width * 2^s, conv 3x3, conv 1x1 to 4 * that, each with norm
///   or, without bottlenecks: conv 3x3 width * 2^s, conv 3x3, each with norm
///   global mean, dense
LayerList ResNet(const ResNetOptions& options = {});

}  // namespace dtrun::models

#endif
