#ifndef DTRUN_BASE_KEPT_STATE_H_
#define DTRUN_BASE_KEPT_STATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace dtrun::base {

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

#endif
