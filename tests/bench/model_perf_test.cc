// model_perf with several networks, and with made-up peers that speak the protocol of bench/peer.h.

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

// A run of model_perf. `rows` is empty if the run failed.
struct Measured {
  CommandResult result;
  nlohmann::json rows = nlohmann::json::array();
};

Measured ModelPerf(
    const Words& options,
    const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  TemporaryFolder folder;
  const std::string file = folder.path() + "/rows.json";
  Words argv = {"bench/model_perf", "--rounds", "1", "--beside-others", "--json", file};
  argv.insert(argv.end(), options.begin(), options.end());
  Measured measured;
  measured.result =
      Run({.argv = argv, .environment = environment, .timeout = std::chrono::minutes(4)});
  if (std::filesystem::exists(file)) measured.rows = ReadJson(file);
  return measured;
}

// A peer as a shell script.
class Script {
 public:
  explicit Script(const std::string& text) : file_(folder_.Write("peer.sh", text)) {}
  std::string command() const { return "sh " + file_; }

 private:
  TemporaryFolder folder_;
  std::string file_;
};

// A peer for the multilayer perceptron. Its second variant is the faster one.
constexpr char kPeer[] = R"(
echo 'ready {"name": "Made-up 1.0", "variants": ["slow", "fast"], "parameters": 101770}'
while read request variant; do
  [ "$request" = step ] || exit 5
  [ $variant = fast ] || sleep 0.05
  echo done
done
)";

TEST_CASE("the variants of a peer are measured in turn with the step and the fastest counts") {
  const Script peer(kPeer);
  const Measured measured =
      ModelPerf({"--model", "mlp", "--dtype", "f32", "--batch", "4", "--peer", peer.command()});
  CAPTURE(measured.result.out, measured.result.err);
  CHECK_THAT(measured.result.out, Contains("Made-up 1.0") && Contains("slow") && Contains("fast"));
  REQUIRE(measured.rows.size() == 1);
  for (const auto& row : measured.rows) {
    const auto& found = row.at("peers").at(0);
    CHECK(found.at("name") == "Made-up 1.0");
    CHECK(found.at("command") == peer.command());
    CHECK(found.at("variant") == "fast");
    CHECK(found.at("variants").at("slow") < found.at("variants").at("fast"));
    CHECK(
        found.at("ratio").get<double>() ==
        Approx(row.at("images_per_s").get<double>() / found.at("images_per_s").get<double>()));
  }
}

TEST_CASE("a peer gets its task as options and is limited to the instruction set of oneDNN") {
  const Script peer(R"(
echo "$* $ATEN_CPU_CAPABILITY $MKL_ENABLE_INSTRUCTIONS $ONEDNN_MAX_CPU_ISA ${OPENBLAS_CORETYPE-none}" >&2
exit 3
)");
  const Measured measured = ModelPerf(
      {"--model", "mlp", "--dtype", "f32", "--batch", "4", "--peer", peer.command() + " own"},
      {{"ONEDNN_MAX_CPU_ISA", "SSE41"}, {"OPENBLAS_CORETYPE", "Haswell"}});
  CHECK(measured.result.exit_code == 2);
  CHECK_THAT(
      measured.result.out,
      Contains("instruction set SSE41") &&
          Contains("# peers run with ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 "
                   "ONEDNN_MAX_CPU_ISA=SSE41\n"));
  CHECK_THAT(
      measured.result.err,
      Contains("ended with exit code 3: own --serve --model mlp --dtype f32 --batch 4 --threads 1 "
               "--image 0 --classes 0 default SSE4_2 SSE41 none; expected 'ready "));
}

TEST_CASE("a failure of a peer is reported in one line with exit code 2") {
  const auto expect = [](const std::string& script, const std::string& line) {
    const Script peer(script);
    const Measured measured =
        ModelPerf({"--model", "mlp", "--dtype", "f32", "--batch", "2", "--peer", peer.command()});
    CHECK(measured.result.exit_code == 2);
    CHECK(measured.result.err == "model_perf: peer '" + peer.command() + "': " + line + "\n");
  };
  const std::string ready = R"('ready {"name": ..., "variants": [...], "parameters": ...}')";
  expect("echo no torch >&2; exit 69", "ended with exit code 69: no torch; expected " + ready);
  expect("kill -9 $$", "ended by signal 9; expected " + ready);
  expect("echo hello", "said 'hello'; expected " + ready);
  expect("echo 'ready {}'", "said 'ready {}'; expected " + ready);
  const std::string greeting =
      R"(echo 'ready {"name": "P", "variants": ["a"], "parameters": 101770}'; )";
  expect(
      greeting + "read request; echo broken >&2; exit 1",
      "ended with exit code 1: broken; expected 'done' after a step");
  expect(
      greeting + "read request; echo nonsense; read request",
      "said 'nonsense'; expected 'done' after a step");
  expect(
      R"(echo 'ready {"name": "P", "variants": ["a"], "parameters": 5}'; read request)",
      "its network has 5 parameters; expected the 101770 of network mlp");
}

TEST_CASE("an unknown network is refused with the list of networks") {
  const Measured measured = ModelPerf({"--model", "vgg"});
  CHECK(measured.result.exit_code == 2);
  CHECK_THAT(
      measured.result.err,
      Contains("model_perf: network 'vgg' is not known, expected one of A, B, C, D, mlp, "));
}

TEST_CASE("a residual network has a floor but no deterministic step if it has batch norms") {
  const Measured residual =
      ModelPerf({"--model", "resnet18", "--image", "8", "--batch", "2", "--dtype", "f32"});
  CAPTURE(residual.result.out, residual.result.err);
  CHECK_THAT(
      residual.result.out, Contains("4 x conv2d 64 3x3 padding 1 without bias, backward data") &&
                               Contains("dense 10, backward weights"));
  REQUIRE(residual.rows.size() == 1);
  for (const auto& row : residual.rows) {
    CHECK(row.at("model") == "resnet18");
    CHECK(row.at("input") == "8x8x3");
    CHECK(row.at("share") > 0);
    CHECK_FALSE(row.contains("deterministic_images_per_s"));
  }
  const Measured plain = ModelPerf({"--model", "A", "--batch", "2", "--dtype", "f32"});
  CAPTURE(plain.result.out, plain.result.err);
  REQUIRE(plain.rows.size() == 1);
  for (const auto& row : plain.rows) CHECK(row.at("deterministic_images_per_s") > 0);
}

TEST_CASE("without bf16 arithmetic model_perf reports that it computes in f32") {
  const Measured measured = ModelPerf(
      {"--model", "mlp", "--dtype", "bf16", "--batch", "2"}, {{"ONEDNN_MAX_CPU_ISA", "SSE41"}});
  CAPTURE(measured.result.out, measured.result.err);
  CHECK_THAT(
      measured.result.out,
      Contains("# bf16: oneDNN has no bf16 arithmetic for SSE41; computed in f32\n"));
  for (const auto& row : measured.rows) {
    CHECK(row.at("dtype") == "bf16");
    CHECK(row.at("computed_in") == "f32");
    CHECK(row.at("isa") == "SSE41");
    CHECK(row.at("onednn").get<std::string>().find('.') != std::string::npos);
  }
}

}  // namespace
}  // namespace dtrun::testing
