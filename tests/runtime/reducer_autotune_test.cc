// Trials of the autotuner change the buckets, and the results stay right.

#include <catch2/catch.hpp>
#include <mutex>
#include <set>

#include "dtrun/error.h"
#include "tests/runtime/reducer_stories.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

using runtime::AutotuneOptions;
using runtime::Gradient;
using runtime::GradientReducer;
using runtime::ReducerSettings;

// A large gradient with its own bucket, among smaller gradients of 2.9 MB in total.
std::vector<uint64_t> Counts() {
  std::vector<uint64_t> counts(30, 25'000);
  counts[11] = 300'000;
  return counts;
}

std::vector<Gradient> InBlock() {
  std::vector<Gradient> gradients;
  for (const uint64_t count : Counts())
    gradients.push_back(Placed(std::to_string(gradients.size()), count));
  return gradients;
}

float ValueOf(int rank, size_t gradient, int step) {
  return static_cast<float>(100 * rank + 10 * step) + static_cast<float>(gradient);
}

// Does one step. All elements of a gradient are equal. Throws if a result is not the sum.
void CheckedStep(ops::Communicator& comm, GradientReducer& reducer, int step) {
  const std::vector<uint64_t> counts = Counts();
  for (size_t i = counts.size(); i-- > 0;) {
    auto* data = static_cast<float*>(reducer.gradient(i).data);
    std::fill_n(data, counts[i], ValueOf(comm.rank(), i, step));
    reducer.MarkReady(i);
  }
  reducer.Wait();
  for (size_t i = 0; i < counts.size(); ++i) {
    float sum = 0;
    for (int rank = 0; rank < comm.size(); ++rank) sum += ValueOf(rank, i, step);
    const auto* data = static_cast<const float*>(reducer.gradient(i).data);
    for (uint64_t k = 0; k < counts[i]; ++k)
      if (data[k] != sum) throw std::runtime_error("wrong sum in step " + std::to_string(step));
  }
}

ReducerSettings Tuned(const AutotuneOptions& options = {}) {
  ReducerSettings settings;
  settings.op = ReduceOp::kSum;
  settings.autotune = options;
  return settings;
}

TEST_CASE("each step is right while bucket sizes are tried and a large gradient keeps its bucket") {
  const bool packed = GENERATE(false, true);
  std::mutex mutex;
  std::vector<size_t> ends;
  CHECK(RunShm(3, [&](ops::Communicator& comm) {
          std::vector<std::vector<float>> own;
          std::vector<Gradient> gradients = InBlock();
          if (packed) {
            for (Gradient& gradient : gradients) {
              own.emplace_back(gradient.buffer.count);
              gradient.buffer.data = own.back().data();
            }
          }
          GradientReducer reducer(comm, gradients, Tuned());
          std::set<size_t> bucket_counts;
          for (int step = 0; step < 90; ++step) {
            CheckedStep(comm, reducer, step);
            if (step < 75) bucket_counts.insert(reducer.plan().buckets.size());
            for (size_t i = 0; i < gradients.size(); ++i)
              Expect(reducer.IsAlone(i) == (i == 11), "who is alone");
          }
          Expect(bucket_counts.size() >= 4, "buckets of several sizes were tried");
          const std::lock_guard lock(mutex);
          ends.push_back(reducer.plan().buckets.size());
        }) == Nothing(3));
  CHECK(ends == std::vector<size_t>(3, ends[0]));
}

TEST_CASE("frozen buckets do not change and a later job begins with them") {
  const TemporaryFolder folder;
  const AutotuneOptions options{
      .log_file = folder.path() + "/log.csv", .cache_file = folder.path() + "/cache.json"};
  std::vector<runtime::Bucket> found;
  CHECK(RunShm(2, [&](ops::Communicator& comm) {
          GradientReducer reducer(comm, InBlock(), Tuned(options));
          for (int step = 0; step < 80; ++step) CheckedStep(comm, reducer, step);
          if (comm.rank() == 0) found = reducer.plan().buckets;
          const auto frozen = reducer.plan().buckets;
          for (int step = 80; step < 100; ++step) CheckedStep(comm, reducer, step);
          Expect(reducer.plan().buckets == frozen, "frozen");
        }) == Nothing(2));
  CHECK(RunShm(2, [&](ops::Communicator& comm) {
          GradientReducer reducer(comm, InBlock(), Tuned(options));
          for (int step = 0; step < 3; ++step) CheckedStep(comm, reducer, step);
          Expect(reducer.plan().buckets == found, "the buckets that were found before");
        }) == Nothing(2));
}

TEST_CASE("a log file that cannot be written is an error on all ranks") {
  for (const std::string& error : RunShm(3, [&](ops::Communicator& comm) {
         GradientReducer(comm, InBlock(), Tuned({.log_file = "/no/such/log"}));
       }))
    CHECK(error == "autotune: cannot write /no/such/log: No such file or directory");
}

}  // namespace
}  // namespace dtrun::testing
