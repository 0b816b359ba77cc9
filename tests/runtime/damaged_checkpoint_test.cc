// Damaged files: a cut, changed or exchanged file is refused with the reason, and the newest valid
// checkpoint is loaded instead.

#include <dtrun/checkpoint.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/runtime/sharded_ranks.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// A folder with two checkpoints: "old" has ones, "new" has twos.
class TwoCheckpoints {
 public:
  TwoCheckpoints() {
    On([](CheckpointManager& checkpoints, std::vector<float>& values) {
      for (const float value : {1.0F, 2.0F}) {
        std::fill(values.begin(), values.end(), value);
        checkpoints.Save({.name = value == 1 ? "old" : "new"}, TensorsIn(values));
      }
    });
  }

  static std::vector<NamedTensor> TensorsIn(std::vector<float>& values) {
    return {{"a", Buffer(values.data(), 8), {2, 4}}, {"b", Buffer(values.data() + 8, 3)}};
  }

  void On(const std::function<void(CheckpointManager&, std::vector<float>&)>& body) const {
    CHECK(OnRanks(1, Backend::kShm, [&](Communicator& world) {
            CheckpointManager checkpoints(world, folder.path());
            std::vector<float> values(11, 0);
            body(checkpoints, values);
          }) == Nothing(1));
  }

  /// The reason why "new" is refused, "" if it is loaded. "old" must be loaded instead.
  std::string Refusal() const {
    std::string why;
    On([&](CheckpointManager& checkpoints, std::vector<float>& values) {
      const Loaded loaded = checkpoints.Load(TensorsIn(values));
      if (loaded.refused.empty()) return;
      Expect(loaded.checkpoint->name == "old", "the older one");
      Expect(values == std::vector<float>(11, 1), "its values");
      Expect(loaded.refused.size() == 1 && loaded.refused[0].name == "new", "the newer one");
      why = loaded.refused[0].refused;
    });
    return why;
  }

  std::string In(const std::string& file) const { return folder.path() + "/new/" + file; }
  std::string Model() const { return In("model.safetensors"); }
  std::string Manifest() const { return In("MANIFEST.json"); }

  TemporaryFolder folder;
};

TEST_CASE("a truncated or extended file is refused") {
  const TwoCheckpoints two;
  const std::string file = GENERATE("model.safetensors", "MANIFEST.json");
  const std::string whole = ReadText(two.In(file));
  for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 60) {
    WriteText(two.In(file), whole.substr(0, size));
    CAPTURE(file, size);
    CHECK(two.Refusal() != "");
  }
  WriteText(two.In(file), whole + "x");
  CHECK(two.Refusal() != "");
  WriteText(two.In(file), whole);
  CHECK(two.Refusal() == "");
}

TEST_CASE("a changed bit is found at any place") {
  const TwoCheckpoints two;
  const std::string file = GENERATE("model.safetensors", "MANIFEST.json");
  const std::string whole = ReadText(two.In(file));
  for (size_t byte = 0; byte < whole.size(); byte += 1 + whole.size() / 150) {
    std::string changed = whole;
    changed[byte] = static_cast<char>(changed[byte] ^ (1 << (byte % 8)));
    WriteText(two.In(file), changed);
    CAPTURE(file, byte, changed);
    CHECK(two.Refusal() != "");
  }
}

TEST_CASE("the error for changed data has both checksums") {
  const TwoCheckpoints two;
  std::string text = ReadText(two.Model());
  text.back() = static_cast<char>(text.back() + 1);
  WriteText(two.Model(), text);
  CHECK_THAT(
      two.Refusal(), Contains("model.safetensors': the data of tensor 'b' has CRC32C ") &&
                         Contains("; expected "));
}

TEST_CASE("a file that is not regular is refused without blocking") {
  const TwoCheckpoints two;
  const std::string file = GENERATE("model.safetensors", "MANIFEST.json");
  fs::rename(two.In(file), two.In("kept"));
  fs::create_symlink("kept", two.In(file));
  CHECK_THAT(two.Refusal(), Contains(file + "' is a symbolic link; expected a file"));
  fs::remove(two.In(file));
  REQUIRE(mkfifo(two.In(file).c_str(), 0644) == 0);
  CHECK_THAT(two.Refusal(), Contains(file + "' is a FIFO; expected a file"));
  fs::remove(two.In(file));
  fs::create_directory(two.In(file));
  CHECK_THAT(two.Refusal(), Contains(file + "' is a folder; expected a file"));
  fs::remove(two.In(file));
  CHECK_THAT(two.Refusal(), Contains(file + " is missing"));
}

TEST_CASE("a symbolic link in place of a checkpoint is refused") {
  const TwoCheckpoints two;
  const TemporaryFolder elsewhere;
  fs::rename(two.folder.path() + "/new", elsewhere.path() + "/new");
  fs::create_directory_symlink(elsewhere.path() + "/new", two.folder.path() + "/new");
  CHECK_THAT(two.Refusal(), Contains("it is a symbolic link; expected a folder"));
}

TEST_CASE("a valid file of another save is refused") {
  const TwoCheckpoints two;
  fs::copy_file(
      two.folder.path() + "/old/model.safetensors", two.Model(),
      fs::copy_options::overwrite_existing);
  CHECK_THAT(two.Refusal(), Contains("is not the file that was saved"));
}

TEST_CASE("no valid checkpoint is an error with every reason and changes no values") {
  const TwoCheckpoints two;
  WriteText(two.Model(), "");
  WriteText(two.folder.path() + "/old/MANIFEST.json", "{}");
  two.On([&](CheckpointManager& checkpoints, std::vector<float>& values) {
    std::string error;
    try {
      checkpoints.Load(TwoCheckpoints::TensorsIn(values));
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    Expect(
        error.find(
            "/old' is not valid: MANIFEST.json: found 2 bytes that are not a whole manifest") <
                std::string::npos &&
            error.find("/new' is not valid: ") < std::string::npos,
        error);
    Expect(values == std::vector<float>(11, 0), "untouched");
    // A checkpoint that is requested by name has no substitute.
    try {
      checkpoints.Load(TwoCheckpoints::TensorsIn(values), {.name = "new"});
      Expect(false, "refused");
    } catch (const Error&) {
    }
  });
}

TEST_CASE("the next job removes only the leftovers of a killed job") {
  const TwoCheckpoints two;
  const std::string& path = two.folder.path();
  fs::create_directories(path + "/.tmp-7-1-ckpt_9");
  WriteText(path + "/.tmp-7-1-ckpt_9/model.safetensors", "half");
  fs::create_symlink("gone", path + "/.tmp-7-2-latest");
  // If folders cannot be swapped in one step, a job may be killed between the two steps.
  fs::rename(path + "/new", path + "/.old-new");
  fs::create_directory(path + "/notes");
  WriteText(path + "/notes/mine", "text");
  CHECK(two.Refusal() == "");
  CHECK(two.folder.Entries() == Texts{".lock", "latest", "new", "notes", "old"});
  CHECK(ReadText(path + "/notes/mine") == "text");
}

TEST_CASE("NaNs and infinities are saved and loaded with the same bits") {
  const TwoCheckpoints two;
  two.On([&](CheckpointManager& checkpoints, std::vector<float>& values) {
    values[0] = NAN;
    values[10] = -INFINITY;
    const std::vector<float> saved = values;
    checkpoints.Save({.name = "newest"}, TwoCheckpoints::TensorsIn(values));
    std::fill(values.begin(), values.end(), 0.0F);
    checkpoints.Load(TwoCheckpoints::TensorsIn(values));
    Expect(std::memcmp(values.data(), saved.data(), 11 * sizeof(float)) == 0, "the same bits");
  });
}

}  // namespace
}  // namespace dtrun::testing
