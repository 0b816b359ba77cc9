#ifndef DTRUN_BENCH_MODEL_SHAPES_H_
#define DTRUN_BENCH_MODEL_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::bench {

/// A parameter of a model, reduced to its name and size.
struct Shape {
  std::string name;
  uint64_t count;  ///< elements
};

/// ResNet-50 (He et al. 2016, arXiv:1512.03385) for 1,000 classes, first layer first: 161
/// parameters, 25,557,032 elements.
std::vector<Shape> ResNet50();

/// `count` parameters of `elements` each.
std::vector<Shape> Equal(int count, uint64_t elements);

}  // namespace dtrun::bench

#endif
