#include <dtrun/device_choice.h>

#include <catch2/catch.hpp>

namespace dtrun::testing {
namespace {

DeviceChoiceInput Host(const std::string& wish, int ranks, int gpus, int local_rank = 0) {
  DeviceChoiceInput input;
  input.wish = wish;
  input.local_rank = local_rank;
  input.local_size = ranks;
  input.device_count = gpus;
  input.why_no_gpu = gpus > 0 ? "" : "no GPU: none here";
  return input;
}

TEST_CASE("each rank of a host gets its own GPU if the host has enough GPUs") {
  for (const char* wish : {"auto", "cuda"}) {
    for (int rank = 0; rank < 3; ++rank) {
      const DeviceChoice choice = ChooseDevice(Host(wish, 3, 4, rank));
      CHECK(choice.device == Device{DeviceKind::kCuda, rank});
      CHECK(choice.sharers == 1);
    }
  }
}

TEST_CASE("more ranks than GPUs share them evenly with device auto or with --share-gpus") {
  int on_first = 0;
  for (int rank = 0; rank < 7; ++rank) {
    const DeviceChoice choice = ChooseDevice(Host("auto", 7, 2, rank));
    CHECK(choice.device.index == rank % 2);
    CHECK(choice.sharers == (choice.device.index == 0 ? 4 : 3));
    on_first += choice.device.index == 0 ? 1 : 0;
  }
  CHECK(on_first == 4);
  CHECK_THROWS_WITH(
      ChooseDevice(Host("cuda", 8, 1)),
      "device cuda: 8 ranks on a host with 1 GPU for them; expected one for each rank, or "
      "--share-gpus");
  CHECK_THROWS_WITH(
      ChooseDevice(Host("cuda:1", 2, 2)),
      "device cuda:1: 2 ranks on a host with 1 GPU for them; expected one for each rank, or "
      "--share-gpus");
  DeviceChoiceInput shared = Host("cuda:1", 2, 2);
  shared.share_gpus = true;
  CHECK(ChooseDevice(shared).device.index == 1);
  CHECK(ChooseDevice(shared).sharers == 2);
}

TEST_CASE("without a GPU the device auto is the CPU and cuda is refused with the reason") {
  CHECK(ChooseDevice(Host("auto", 2, 0)).device == Device{});
  CHECK(ChooseDevice(Host("cpu", 2, 4)).device == Device{});
  CHECK_THROWS_WITH(ChooseDevice(Host("cuda", 1, 0)), "device cuda: no GPU: none here");
  CHECK_THROWS_WITH(ChooseDevice(Host("cuda:0", 1, 0)), "device cuda:0: no GPU: none here");
  CHECK_THROWS_WITH(
      ChooseDevice(Host("cuda:2", 1, 2)), "device cuda:2: this host has 2 GPUs, counted from 0");
  CHECK_THROWS_WITH(ChooseDevice(Host("fast", 1, 2)), Catch::Contains("device 'fast'"));
}

}  // namespace
}  // namespace dtrun::testing
