#ifndef DTRUN_TESTS_RUNTIME_NAMED_NAMED_RANKS_H_
#define DTRUN_TESTS_RUNTIME_NAMED_NAMED_RANKS_H_

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_communicator.h"
#include "runtime/named/process_sets.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {

using runtime::named::Kind;
using runtime::named::NamedQueue;
using runtime::named::NamedTensor;
using runtime::named::NamedWork;
using runtime::named::Operation;
using runtime::named::Settings;

template <typename T>
std::string ListOf(const std::vector<T>& values) {
  std::string text;
  for (const T value : values) text += base::Text(text.empty() ? "" : " ", +value);
  return text;
}

template <typename T>
void ExpectEqual(
    const std::vector<T>& found, const std::vector<T>& expected, const std::string& what) {
  if (found == expected) return;
  throw std::runtime_error(what + ": found " + ListOf(found) + "; expected " + ListOf(expected));
}

inline void ExpectEqual(const std::string& found, const std::string& expected) {
  if (found != expected) throw std::runtime_error("found: " + found + "\nexpected: " + expected);
}

/// The log lines of all ranks.
class SharedLog {
 public:
  base::LogSink Sink() {
    return [this](base::LogLevel, const std::string& text) {
      std::lock_guard lock(mutex_);
      texts_.push_back(text);
    };
  }
  Texts texts() const {
    std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  mutable std::mutex mutex_;
  Texts texts_;
};

struct Job {
  Settings settings = {};
  std::chrono::milliseconds timeout = std::chrono::seconds(600);  ///< the engine's time limit
  SharedLog* log = nullptr;
  /// True if each rank has a thread that drives progress.
  bool engine_thread = false;
};

/// A rank, which is a thread, with a queue over all ranks.
struct NamedRank {
  ops::Communicator& world;
  ops::Engine& engine;
  NamedQueue& queue;
  int rank, size;

  NamedWork Submit(
      Kind kind, const std::string& name, Buffer input, std::vector<uint64_t> shape,
      Operation operation = {}) {
    operation.kind = kind;
    NamedTensor tensor{.name = name, .input = input};
    tensor.shape = std::move(shape);
    return queue.Submit(operation, {tensor});
  }
  template <typename T>
  NamedWork AllReduce(
      const std::string& name, std::vector<T>& values, ReduceOp op = ReduceOp::kSum,
      Scale scale = {}, int set = 0) {
    return Submit(
        Kind::kAllReduce, name, Buffer(values.data(), values.size()), {values.size()},
        {.op = op, .set = set, .scale = scale});
  }
};

/// Runs `rank_main` on `size` ranks, which are threads that share memory. Returns the error of each
/// rank, "" if the rank succeeds.
inline Texts RunNamed(
    int size, const std::function<void(NamedRank&)>& rank_main, const Job& job = {}) {
  const base::SteadyClock clock;
  const base::LogSink log =
      job.log != nullptr ? job.log->Sink() : [](base::LogLevel, const std::string&) {};
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    ops::EngineOptions options{.may_spin = false};
    options.timeout = job.timeout;
    options.stall_warning = job.timeout;
    ops::Engine engine(options, clock, log);
    const auto world =
        ops::CreateShmCommunicator(bootstrap, engine, ops::Members::World(bootstrap.size()));
    if (job.engine_thread) engine.StartThread();
    NamedQueue queue(*world, engine, log, job.settings);
    NamedRank rank{*world, engine, queue, bootstrap.rank(), bootstrap.size()};
    rank_main(rank);
    world->Barrier();
  });
}

/// Waits for `work`. Returns the error as "<code>: <text>", "" for none.
inline std::string ErrorOf(NamedWork work) {
  try {
    work.Wait();
    return "";
  } catch (const Error& error) {
    return base::Text(static_cast<int>(error.code()), ": ", error.what());
  }
}

/// Returns the error of a call as "<code>: <text>", "" for none.
template <typename Call>
std::string ErrorOfCall(const Call& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return base::Text(static_cast<int>(error.code()), ": ", error.what());
  }
}

template <typename T>
std::vector<T> ResultOf(const NamedWork& work, size_t index = 0) {
  const Buffer& result = work.result(index).result;
  const T* first = static_cast<const T*>(result.data);
  return std::vector<T>(first, first + result.count);
}

}  // namespace dtrun::testing

#endif
