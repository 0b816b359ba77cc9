// cnn_fmnist under dtrun. Each test starts real processes.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/models/idx_files.h"
#include "tests/support/completed_line.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using Words = std::vector<std::string>;

Command UnderDtrun(int np, const Words& program) {
  Words argv = {"launcher/dtrun", "--tag", "none", "-np", std::to_string(np)};
  argv.insert(argv.end(), program.begin(), program.end());
  return {.argv = argv};
}

Words CnnFmnist(const Words& options) {
  Words argv = {"models/cnn_fmnist", "--threads", "1"};
  argv.insert(argv.end(), options.begin(), options.end());
  return argv;
}

// All lines of stderr, without the program's name. The launcher must add no lines.
Words ErrorLines(const CommandResult& result) {
  Words lines;
  std::istringstream stream(result.err);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line.rfind("cnn_fmnist: ", 0) == 0 ? line.substr(12) : line);
  }
  return lines;
}

int CountLines(const std::string& text) { return int(std::count(text.begin(), text.end(), '\n')); }

// A toy data set, and the result of training on it.
class Trained {
 public:
  explicit Trained(uint32_t examples) { WriteToySet(folder_, examples); }

  nlohmann::json Run(int np, Words options) {
    const std::string file = folder_ / "result.json";
    options.insert(options.end(), {"--data-dir", folder_.path(), "--json", file});
    const CommandResult result = testing::Run(UnderDtrun(np, CnnFmnist(options)));
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    out = result.out;
    return ReadJson(file);
  }

  const std::string& folder() const { return folder_.path(); }

  std::string out;

 private:
  TemporaryFolder folder_;
};

TEST_CASE("training learns on any number of ranks") {
  Trained trained(400);
  const int np = GENERATE(1, 3);
  const auto result =
      trained.Run(np, {"--epochs", "4", "--global-batch-size", "32", "--verbose", "0"});
  CHECK(result["ranks"] == np);
  CHECK(result["test_accuracy"] > 0.95);
  CHECK(result["parameter_digest"].get<std::string>().size() == 16);
  REQUIRE(result["epochs"].size() == 4);
  const auto& last = result["epochs"][3];
  for (const char* name :
       {"loss", "train_accuracy", "test_loss", "test_accuracy", "seconds", "images_per_s",
        "exposed_share"})
    CHECK(last[name].is_number());
  CHECK(last["test_loss"] == result["test_loss"]);
  CHECK(last["images_per_s"].get<double>() * last["seconds"].get<double>() == Approx(400));
  CHECK(CountLines(trained.out) == 1);  // only the result
}

TEST_CASE("1 to 4 ranks have the same losses on the same global batches with dropout") {
  Trained trained(200);
  // 200 is no multiple of 48, so the fifth batch is ragged.
  const Words options = {
      "--global-batch-size",
      "48",
      "--optimizer",
      "sgd",
      "--learning-rate",
      "0.05",
      "--momentum",
      "0.9",
      "--max-steps",
      "20",
      "--log-steps",
      "--verbose",
      "0"};
  const auto expected = trained.Run(1, options)["steps"];
  REQUIRE(expected.size() == 20);
  for (int np : {2, 3, 4}) {
    const auto steps = trained.Run(np, options)["steps"];
    REQUIRE(steps.size() == 20);
    for (size_t i = 0; i < 20; ++i)
      CHECK(std::abs(steps[i].get<double>() - expected[i].get<double>()) < 1e-5);
  }
}

TEST_CASE("reducing after backward gives the same result and reports exposed communication") {
  Trained trained(200);
  const Words options = {"--batch-size", "20", "--max-steps", "10", "--log-steps",
                         "--verbose",    "2"};
  const auto overlapped = trained.Run(2, options);
  CHECK_THAT(trained.out, Catch::Contains("images/s, communication exposed "));
  Words after = options;
  after.push_back("--reduce-after-backward");
  const auto reduced_after = trained.Run(2, after);
  CHECK(reduced_after["steps"] == overlapped["steps"]);
  CHECK(reduced_after["parameter_digest"] == overlapped["parameter_digest"]);
  for (const auto& epoch : reduced_after["epochs"]) {
    CHECK(epoch["exposed_share"] > 0);
    CHECK(epoch["exposed_share"] < 1);
  }
  CHECK(trained.Run(1, options)["parameter_digest"].is_string());
  CHECK_THAT(trained.out, !Catch::Contains("exposed"));
}

TEST_CASE("ranks with --adasum train together and a single rank trains as without --adasum") {
  Trained trained(200);
  const Words plain = {"--batch-size", "20", "--max-steps", "20", "--log-steps", "--verbose", "0"};
  Words adaptive = plain;
  adaptive.push_back("--adasum");
  const auto alone = trained.Run(1, plain)["steps"],
             adaptive_alone = trained.Run(1, adaptive)["steps"];
  REQUIRE(adaptive_alone.size() == alone.size());
  for (size_t i = 0; i < alone.size(); ++i)
    CHECK(std::abs(adaptive_alone[i].get<double>() - alone[i].get<double>()) < 1e-4);

  for (const int ranks : {2, 4}) {
    const auto together = trained.Run(ranks, adaptive);
    REQUIRE(together["steps"].size() == 20);
    CHECK(together["steps"][19].get<double>() < 0.8 * together["steps"][0].get<double>());
    CHECK(trained.Run(ranks, adaptive)["parameter_digest"] == together["parameter_digest"]);
    CHECK(trained.Run(ranks, plain)["parameter_digest"] != together["parameter_digest"]);
  }
}

TEST_CASE("equal seeds give the same losses to the bit and other seeds do not") {
  Trained trained(200);
  const auto run = [&](const char* seed) {
    return trained.Run(
        2, {"--batch-size", "20", "--max-steps", "10", "--log-steps", "--seed", seed});
  };
  const auto first = run("3"), again = run("3"), other = run("4");
  CHECK(first["steps"] == again["steps"]);
  CHECK(first["parameter_digest"] == again["parameter_digest"]);
  CHECK(first["steps"] != other["steps"]);
}

TEST_CASE("with --deterministic 1 and 2 and 4 and 8 ranks have the same bits") {
  Trained trained(200);
  const Words options = {"--deterministic",     "--max-steps", "12",     "--log-steps",
                         "--global-batch-size", "48",          "--loop", GENERATE("fit", "custom")};
  const auto expected = trained.Run(1, options);
  REQUIRE(expected["steps"].size() == 12);
  for (int np : {2, 4, 8}) {
    const auto result = trained.Run(np, options);
    CHECK(result["steps"] == expected["steps"]);
    CHECK(result["parameter_digest"] == expected["parameter_digest"]);
    CHECK(result["test_accuracy"] == expected["test_accuracy"]);
  }
  CHECK_THAT(trained.out, Catch::Contains("deterministic: a tree of 8 parts of a global batch"));
}

TEST_CASE("a custom loop has the same curve as fit to the bit") {
  Trained trained(200);
  const auto run = [&](const char* loop) {
    return trained.Run(
        2, {"--loop", loop, "--global-batch-size", "48", "--epochs", "3", "--max-steps", "13",
            "--warmup-epochs", "1", "--log-steps"});
  };
  const auto fit = run("fit"), custom = run("custom");
  REQUIRE(fit["steps"].size() == 13);
  CHECK(fit["steps"] == custom["steps"]);
  CHECK(fit["parameter_digest"] == custom["parameter_digest"]);
  REQUIRE(custom["epochs"].size() == 3);
  for (size_t i = 0; i < 3; ++i)
    for (const char* name : {"loss", "train_accuracy", "test_loss", "test_accuracy"})
      CHECK(fit["epochs"][i][name] == custom["epochs"][i][name]);
}

// The curve of the last `count` epochs, without measured times.
nlohmann::json LastEpochs(const nlohmann::json& result, size_t count) {
  nlohmann::json curve;
  const auto& epochs = result["epochs"];
  REQUIRE(epochs.size() >= count);
  for (size_t i = epochs.size() - count; i < epochs.size(); ++i)
    for (const char* name : {"loss", "train_accuracy", "test_loss", "test_accuracy"})
      curve.push_back(epochs[i][name]);
  return curve;
}

TEST_CASE("a wrong bit in the gradients of one rank is found at the end, and the rank is named") {
  Trained trained(400);
  Command command = UnderDtrun(
      3, CnnFmnist(
             {"--data-dir", trained.folder(), "--batch-size", "8", "--network", "mlp",
              "--max-steps", "8"}));
  command.argv.insert(
      command.argv.begin() + 1, {"--inject", "corrupt bucket 0 of rank 1 at step 4"});
  const CommandResult result = testing::Run(command);
  CAPTURE(result.err);
  CHECK(result.exit_code == 76);
  CHECK(
      result.err.find("dtrun: --inject: corrupt bucket 0 of rank 1 at step 4\n") !=
      std::string::npos);
  const size_t line =
      result.err.find("the ranks hold different parameters: by digest, rank 0 has ");
  REQUIRE(line != std::string::npos);
  const std::string rest = result.err.substr(line, result.err.find('\n', line) - line);
  CHECK(rest.find(", rank 1 has ") != std::string::npos);
  CHECK(rest.find(", rank 2 has ") == std::string::npos);
  command.argv[2] = "corrupt bucket 900 of rank 1 at step 4";
  CHECK(
      testing::Run(command).err.find("--inject: there is no bucket 900 to corrupt in step 4\n") !=
      std::string::npos);
}

TEST_CASE("a job resumes after a killed rank with the same curve to the bit") {
  Trained trained(400);
  TemporaryFolder folder;
  Words options = {"--global-batch-size", "16", "--epochs", "20", "--verbose", "2"};
  const auto whole = trained.Run(2, options);
  options.insert(options.end(), {"--checkpoint-dir", folder / "saved", "--checkpoint-every", "3"});
  // Each rank prints its process ID on stderr and then becomes the program.
  std::string line = "echo $RANK $$ >&2; exec models/cnn_fmnist --threads 1 --data-dir " +
                     trained.folder() + " --json " + (folder / "none.json");
  for (const std::string& word : options) line += " " + word;
  Subprocess job(UnderDtrun(2, {"sh", "-c", line}));
  REQUIRE(job.WaitForLines(6 + 3));  // the heading and three epochs
  const size_t rank_1 = job.err().find("1 ");
  REQUIRE(rank_1 != std::string::npos);
  REQUIRE(kill(std::stoi(job.err().substr(rank_1 + 2)), SIGKILL) == 0);
  CHECK(job.Wait().exit_code == 137);

  options.push_back("--resume");
  const auto resumed = trained.Run(2, options);
  CHECK(resumed["parameter_digest"] == whole["parameter_digest"]);
  const size_t epochs = resumed["epochs"].size();
  CHECK(epochs < 20);
  CHECK(LastEpochs(resumed, epochs) == LastEpochs(whole, epochs));
}

TEST_CASE("2 ranks resume a checkpoint that 4 ranks wrote inside an epoch") {
  Trained trained(200);
  TemporaryFolder folder;
  const auto run = [&](int np, Words more) {
    more.insert(more.end(), {"--global-batch-size", "40", "--epochs", "6", "--cooldown", "0"});
    return trained.Run(np, more);
  };
  const auto whole = run(2, {});
  run(4, {"--checkpoint-dir", folder.path(), "--checkpoint-every", "4", "--max-steps", "12"});
  const auto resumed = run(2, {"--checkpoint-dir", folder.path(), "--resume"});
  const auto expected = LastEpochs(whole, 4), curve = LastEpochs(resumed, 4);
  REQUIRE(resumed["epochs"].size() == 4);
  for (size_t i = 0; i < curve.size(); ++i)
    CHECK(curve[i].get<double>() == Approx(expected[i].get<double>()).margin(0.02));
}

TEST_CASE("a full disk loses a checkpoint but not the training and gives exit code 73") {
  TemporaryFolder folder;
  WriteToySet(folder, 64);
  const std::string disk = folder / "disk";
  // Room for one checkpoint of 1.8 MB, not for two.
  const std::string line =
      "mkdir " + disk + " && mount -t tmpfs -o size=3m none " + disk +
      " && { launcher/dtrun -np 2 --tag none models/cnn_fmnist --threads 1 --batch-size 16 "
      "--epochs 3 --keep-checkpoints 0 --checkpoint-dir " +
      disk + "/saved --data-dir " + folder.path() + "; code=$?; ls " + disk +
      "/saved; exit $code; }";
  const CommandResult result = Run({.argv = {"unshare", "-m", "sh", "-c", line}});
  INFO(result.out << result.err);
  CHECK(result.exit_code == 73);
  CHECK_THAT(result.out, Catch::Contains("Epoch 3/3: ") && Catch::Contains("Test: loss "));
  CHECK_THAT(result.out, Catch::Contains("\nckpt_2\n") && !Catch::Contains("ckpt_4"));
  CHECK_THAT(result.err, Catch::Contains("No space left on device"));
}

TEST_CASE("a loss that is not a number ends all ranks with one line and exit code 65") {
  TemporaryFolder folder;
  WriteToySet(folder, 64);
  const std::string loop = GENERATE("fit", "custom");
  const CommandResult result = Run(UnderDtrun(
      2, CnnFmnist(
             {"--data-dir", folder.path(), "--batch-size", "16", "--optimizer", "sgd",
              "--learning-rate", "900", "--momentum", "0.9", "--loop", loop})));
  INFO(result.out << result.err);
  CHECK(result.exit_code == 65);
  REQUIRE(ErrorLines(result).size() == 1);
  CHECK_THAT(ErrorLines(result)[0], Catch::Contains("the loss") && Catch::Contains("diverged"));
}

TEST_CASE(
    "training stops early if the test loss does not improve and writes TensorBoard files and a "
    "report") {
  Trained trained(64);
  TemporaryFolder folder;
  const auto result = trained.Run(
      2, {"--batch-size", "16", "--epochs", "100", "--learning-rate", "0.01", "--early-stopping",
          "2", "--tensorboard", folder / "logs", "--report", folder / "run.html"});
  CHECK(result["epochs"].size() < 100);
  CHECK_THAT(trained.out, Catch::Contains("EarlyStopping: val_loss has not improved for 2 epochs"));
  CHECK(std::filesystem::exists(folder / "logs/train"));
  CHECK(std::filesystem::exists(folder / "logs/validation"));
  for (const auto& entry : std::filesystem::directory_iterator(folder / "logs")) {
    if (!entry.is_regular_file()) continue;
    const std::string session = ReadText(entry.path());
    CHECK_THAT(session, Catch::Contains("_hparams_/session_end_info"));
    CHECK_THAT(session, Catch::Contains("    models/cnn_fmnist --threads 1 --batch-size 16 "));
  }
  const std::string page = ReadText(folder / "run.html");
  CHECK_THAT(page, Catch::Contains("cnn_fmnist on 2 ranks"));
  CHECK_THAT(page, Catch::Contains(result["parameter_digest"].get<std::string>()));
}

// What the page says under `name`.
std::string FactOf(const std::string& page, const std::string& name) {
  const std::string before = "<dt>" + name + "</dt><dd>";
  const size_t begin = page.find(before);
  if (begin == std::string::npos) return "not there";
  return page.substr(begin + before.size(), page.find("</dd>", begin) - begin - before.size());
}

TEST_CASE(
    "the page of a run says when, where, by which command and which dtrun, and its accuracy once") {
  Trained trained(64);
  TemporaryFolder folder;
  const std::string file = folder / "the run.html";
  const auto result = trained.Run(2, {"--batch-size", "16", "--max-steps", "3", "--report", file});
  const std::string page = ReadText(file);
  char percent[32], host[256] = {};
  std::snprintf(percent, sizeof percent, "%.2f %%", 100 * result["test_accuracy"].get<double>());
  CHECK(FactOf(page, "test accuracy") == percent);
  REQUIRE(gethostname(host, sizeof host - 1) == 0);
  CHECK(FactOf(page, "hosts") == std::string(host) + " (2 ranks)");
  CHECK_THAT(
      FactOf(page, "command"),
      Catch::EndsWith(
          "/cnn_fmnist --threads 1 --batch-size 16 --max-steps 3 --report '" + file +
          "' --data-dir " + trained.folder() + " --json " + trained.folder() + "/result.json"));
  const CommandResult version = Run({.argv = {"models/cnn_fmnist", "--version"}});
  CHECK("cnn_fmnist " + FactOf(page, "dtrun") + "\n" == version.out);
  CHECK(std::regex_match(
      FactOf(page, "finished"),
      std::regex("20\\d\\d-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d [+-]\\d{4} \\(.+\\)")));
}

TEST_CASE("a saved model says what made it, and its weights do not depend on when") {
  Trained trained(64);
  TemporaryFolder folder;
  const Words options = {"--network", "mlp",    "--batch-size",  "16", "--epochs", "2", "--seed",
                         "5",         "--save", folder / "model"};
  const auto result = trained.Run(2, options);
  const auto read = [&] { return ReadJson(folder / "model/model.json"); };
  auto metadata = read()["metadata"];
  CHECK(std::regex_match(
      metadata["date"].get<std::string>(),
      std::regex("20\\d\\d-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ")));
  CHECK_THAT(metadata["command"].get<std::string>(), Catch::Contains("--network mlp "));
  CHECK(std::stod(metadata["test_accuracy"].get<std::string>()) == result["test_accuracy"]);
  CHECK(std::stod(metadata["test_loss"].get<std::string>()) == result["test_loss"]);
  CHECK(metadata["parameters"] == result["parameter_digest"]);
  CHECK(!metadata["dtrun"].get<std::string>().empty());
  const nlohmann::json expected = {
      {"program", "cnn_fmnist"},
      {"data", trained.folder()},
      {"network", "mlp"},
      {"strategy", "multi_worker_mirrored"},
      {"ranks", "2"},
      {"optimizer", "adam"},
      {"learning_rate", "0.001"},
      {"dtype", "f32"},
      {"seed", "5"},
      {"global_batch", "32"},
      {"epochs", "2"},
      {"steps", "4"}};
  for (const auto& [name, value] : expected.items()) CHECK(metadata[name] == value);

  const std::string weights = ReadText(folder / "model/weights-1.safetensors");
  std::filesystem::remove_all(folder / "model");
  trained.Run(2, options);
  CHECK(ReadText(folder / "model/weights-1.safetensors") == weights);
  auto again = read()["metadata"];
  for (auto* of : {&again, &metadata}) of->erase("date");
  CHECK(again == metadata);
}

std::vector<float> GradientOf(int np, const TemporaryFolder& folder) {
  const std::string file = folder / "gradient";
  const CommandResult result = Run(UnderDtrun(np, {"tests/models/programs/step_gradient", file}));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string bytes = ReadText(file);
  std::vector<float> gradient(bytes.size() / sizeof(float));
  std::memcpy(gradient.data(), bytes.data(), bytes.size());
  return gradient;
}

TEST_CASE("1 to 4 ranks have the same gradient of network C with dropout") {
  TemporaryFolder folder;
  const std::vector<float> expected = GradientOf(1, folder);
  REQUIRE(expected.size() == 1199882);
  for (int np : {2, 3, 4}) {
    const std::vector<float> gradient = GradientOf(np, folder);
    REQUIRE(gradient.size() == expected.size());
    double difference = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(double(gradient[i]) - double(expected[i]), 2);
      norm += double(expected[i]) * double(expected[i]);
    }
    CHECK(std::sqrt(difference / norm) < 1e-6);
  }
}

TEST_CASE("rank 0 prints the setup and then a line per epoch and then the result") {
  Trained trained(64);
  trained.Run(2, {"--epochs", "2", "--batch-size", "16"});
  CHECK(CountLines(trained.out) == 9);
  for (const char* part :
       {"Replicas    2 on ", "Reduction   CPU, backend shm", "threads per rank: 1",
        "64 training and 64 test images, 12x12, 4 classes", "dense 4: ", "global batch 32",
        "Epoch 1/2: loss ", "Epoch 2/2: loss ", "Test: loss ", " on all 2 ranks\n"}) {
    INFO(trained.out);
    CHECK(trained.out.find(part) != std::string::npos);
  }
}

TEST_CASE("every network trains and its saved model predicts with the same accuracy") {
  Trained trained(64);
  TemporaryFolder folder;
  const std::string network = GENERATE("A", "B", "C", "D", "mlp");
  const auto result = trained.Run(
      2, {"--network", network, "--batch-size", "16", "--max-steps", "6", "--save",
          folder / "model", "--export-onnx", folder / "model.onnx"});
  CHECK(std::filesystem::file_size(folder / "model.onnx") > 1000);
  const CommandResult predicted = Run(
      {.argv = {
           "models/predict", folder / "model", "--threads", "1", "--data-dir", trained.folder(),
           "--json", folder / "predicted.json"}});
  INFO(network << predicted.err);
  REQUIRE(predicted.exit_code == 0);
  const auto told = ReadJson(folder / "predicted.json");
  CHECK(told["accuracy"] == result["test_accuracy"]);
  CHECK(told["loss"].get<double>() == Approx(result["test_loss"].get<double>()));
}

TEST_CASE("help is printed once and documents the defaults") {
  const CommandResult result = Run(UnderDtrun(2, CnnFmnist({"--help"})));
  CHECK(result.exit_code == 0);
  const size_t first = result.out.find("--batch-size");
  CHECK(first != std::string::npos);
  CHECK(result.out.find("\nUsage: ") == result.out.rfind("\nUsage: "));
  CHECK(result.out.find("[1024]") != std::string::npos);
  for (const char* group :
       {"Network and batches:", "Optimizer:", "Training loop:", "Results:", "Data and machine:"})
    CHECK_THAT(result.out, Catch::Contains(group));
}

TEST_CASE("bash completes the options, values, folders and files of cnn_fmnist") {
  TemporaryFolder folder;
  const CommandResult script = Run({.argv = {"models/cnn_fmnist", "--completion"}});
  REQUIRE(script.exit_code == 0);
  CHECK(Run({.argv = {"bash", "-n", folder.Write("cnn_fmnist.bash", script.out)}}).exit_code == 0);
  folder.Write("result.json", "{}");
  std::filesystem::create_directory(folder / "results");
  const auto complete = [&](const std::string& line) {
    return CompletedLine(folder.path(), "source cnn_fmnist.bash", line);
  };
  CHECK(complete("cnn_fmnist --warm") == "cnn_fmnist --warmup-epochs --warmup-steps ");
  CHECK(complete("cnn_fmnist --no-t") == "cnn_fmnist --no-tf32 ");
  CHECK(complete("cnn_fmnist --dtype b") == "cnn_fmnist --dtype bf16 ");
  CHECK(complete("cnn_fmnist --dtype=b") == "cnn_fmnist --dtype=bf16 ");
  CHECK(complete("cnn_fmnist --network ") == "cnn_fmnist --network A B C D mlp ");
  CHECK(complete("cnn_fmnist --verbose=") == "cnn_fmnist --verbose=0 1 2 ");
  CHECK(complete("cnn_fmnist --device cu") == "cnn_fmnist --device cuda ");
  CHECK(complete("cnn_fmnist --strategy central") == "cnn_fmnist --strategy central_storage ");
  CHECK(complete("cnn_fmnist --save r") == "cnn_fmnist --save results ");
  CHECK(complete("cnn_fmnist --json r") == "cnn_fmnist --json result.json results ");
  CHECK(complete("cnn_fmnist --epochs r") == "cnn_fmnist --epochs r");
  CHECK(complete("cnn_fmnist --deterministic --adas") == "cnn_fmnist --deterministic --adasum ");
}

// Runs two ranks with `options`. They must end with `exit_code` and print `line` once.
void CheckRefused(const Words& options, int exit_code, const std::string& line) {
  const CommandResult result = Run(UnderDtrun(2, CnnFmnist(options)));
  INFO(result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(ErrorLines(result) == Words{line});
  CHECK(result.out == "");
}

TEST_CASE("an invalid command line is one line and exit code 2") {
  CheckRefused({"--bogus"}, 2, "unknown option --bogus (see --help)");
  CheckRefused({"--epoch", "1"}, 2, "unknown option --epoch; did you mean --epochs? (see --help)");
  CheckRefused({"1", "2"}, 2, "unexpected argument '1' (see --help)");
  CheckRefused(
      {"--epochs", "x"}, 2, "--epochs: 'x', expected an integer from 1 to 1000000 (see --help)");
  CheckRefused(
      {"--optimizer", "newton"}, 2,
      "--optimizer: 'newton', expected sgd, adam, adamw, lars, lamb or muon (see --help)");
  CheckRefused(
      {"--network", "vgg"}, 2, "--network: 'vgg', expected A, B, C, D or mlp (see --help)");
  CheckRefused({"--resume"}, 2, "--resume: expected with --checkpoint-dir DIR (see --help)");
  CheckRefused(
      {"--loop", "custom", "--early-stopping", "2"}, 2,
      "--early-stopping: given with --loop custom, expected --loop fit (see --help)");
  CheckRefused(
      {"--momentum", "0.9"}, 2,
      "momentum: given with optimizer adam, which has learning_rate, beta1, beta2, epsilon");
}

TEST_CASE("unusable data is one line with the file's name and exit code 66") {
  TemporaryFolder folder;
  CheckRefused(
      {"--data-dir", folder.path()}, 66,
      folder /
          "train-images-idx3-ubyte: not found: the folder has neither this file nor this file "
          "with .gz");
  WriteToySet(folder, 20);
  WriteFile(folder / "train-labels-idx1-ubyte.gz", Idx({3}, {0, 1, 2}));
  CheckRefused(
      {"--data-dir", folder.path()}, 66,
      folder / "train-labels-idx1-ubyte.gz: 3 labels, expected 20 as there are images in " +
          (folder / "train-images-idx3-ubyte"));
}

TEST_CASE("images too small for the network are refused with the layer's name") {
  TemporaryFolder folder;
  for (const char* split : {"train", "t10k"}) {
    WriteFile(folder / (std::string(split) + "-images-idx3-ubyte"), Idx({2, 4, 4}, Bytes(32)));
    WriteFile(folder / (std::string(split) + "-labels-idx1-ubyte"), Idx({2}, {0, 1}));
  }
  CheckRefused(
      {"--data-dir", folder.path(), "--batch-size", "1"}, 66,
      folder.path() + ": layer 1 (conv2d 64 3x3 relu) needs an input of at least 3x3, got 2x2x32");
}

TEST_CASE("a batch larger than the data set is refused with both sizes") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  CheckRefused(
      {"--data-dir", folder.path(), "--batch-size", "16"}, 2,
      "--batch-size 16 on 2 ranks: the global batch of 32 is larger than the data set, expected at "
      "most its 20 training images in " +
          folder.path());
  CheckRefused(
      {"--data-dir", folder.path(), "--global-batch-size", "1"}, 2,
      "--global-batch-size 1: expected at least 1 example for each of the 2 ranks");
  CheckRefused(
      {"--data-dir", folder.path(), "--batch-size", "5", "--steps-per-epoch", "3"}, 2,
      "--steps-per-epoch 3: expected at most 2, as many global batches of 10 as there are in 20 "
      "training images");
}

TEST_CASE("an invalid number of parts of a deterministic sum is refused") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const Words options = {"--data-dir", folder.path(), "--batch-size", "4", "--deterministic"};
  const auto with = [&](const char* parts) {
    Words all = options;
    all.push_back(parts);
    return all;
  };
  CheckRefused(
      with("6"), 2, "--deterministic: a deterministic sum of 6 parts: expected a power of two");
  CheckRefused(
      with("1"), 2,
      "--deterministic: a deterministic sum of 1 parts on 2 ranks: expected a power of two, at "
      "most 1");
}

TEST_CASE("options that conflict with --adasum are refused") {
  TemporaryFolder folder;
  WriteToySet(folder, 24);
  const Words options = {"--data-dir", folder.path(), "--batch-size", "4", "--adasum"};
  const auto with = [&](const Words& more) {
    Words all = options;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  CheckRefused(
      with({"--deterministic", "8"}), 2,
      "--deterministic: given with --adasum, which sums no gradients (see --help)");
  CheckRefused(
      with({"--strategy", "central_storage"}), 2,
      "--adasum: given with --strategy central_storage, which has one optimizer");
  const CommandResult result = Run(UnderDtrun(3, CnnFmnist(options)));
  CHECK(result.exit_code == 2);
  CHECK(ErrorLines(result) == Words{"--adasum: on 3 ranks, expected 1, 2, 4, 8 or so"});
}

TEST_CASE("an output file that cannot be written is exit code 73 before training") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const std::string file = folder / "none/result.json";
  CheckRefused(
      {"--data-dir", folder.path(), "--batch-size", "4", "--json", file}, 73,
      "rank 0 (host localhost): --json: " + file +
          ": cannot be written: No such file or directory");
  const std::string taken = folder.Write("taken", "");
  CheckRefused(
      {"--data-dir", folder.path(), "--batch-size", "4", "--save", taken + "/model"}, 73,
      "rank 0 (host localhost): --save: " + taken + "/model: cannot be made: Not a directory");
  CheckRefused(
      {"--data-dir", folder.path(), "--batch-size", "4", "--export-onnx", file}, 73,
      "rank 0 (host localhost): --export-onnx: " + file +
          ": cannot be written: No such file or directory");
}

// Runs three ranks with `common` options. Rank 1 adds `of_rank_1`, the others add `of_others`.
CommandResult RunWithOtherRank1(
    const std::string& common, const std::string& of_rank_1, const std::string& of_others) {
  return Run(UnderDtrun(
      3, {"sh", "-c",
          "own='" + of_others + "'; [ $OMPI_COMM_WORLD_RANK = 1 ] && own='" + of_rank_1 +
              "'; exec models/cnn_fmnist --threads 1 --batch-size 4 " + common + " $own"}));
}

TEST_CASE("a rank with another data folder than its host is named and no rank hangs") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const CommandResult result =
      RunWithOtherRank1("", "--data-dir /none", "--data-dir " + folder.path());
  CHECK(
      ErrorLines(result) == Words{
                                "rank 1 (host localhost): the data set in /none, expected " +
                                folder.path() + " as rank 0 of the same host has"});
  CHECK(result.exit_code == 76);
}

TEST_CASE("a rank that stalls while it reads data is not reported as damaged data") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const CommandResult result = Run(UnderDtrun(
      2, {"--stall-timeout", "4", "sh", "-c",
          "program=models/cnn_fmnist; [ $RANK = 1 ] && program=tests/models/programs/"
          "stalled_reader; exec $program --threads 1 --batch-size 4 --data-dir " +
              folder.path()}));
  CAPTURE(result.err);
  CHECK_THAT(result.err, Catch::Contains("waits for rank 1 to call it"));
  CHECK(result.exit_code == 76);
}

// Depending on the machine, memory runs out in Init, while the data is read, or later.
TEST_CASE("a lack of memory is never reported as damaged data") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  int lacked = 0;
  for (int kilobytes = 68'000; kilobytes <= 104'000; kilobytes += 4'000) {
    Command command = UnderDtrun(
        2, {"sh", "-c",
            "ulimit -v " + std::to_string(kilobytes) +
                "; exec models/cnn_fmnist --threads 1 --max-steps 1 --batch-size 4 "
                "--data-dir " +
                folder.path()});
    command.argv.insert(command.argv.begin() + 1, {"--launcher", "local"});
    const CommandResult result = Run(command);
    CAPTURE(kilobytes, result.err);
    CHECK(result.exit_code != 66);
    if (result.exit_code == 70) ++lacked;
  }
  CHECK(lacked > 0);
}

TEST_CASE("ranks started with different settings are an error that shows both settings") {
  TemporaryFolder folder;
  WriteToySet(folder, 20);
  const CommandResult result = RunWithOtherRank1("--data-dir " + folder.path(), "--seed 5", "");
  CHECK(
      ErrorLines(result) == Words{"the ranks were started differently: rank 0 has --seed=1, rank 1 "
                                  "(host localhost) has --seed=5"});
  CHECK(result.exit_code == 76);
}

}  // namespace
}  // namespace dtrun::testing
