// Event files, as TensorBoard reads them.

#include <dtrun/error.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "models/formats/tensorboard/events.h"
#include "models/formats/tensorboard/summary_writer.h"
#include "models/networks/network.h"
#include "tests/support/json.h"
#include "tests/support/python.h"
#include "tests/support/text.h"

namespace dtrun::models {
namespace {

using nlohmann::json;
using testing::ParseJson;
using testing::ReadText;
using testing::TemporaryFolder;

// The content that TensorBoard reads below `folder`, by run.
json Read(const std::string& folder) {
  const auto result = testing::RunPython({"tests/models/formats/read_events.py", folder});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return ParseJson(result.out);
}

TEST_CASE("Crc32c computes Castagnoli's checksum") {
  CHECK(Crc32c("") == 0);
  CHECK(Crc32c("123456789") == 0xe3069283);            // the polynomial's check value
  CHECK(Crc32c(std::string(32, '\0')) == 0x8a9136aa);  // RFC 3720, B.4
}

TEST_CASE("TensorBoard reads the scalars of each run with their steps") {
  if (testing::PythonIsMissing()) return;
  TemporaryFolder folder;
  {
    SummaryWriter train(folder.path() + "/train"), validation(folder.path() + "/validation");
    for (int epoch = 0; epoch < 3; ++epoch) {
      train.Scalar("epoch_loss", 0.5 / (epoch + 1), epoch);
      validation.Scalar("epoch_accuracy", 0.25 * epoch, epoch);
    }
    train.Scalar("epoch_learning_rate", 1e-3, int64_t{1} << 40);
  }
  const json runs = Read(folder.path());
  REQUIRE(runs.size() == 2);
  CHECK(runs["train"]["version"] == 2);
  CHECK(runs["train"]["shown"]["scalars"] == json{"epoch_learning_rate", "epoch_loss"});
  const json losses = runs["train"]["scalars"]["epoch_loss"];
  REQUIRE(losses.size() == 3);
  for (int epoch = 0; epoch < 3; ++epoch) {
    CHECK(losses[size_t(epoch)][0] == epoch);
    CHECK(losses[size_t(epoch)][1].get<double>() == double(0.5f / float(epoch + 1)));
  }
  CHECK(runs["train"]["scalars"]["epoch_learning_rate"][0][0] == int64_t{1} << 40);
  CHECK(runs["validation"]["scalars"]["epoch_accuracy"] == json({{0, 0.0}, {1, 0.25}, {2, 0.5}}));
}

TEST_CASE("TensorBoard reads histograms and texts and images") {
  if (testing::PythonIsMissing()) return;
  TemporaryFolder folder;
  std::vector<float> values;
  for (int i = 0; i <= 3000; ++i) values.push_back(float(i) / 1000);
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> same(7, -2.5f);
  const std::vector<uint8_t> pixels(6 * 4 * 3, 200);
  {
    SummaryWriter writer(folder.path());
    writer.Histogram("kernel/histogram", values, 5);
    writer.Histogram("bias/histogram", same, 5);
    writer.Histogram("nothing/histogram", {}, 5);
    writer.Text("command", "cnn_fmnist **--epochs 8** ä", 0);
    writer.Image("examples", 4, 6, 3, pixels, 2);
  }
  const json run = Read(folder.path())["."];
  const json kernel = run["histograms"]["kernel/histogram"][0];
  CHECK(kernel["step"] == 5);
  CHECK(kernel["min"] == 0.0);
  CHECK(kernel["max"] == 3.0);
  CHECK(kernel["num"] == 3001);
  CHECK(kernel["sum"].get<double>() == Approx(4501.5));
  CHECK(kernel["sum_squares"].get<double>() == Approx(9004.5005));
  REQUIRE(kernel["limits"].size() == 30);
  CHECK(kernel["limits"][0].get<double>() == Approx(0.1));
  double counted = 0;
  for (const json& count : kernel["counts"]) {
    CHECK(std::abs(count.get<double>() - 100) <= 1);
    counted += count.get<double>();
  }
  CHECK(counted == 3001);
  const json bias = run["histograms"]["bias/histogram"][0];
  CHECK(bias["limits"] == json{-2.5});
  CHECK(bias["counts"] == json{7.0});
  CHECK(run["histograms"]["nothing/histogram"][0]["num"] == 0);
  CHECK(run["texts"]["command"] == json({{0, "cnn_fmnist **--epochs 8** ä"}}));
  CHECK(run["images"]["examples"] == json({{2, 6, 4}}));
  CHECK(run["shown"]["histograms"].size() == 3);
  CHECK(run["shown"]["text"] == json{"command"});
  CHECK(run["shown"]["images"] == json{"examples"});
}

TEST_CASE("TensorBoard's HParams plugin shows what a run was started with and how it ended") {
  if (testing::PythonIsMissing()) return;
  TemporaryFolder folder;
  const auto write = [&](const std::string& run, double rate, bool overlap) {
    const std::string place = folder.path() + "/" + run;
    SummaryWriter session(place);
    session.BeginSession(
        {{"optimizer", "adam"}, {"learning_rate", rate}, {"overlap", overlap}},
        {"hparam/loss", "hparam/val_loss"});
    for (int epoch = 0; epoch < 3; ++epoch)
      session.Scalar("hparam/loss", rate / (epoch + 1), epoch);
    if (run == "first") session.EndSession(SessionStatus::kSuccess);
    if (run == "second") session.EndSession(SessionStatus::kFailure);
  };
  write("first", 0.75, true);
  write("second", 0.375, false);
  write("third", 1e-3, false);
  const json runs = Read(folder.path());
  const json first = runs["first"]["session"];
  CHECK(first["status"] == "STATUS_SUCCESS");
  CHECK(
      first["hparams"] == json{{"optimizer", "adam"}, {"learning_rate", 0.75}, {"overlap", true}});
  CHECK(first["metrics"] == json{{"hparam/loss", 0.25}});  // of the last epoch
  CHECK(first["seconds"] >= 0);
  const json second = runs["second"]["session"];
  CHECK(second["status"] == "STATUS_FAILURE");
  CHECK(second["hparams"]["learning_rate"] == 0.375);
  CHECK(second["hparams"]["overlap"] == false);
  CHECK(runs["third"]["session"]["status"] == "STATUS_UNKNOWN");  // killed, or still running
}

TEST_CASE("TensorBoard reads the graph of a network layer by layer") {
  if (testing::PythonIsMissing()) return;
  TemporaryFolder folder;
  const Sequential model({28, 28, 1}, NetworkC(10), {});
  {
    SummaryWriter writer(folder.path());
    writer.Graph(GraphOf(model.input_shape(), model.layers()));
  }
  const json nodes = Read(folder.path())["."]["graph"];
  std::map<std::string, json> by_name;
  for (const json& node : nodes) by_name[node["name"]] = node;
  REQUIRE(by_name.size() == nodes.size());
  for (const json& node : nodes) {
    for (const json& input : node["input"]) CHECK(by_name.count(input) == 1);
  }
  CHECK(by_name["input"]["op"] == "Placeholder");
  CHECK(
      by_name["layer0_conv2d/conv2d"]["input"] ==
      json{"input", "layer0_conv2d/kernel", "layer0_conv2d/bias"});
  CHECK(
      by_name["layer0_conv2d/conv2d"]["attributes"] ==
      json{
          "_output_shapes", "activation", "filters", "kernel_initializer", "kernel_l2",
          "kernel_size", "padding", "strides", "use_bias"});
  CHECK(by_name["layer1_conv2d/conv2d"]["input"][0] == "layer0_conv2d/relu");
  CHECK(by_name["layer6_dense/dense"]["input"][0] == "layer5_dropout/dropout");
}

TEST_CASE("every parameter of a network has a histogram") {
  if (testing::PythonIsMissing()) return;
  TemporaryFolder folder;
  Sequential model({6, 6, 1}, Layers(Conv2D(2, 3), Dense(3)), {});
  {
    SummaryWriter writer(folder.path());
    WriteHistograms(model.parameters(), 4, writer);
  }
  const json histograms = Read(folder.path())["."]["histograms"];
  REQUIRE(histograms.size() == 4);
  CHECK(histograms["layer0.conv2d.kernel/histogram"][0]["num"] == 18);
  CHECK(histograms["layer1.dense.bias/histogram"][0]["step"] == 4);
}

TEST_CASE("TensorBoard reads flushed records while the writer continues") {
  if (testing::PythonIsMissing()) return;
  TemporaryFolder folder;
  SummaryWriter writer(folder.path(), {.flush_seconds = 1e6});
  writer.Scalar("loss", 1, 0);
  writer.Flush();
  CHECK(Read(folder.path())["."]["scalars"]["loss"] == json({{0, 1.0}}));
  writer.Scalar("loss", 2, 1);
  // A reader also accepts an unfinished record at the end of the file.
  std::ofstream(writer.path(), std::ios::app) << "begun";
  CHECK(Read(folder.path())["."]["scalars"]["loss"].size() == 1);
}

TEST_CASE("several threads write into one file without losing records") {
  if (testing::PythonIsMissing()) return;
  TemporaryFolder folder;
  {
    SummaryWriter writer(folder.path(), {.flush_seconds = 0});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&writer, t] {
        for (int i = 0; i < 250; ++i) writer.Scalar("thread" + std::to_string(t), i, i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const json run = Read(folder.path())["."];
  for (int t = 0; t < 4; ++t) {
    const json values = run["scalars"]["thread" + std::to_string(t)];
    REQUIRE(values.size() == 250);
    for (int i = 0; i < 250; ++i) CHECK(values[size_t(i)] == json{i, double(i)});
  }
}

TEST_CASE("two writers in one folder write separate files") {
  TemporaryFolder folder;
  const SummaryWriter one(folder.path()), other(folder.path());
  CHECK(one.path() != other.path());
  CHECK(folder.Entries().size() == 2);
}

TEST_CASE("an event folder that cannot be created is reported with the reason") {
  TemporaryFolder folder;
  const std::string file = folder.Write("file", "");
  CHECK_THROWS_WITH(SummaryWriter(file + "/logs"), file + "/logs: cannot be made: Not a directory");
}

// Limits the files that this process writes to `bytes` bytes each.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_CASE("after a failed write the file ends with a whole record and Flush reports the error") {
  TemporaryFolder folder;
  SummaryWriter writer(folder.path());
  writer.Scalar("loss", 1, 0);
  writer.Flush();
  const std::string before = ReadText(writer.path());
  {
    const FileSizeLimit limit(before.size() + 10);
    for (int i = 0; i < 100; ++i) writer.Scalar("loss", 2, i);
    const std::string problem = writer.path() + ": cannot be written: File too large";
    CHECK_THROWS_WITH(writer.Flush(), problem);
    CHECK_THROWS_WITH(writer.Flush(), problem);
  }
  writer.Scalar("loss", 3, 101);
  CHECK_THROWS_AS(writer.Flush(), Error);
  CHECK(ReadText(writer.path()) == before);
}

TEST_CASE("an image with the wrong number of pixel values is refused") {
  TemporaryFolder folder;
  SummaryWriter writer(folder.path());
  const std::vector<uint8_t> pixels(11);
  CHECK_THROWS_WITH(
      writer.Image("image", 3, 4, 1, pixels, 0), "an image of 3x4x1 with 11 values, expected 12");
  CHECK_THROWS_WITH(
      writer.Image("image", 3, 4, 2, pixels, 0),
      "an image of 3x4x2, expected sides from 1 to 32768 and 1 or 3 channels");
}

}  // namespace
}  // namespace dtrun::models
