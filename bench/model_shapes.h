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

namespace detail {

// A convolution without bias and the batch normalisation behind it.
inline void AddConvolution(
    std::vector<Shape>& shapes, const std::string& name, uint64_t in, uint64_t out, uint64_t edge) {
  shapes.push_back({name + "/kernel", out * in * edge * edge});
  shapes.push_back({name + "/gamma", out});
  shapes.push_back({name + "/beta", out});
}

}  // namespace detail

/// ResNet-50 (He et al. 2016, arXiv:1512.03385) for 1,000 classes, first layer first: 161
/// parameters, 25,557,032 elements.
inline std::vector<Shape> ResNet50() {
  std::vector<Shape> shapes;
  detail::AddConvolution(shapes, "stem", 3, 64, 7);
  uint64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const uint64_t width = uint64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string name = "stage" + std::to_string(stage) + "/" + std::to_string(block);
      detail::AddConvolution(shapes, name + "/1", in, width, 1);
      detail::AddConvolution(shapes, name + "/2", width, width, 3);
      detail::AddConvolution(shapes, name + "/3", width, 4 * width, 1);
      if (block == 0) detail::AddConvolution(shapes, name + "/shortcut", in, 4 * width, 1);
      in = 4 * width;
    }
  }
  shapes.push_back({"dense/kernel", in * 1000});
  shapes.push_back({"dense/bias", 1000});
  return shapes;
}

/// `count` parameters of `elements` each.
inline std::vector<Shape> Equal(int count, uint64_t elements) {
  std::vector<Shape> shapes;
  for (int i = 0; i < count; ++i) shapes.push_back({"parameter" + std::to_string(i), elements});
  return shapes;
}

}  // namespace dtrun::bench

#endif
