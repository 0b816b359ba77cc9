// The program of a rank: one training pass of a network with synchronized batch normalization on an
// uneven share of a global batch. Rank 0 writes gradients, summed over the ranks, and moving
// averages to the file in the first argument.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>
#include <omp.h>

#include <fstream>
#include <numeric>
#include <vector>

#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/residual.h"
#include "tests/models/image_step.h"

namespace programs::sync_batch_norm {

using namespace dtrun::models;  // NOLINT: a program of one page

constexpr int kGlobalBatch = 10;

Images MadeUpImages() {
  Images images;
  images.count = kGlobalBatch;
  images.height = images.width = 8;
  for (uint64_t i = 0; i < kGlobalBatch * 64; ++i)
    images.pixels.push_back(uint8_t((i + 1) * 2654435761u >> 24));
  for (uint64_t i = 0; i < kGlobalBatch; ++i) images.labels.push_back(uint8_t(i % 3));
  return images;
}

LayerList Network() {
  const BatchNormOptions norm{.activation = Activation::kRelu, .synchronized = true};
  return Layers(
      Conv2D(16, 3), BatchNorm(norm),
      Residual(Layers(
          Conv2D(5, 3, {.padding = Padding::Same()}), BatchNorm(norm), Conv2D(16, 1),
          BatchNorm({.synchronized = true}))),
      Dense(3, DenseOptions{.kernel_l2 = 0.1}));
}

// A single rank gets the whole batch. Of several, rank 0 gets 3 examples and the last rank the
// rest.
std::pair<int, int> ShareOf(int rank, int size) {
  if (size == 1) return {0, kGlobalBatch};
  const int first = 3;
  if (rank == 0) return {0, first};
  return rank + 1 == size ? std::pair{first, kGlobalBatch - first} : std::pair{first, 0};
}

void Append(const dtrun::Buffer& buffer, std::ofstream& file) {
  file.write(static_cast<const char*>(buffer.data), std::streamsize(buffer.bytes()));
}

int Main(int, char** argv) {
  omp_set_num_threads(1);
  dtrun::Context job = dtrun::Init();
  Sequential model(
      {8, 8, 1}, Network(),
      {.micro_batch = 2, .micro_batches = 5, .seed = 1, .communicator = &job.world()});
  FloatArray memory(model.parameter_count());
  float* gradient = memory.data();
  for (dtrun::Parameter& parameter : model.parameters()) {
    parameter.gradient.data = gradient;
    gradient += parameter.gradient.count;
  }

  const Images images = MadeUpImages();
  std::vector<uint32_t> examples(kGlobalBatch);
  std::iota(examples.begin(), examples.end(), 0);
  const auto [first, count] = ShareOf(job.rank(), job.size());
  const Share share{
      .examples = std::span(examples).subspan(size_t(first), size_t(count)),
      .first_position = uint32_t(first),
      .global_batch = kGlobalBatch,
      .step = 0,
      .regularization_scale = 1.0 / job.size()};
  ComputeGradients(model, images, share, [](size_t) {});
  job.world().AllReduce(dtrun::Buffer(memory.data(), memory.count()));

  if (job.rank() == 0) {
    std::ofstream file(argv[1], std::ios::binary);
    Append(dtrun::Buffer(memory.data(), memory.count()), file);
    for (const dtrun::NamedBuffer& buffer : model.buffers()) Append(buffer.buffer, file);
  }
  job.Shutdown();
  return 0;
}

}  // namespace programs::sync_batch_norm
