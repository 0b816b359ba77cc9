// Checkpoints as a trainer uses them. Ranks are threads, and files are real.

#include <dtrun/checkpoint.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>
#include <utility>

#include "tests/runtime/sharded_ranks.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

namespace fs = std::filesystem;

// A model with one large tensor and some small tensors. The values depend on `seed`.
struct Model {
  explicit Model(float seed = 0) : kernel(700'000), bias(5), steps(1) { Fill(seed); }
  void Fill(float seed) {
    std::iota(kernel.begin(), kernel.end(), seed);
    std::iota(bias.begin(), bias.end(), -seed);
    steps[0] = static_cast<int64_t>(seed);
  }
  std::vector<NamedTensor> tensors() {
    return {
        {"conv/kernel", Buffer(kernel.data(), kernel.size()), {7, 100'000}},
        {"conv/bias", Buffer(bias.data(), bias.size())},
        {"nothing", Buffer(nullptr, 0, DType::kF16), {0, 3}},
        {"steps", Buffer(steps.data(), 1), {}}};
  }
  bool operator==(const Model&) const = default;

  std::vector<float> kernel;
  std::vector<double> bias;
  std::vector<int64_t> steps;
};

template <typename Call>
std::string ErrorOf(const Call& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<std::string> NamesOf(const std::vector<Checkpoint>& checkpoints) {
  std::vector<std::string> names;
  for (const Checkpoint& each : checkpoints) names.push_back(each.name);
  return names;
}

TEST_CASE("a checkpoint can be loaded by another number of ranks than saved it") {
  const auto [savers, loaders] = GENERATE(std::pair(1, 2), std::pair(4, 2), std::pair(3, 5));
  const bool sharded = GENERATE(false, true);
  const bool background = GENERATE(false, true);
  CAPTURE(savers, loaders, sharded, background);
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/new/checkpoints";
  const CheckpointOptions options = {.sharded = sharded};
  CHECK(OnRanks(savers, Backend::kShm, [&](Communicator& world) {
          CheckpointManager checkpoints(world, path, options);
          Model model(7);
          const SaveOptions what = {
              .step = 12, .value = 0.5, .metadata = {{"epoch", "3"}, {"note", "a\nb \"ü\""}}};
          if (background) {
            checkpoints.StartSave(what, model.tensors());
            model.Fill(8);  // the next step changes the values
            checkpoints.Wait();
          } else {
            checkpoints.Save(what, model.tensors());
          }
        }) == Nothing(savers));
  CHECK(
      OnRanks(loaders, Backend::kShm, [&](Communicator& world) {
        CheckpointManager checkpoints(world, path, options);
        Model model;
        const Loaded loaded = checkpoints.Load(model.tensors());
        Expect(loaded.checkpoint.has_value(), "loaded");
        Expect(model == Model(7), "the same tensors");
        Expect(loaded.refused.empty(), "nothing refused");
        const Checkpoint& checkpoint = *loaded.checkpoint;
        Expect(checkpoint.name == "ckpt_12" && checkpoint.step == 12, "name and step");
        Expect(checkpoint.path == path + "/ckpt_12", "path");
        Expect(checkpoint.value == 0.5, "value");
        Expect(checkpoint.metadata == Metadata{{"epoch", "3"}, {"note", "a\nb \"ü\""}}, "metadata");
      }) == Nothing(loaders));
  CHECK(fs::read_symlink(path + "/latest") == "ckpt_12");
  CHECK(fs::exists(path + "/latest/model.safetensors") == (!sharded || savers == 1));
}

TEST_CASE("a load from an empty folder finds no checkpoint and changes no values") {
  const TemporaryFolder folder;
  CHECK(OnRanks(2, Backend::kShm, [&](Communicator& world) {
          CheckpointManager checkpoints(world, folder.path());
          Model model(1);
          Expect(!checkpoints.Load(model.tensors()).checkpoint, "none");
          Expect(model == Model(1), "untouched");
          Expect(checkpoints.List().empty(), "an empty list");
        }) == Nothing(2));
}

TEST_CASE("the last checkpoints and the best checkpoint are kept") {
  const TemporaryFolder folder;
  const auto save = [&](Best best, const std::vector<double>& values) {
    CHECK(OnRanks(2, Backend::kShm, [&](Communicator& world) {
            CheckpointManager checkpoints(world, folder.path(), {.max_to_keep = 2, .best = best});
            uint64_t step = 0;
            for (const double value : values) {
              Model model(static_cast<float>(++step));
              checkpoints.Save({.step = step, .value = value}, model.tensors());
            }
          }) == Nothing(2));
  };
  save(Best::kHighest, {0.1, 0.7, 0.6, 0.5, 0.4});
  CHECK(folder.Entries() == Texts{".lock", "best", "ckpt_2", "ckpt_4", "ckpt_5", "latest"});
  CHECK(fs::read_symlink(folder.path() + "/latest") == "ckpt_5");
  CHECK(fs::read_symlink(folder.path() + "/best") == "ckpt_2");
  CHECK(OnRanks(2, Backend::kShm, [&](Communicator& world) {
          CheckpointManager checkpoints(world, folder.path(), {.best = Best::kHighest});
          Model model;
          Expect(checkpoints.Load(model.tensors(), {.best = true}).checkpoint->step == 2, "best");
          Expect(model == Model(2), "the best one's tensors");
          Expect(checkpoints.Load(model.tensors()).checkpoint->step == 5, "newest");
          Expect(
              checkpoints.Load(model.tensors(), {.name = "ckpt_4"}).checkpoint->step == 4,
              "by name");
          Expect(NamesOf(checkpoints.List()) == Texts{"ckpt_2", "ckpt_4", "ckpt_5"}, "list");
        }) == Nothing(2));
  save(Best::kLowest, {0.3});  // ckpt_1 becomes the newest and the best
  CHECK(fs::read_symlink(folder.path() + "/best") == "ckpt_1");
  CHECK(folder.Entries() == Texts{".lock", "best", "ckpt_1", "ckpt_5", "latest"});
}

TEST_CASE("a new checkpoint replaces one with the same name and becomes the newest") {
  const TemporaryFolder folder;
  CHECK(OnRanks(1, Backend::kShm, [&](Communicator& world) {
          CheckpointManager checkpoints(world, folder.path());
          for (const float seed : {1.0F, 2.0F, 3.0F}) {
            Model model(seed);
            const std::string name = seed == 2.0F ? "other" : "backup";
            checkpoints.Save({.step = static_cast<uint64_t>(seed), .name = name}, model.tensors());
          }
          Model model;
          const Loaded loaded = checkpoints.Load(model.tensors());
          Expect(loaded.checkpoint->name == "backup" && loaded.checkpoint->step == 3, "newest");
          Expect(model == Model(3), "its tensors");
        }) == Nothing(1));
  CHECK(folder.Entries() == Texts{".lock", "backup", "latest", "other"});
}

TEST_CASE("a checkpoint of another model is refused with both shapes and changes no values") {
  const TemporaryFolder folder;
  CHECK(OnRanks(2, Backend::kShm, [&](Communicator& world) {
          CheckpointManager checkpoints(world, folder.path());
          Model model(1);
          checkpoints.Save({.step = 1}, model.tensors());
          std::vector<float> a(6, 9), b(700'000, 9);
          const std::vector<NamedTensor> other = {
              {"conv/kernel", Buffer(b.data(), b.size()), {100'000, 7}},
              {"conv/bias", Buffer(a.data(), 5)},
              {"head/kernel", Buffer(a.data(), a.size()), {2, 3}}};
          const std::string error = ErrorOf([&] { checkpoints.Load(other); });
          Expect(
              error == "checkpoint '" + folder.path() +
                           "/ckpt_1': it does not fit the model: "
                           "'conv/kernel' is f32 (7, 100000) and not f32 (100000, 7), "
                           "'conv/bias' is f64 (5) and not f32 (5); "
                           "'head/kernel' is missing; 'nothing', 'steps' are unexpected",
              error);
          Expect(a == std::vector<float>(6, 9) && b == std::vector<float>(700'000, 9), "untouched");
          // A model with only a part of the tensors.
          Model part;
          std::vector<NamedTensor> some = part.tensors();
          some.erase(some.begin());
          Expect(
              ErrorOf([&] { checkpoints.Load(some); }).find("'conv/kernel' is unexpected") <
                  std::string::npos,
              "strict");
          checkpoints.Load(some, {.allow_unexpected = true});
          Expect(part.bias == model.bias && part.kernel == Model().kernel, "a part");
        }) == Nothing(2));
}

// Calls `call` on all ranks, with other arguments on rank 1. All ranks must get the same error.
void ExpectOnAll(
    const std::string& expected, const std::function<void(CheckpointManager&, bool other)>& call) {
  const TemporaryFolder folder;
  Texts errors(2);
  CHECK(OnRanks(2, Backend::kShm, [&](Communicator& world) {
          CheckpointManager checkpoints(world, folder.path());
          const bool other = world.rank() == 1;
          errors[static_cast<size_t>(world.rank())] = ErrorOf([&] { call(checkpoints, other); });
          // The manager stays usable.
          Model model(1);
          checkpoints.Save({.step = 99}, model.tensors());
        }) == Nothing(2));
  CHECK_THAT(errors[0], Catch::Matchers::Contains(expected));
  CHECK(errors[0] == errors[1]);
  CHECK(folder.Entries() == Texts{".lock", "ckpt_99", "latest"});
}

TEST_CASE("invalid arguments on one rank are an error on all ranks and no checkpoint is saved") {
  float data[6] = {};
  ExpectOnAll("rank 1: tensor 'w' has data NULL", [&](CheckpointManager& checkpoints, bool other) {
    checkpoints.Save({}, {{"w", Buffer(other ? nullptr : data, 6)}});
  });
  ExpectOnAll(
      "rank 1: tensor 'w' is f32 (2, 2) and has 6 elements; expected as many as the shape",
      [&](CheckpointManager& checkpoints, bool other) {
        checkpoints.StartSave({}, {{"w", Buffer(data, 6), {2, other ? 2u : 3u}}});
      });
  ExpectOnAll(
      "tensor 0 is 'w' f32 (2, 3) on rank 0, 'w' f32 (3, 2) on rank 1",
      [&](CheckpointManager& checkpoints, bool other) {
        checkpoints.Save({}, {{"w", Buffer(data, 6), {other ? 3u : 2u, other ? 2u : 3u}}});
      });
  ExpectOnAll(
      "name='ckpt_0' step=0 value=none asynchronous=0 on rank 0, name='ckpt_1' step=1",
      [&](CheckpointManager& checkpoints, bool other) {
        checkpoints.Save({.step = other ? 1u : 0u}, {{"w", Buffer(data, 6)}});
      });
}

TEST_CASE("arguments that cannot be saved are refused by name") {
  float data[6] = {};
  const auto expect = [&](const std::string& expected, const SaveOptions& options,
                          const std::vector<NamedTensor>& tensors) {
    ExpectOnAll(expected, [&](CheckpointManager& checkpoints, bool) {
      checkpoints.Save(options, tensors);
    });
  };
  const std::vector<NamedTensor> good = {{"w", Buffer(data, 6)}};
  expect("'a/b' cannot be the name of a checkpoint; expected", {.name = "a/b"}, good);
  expect("'.hidden' cannot be the name", {.name = ".hidden"}, good);
  expect("'latest' cannot be the name", {.name = "latest"}, good);
  expect("the value of checkpoint 'ckpt_0' is nan; expected a finite", {.value = NAN}, good);
  expect("metadata 'dtrun.x': keys that begin with", {.metadata = {{"dtrun.x", ""}}}, good);
  expect("metadata 'k' is not text; expected UTF-8", {.metadata = {{"k", "\xff"}}}, good);
  expect("tensor 'w' occurs twice", {}, {good[0], good[0]});
  expect("tensor '' has no name", {}, {{"", Buffer(data, 6)}});
  expect("tensor '__metadata__' has no name", {}, {{"__metadata__", Buffer(data, 6)}});
  Buffer device(data, 6);
  device.device = 0;
  expect("tensor 'w' lies on device 0; expected host memory", {}, {{"w", device}});
}

TEST_CASE("two jobs cannot save into one folder but one job can read while the other saves") {
  const TemporaryFolder folder;
  CHECK(OnRanks(1, Backend::kShm, [&](Communicator& world) {
          CheckpointManager checkpoints(world, folder.path());
          Model model(1);
          checkpoints.Save({.step = 1}, model.tensors());
          const Texts told = OnRanks(2, Backend::kShm, [&](Communicator& others) {
            const std::string error =
                ErrorOf([&] { CheckpointManager second(others, folder.path()); });
            Expect(
                error.find("is in use: process " + std::to_string(getpid()) + " on ") !=
                    std::string::npos,
                error);
            CheckpointManager reader(others, folder.path(), {.read_only = true});
            Model read;
            reader.Load(read.tensors());
            Expect(read == Model(1), "read");
            Expect(
                ErrorOf([&] { reader.Save({}, read.tensors()); }).find("read-only") !=
                    std::string::npos,
                "refused to save");
          });
          Expect(told == Nothing(2), told[0]);
        }) == Nothing(1));
}

TEST_CASE("the error of a background save is reported once at the next call") {
  const TemporaryFolder folder;
  const bool sharded = GENERATE(false, true);
  CHECK(OnRanks(2, Backend::kShm, [&](Communicator& world) {
          CheckpointManager checkpoints(world, folder.path(), {.sharded = sharded});
          Model model(1);
          // Another folder has the name.
          if (world.rank() == 0) fs::create_directory(folder.path() + "/ckpt_5");
          world.Barrier();
          checkpoints.StartSave({.step = 5}, model.tensors());
          const std::string error = ErrorOf([&] { checkpoints.StartSave({}, model.tensors()); });
          Expect(error.find("/ckpt_5' is not saved: ") != std::string::npos, error);
          checkpoints.StartSave({.step = 6}, model.tensors());
          checkpoints.Wait();
          checkpoints.Wait();
          Expect(NamesOf(checkpoints.List()) == Texts{"ckpt_6"}, "saved again");
          // No Wait: the destructor finishes the save.
          checkpoints.StartSave({.step = 7}, model.tensors());
        }) == Nothing(2));
  CHECK(folder.Entries() == Texts{".lock", "ckpt_5", "ckpt_6", "ckpt_7", "latest"});
}

TEST_CASE("a folder that cannot be made or read is refused on all ranks") {
  const TemporaryFolder folder;
  const std::string file = folder.Write("file", "");
  CHECK(OnRanks(2, Backend::kShm, [&](Communicator& world) {
          const auto open = [&](const std::string& path, bool read_only) {
            return ErrorOf([&] { CheckpointManager m(world, path, {.read_only = read_only}); });
          };
          Expect(open(file + "/a", false).find("cannot make the folder '") == 0, "a file");
          Expect(open("", false).find("has no name") < std::string::npos, "no name");
          const std::string missing = open(folder.path() + "/none", true);
          Expect(
              missing == "cannot read '" + folder.path() + "/none': No such file or directory",
              missing);
        }) == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing
