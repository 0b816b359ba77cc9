#include <dtrun/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>

#include "models/data/dataset.h"
#include "tests/models/data/pipeline_rig.h"
#include "tests/models/idx_files.h"

namespace dtrun::models {
namespace {

using dtrun::testing::Bytes;
using dtrun::testing::Gzipped;
using dtrun::testing::Idx;
using dtrun::testing::IdxHeader;
using dtrun::testing::TemporaryFolder;
using dtrun::testing::WriteFile;
using dtrun::testing::WriteToySet;

// The error of reading `bytes` as a file of `dimensions` dimensions, without the leading path.
std::string ErrorOfBytes(const Bytes& bytes, int dimensions = 1) {
  TemporaryFolder folder;
  const std::string path = folder / "file";
  WriteFile(path, bytes);
  const std::string error = ErrorOf([&] { ReadIdx(path, dimensions); });
  CHECK(error.find('\n') == std::string::npos);
  if (error == "no error") return error;
  REQUIRE(error.substr(0, path.size() + 2) == path + ": ");
  return error.substr(path.size() + 2);
}

const Bytes kThreeLabels = Idx({3}, {7, 8, 9});

TEST_CASE("a file is read both raw and gzipped") {
  TemporaryFolder folder;
  const Bytes images = Idx({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  WriteFile(folder / "raw", images);
  WriteFile(folder / "gz", Gzipped(images));
  for (const char* name : {"raw", "gz"}) {
    const IdxArray array = ReadIdx(folder / name, 3);
    CHECK(array.dims == std::vector<uint64_t>{2, 2, 3});
    CHECK(array.bytes == Bytes{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  }
}

TEST_CASE("a wrong magic number is reported with the expected number") {
  CHECK(
      ErrorOfBytes(Idx({1, 1, 1}, {0})) ==
      "magic number 0x00000803, expected 0x00000801 (IDX, unsigned bytes, 1 dimensions)");
  CHECK(
      ErrorOfBytes(kThreeLabels, 3) ==
      "magic number 0x00000801, expected 0x00000803 (IDX, unsigned bytes, 3 dimensions)");
  CHECK(
      ErrorOfBytes({'t', 'e', 'x', 't', '\n'}) ==
      "magic number 0x74657874, expected 0x00000801 (IDX, unsigned bytes, 1 dimensions)");
}

TEST_CASE("an empty file and a file that ends in its header are truncated") {
  CHECK(
      ErrorOfBytes({}) == "truncated in its header: found 0 bytes of the magic number, expected 4");
  CHECK(
      ErrorOfBytes({0, 0, 8}) ==
      "truncated in its header: found 3 bytes of the magic number, expected 4");
  Bytes cut = IdxHeader(0x803, {5, 6});
  cut.push_back(0);
  CHECK(
      ErrorOfBytes(cut, 3) ==
      "truncated in its header: found 1 bytes of the size of dimension 2, expected 4");
}

TEST_CASE("a file that ends in its body is truncated") {
  Bytes cut = kThreeLabels;
  cut.pop_back();
  CHECK(ErrorOfBytes(cut) == "truncated: found 2 bytes after the header, expected 3 (3)");
  CHECK(ErrorOfBytes(Gzipped(cut)) == "truncated: found 2 bytes after the header, expected 3 (3)");
}

TEST_CASE("a cut or damaged gzip stream is told apart from a short file") {
  Bytes labels(5000);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = uint8_t(i * i % 251);
  const Bytes whole = Gzipped(Idx({5000}, labels));
  const Bytes cut(whole.begin(), whole.end() - 20);
  CHECK(ErrorOfBytes(cut) == "truncated: the gzip stream ends early, expected a whole one");
  Bytes damaged = whole;
  damaged[damaged.size() - 6] ^= 0xff;  // in the checksum
  const std::string error = ErrorOfBytes(damaged);
  CHECK(error.find("damaged gzip stream") == 0);
}

TEST_CASE("bytes after the last item are an error") {
  Bytes longer = kThreeLabels;
  longer.push_back(0);
  CHECK(ErrorOfBytes(longer) == "bytes left over after the 3 (3) expected");
}

TEST_CASE("a file without items and images without pixels are refused") {
  CHECK(ErrorOfBytes(Idx({0}, {})) == "dimension 0 is 0, expected at least 1");
  CHECK(ErrorOfBytes(Idx({1, 0, 4}, {}), 3) == "dimension 1 is 0, expected at least 1");
}

TEST_CASE("an impossible size in a header costs no memory") {
  const uint32_t most = 0xffffffff;
  CHECK(
      ErrorOfBytes(IdxHeader(0x803, {most, most, most}), 3) ==
      "its header promises 4294967295x4294967295x4294967295 bytes, expected fewer than 2^63");
  CHECK(
      ErrorOfBytes(IdxHeader(0x803, {most, 1 << 15, 1 << 15}), 3)
          .find("truncated: found 0 bytes") == 0);
}

TEST_CASE("a path that is missing or forbidden or not a file is reported with the reason") {
  TemporaryFolder folder;
  CHECK(ErrorOf([&] {
          ReadIdx(folder / "none", 1);
        }) == folder / "none" + ": cannot be read: No such file or directory");
  CHECK(ErrorOf([&] {
          ReadIdx(folder.path(), 1);
        }) == folder.path() + ": cannot be read: it is a directory, expected a file");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(ErrorOf([&] {
          ReadIdx(folder / "pipe", 1);
        }) == folder / "pipe" + ": cannot be read: it is a pipe or a device, expected a file");
  if (geteuid() == 0) return;  // root may read every file
  WriteFile(folder / "secret", kThreeLabels);
  chmod((folder / "secret").c_str(), 0);
  CHECK(ErrorOf([&] {
          ReadIdx(folder / "secret", 1);
        }) == folder / "secret" + ": cannot be read: Permission denied");
}

TEST_CASE("a data set is four files and each file may be gzipped") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const Dataset data = LoadDataset(folder.path());
  CHECK(data.train.count == 20);
  CHECK(data.test.count == 20);
  CHECK(data.train.height == 12);
  CHECK(data.classes == 4);
}

TEST_CASE("a missing file of a data set is reported with both names that dtrun tried") {
  TemporaryFolder folder;
  CHECK(
      ErrorOf([&] { LoadDataset(folder.path()); }) ==
      folder / "train-images-idx3-ubyte" +
          ": not found: the folder has neither this file nor this file with .gz");
  CHECK(ErrorOf([&] {
          LoadDataset(folder / "none");
        }) == folder / "none/train-images-idx3-ubyte: not found: the folder does not exist");
}

TEST_CASE("the number of labels must equal the number of images") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  WriteFile(folder / "train-labels-idx1-ubyte.gz", Idx({3}, {0, 1, 2}));
  CHECK(
      ErrorOf([&] { LoadDataset(folder.path()); }) ==
      folder / "train-labels-idx1-ubyte.gz: 3 labels, expected 20 as there are images in " +
          (folder / "train-images-idx3-ubyte"));
}

TEST_CASE("a test label that no training example has is reported with its position") {
  TemporaryFolder folder;
  WriteToySet(folder, 3);
  WriteFile(folder / "t10k-labels-idx1-ubyte.gz", Idx({3}, {0, 1, 200}));
  CHECK(
      ErrorOf([&] { LoadDataset(folder.path()); }) ==
      folder /
          "t10k-labels-idx1-ubyte: label 200 at item 2, expected at most 2 as in the training "
          "set");
}

TEST_CASE("test images of another size than the training images are refused") {
  TemporaryFolder folder;
  WriteToySet(folder, 3);
  WriteFile(folder / "t10k-images-idx3-ubyte", Idx({3, 2, 3}, Bytes(18)));
  CHECK(
      ErrorOf([&] { LoadDataset(folder.path()); }) ==
      folder / "t10k-images-idx3-ubyte: images of 2x3, expected 12x12 as in the training set");
}

}  // namespace
}  // namespace dtrun::models
