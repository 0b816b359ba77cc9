// What people train, over hosts: the same losses as on one, and the command lines that users of
// Horovod know.

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/models/idx_files.h"
#include "tests/multihost/rig.h"

namespace dtrun::testing {
namespace {

// The loss of every step, of 20 in all, at the same global batch whatever the ranks.
nlohmann::json Losses(const TemporaryFolder& folder, const std::string& hosts) {
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
  return nlohmann::json::parse(std::ifstream(file)).at("steps");
}

TEST_CASE("over hosts, equal and unequal, training has the losses of one host") {
  if (Skipped()) return;
  TemporaryFolder folder;
  WriteToySet(folder, 400);
  const nlohmann::json alone = Losses(folder, "h1:4");
  REQUIRE(alone.size() == 20);
  CHECK(alone.back().get<double>() < 0.9 * alone.front().get<double>());
  for (const char* hosts : {"h1:2,h2:2", "h1:1,h2:3"}) {
    const nlohmann::json losses = Losses(folder, hosts);
    REQUIRE(losses.size() == alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      CAPTURE(hosts, i);
      CHECK(std::abs(losses[i].get<double>() - alone[i].get<double>()) < 1e-5);
    }
  }
}

// Each host has a folder of its own with the data of `folder`, changed by `change` on h2, which
// finds files in $other.
CommandResult TrainWithDataPerHost(
    const TemporaryFolder& folder, const TemporaryFolder& other, const std::string& change) {
  return Run(ScriptOnHosts(
      "for h in h1 h2; do ssh $h cp -r " + folder.path() + " $TMPDIR/data; done; ssh h2 'cd " +
      "$TMPDIR/data && other=" + other.path() + " && " + change +
      "'; exec launcher/dtrun --tag none -H h1:2,h2:2 " +
      "models/cnn_fmnist --threads 1 --data-dir $TMPDIR/data --batch-size 4 --max-steps 2 " +
      "--verbose 0"));
}

TEST_CASE("data that one host lacks, or has otherwise, is named with it, and nobody hangs") {
  if (Skipped()) return;
  TemporaryFolder folder, other;
  WriteToySet(folder, 40);
  Bytes labels;  // but for one as those that WriteToySet writes
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

// A folder with `train` and `cnn_fmnist`, and dtrun in PATH, as a reader of Horovod's pages has.
std::string InFolder(const TemporaryFolder& folder, const std::string& line) {
  namespace fs = std::filesystem;
  fs::create_symlink(fs::absolute("examples/sgd"), folder / "train");
  fs::create_symlink(fs::absolute("models/cnn_fmnist"), folder / "cnn_fmnist");
  return "cd " + folder.path() + " && PATH=" + fs::absolute("launcher").string() + ":$PATH && " +
         line;
}

TEST_CASE("Horovod's line for one machine works as it stands") {
  if (Skipped()) return;
  TemporaryFolder folder;
  const CommandResult result = Run(ScriptOnHosts(InFolder(folder, "dtrun -np 4 ./train")));
  CHECK(result.out == "[1,0]<stdout>:4 ranks agree on 1.500\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("Horovod's line for four machines works as it stands") {
  if (Skipped()) return;
  TemporaryFolder folder;
  const CommandResult result = Run(ScriptOnHosts(
      InFolder(folder, "dtrun -np 16 -H server1:4,server2:4,server3:4,server4:4 ./train"),
      {"--names", "server1,server2,server3,server4"}));
  CAPTURE(result.err);
  CHECK(result.out == "[1,0]<stdout>:16 ranks agree on 7.500\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("the line with arguments for mpirun and a program's own works as it stands") {
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
