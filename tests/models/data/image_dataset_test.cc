// Image data sets that ranks share.

#include "models/data/image_dataset.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "models/data/distribute.h"
#include "models/data/host_memory.h"
#include "tests/models/data/pipeline_rig.h"
#include "tests/models/idx_files.h"
#include "tests/models/thread_world.h"

namespace dtrun::models {
namespace {

using dtrun::testing::Bytes;
using dtrun::testing::Gzipped;
using dtrun::testing::Idx;
using dtrun::testing::OnRanks;
using dtrun::testing::TemporaryFolder;
using dtrun::testing::WriteFile;
using dtrun::testing::WriteToySet;
using dtrun::testing::operator/;
using Texts = std::vector<std::string>;

// The mappings in this process of memory that the ranks of a host share.
size_t SharedMappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("dtrun-data") != std::string::npos;
  return count;
}

size_t SharedFiles() {
  size_t count = 0;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(fd.path(), gone).string().find("dtrun-data") !=
             std::string::npos;
  }
  return count;
}

Ids LabelsOfEpoch(const Pipeline& pipeline) { return Joined(BatchesOf(pipeline.Batch(7))); }

std::vector<float> FirstInput(const Pipeline& pipeline) {
  Iterator iterator(pipeline.Batch(1));
  const Batch* batch = iterator.Next();
  return {batch->inputs(), batch->inputs() + batch->shape().count()};
}

TEST_CASE("a data set reports its number of examples and their shape and classes") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const ImageDataset data = LoadImageDataset(folder.path());
  CHECK(data.info.train_examples == 20);
  CHECK(data.info.test_examples == 20);
  CHECK(data.info.shape == ExampleShape{12, 12, 1});
  CHECK(data.info.classes == 4);
  CHECK(data.info.directory == folder.path());
  CHECK(data.train.examples() == 20);
  CHECK(data.train.shape() == data.info.shape);
}

TEST_CASE("ranks of a host share the data in memory and leave no files or mappings open") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const ImageDataset alone = LoadImageDataset(folder.path());
  std::vector<std::set<Ids>> labels(3);
  std::vector<size_t> files(3, 99);
  const Texts errors = OnRanks(3, [&](Communicator& world) {
    const ImageDataset data = LoadImageDataset(folder.path(), world, {{"here", 3}});
    const auto rank = static_cast<size_t>(world.rank());
    labels[rank] = {LabelsOfEpoch(data.train), LabelsOfEpoch(data.test)};
    if (FirstInput(data.test) != FirstInput(alone.test)) throw std::runtime_error("other images");
    if (data.info.classes != 4) throw std::runtime_error("other classes");
    world.Barrier();
    files[rank] = SharedFiles();
    if (rank == 0 && SharedMappings() == 0) throw std::runtime_error("nothing is shared");
    world.Barrier();
  });
  CHECK(errors == Texts(3));
  for (const auto& of_rank : labels)
    CHECK(of_rank == std::set<Ids>{LabelsOfEpoch(alone.train), LabelsOfEpoch(alone.test)});
  CHECK(files == std::vector<size_t>(3));
  CHECK(SharedMappings() == 0);
}

TEST_CASE("a rank that has kept the data replaces the files in the next load") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const ImageDataset alone = LoadImageDataset(folder.path());
  std::vector<KeptImages> kept(3);
  const auto load = [&] {
    return OnRanks(3, [&](Communicator& world) {
      const ImageDataset data = LoadImageDataset(
          folder.path(), world, {{"here", 3}}, &kept[static_cast<size_t>(world.rank())]);
      if (FirstInput(data.test) != FirstInput(alone.test)) throw std::runtime_error("other images");
      if (LabelsOfEpoch(data.train) != LabelsOfEpoch(alone.train))
        throw std::runtime_error("other labels");
      if (data.info.classes != 4) throw std::runtime_error("other classes");
    });
  };
  CHECK(load() == Texts(3));
  for (const std::string& name : folder.Entries())
    std::filesystem::remove_all(folder.path() + "/" + name);
  kept[0] = KeptImages();  // rank 0 was started again
  CHECK(load() == Texts(3));
  kept = std::vector<KeptImages>(3);
  CHECK(load() != Texts(3));
}

TEST_CASE("ranks that cannot share memory get a copy of the data") {
  const Bytes one = {1, 2, 3}, other = {4, 5};
  const Texts errors = OnRanks(3, [&](Communicator& world) {
    const std::vector<std::span<const uint8_t>> mine = {one, other};
    const auto memory =
        world.rank() == 0 ? HostMemory::Copy(world, mine, 5) : HostMemory::Copy(world, {}, 5);
    if (Bytes(memory->data(), memory->data() + memory->bytes()) != Bytes{1, 2, 3, 4, 5})
      throw std::runtime_error("other bytes");
  });
  CHECK(errors == Texts(3));
}

TEST_CASE("an iterator keeps the data alive after its data set is destroyed") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const Texts errors = OnRanks(2, [&](Communicator& world) {
    Iterator iterator = [&] {
      const ImageDataset data = LoadImageDataset(folder.path(), world, {{"here", 2}});
      return DistributedPipeline(world, data.train.Batch(20)).Begin();
    }();
    const Batch* batch = iterator.Next();
    if (batch->size() != 10 || batch->inputs()[0] < 0) throw std::runtime_error("no batch");
  });
  CHECK(errors == Texts(2));
}

TEST_CASE("a data set missing on all hosts is the same error on all ranks and names no host") {
  TemporaryFolder folder;
  const Texts errors = OnRanks(3, [&](Communicator& world) {
    LoadImageDataset(folder / "none", world, {{"a", 1}, {"b", 2}});
  });
  CHECK(
      errors ==
      Texts(3, folder / "none/train-images-idx3-ubyte: not found: the folder does not exist"));
}

TEST_CASE("a data set missing on one host is an error that names the host and the path") {
  TemporaryFolder good, empty;
  WriteToySet(good, 20);
  const Texts errors = OnRanks(3, [&](Communicator& world) {
    const TemporaryFolder& folder = world.rank() == 0 ? good : empty;
    LoadImageDataset(folder.path(), world, {{"a", 1}, {"b", 2}});
  });
  CHECK(
      errors == Texts(
                    3, "host b: " + (empty / "train-images-idx3-ubyte") +
                           ": not found: the folder has neither this file nor this file with .gz"));
}

TEST_CASE("a rank with another directory than the first rank of its host is an error") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const Texts errors = OnRanks(4, [&](Communicator& world) {
    const std::string directory = world.rank() == 3 ? "/other" : folder.path();
    LoadImageDataset(directory, world, {{"a", 2}, {"b", 2}});
  });
  CHECK(
      errors == Texts(
                    4, "rank 3 (host b): the data set in /other, expected " + folder.path() +
                           " as rank 2 of the same host has"));
  CHECK(OnRanks(2, [&](Communicator& world) {
          // The ranks are on different hosts, so their directories may differ.
          const std::string directory = folder.path() + (world.rank() == 0 ? "" : "/.");
          LoadImageDataset(directory, world, {{"a", 1}, {"b", 1}});
        }) == Texts(2));
}

TEST_CASE("a data set that differs between hosts is an error that names the hosts") {
  TemporaryFolder one, other;
  WriteToySet(one, 20);
  WriteToySet(other, 20);
  Bytes labels;
  for (int i = 0; i < 20; ++i) labels.push_back(uint8_t(i == 7 ? 0 : i % 4));
  WriteFile(other / "train-labels-idx1-ubyte.gz", Gzipped(Idx({20}, labels)));
  const Texts errors = OnRanks(2, [&](Communicator& world) {
    LoadImageDataset(world.rank() == 0 ? one.path() : other.path(), world, {{"a", 1}, {"b", 1}});
  });
  REQUIRE(errors.size() == 2);
  CHECK(
      errors[0].find(": the hosts have different data: host a 20 training and 20 test images of "
                     "12x12, checksum ") != std::string::npos);
  CHECK_THAT(errors[0], Catch::Contains(", host b 20 training"));
}

TEST_CASE("different numbers of images and labels or different image sizes are refused") {
  TemporaryFolder folder;
  WriteFile(folder / "i2", Idx({2, 3, 3}, Bytes(18)));
  WriteFile(folder / "i2wide", Idx({2, 3, 4}, Bytes(24)));
  WriteFile(folder / "l2", Idx({2}, {0, 1}));
  WriteFile(folder / "l3", Idx({3}, {0, 1, 2}));
  CHECK(ErrorOf([&] {
          Pipeline::FromFiles({{folder / "i2", folder / "l3"}});
        }) == folder / "l3: 3 labels, expected 2 as there are images in " + (folder / "i2"));
  CHECK(ErrorOf([&] {
          Pipeline::FromFiles({{folder / "i2", folder / "l2"}, {folder / "i2wide", folder / "l2"}});
        }) == folder / "i2wide: images of 3x4, expected 3x3 as in " + (folder / "i2"));
  CHECK(ErrorOf([&] { Pipeline::FromFiles({}); }) == "found no file, expected at least 1");
}

TEST_CASE("a truncated file is an error of the iterator with and without prefetch") {
  TemporaryFolder folder;
  WriteFile(folder / "images", Idx({4, 3, 3}, Bytes(30)));
  WriteFile(folder / "labels", Idx({4}, {0, 1, 2, 3}));
  const Pipeline plain = Pipeline::FromFiles({{folder / "images", folder / "labels"}}).Batch(2);
  for (const Pipeline& pipeline : {plain, plain.Prefetch(2)}) {
    Iterator iterator(pipeline);
    for (int attempt = 0; attempt < 2; ++attempt) {
      CHECK(
          ErrorOf([&] { iterator.Next(); }) ==
          folder / "images: truncated: found 30 bytes after the header, expected 36 (4x3x3)");
    }
  }
}

}  // namespace
}  // namespace dtrun::models
