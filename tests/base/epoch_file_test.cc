#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "base/elastic_files.h"
#include "dtrun/error.h"
#include "tests/support/subprocess.h"

namespace {

using dtrun::base::EpochFile;
using namespace std::chrono_literals;

TEST_CASE("readers of the file see a new epoch with its reason") {
  const dtrun::testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/epoch";
  const auto writer = EpochFile::Create(path);
  const auto reader = EpochFile::Open(path);
  CHECK(reader->epoch() == 0);
  CHECK(reader->WhyEpoch(0).text == "");
  CHECK_FALSE(reader->AwaitAfter(0, 10ms));
  std::thread waiter([&] {
    if (!reader->AwaitAfter(0, 20s)) std::abort();
  });
  std::this_thread::sleep_for(20ms);
  writer->Publish(1, {"rank 1 on h1 was killed by SIGKILL", {1, 3}});
  waiter.join();
  CHECK(reader->WhyEpoch(1).text == "rank 1 on h1 was killed by SIGKILL");
  CHECK(reader->WhyEpoch(1).lost == std::vector{1, 3});
  writer->Publish(2, {std::string(1000, 'x'), std::vector<int>(100, 7)});
  CHECK(reader->AwaitAfter(0, 0ms));
  CHECK(reader->epoch() == 2);
  CHECK(reader->WhyEpoch(2).text == std::string(255, 'x'));
  CHECK(reader->WhyEpoch(2).lost == std::vector<int>(64, 7));
  CHECK(reader->WhyEpoch(1).text == "rank 1 on h1 was killed by SIGKILL");
  CHECK(reader->WhyEpoch(1).lost == std::vector{1, 3});
}

TEST_CASE("a wait for an epoch ends when it is told to stop") {
  const dtrun::testing::TemporaryFolder folder;
  const auto file = EpochFile::Create(folder.path() + "/epoch");
  std::atomic<bool> stop = false;
  std::thread waiter([&] {
    while (!stop) file->AwaitAfter(0, 50ms, &stop);
  });
  stop = true;
  file->Wake();
  waiter.join();
}

TEST_CASE("a missing or existing file of epochs is an error with its path") {
  const dtrun::testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/epoch";
  CHECK_THROWS_WITH(
      EpochFile::Open(path), "the file of epochs " + path + ": open: No such file or directory");
  const auto file = EpochFile::Create(path);
  CHECK_THROWS_WITH(EpochFile::Create(path), "the file of epochs " + path + ": open: File exists");
}

}  // namespace
