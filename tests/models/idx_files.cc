#include "tests/models/idx_files.h"

#include <zlib.h>

#include <catch2/catch.hpp>
#include <fstream>

namespace dtrun::testing {
namespace {

void Append(Bytes& to, const Bytes& from) { to.insert(to.end(), from.begin(), from.end()); }

Bytes BigEndian(uint32_t n) {
  return {uint8_t(n >> 24), uint8_t(n >> 16), uint8_t(n >> 8), uint8_t(n)};
}

constexpr uint32_t kSide = 12, kClasses = 4;

// An image that is bright in quarter `label` and darker elsewhere, with noise from `index`.
Bytes ToyImage(uint32_t label, uint32_t index) {
  Bytes image;
  for (uint32_t h = 0; h < kSide; ++h) {
    for (uint32_t w = 0; w < kSide; ++w) {
      const uint32_t quarter = (h >= kSide / 2) * 2 + (w >= kSide / 2);
      const uint32_t noise = (index * 7919 + h * 104729 + w * 1299709) * 2654435761u >> 25;
      image.push_back(uint8_t((quarter == label ? 120 : 0) + noise));
    }
  }
  return image;
}

void WriteToySplit(
    const TemporaryFolder& folder, const std::string& split, uint32_t count, uint32_t salt) {
  Bytes images, labels;
  for (uint32_t i = 0; i < count; ++i) {
    labels.push_back(uint8_t(i % kClasses));
    Append(images, ToyImage(i % kClasses, i + salt));
  }
  WriteFile(folder / (split + "-images-idx3-ubyte"), Idx({count, kSide, kSide}, images));
  WriteFile(folder / (split + "-labels-idx1-ubyte.gz"), Gzipped(Idx({count}, labels)));
}

}  // namespace

std::string operator/(const TemporaryFolder& folder, const std::string& name) {
  return folder.path() + "/" + name;
}

Bytes IdxHeader(uint32_t magic, const std::vector<uint32_t>& dims) {
  Bytes bytes = BigEndian(magic);
  for (uint32_t dim : dims) Append(bytes, BigEndian(dim));
  return bytes;
}

Bytes Idx(const std::vector<uint32_t>& dims, const Bytes& elements) {
  Bytes bytes = IdxHeader(0x0800 | uint32_t(dims.size()), dims);
  Append(bytes, elements);
  return bytes;
}

Bytes Gzipped(const Bytes& bytes) {
  TemporaryFolder folder;
  const std::string path = folder / "gz";
  gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(gzwrite(file, bytes.data(), unsigned(bytes.size())) == int(bytes.size()));
  gzclose(file);
  std::ifstream stream(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(stream), {});
}

void WriteFile(const std::string& path, const Bytes& bytes) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
  REQUIRE(stream.good());
}

void WriteToySet(const TemporaryFolder& folder, uint32_t count) {
  WriteToySplit(folder, "train", count, 0);
  WriteToySplit(folder, "t10k", count, 1000000);
}

}  // namespace dtrun::testing
