#ifndef DTRUN_BASE_ELASTIC_FILES_H_
#define DTRUN_BASE_ELASTIC_FILES_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::base {

/// Why an epoch has begun.
struct EpochCause {
  std::string text;       ///< "rank 1 on h1 was killed by SIGKILL"; "": there is no reason
  std::vector<int> lost;  ///< the ranks that were lost, by launch number
};

/// The file through which the launcher tells the ranks of a host that the job continues in a new
/// epoch: some ranks were lost, and all ranks meet again. The ranks map the file, so they see a new
/// epoch within microseconds, even if the launcher is busy or stopped afterwards. Thread-safe.
class EpochFile {
 public:
  /// Makes the file, in epoch 0. Throws Error kSystem.
  static std::unique_ptr<EpochFile> Create(const std::string& path);
  /// Maps an existing file, to read it. Throws Error kSystem.
  static std::unique_ptr<EpochFile> Open(const std::string& path);
  ~EpochFile();
  EpochFile(const EpochFile&) = delete;
  EpochFile& operator=(const EpochFile&) = delete;

  /// Begins epoch `epoch`, which is higher than the one before. Of `why`, at most 255 bytes and 64
  /// ranks are kept. `variables` replace variables of the launch, one NAME=value per line, in at
  /// most 65,535 bytes. Only the process that has made the file calls it, from one thread. Throws
  /// Error kInvalidArgument for longer variables.
  void Publish(uint32_t epoch, const EpochCause& why, const std::string& variables = "");

  /// The current epoch, from 0.
  uint32_t epoch() const;
  /// Why epoch `epoch` has begun. Valid for the current epoch and the one before.
  EpochCause WhyEpoch(uint32_t epoch) const;
  /// The variables of epoch `epoch`. Valid like WhyEpoch.
  std::string VariablesOf(uint32_t epoch) const;
  /// Waits until the epoch is higher than `seen`. Returns false if `longest` passes first, or if
  /// `*stop` is set and Wake is called.
  bool AwaitAfter(
      uint32_t seen, std::chrono::milliseconds longest,
      const std::atomic<bool>* stop = nullptr) const;
  /// Lets waiting threads look at their `stop`.
  void Wake() const;

 private:
  struct Content;
  explicit EpochFile(Content* content) : content_(content) {}

  Content* content_;
};

/// The state of a training in a file in memory (/dev/shm), for the processes that take the place of
/// lost ones (LaunchEnv::starts_again). A rank writes it after each step, the agent of its host
/// owns the folder and tells the step to dtrun.
struct KeptState {
  std::string name;   ///< of the training
  uint64_t step = 0;  ///< that the state belongs to
  std::string bytes;
};

/// Replaces the file at `path`. A reader, and a process that takes the place of one that was killed
/// in this call, finds the old state or the new one. One process at a time. Throws Error kSystem;
/// the old state is still there then.
void WriteKeptState(
    const std::string& path, const std::string& name, uint64_t step, const void* bytes,
    size_t count);

/// The state at `path`; nullopt: no process has kept one.
std::optional<KeptState> ReadKeptState(const std::string& path);

/// Its step alone.
std::optional<uint64_t> ReadKeptStep(const std::string& path);

}  // namespace dtrun::base

#endif  // DTRUN_BASE_ELASTIC_FILES_H_
