#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "models/programs/training_options.h"
#include "models/train/agreement.h"
#include "models/train/report.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::models {
namespace {

using dtrun::testing::ReadText;
using dtrun::testing::TemporaryFolder;

ParsedOptions Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "cnn_fmnist");
  return ParseOptions(int(words.size()), words.data());
}

TEST_CASE("the defaults are 8 epochs of Adam with a batch of 1024 and a cooldown") {
  const ParsedOptions parsed = Parse({});
  CHECK(parsed.error == "");
  CHECK(parsed.options.epochs == 8);
  CHECK(parsed.options.batch_size == 1024);
  CHECK(parsed.options.optimizer == "adam");
  CHECK(parsed.options.schedule == "cooldown");
}

TEST_CASE("option values are parsed as given") {
  const ParsedOptions parsed = Parse(
      {"--learning-rate", "1e-2", "--optimizer=sgd", "--momentum", "0.9", "--seed",
       "18446744073709551615", "--global-batch-size", "77"});
  CHECK(parsed.error == "");
  CHECK(parsed.options.learning_rate == 0.01);
  CHECK(parsed.options.settings.momentum == 0.9);
  CHECK(!parsed.options.settings.nesterov);
  const OptimizerSettings settings = Parse({"--nesterov", "--beta1", "0.5", "--beta2=0.75",
                                            "--epsilon", "1e-6", "--weight-decay", "1.5"})
                                         .options.settings;
  CHECK(settings.nesterov == true);
  CHECK(settings.beta1 == 0.5);
  CHECK(settings.beta2 == 0.75);
  CHECK(settings.epsilon == 1e-6);
  CHECK(settings.weight_decay == 1.5);
  CHECK(Parse({"--no-nesterov"}).options.settings.nesterov == false);
  CHECK(Parse({}).options.deterministic == 0);
  CHECK(Parse({"--deterministic"}).options.deterministic == 8);
  CHECK(Parse({"--deterministic", "16"}).options.deterministic == 16);
  CHECK(parsed.options.seed == std::numeric_limits<uint64_t>::max());
  CHECK(parsed.options.global_batch_size == 77);
}

TEST_CASE("an invalid option value is refused with the expected values") {
  CHECK(
      Parse({"--batch-size", "0"}).error ==
      "--batch-size: '0', expected an integer from 1 to 1000000000");
  CHECK(
      Parse({"--batch-size", "1e3"}).error ==
      "--batch-size: '1e3', expected an integer from 1 to 1000000000");
  CHECK(
      Parse({"--learning-rate", "0"}).error ==
      "--learning-rate: '0', expected a number above 0 and below 1000");
  CHECK(
      Parse({"--learning-rate", "nan"}).error ==
      "--learning-rate: 'nan', expected a number above 0 and below 1000");
  CHECK(Parse({"--verbose", "3"}).error == "--verbose: '3', expected an integer from 0 to 2");
  CHECK(
      Parse({"--schedule", "cosine", "--cooldown", "0.5"}).error ==
      "--cooldown: given with --schedule cosine, expected --schedule cooldown");
  CHECK(
      Parse({"--schedule", "linear"}).error ==
      "--schedule: 'linear', expected constant, piecewise, cosine, restarts, polynomial, "
      "exponential or cooldown");
  CHECK(Parse({"--log-steps"}).error == "--log-steps: expected with --json FILE");
  CHECK(Parse({"--json", ""}).error == "--json: '', expected a file name");
  CHECK(Parse({"--example-log", ""}).error == "--example-log: '', expected a folder");
  CHECK(
      Parse({"--example-log", "x", "--loop", "custom"}).error ==
      "--example-log: given with --loop custom, expected --loop fit");
  CHECK(
      Parse({"--batch-size", "8", "--global-batch-size", "8"}).error.find("--batch-size") !=
      std::string::npos);
}

const Verdict kReady{kSuccess, "", "--seed=1\n"};
const std::vector<std::string> kHosts = {"a", "a", "b"};

TEST_CASE("ranks that are all ready continue") {
  CHECK(Combine({kReady, kReady, kReady}, kHosts).exit_code == kSuccess);
}

TEST_CASE("a problem of all ranks is reported without their names") {
  const Verdict missing{kDataUnusable, "x: missing"};
  const Verdict combined = Combine({missing, missing, missing}, kHosts);
  CHECK(combined.exit_code == kDataUnusable);
  CHECK(combined.problem == "x: missing");
}

TEST_CASE("a problem of some ranks is reported with the ranks and a single rank with its host") {
  const Verdict missing{kDataUnusable, "x: missing"};
  CHECK(Combine({kReady, kReady, missing}, kHosts).problem == "rank 2 (host b): x: missing");
  CHECK(Combine({missing, kReady, missing}, kHosts).problem == "ranks 0 and 2: x: missing");
}

TEST_CASE("the problem of the first rank wins") {
  const Verdict usage{kUsage, "--x"}, missing{kDataUnusable, "y"};
  const Verdict combined = Combine({kReady, usage, missing}, kHosts);
  CHECK(combined.exit_code == kUsage);
  CHECK(combined.problem == "rank 1 (host a): --x");
}

TEST_CASE("ranks with different settings are reported") {
  Verdict other = kReady;
  other.settings = "--seed=2\n";
  const Verdict combined = Combine({kReady, kReady, other}, kHosts);
  CHECK(combined.exit_code == kRanksDisagree);
  CHECK(
      combined.problem ==
      "the ranks were started differently: rank 0 has --seed=1, rank 2 (host b) has --seed=2");
}

// The published FNV value for "foobar".
TEST_CASE("the digest is FNV-1a") {
  CHECK(Digest("foobar", 6) == 0x85944171f73967e8);
  CHECK(ToHex(0xf73967e8) == "00000000f73967e8");
}

TEST_CASE("ranks with other parameters than rank 0 are reported") {
  CHECK(DifferenceBetween({5, 5, 5}) == "");
  CHECK(
      DifferenceBetween({1, 1, 2}) ==
      "the ranks hold different parameters: by digest, rank 0 has 0000000000000001, rank 2 has "
      "0000000000000002");
}

TEST_CASE("a result replaces the old result and leaves no other files") {
  TemporaryFolder folder;
  const std::string path = folder.Write("result.json", "old");
  CHECK(WhyNotWritable(path) == "");
  CHECK(ReadText(path) == "old");
  WriteAtomically(path, "new");
  CHECK(ReadText(path) == "new");
  CHECK(folder.Entries() == std::vector<std::string>{"result.json"});
}

TEST_CASE("a path that cannot be written is reported with the reason") {
  TemporaryFolder folder;
  CHECK(WhyNotWritable(folder.path()) == folder.path() + ": cannot be written: Is a directory");
  const std::string path = folder.path() + "/none/result.json";
  CHECK(WhyNotWritable(path) == path + ": cannot be written: No such file or directory");
}

TEST_CASE("a device is written to and not replaced") {
  WriteAtomically("/dev/null", "text");
  struct stat status {};
  REQUIRE(stat("/dev/null", &status) == 0);
  CHECK(S_ISCHR(status.st_mode));
  CHECK_THROWS_WITH(
      WriteAtomically("/dev/full", "text"),
      "/dev/full: cannot be written: No space left on device");
}

TEST_CASE("the JSON has the documented form") {
  TrainingResult result;
  result.ranks = 2;
  result.test_loss = 0.25;
  result.test_accuracy = 0.5;
  result.parameter_digest = "00ff";
  result.epochs.push_back(
      {0.75, 0.5, std::numeric_limits<double>::quiet_NaN(), 0.5, 2, 100, 0.125});
  CHECK(
      ToJson(result) ==
      "{\"ranks\": 2, \"test_accuracy\": 0.5, \"test_loss\": 0.25, \"parameter_digest\": "
      "\"00ff\",\n"
      " \"epochs\": [\n"
      "  {\"loss\": 0.75, \"train_accuracy\": 0.5, \"test_loss\": null, \"test_accuracy\": 0.5, "
      "\"seconds\": 2, \"images_per_s\": 100, \"exposed_share\": 0.125}]}\n");
  result.step_losses = {2, 1.5};
  CHECK(ToJson(result).find("}],\n \"steps\": [2, 1.5]}\n") != std::string::npos);
}

}  // namespace
}  // namespace dtrun::models
