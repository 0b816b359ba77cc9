#include "tests/support/thread_ranks.h"

#include <thread>

#include "ops/bootstrap/bootstrap.h"

namespace dtrun::testing {

std::vector<std::string> RunRanks(int size, const std::function<void(ops::Bootstrap&)>& rank_main) {
  const ops::ThreadRanks ranks(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        rank_main(*ranks.Join(rank));
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void ReturnWhenWaitedFor(const std::atomic<ops::FlightRecorder*>& record) {
  while (record.load() == nullptr) std::this_thread::yield();
  // A waiting rank updates its waited time now and then. The first update may belong to an earlier
  // wait.
  for (int told = 0; told < 2; ++told) {
    const base::Duration before = record.load()->waited();
    while (record.load()->waited() == before) std::this_thread::yield();
  }
}

}  // namespace dtrun::testing
