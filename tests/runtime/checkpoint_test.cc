// Checkpoints as a trainer uses them: ranks are threads, files are real.

#include <dtrun/checkpoint.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "tests/runtime/sharded_ranks.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

namespace fs = std::filesystem;

// A model with a large and some small tensors, which is told from others by `seed`.
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

[[maybe_unused]]
std::vector<std::string> NamesOf(const std::vector<Checkpoint>& checkpoints) {
  std::vector<std::string> names;
  for (const Checkpoint& each : checkpoints) names.push_back(each.name);
  return names;
}

TEST_CASE("what was saved by some ranks is loaded by others") {
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
            model.Fill(8);  // the next step goes on
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

TEST_CASE("an empty folder has nothing to load, and nothing is touched") {
  const TemporaryFolder folder;
  CHECK(OnRanks(2, Backend::kShm, [&](Communicator& world) {
          CheckpointManager checkpoints(world, folder.path());
          Model model(1);
          Expect(!checkpoints.Load(model.tensors()).checkpoint, "none");
          Expect(model == Model(1), "untouched");
          Expect(checkpoints.List().empty(), "an empty list");
        }) == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing
