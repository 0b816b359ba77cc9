// A trainer that only saves checkpoints. It resumes from the newest checkpoint of a folder. After
// every step it saves tensors with the step's number in all elements. Rank 0 prints each checkpoint
// as soon as it is on the disk. Every rank prints its errors.
//
//   saver FOLDER [sharded] [background] [read_only] [saves=N] [keep=N] [elements=N]
//
// Exit code 73 if a checkpoint could not be saved.

#include <dtrun/checkpoint.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/tensors.h>
#include <dtrun/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace programs::saver {

struct Settings {
  explicit Settings(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const std::string name = word.substr(0, word.find('='));
      const uint64_t number =
          name == word ? 1 : std::strtoull(word.c_str() + name.size() + 1, nullptr, 10);
      if (name == "sharded") options.sharded = true;
      if (name == "read_only") options.read_only = true;
      if (name == "background") background = true;
      if (name == "keep") options.max_to_keep = number;
      if (name == "saves") saves = number;
      if (name == "elements") elements = number;
    }
  }

  dtrun::CheckpointOptions options;
  bool background = false;
  uint64_t saves = UINT64_MAX, elements = 100'000;
};

class Trainer {
 public:
  Trainer(dtrun::Context& job, const std::string& folder, const Settings& settings)
      : job_(job),
        settings_(settings),
        checkpoints_(job.world(), folder, settings.options),
        weights_(settings.elements),
        moments_(settings.elements) {}

  void Resume() {
    const dtrun::Loaded loaded = checkpoints_.Load(Tensors());
    if (loaded.checkpoint) step_ = loaded.checkpoint->step;
    const auto is_of_step = [&](float value) { return value == static_cast<float>(step_); };
    const bool whole = std::all_of(weights_.begin(), weights_.end(), is_of_step) &&
                       std::all_of(moments_.begin(), moments_.end(), is_of_step);
    if (job_.rank() == 0) std::printf("process %d\n", static_cast<int>(getpid()));
    std::printf(
        "rank %d has %s %d\n", job_.rank(), whole ? "all of" : "half of", static_cast<int>(step_));
    std::fflush(stdout);
  }

  // Runs all steps. Returns whether all checkpoints were saved.
  bool Run() {
    for (uint64_t i = 0; i < settings_.saves; ++i) {
      Step();
      if (settings_.background) {
        Try([&] { checkpoints_.Wait(); });
        Saved();
      }
      Try([&] { Save(); });
      if (!settings_.background) Saved();
    }
    Try([&] { checkpoints_.Wait(); });
    Saved();
    return good_;
  }

 private:
  std::vector<dtrun::NamedTensor> Tensors() {
    return {
        {"weights", dtrun::Buffer(weights_.data(), weights_.size())},
        {"moments", dtrun::Buffer(moments_.data(), moments_.size())}};
  }

  void Step() {
    ++step_;
    std::fill(weights_.begin(), weights_.end(), static_cast<float>(step_));
    std::fill(moments_.begin(), moments_.end(), static_cast<float>(step_));
  }

  void Save() {
    if (settings_.background) {
      checkpoints_.StartSave({.step = step_}, Tensors());
    } else {
      checkpoints_.Save({.step = step_}, Tensors());
    }
    started_ = step_;
  }

  // Reports the started checkpoint as saved.
  void Saved() {
    if (started_ == 0) return;
    if (job_.rank() == 0) {
      std::printf("saved %d\n", static_cast<int>(started_));
      std::fflush(stdout);
    }
    started_ = 0;
  }

  template <typename Call>
  void Try(const Call& call) {
    try {
      call();
    } catch (const dtrun::Error& error) {
      started_ = 0;
      good_ = false;
      std::printf("rank %d: %s\n", job_.rank(), error.what());
      std::fflush(stdout);
    }
  }

  dtrun::Context& job_;
  Settings settings_;
  dtrun::CheckpointManager checkpoints_;
  std::vector<float> weights_, moments_;
  uint64_t step_ = 0, started_ = 0;
  bool good_ = true;
};

int Main(int argc, char** argv) {
  constexpr int kNotWritten = 73;
  if (argc < 2) return 2;
  const Settings settings(std::vector<std::string>(argv + 2, argv + argc));
  dtrun::Context job = dtrun::Init();
  int code = 0;
  try {
    Trainer trainer(job, argv[1], settings);
    trainer.Resume();
    if (!trainer.Run()) code = kNotWritten;
  } catch (const dtrun::Error& error) {
    std::printf("rank %d: %s\n", job.rank(), error.what());
    code = kNotWritten;
  }
  job.Shutdown();
  return code;
}

}  // namespace programs::saver
