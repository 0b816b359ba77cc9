// cnn_fmnist on a GPU, alone and under dtrun. Each test starts real processes.

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/models/idx_files.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class Program {
 public:
  explicit Program(uint32_t examples = 48) { WriteToySet(folder_, examples); }

  CommandResult Run(int np, const Words& options, const Words& before = {}) const {
    Words argv = before;
    if (np > 1)
      argv.insert(argv.end(), {"launcher/dtrun", "--tag", "none", "-np", std::to_string(np)});
    argv.insert(argv.end(), {"models/cnn_fmnist", "--threads", "1", "--data-dir", folder_.path()});
    argv.insert(argv.end(), options.begin(), options.end());
    return testing::Run({.argv = argv});
  }

  json Train(int np, Words options, const Words& before = {}) {
    const std::string file = folder_ / "result.json";
    options.insert(options.end(), {"--json", file});
    const CommandResult result = Run(np, options, before);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    out = result.out;
    return ReadJson(file);
  }

  std::string path(const std::string& name) const { return folder_ / name; }

  std::string out;

 private:
  TemporaryFolder folder_;
};

Words Mlp(const Words& more) {
  Words options = {"--network", "mlp", "--global-batch-size", "16"};
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

void CheckSameCurve(const json& a, const json& b) {
  REQUIRE(a["epochs"].size() == b["epochs"].size());
  for (size_t i = 0; i < a["epochs"].size(); ++i) {
    for (const char* number : {"loss", "train_accuracy", "test_loss", "test_accuracy"}) {
      INFO(number << " of epoch " << i);
      CHECK(
          a["epochs"][i][number].get<double>() ==
          Approx(b["epochs"][i][number].get<double>()).epsilon(1e-3));
    }
  }
  CHECK(a["test_loss"].get<double>() == Approx(b["test_loss"].get<double>()).epsilon(1e-3));
}

TEST_CASE("the default device is a GPU if there is one and training on it matches the CPU") {
  Program program;
  const json gpu = program.Train(1, Mlp({"--epochs", "3", "--no-tf32", "--log-steps"}));
  CHECK_THAT(program.out, Catch::Contains("Compute     GPU, ") && Catch::Contains("without TF32"));
  const json cpu = program.Train(1, Mlp({"--epochs", "3", "--device", "cpu", "--log-steps"}));
  CHECK_THAT(program.out, Catch::Contains("Compute     CPU, "));
  CheckSameCurve(gpu, cpu);
  REQUIRE(gpu["steps"].size() == 9);
  for (size_t i = 0; i < 9; ++i)
    CHECK(gpu["steps"][i].get<double>() == Approx(cpu["steps"][i].get<double>()).epsilon(1e-3));
}

TEST_CASE("ranks that share a GPU by default report the sharing and match one rank") {
  Program program;
  const json one = program.Train(1, Mlp({"--epochs", "2", "--fastest-algorithms"}));
  const json two = program.Train(2, Mlp({"--epochs", "2", "--first-algorithms"}));
  CHECK_THAT(program.out, Catch::Contains("shared: 2 ranks on GPU 0"));
  CHECK(two["ranks"] == 2);
  CheckSameCurve(two, one);
  program.Train(2, Mlp({"--epochs", "1", "--device", "cuda", "--share-gpus"}));
  CHECK_THAT(program.out, Catch::Contains("shared: 2 ranks on GPU 0"));
}

TEST_CASE("the devices of a strategy select the ranks' GPUs") {
  Program program;
  const Words two_gpus = {"env", "DTRUN_SIMULATED_GPUS=2"};
  const auto run = [&](int np, const Words& more) {
    Words options = Mlp({"--epochs", "1"});
    options.insert(options.end(), more.begin(), more.end());
    return program.Train(np, options, two_gpus);
  };
  const json one = run(1, {"--strategy", "one_device:cuda:1"});
  CHECK_THAT(
      program.out, Catch::Contains("strategy one_device\n") && Catch::Contains("Compute     GPU"));
  const json two = run(2, {"--strategy", "mirrored:cuda:1,cuda:0"});
  CHECK_THAT(program.out, Catch::Contains("strategy mirrored\n") && !Catch::Contains("shared"));
  CHECK(two["ranks"] == 2);
  CheckSameCurve(two, one);
  run(2, {"--strategy", "mirrored:/gpu:1,/gpu:1", "--share-gpus"});
  CHECK_THAT(program.out, Catch::Contains("shared: 2 ranks on GPU 1"));
  CheckSameCurve(run(2, {"--strategy", "multi_worker_mirrored:gpu:*"}), one);
  CHECK_THAT(program.out, Catch::Contains("Reduction   between GPUs"));
  CheckSameCurve(run(2, {"--strategy", "central_storage:cuda:0,cuda:1"}), one);
  CHECK_THAT(program.out, Catch::Contains("Reduction   CPU"));
}

TEST_CASE("a resumed run ends with the same bits as an uninterrupted run") {
  Program program;
  const std::string dtype = GENERATE("f32", "bf16", "f16");
  const Words common = {"--schedule", "constant", "--dtype", dtype, "--device", "cuda"};
  const auto with = [&](const Words& more) {
    Words options = Mlp(common);
    options.insert(options.end(), more.begin(), more.end());
    return options;
  };
  const json whole = program.Train(1, with({"--epochs", "2"}));
  const std::string folder = program.path("checkpoints");
  program.Train(
      1, with(
             {"--epochs", "2", "--max-steps", "4", "--checkpoint-dir", folder, "--checkpoint-every",
              "2"}));
  const json resumed =
      program.Train(1, with({"--epochs", "2", "--checkpoint-dir", folder, "--resume"}));
  CHECK(resumed["parameter_digest"] == whole["parameter_digest"]);
  CHECK(resumed["epochs"].back()["loss"] == whole["epochs"].back()["loss"]);
}

TEST_CASE("a run on a GPU saves the model and exports ONNX and writes a report") {
  Program program;
  const Words outputs = {"--save",           program.path("model"),
                         "--export-onnx",    program.path("model.onnx"),
                         "--report",         program.path("run.html"),
                         "--early-stopping", "1",
                         "--dtype",          "f16"};
  Words options = Mlp({"--epochs", "3"});
  options.insert(options.end(), outputs.begin(), outputs.end());
  const json result = program.Train(1, options);
  CHECK(std::filesystem::exists(program.path("model/model.json")));
  CHECK(std::filesystem::file_size(program.path("model.onnx")) > 50000);
  CHECK(std::filesystem::exists(program.path("run.html")));
  const CommandResult predicted = testing::Run(
      {.argv = {
           "models/predict", program.path("model"), "--threads", "1", "--data-dir",
           std::filesystem::path(program.path("model")).parent_path()}});
  INFO(predicted.out << predicted.err);
  CHECK(predicted.exit_code == 0);
}

TEST_CASE("the largest batch is found and a batch that does not fit is a one-line error") {
  Program program;
  program.Train(1, {"--network", "mlp", "--batch-size", "auto", "--max-steps", "1"});
  CHECK_THAT(program.out, Catch::Contains("global batch 32,"));
  const CommandResult refused =
      program.Run(1, Mlp({"--device", "cuda"}), {"env", "DTRUN_SIMULATED_GPU_BYTES=100000000"});
  CHECK(refused.exit_code == 2);
  CHECK_THAT(
      refused.err, Catch::StartsWith("cnn_fmnist: --device cuda: a batch of 16 examples: GPU 0") &&
                       Catch::Contains("has no room for ") && Catch::Contains(" bytes are free") &&
                       Catch::EndsWith("(--batch-size auto takes the largest that fits)\n"));
  CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
  const CommandResult bounded =
      program.Run(1, Mlp({"--device", "cuda"}), {"env", "DTRUN_GPU_MEMORY_BYTES=100000000"});
  CHECK(bounded.exit_code == 2);
  CHECK_THAT(bounded.err, Catch::Contains(", of which this process may take "));
  // The default device falls back to the CPU and reports the reason.
  const CommandResult on_cpu =
      program.Run(1, Mlp({"--max-steps", "1"}), {"env", "DTRUN_SIMULATED_GPU_BYTES=100000000"});
  CHECK(on_cpu.exit_code == 0);
  CHECK_THAT(on_cpu.out, Catch::Contains("; no GPU, because --device cuda: a batch of 16"));
}

TEST_CASE("optimizers, sums and strategies of the CPU train on a GPU as well") {
  Program program;
  const auto [np, options] = GENERATE(table<int, Words>(
      {{1, {"--optimizer", "lamb"}},
       {1, {"--optimizer", "muon"}},
       {1, {"--loop", "custom"}},
       {2, {"--adasum"}},
       {2, {"--deterministic"}},
       {2, {"--strategy", "central_storage"}},
       {1, {"--strategy", "default"}},
       {2, {"--strategy", "multi_worker_mirrored"}}}));
  const auto on = [&](const std::string& device) {
    Words all = Mlp({"--device", device, "--epochs", "2", "--no-tf32"});
    if (device == "cuda" && np > 1) all.push_back("--share-gpus");
    all.insert(all.end(), options.begin(), options.end());
    return program.Train(np, all);
  };
  INFO(options[0] << " " << options.back());
  CheckSameCurve(on("cuda"), on("cpu"));
}

// Runs cnn_fmnist with `options` under a strategy, with 1 rank, 2 ranks, or a server and 2 workers.
CommandResult Under(
    const Program& program, const std::string& strategy, const std::string& device,
    const Words& options) {
  Words argv = {"env", "DTRUN_SIMULATED_GPUS=2", "launcher/dtrun", "--tag", "none", "-np"};
  const bool alone = strategy == "default" || strategy == "one_device";
  const bool serves = strategy == "parameter_server";
  argv.push_back(alone ? "1" : serves ? "3" : "2");
  if (serves) argv.insert(argv.end(), {"--ps", "1"});
  argv.insert(
      argv.end(), {"models/cnn_fmnist", "--threads", "1", "--data-dir", program.path(""),
                   "--network", "mlp", "--batch-size", "8", "--epochs", "2", "--verbose", "0",
                   "--strategy", strategy, "--device", device});
  argv.insert(argv.end(), options.begin(), options.end());
  return testing::Run({.argv = argv});
}

// A row of the table in docs/guides/strategies.md: each function alone where it is refused, and the
// others in one run.
std::string RowOf(const Program& program, const std::string& strategy, const std::string& device) {
  const std::vector<Words> functions = {
      {"--early-stopping", "5"},
      {"--json", program.path("result.json")},
      {"--checkpoint-dir", program.path("of_" + strategy + device)},
      {"--deterministic"},
      {"--report", program.path("page.html")},
      {"--tensorboard", program.path("board_" + strategy + device)}};
  std::string row = "| `" + strategy + "` |";
  Words together;
  for (const Words& function : functions) {
    const bool may_fail = strategy == "parameter_server" && function[0].substr(0, 5) != "--jso";
    CommandResult result;
    result.exit_code = 0;
    if (may_fail) result = Under(program, strategy, device, function);
    row += result.exit_code == 0 ? " yes |" : " no |";
    if (result.exit_code == 0) {
      together.insert(together.end(), function.begin(), function.end());
      continue;
    }
    INFO(strategy << " " << function[0] << ": " << result.err);
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Catch::StartsWith("cnn_fmnist: " + function[0] + ": "));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
  const CommandResult all = Under(program, strategy, device, together);
  INFO(strategy << " on " << device << ": " << all.err);
  CHECK(all.exit_code == 0);
  CHECK(std::filesystem::exists(program.path("result.json")));
  CHECK(std::filesystem::exists(program.path("board_" + strategy + device)));
  return row;
}

TEST_CASE("the table of strategies says what works with each strategy on CPUs and GPUs") {
  const Program program;
  std::ifstream stream("docs/guides/strategies.md");
  const std::string page(std::istreambuf_iterator<char>(stream), {});
  for (const char* strategy :
       {"default", "one_device", "mirrored", "multi_worker_mirrored", "central_storage",
        "parameter_server"}) {
    const std::string row = RowOf(program, strategy, "cpu");
    CHECK(RowOf(program, strategy, "cuda") == row);
    CHECK_THAT(page, Catch::Contains(row));
  }
}

TEST_CASE("deterministic training on GPUs has the same bits on one rank and on two") {
  Program program;
  const Words options = Mlp(
      {"--device", "cuda", "--share-gpus", "--deterministic", "--epochs", "2", "--optimizer",
       "sgd"});
  const json one = program.Train(1, options);
  CHECK(program.Train(2, options)["parameter_digest"] == one["parameter_digest"]);
}

TEST_CASE("an unsupported request for a GPU is refused with one line for all ranks") {
  Program program;
  const auto [np, options, problem] = GENERATE(table<int, Words, std::string>(
      {{1,
        {"--device", "fast"},
        "--device: 'fast', expected auto, cpu, cuda or cuda:N (see --help)"},
       {1, {"--device", "cuda:7"}, "--device cuda:7: this host has 1 GPU, counted from 0"},
       {2,
        {"--device", "cuda"},
        "--device cuda: 2 ranks on a host with 1 GPU for them; expected one for each rank, or "
        "--share-gpus"},
       {1,
        {"--strategy", "one_device:cuda:1"},
        "--strategy one_device:cuda:1: device cuda:1: this host has 1 GPU, counted from 0"},
       {2,
        {"--strategy", "mirrored:cuda:0"},
        "--strategy mirrored:cuda:0: found 1 device and 2 ranks on a host; expected one for "
        "each "
        "rank (dtrun -np 1)"},
       {2,
        {"--strategy", "mirrored:cuda:0,cuda:0"},
        "--strategy mirrored:cuda:0,cuda:0: device cuda:0: 2 ranks on a host with 1 GPU for them; "
        "expected one for each "
        "rank, or --share-gpus"},
       {2,
        {"--strategy", "mirrored:cpu,cuda:0"},
        "--strategy mirrored:cpu,cuda:0: found GPUs and cpu; expected GPUs for all ranks, or cpu "
        "for all ranks"},
       {1,
        {"--strategy", "one_device:cuda:0", "--device", "cpu"},
        "--device cpu: given with --strategy one_device:cuda:0, which names GPUs; expected one of "
        "the two"},
       {1, {"--device", "cpu", "--dtype", "f16"}, "--dtype f16: on a CPU, expected f32 or bf16"},
       {1,
        {"--batch-size", "many"},
        "--batch-size: 'many', expected an integer from 1 to 1000000000 (see --help)"}}));
  INFO(problem);
  const CommandResult result = program.Run(np, options);
  CHECK(result.exit_code == 2);
  CHECK(result.err == "cnn_fmnist: " + problem + "\n");
}

TEST_CASE("a loss that is not a number ends the training") {
  Program program;
  const CommandResult result = program.Run(
      1, Mlp(
             {"--device", "cuda", "--optimizer", "sgd", "--learning-rate", "900", "--weight-decay",
              "900", "--epochs", "8", "--schedule", "constant"}));
  CHECK(result.exit_code == 65);
  CHECK_THAT(result.err, Catch::StartsWith("cnn_fmnist: the loss is "));
  CHECK_THAT(result.err, Catch::Contains(": training has diverged"));
}

TEST_CASE("without a driver the default device is the CPU and cuda is a one-line error") {
  Program program;
  const Words without = {"env", "LD_LIBRARY_PATH=/nowhere"};
  const CommandResult asked = program.Run(1, Mlp({"--device", "cuda"}), without);
  if (asked.exit_code == 0) {
    WARN("skipped: this machine has a driver of its own");
    return;
  }
  CHECK(asked.exit_code == 2);
  CHECK_THAT(asked.err, Catch::StartsWith("cnn_fmnist: --device cuda: no GPU: "));
  CHECK(std::count(asked.err.begin(), asked.err.end(), '\n') == 1);
  const CommandResult automatic = program.Run(1, Mlp({"--max-steps", "1"}), without);
  CHECK(automatic.exit_code == 0);
  CHECK_THAT(automatic.out, Catch::Contains("Compute     CPU, "));
  CHECK_THAT(automatic.out, !Catch::Contains("no GPU"));
}

TEST_CASE("gpu_cnn_perf compares step times with rates that it measures") {
  TemporaryFolder folder;
  const CommandResult result = testing::Run(
      {.argv = {
           "bench/gpu_cnn_perf", "--network", "mlp", "--dtype", "f32,bf16", "--batch", "4,8",
           "--steps", "2", "--rounds", "1", "--copy-bytes", "65536", "--matrix", "32",
           "--parameters", "1000", "--json", folder / "rows.json"}});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json rows = ReadJson(folder / "rows.json");
  REQUIRE(rows.size() == 6);
  CHECK(rows[0]["copy_bytes_per_s"].get<double>() > 0);
  CHECK(rows[0]["matrix_operations_per_s_bf16"].get<double>() > 0);
  for (const size_t i : {1u, 2u, 3u, 4u}) {
    const double measured = rows[i]["ns_per_image"], copies = rows[i]["copy_ns_per_image"],
                 products = rows[i]["matrix_ns_per_image"];
    CHECK(rows[i]["share"].get<double>() == Approx(std::max(copies, products) / measured));
    CHECK(rows[i]["images_per_s"].get<double>() == Approx(1e9 / measured));
  }
  CHECK(rows[5]["optimizer"] == "adam");
  CHECK(rows[5]["share"].get<double>() > 0);
}

}  // namespace
}  // namespace dtrun::testing
