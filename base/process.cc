#include "base/process.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"

namespace dtrun::base {

LogSink StderrSink(int rank, LogLevel most) {
  return [rank, most](LogLevel level, const std::string& line) {
    if (level > most) return;
    const std::string who = rank < 0 ? "" : Text("rank ", rank, ": ");
    const char* severity = level == LogLevel::kError     ? "error: "
                           : level == LogLevel::kWarning ? "warning: "
                                                         : "";
    const std::string text = Text("dtrun: ", who, severity, line, '\n');
    // If stderr is gone, a sink cannot report the error.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  };
}

namespace {

// The number of forks between the process that first used ForkWatch and this process. It belongs to
// the process, not to a job.
std::atomic<int> generation{0};

void CountForks() {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

}  // namespace

ForkWatch::ForkWatch() {
  CountForks();
  generation_ = generation.load(std::memory_order_relaxed);
}

bool ForkWatch::forked() const { return generation_ != generation.load(std::memory_order_relaxed); }

namespace {

// The folder of the file that holds this code: libdtrun.so, or a program that contains it.
std::filesystem::path OwnDirectory() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<void*>(&LoadModule), &info);
  std::error_code ignored;
  const auto file =
      std::filesystem::canonical(info.dli_fname == nullptr ? "" : info.dli_fname, ignored);
  return file.parent_path();
}

// Beside the library, or else in its folder dtrun/: Debian's packages have the module there.
std::filesystem::path ModuleIn(const std::filesystem::path& folder, const std::string& name) {
  std::error_code ignored;
  const bool is_apart = !std::filesystem::exists(folder / name, ignored) &&
                        std::filesystem::exists(folder / "dtrun" / name, ignored);
  return is_apart ? folder / "dtrun" / name : folder / name;
}

}  // namespace

const void* LoadModule(
    const std::string& directory, const std::string& file, const char* entry,
    const std::string& what, bool global) {
  const std::string path =
      ModuleIn(directory.empty() ? OwnDirectory() : std::filesystem::path(directory), file);
  void* library = ::dlopen(path.c_str(), RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (library == nullptr)
    throw Error(ErrorCode::kUnavailable, Text(what, " cannot be loaded: ", ::dlerror()));
  const auto function = reinterpret_cast<ModuleEntry>(::dlsym(library, entry));
  const void* module = function == nullptr ? nullptr : function();
  const std::string version = module == nullptr ? "none" : *static_cast<const char* const*>(module);
  if (version != kVersion)
    throw Error(
        ErrorCode::kUnavailable, Text(
                                     path, " is of version ", version, "; expected ", kVersion,
                                     ", the version of libdtrun.so; install dtrun again"));
  return module;
}

}  // namespace dtrun::base
