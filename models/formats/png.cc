#include "models/formats/png.h"

#include <dtrun/error.h>
#include <zlib.h>

#include "models/text.h"

namespace dtrun::models {
namespace {

std::string BigEndian(size_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// Length, name and data, and the checksum of the latter two.
std::string Chunk(const std::string& name, const std::string& data) {
  const std::string sealed = name + data;
  const auto* bytes = reinterpret_cast<const Bytef*>(sealed.data());
  return BigEndian(data.size()) + sealed + BigEndian(crc32(0, bytes, uInt(sealed.size())));
}

std::string Deflated(const std::string& data) {
  uLongf size = compressBound(data.size());
  std::string packed(size, '\0');
  const int status = compress(
      reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(data.data()),
      data.size());
  if (status != Z_OK)
    throw Error(ErrorCode::kSystem, Text("zlib could not compress an image: status ", status));
  packed.resize(size);
  return packed;
}

void Check(int height, int width, int channels, size_t pixels) {
  constexpr int kMost = 1 << 15;
  if (height < 1 || height > kMost || width < 1 || width > kMost ||
      (channels != 1 && channels != 3))
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "an image of ", height, "x", width, "x", channels, ", expected sides from 1 to ", kMost,
            " and 1 or 3 channels"));
  const size_t expected = size_t(height) * size_t(width) * size_t(channels);
  if (pixels != expected)
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "an image of ", height, "x", width, "x", channels,
                                         " with ", pixels, " values, expected ", expected));
}

}  // namespace

// Signature, header, pixels, end. Every row is preceded by the number of its filter: 0, none.
std::string ToPng(int height, int width, int channels, std::span<const uint8_t> pixels) {
  Check(height, width, channels, pixels.size());
  constexpr char kGrey = 0, kRgb = 2;
  std::string header = BigEndian(size_t(width)) + BigEndian(size_t(height));
  header += {8, channels == 1 ? kGrey : kRgb, 0, 0, 0};
  const size_t row = size_t(width) * size_t(channels);
  std::string rows;
  for (size_t begin = 0; begin < pixels.size(); begin += row) {
    rows += '\0';
    rows.append(reinterpret_cast<const char*>(pixels.data() + begin), row);
  }
  return "\x89PNG\r\n\x1a\n" + Chunk("IHDR", header) + Chunk("IDAT", Deflated(rows)) +
         Chunk("IEND", "");
}

}  // namespace dtrun::models
