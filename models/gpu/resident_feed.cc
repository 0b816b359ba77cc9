#include <numeric>
#include <vector>

#include "models/gpu/device_transfers.h"
#include "models/gpu/image_feed.h"

namespace dtrun::models {
namespace {

class ResidentFeed : public ImageFeed {
 public:
  ResidentFeed(const gpu::Stream& stream, const ByteImages& data)
      : ImageFeed(data.count, data.pixels),
        stream_(stream),
        images_(stream.device(), data.count * data.pixels),
        labels_(stream.device(), data.count),
        order_(stream.device(), data.count * sizeof(uint32_t)) {
    WriteBytes(stream_, images_, 0, data.images, data.count * data.pixels);
    WriteBytes(stream_, labels_, 0, data.labels, data.count);
    std::vector<uint32_t> own(data.count);
    std::iota(own.begin(), own.end(), 0u);
    SetOrder(own);
  }

  void SetOrder(std::span<const uint32_t> order) override {
    WriteBytes(stream_, order_, 0, order.data(), order.size_bytes());
  }
  DeviceBatch Take(const BatchRange& range) override {
    return {images_.as<uint8_t>(), labels_.as<uint8_t>(), order_.as<uint32_t>() + range.first};
  }
  void Used() override {}
  void Expect(const BatchRange&) override {}
  bool streams() const override { return false; }

 private:
  const gpu::Stream& stream_;
  gpu::DeviceMemory images_, labels_, order_;
};

}  // namespace

uint64_t ResidentBytes(uint64_t count, uint64_t pixels) {
  return count * (pixels + 1 + sizeof(uint32_t));
}

std::unique_ptr<ImageFeed> MakeResidentFeed(const gpu::Stream& stream, const ByteImages& data) {
  return std::make_unique<ResidentFeed>(stream, data);
}

}  // namespace dtrun::models
