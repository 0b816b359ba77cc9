// The protocol of the host agents. The same bytes give the same frames for every split of the
// input. Encoding restores the bytes. A frame that claims to be too large takes no memory.

#include <vector>

#include "launcher/protocol/frame.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

namespace {

// The frames before the first invalid bytes.
std::vector<launcher::Frame> FramesOf(const std::string& bytes, size_t piece) {
  std::vector<launcher::Frame> frames;
  launcher::FrameReader reader;
  fuzz::TakesOrRefuses([&] {
    for (size_t begin = 0; begin < bytes.size(); begin += piece) {
      reader.Feed(bytes.data() + begin, std::min(piece, bytes.size() - begin));
      while (std::optional<launcher::Frame> frame = reader.Next()) frames.push_back(*frame);
    }
  });
  return frames;
}

}  // namespace

FUZZ_TARGET(frames) {
  if (size == 0) return 0;
  const std::string bytes = fuzz::TextOf(data + 1, size - 1);
  const std::vector<launcher::Frame> frames = FramesOf(bytes, bytes.size() + 1);
  fuzz::Expect(FramesOf(bytes, data[0] % 16 + size_t{1}) == frames);
  std::string encoded;
  for (const launcher::Frame& frame : frames) encoded += launcher::Encode(frame);
  fuzz::Expect(bytes.compare(0, encoded.size(), encoded) == 0);
  return 0;
}
