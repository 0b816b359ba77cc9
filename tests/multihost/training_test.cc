// Training over several hosts: the same losses as on one host, and the command lines known to users
// of Horovod.

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/models/idx_files.h"
#include "tests/multihost/rig.h"
#include "tests/support/json.h"

namespace dtrun::testing {
namespace {

// Returns the losses of 20 steps. The global batch does not depend on the number of ranks.
nlohmann::json Losses(
    const TemporaryFolder& folder, const std::string& hosts,
    const std::string& strategy = "multi_worker_mirrored") {
  const std::string file = folder / "result.json";
  const CommandResult result = Run(OnHosts(
      {"launcher/dtrun",
       "--tag",
       "none",
       "-H",
       hosts,
       "models/cnn_fmnist",
       "--threads",
       "1",
       "--strategy",
       strategy,
       "--data-dir",
       folder.path(),
       "--optimizer",
       "sgd",
       "--learning-rate",
       "0.05",
       "--global-batch-size",
       "24",
       "--max-steps",
       "20",
       "--verbose",
       "0",
       "--log-steps",
       "--json",
       file}));
  CAPTURE(hosts, result.out, result.err);
  REQUIRE(result.exit_code == 0);
  return ReadJson(file).at("steps");
}

TEST_CASE("training over equal and unequal hosts has the losses of one host") {
  if (Skipped()) return;
  TemporaryFolder folder;
  WriteToySet(folder, 400);
  const nlohmann::json alone = Losses(folder, "h1:4");
  REQUIRE(alone.size() == 20);
  CHECK(alone.back().get<double>() < 0.9 * alone.front().get<double>());
  for (const char* strategy : {"multi_worker_mirrored", "central_storage"}) {
    for (const char* hosts : {"h1:2,h2:2", "h1:1,h2:3"}) {
      const nlohmann::json losses = Losses(folder, hosts, strategy);
      REQUIRE(losses.size() == alone.size());
      for (size_t i = 0; i < alone.size(); ++i) {
        CAPTURE(hosts, strategy, i);
        CHECK(std::abs(losses[i].get<double>() - alone[i].get<double>()) < 1e-5);
      }
    }
  }
}

TEST_CASE("a custom loop trains on the GPUs of two hosts as on their CPUs") {
  if (Skipped()) return;
  if (!std::filesystem::exists("tests/gpu_simulator/libcuda.so.1")) {
    std::printf("SKIPPED: dtrun was built without the CUDA toolkit\n");
    return;
  }
  TemporaryFolder data, work;
  WriteToySet(data, 128);
  const auto absolute = [](const char* path) { return std::filesystem::absolute(path).string(); };
  const auto test_loss = [&](const std::string& strategy) {
    const CommandResult result = Run(ScriptOnHosts(
        "cd " + work.path() + " && exec " + absolute("launcher/dtrun") +
        " --tag none -H h1:1,h2:1 env LD_LIBRARY_PATH=" + absolute("tests/gpu_simulator") + " " +
        absolute("models/strategies/custom_training_loop") + " " + data.path() + " '" + strategy +
        "' 2"));
    INFO(strategy << ": " << result.err);
    REQUIRE(result.exit_code == 0);
    WARN(strategy << ": " << result.out.substr(result.out.rfind("Epoch 2")));
    return std::stod(result.out.substr(result.out.rfind("Test Loss: ") + 11));
  };
  CHECK(
      test_loss("multi_worker_mirrored:gpu:*") ==
      Approx(test_loss("multi_worker_mirrored")).epsilon(1e-3));
}

TEST_CASE("strategy mirrored over two hosts is refused in one line with the alternative") {
  if (Skipped()) return;
  TemporaryFolder folder;
  WriteToySet(folder, 40);
  const CommandResult result = Run(OnHosts(
      {"launcher/dtrun", "--tag", "none", "-H", "h1:1,h2:1", "models/cnn_fmnist", "--threads", "1",
       "--strategy", "mirrored", "--data-dir", folder.path(), "--batch-size", "4"}));
  CHECK(result.exit_code == 2);
  CHECK(
      result.err ==
      "cnn_fmnist: strategy mirrored: the ranks are on 2 hosts (h1, h2); expected one; use "
      "multi_worker_mirrored\n");
}

// Trains with one data folder per host, each a copy of `folder`. On h2, `change` modifies the copy,
// and $other is the path of `other`.
CommandResult TrainWithDataPerHost(
    const TemporaryFolder& folder, const TemporaryFolder& other, const std::string& change) {
  return Run(ScriptOnHosts(
      "for h in h1 h2; do ssh $h cp -r " + folder.path() + " $TMPDIR/data; done; ssh h2 'cd " +
      "$TMPDIR/data && other=" + other.path() + " && " + change +
      "'; exec launcher/dtrun --tag none -H h1:2,h2:2 " +
      "models/cnn_fmnist --threads 1 --data-dir $TMPDIR/data --batch-size 4 --max-steps 2 " +
      "--verbose 0"));
}

TEST_CASE("missing or different data on one host is reported with the host and no rank hangs") {
  if (Skipped()) return;
  TemporaryFolder folder, other;
  WriteToySet(folder, 40);
  Bytes labels;  // as WriteToySet writes them, except for one
  for (int i = 0; i < 40; ++i) labels.push_back(uint8_t(i == 12 ? 3 : i % 4));
  WriteFile(other / "t10k-labels-idx1-ubyte.gz", Gzipped(Idx({40}, labels)));
  const CommandResult well = TrainWithDataPerHost(folder, other, "true");
  CHECK(well.exit_code == 0);
  CHECK_THAT(well.out, Catch::Contains("on all 4 ranks"));
  const auto [change, exit_code, message] = GENERATE(table<std::string, int, std::string>({
      {"rm t10k-labels*", 66, "cnn_fmnist: host h2: "},
      {"truncate -s 100 train-images*", 66, "cnn_fmnist: host h2: "},
      {"cp $other/* .", 76,
       "the hosts have different data: host h1 40 training and 40 test images of 12x12"},
  }));
  const CommandResult result = TrainWithDataPerHost(folder, other, change);
  CAPTURE(change, result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(result.out == "");
  CHECK_THAT(result.err, Catch::Contains(message));
  CHECK(result.err.find("cnn_fmnist: ") == result.err.rfind("cnn_fmnist: "));
}

// A script that runs `line` in a folder with `train` and `cnn_fmnist` and with dtrun in PATH, as
// Horovod's documentation assumes.
std::string InFolder(const TemporaryFolder& folder, const std::string& line) {
  namespace fs = std::filesystem;
  fs::create_symlink(fs::absolute("examples/sgd"), folder / "train");
  fs::create_symlink(fs::absolute("models/cnn_fmnist"), folder / "cnn_fmnist");
  return "cd " + folder.path() + " && PATH=" + fs::absolute("launcher").string() + ":$PATH && " +
         line;
}

TEST_CASE("Horovod's command line for one machine works unchanged with dtrun") {
  if (Skipped()) return;
  TemporaryFolder folder;
  const CommandResult result = Run(ScriptOnHosts(InFolder(folder, "dtrun -np 4 ./train")));
  CHECK(result.out == "[1,0]<stdout>:4 ranks agree on 1.500\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("Horovod's command line for four machines works unchanged with dtrun") {
  if (Skipped()) return;
  TemporaryFolder folder;
  const CommandResult result = Run(ScriptOnHosts(
      InFolder(folder, "dtrun -np 16 -H server1:4,server2:4,server3:4,server4:4 ./train"),
      {"--names", "server1,server2,server3,server4"}));
  CAPTURE(result.err);
  CHECK(result.out == "[1,0]<stdout>:16 ranks agree on 7.500\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("a command line with --mpi-args and program options works unchanged") {
  if (Skipped()) return;
  constexpr char kDataSet[] = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(kDataSet)) {
    std::printf("SKIPPED: there is no folder %s, where the program looks for its data\n", kDataSet);
    return;
  }
  TemporaryFolder data, folder;
  WriteToySet(data, 17'000);  // more than eight ranks' batches
  const CommandResult result = Run(ScriptOnHosts(
      "mount --bind " + data.path() + " " + kDataSet + " && " +
      InFolder(
          folder,
          "dtrun -np 8 --mpi-args=\"--oversubscribe\" ./cnn_fmnist --batch-size=2048 "
          "2> /dev/null")));
  CAPTURE(result.out);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Catch::Contains("[1,0]<stdout>:") && Catch::Contains("8 ranks"));
  CHECK(result.err.empty());
}

}  // namespace
}  // namespace dtrun::testing
