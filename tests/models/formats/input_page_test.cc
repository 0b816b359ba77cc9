// docs/guides/input.md: the page's code is the code of this file. The tests run the code.

#include <dtrun/context.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "models/data/distribute.h"
#include "models/data/image_dataset.h"
#include "models/data/pipeline.h"
#include "tests/models/idx_files.h"

namespace dtrun::models {
namespace {

using dtrun::testing::TemporaryFolder;
using dtrun::testing::WriteToySet;

// In place of a training step: counts examples.
uint64_t g_trained = 0;
void Train(const Batch& batch) { g_trained += batch.inputs() != nullptr ? batch.size() : 0; }

void OneProcess(const std::string& directory) {
  const ImageDataset data = LoadImageDataset(directory);
  const Pipeline pipeline = data.train.Shuffle({.seed = 7})
                                .Map(RandomFlip(1))
                                .Map(RandomCrop(2, 1))
                                .Map(Normalize({0.5f}, {0.25f}))
                                .Batch(64)
                                .Prefetch(2);
  Iterator batches(pipeline);
  for (int epoch = 0; epoch < 2; ++epoch)
    while (const Batch* batch = batches.Next()) Train(*batch);

  const Position position = batches.position();
  Iterator resumed(pipeline, position);
  CHECK(position == Position{2, 0});
  CHECK(resumed.Next()->position() == position);
}

void SeveralRanks(const std::string& directory, Context& job) {
  const ImageDataset data = LoadImageDataset(directory, job);
  const DistributedPipeline input(
      job.world(), data.train.Shuffle({}).Batch(256).Prefetch(2),
      {.compute_threads = job.threads()});
  Iterator batches = input.Begin();
  while (const Batch* batch = batches.Next()) {
    // batch->size() examples of this rank, from batch->first_position() on in a global batch of
    // batch->global_size(): losses are divided by that.
    Train(*batch);
  }
  CHECK(batches.wait_seconds() > 0);
}

TEST_CASE("the code of docs/guides/input.md runs") {
  TemporaryFolder folder;
  WriteToySet(folder, 100);
  OneProcess(folder.path());
  CHECK(g_trained == 200);
  Context job = Init();
  SeveralRanks(folder.path(), job);
  CHECK(g_trained == 300);
  job.Shutdown();
}

// Joins the words with single spaces, because indentation and line breaks differ on the page.
std::string Squeezed(const std::string& text) {
  std::istringstream words(text);
  std::string all;
  for (std::string word; words >> word;) all += word + " ";
  return all;
}

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST_CASE("the code of docs/guides/input.md is in this file") {
  const std::string page = ReadFile("docs/guides/input.md");
  const std::string source = Squeezed(ReadFile("tests/models/formats/input_page_test.cc"));
  const std::string fence = "```c++\n";
  int blocks = 0;
  for (size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at)) {
    at += fence.size();
    const std::string block = Squeezed(page.substr(at, page.find("```", at) - at));
    INFO(block);
    CHECK(source.find(block) != std::string::npos);
    ++blocks;
  }
  CHECK(blocks == 3);
}

}  // namespace
}  // namespace dtrun::models
