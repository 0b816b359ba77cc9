#include "models/data/augment.h"

#include <dtrun/error.h>

#include <algorithm>
#include <utility>

#include "models/message_text.h"
#include "models/random/philox.h"

namespace dtrun::models {
namespace {

// Domains of random numbers, one for each function.
enum Augmentation : uint32_t { kFlip = 0, kCrop = 1 };

std::array<uint32_t, 4> RandomWords(uint64_t seed, Augmentation use, const MapCall& call) {
  // Numbers beyond 2^32 would only make words coincide, so the rest is mixed into the key.
  PhiloxKey key = KeyOfSeed(seed);
  key[0] ^= static_cast<uint32_t>(call.example >> 32);
  key[1] ^= static_cast<uint32_t>(call.epoch >> 32);
  return Philox4x32(
      {static_cast<uint32_t>(call.example), static_cast<uint32_t>(call.epoch), 0,
       RandomDomain(RandomUse::kAugmentation, use)},
      key);
}

// Uniform in [0, bound), but for a deviation of bound / 2^32.
int Below(uint32_t word, int bound) {
  return static_cast<int>(uint64_t{word} * static_cast<uint64_t>(bound) >> 32);
}

void FlipRows(const MapCall& call) {
  const auto width = static_cast<size_t>(call.shape.width);
  const auto channels = static_cast<size_t>(call.shape.channels);
  for (int h = 0; h < call.shape.height; ++h) {
    const float* row = call.input + static_cast<size_t>(h) * width * channels;
    float* out = call.output + static_cast<size_t>(h) * width * channels;
    for (size_t w = 0; w < width; ++w)
      std::copy_n(row + (width - 1 - w) * channels, channels, out + w * channels);
  }
}

// Output (h, w) is input (h + down, w + right), or 0 outside.
void Shift(const MapCall& call, int down, int right) {
  const int height = call.shape.height, width = call.shape.width, channels = call.shape.channels;
  const int begin = std::clamp(-right, 0, width), end = std::clamp(width - right, begin, width);
  std::fill_n(call.output, call.shape.count(), 0.0f);
  if (begin == end) return;
  for (int h = 0; h < height; ++h) {
    const int from = h + down;
    if (from < 0 || from >= height) continue;
    const float* row = call.input + (ptrdiff_t{from} * width + begin + right) * channels;
    std::copy_n(
        row, (end - begin) * channels, call.output + (ptrdiff_t{h} * width + begin) * channels);
  }
}

}  // namespace

MapFunction RandomFlip(uint64_t seed) {
  return [seed](const MapCall& call) {
    if (RandomWords(seed, kFlip, call)[0] >> 31) return FlipRows(call);
    std::copy_n(call.input, call.shape.count(), call.output);
  };
}

MapFunction RandomCrop(int padding, uint64_t seed) {
  constexpr int kMost = 1 << 15;
  if (padding < 0 || padding > kMost) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("RandomCrop: found a padding of ", padding, ", expected 0 to ", kMost));
  }
  return [padding, seed](const MapCall& call) {
    const auto words = RandomWords(seed, kCrop, call);
    const int places = 2 * padding + 1;
    Shift(call, Below(words[0], places) - padding, Below(words[1], places) - padding);
  };
}

MapFunction Normalize(std::vector<float> mean, std::vector<float> deviation) {
  if (mean.empty() || mean.size() != deviation.size()) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "Normalize: found ", mean.size(), " means and ",
                                         deviation.size(), " deviations, expected as many"));
  }
  for (const float d : deviation) {
    if (!(d > 0)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("Normalize: found a deviation of ", d, ", expected more than 0"));
    }
  }
  return [mean = std::move(mean), deviation = std::move(deviation)](const MapCall& call) {
    const size_t count = call.shape.count(), channels = mean.size();
    if (channels != 1 && channels != static_cast<size_t>(call.shape.channels)) {
      throw Error(
          ErrorCode::kInvalidArgument, Text(
                                           "Normalize: found ", channels, " means for ",
                                           call.shape.channels, " channels, expected as many"));
    }
    for (size_t i = 0, c = 0; i < count; ++i, c = c + 1 == channels ? 0 : c + 1)
      call.output[i] = (call.input[i] - mean[c]) / deviation[c];
  };
}

}  // namespace dtrun::models
