#include "bench/model_shapes.h"

namespace dtrun::bench {
namespace {

// A convolution without bias and the batch normalisation behind it.
void AddConvolution(
    std::vector<Shape>& shapes, const std::string& name, uint64_t in, uint64_t out, uint64_t edge) {
  shapes.push_back({name + "/kernel", out * in * edge * edge});
  shapes.push_back({name + "/gamma", out});
  shapes.push_back({name + "/beta", out});
}

}  // namespace

std::vector<Shape> ResNet50() {
  std::vector<Shape> shapes;
  AddConvolution(shapes, "stem", 3, 64, 7);
  uint64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const uint64_t width = uint64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string name = "stage" + std::to_string(stage) + "/" + std::to_string(block);
      AddConvolution(shapes, name + "/1", in, width, 1);
      AddConvolution(shapes, name + "/2", width, width, 3);
      AddConvolution(shapes, name + "/3", width, 4 * width, 1);
      if (block == 0) AddConvolution(shapes, name + "/shortcut", in, 4 * width, 1);
      in = 4 * width;
    }
  }
  shapes.push_back({"dense/kernel", in * 1000});
  shapes.push_back({"dense/bias", 1000});
  return shapes;
}

std::vector<Shape> Equal(int count, uint64_t elements) {
  std::vector<Shape> shapes;
  for (int i = 0; i < count; ++i) shapes.push_back({"parameter" + std::to_string(i), elements});
  return shapes;
}

}  // namespace dtrun::bench
