#include "tests/support/thread_ranks.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "ops/bootstrap/bootstrap.h"

namespace dtrun::testing {
namespace {

// A meeting point of `size` threads: each thread brings a value and gets the values of all.
template <typename T>
class Exchange {
 public:
  explicit Exchange(int size) : incoming_(static_cast<size_t>(size)) {}

  std::vector<T> AllGather(int rank, T value) {
    std::unique_lock lock(mutex_);
    incoming_[static_cast<size_t>(rank)] = std::move(value);
    const int generation = generation_;
    if (++arrived_ == static_cast<int>(incoming_.size())) {
      complete_ = incoming_;
      arrived_ = 0;
      ++generation_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return generation_ != generation; });
    }
    return complete_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<T> incoming_, complete_;
  int arrived_ = 0, generation_ = 0;
};

using Segments = Exchange<std::shared_ptr<ops::Segment>>;

// The state that all ranks share: the exchanges of all their groups, by number.
struct Job {
  explicit Job(int size) : bytes(size) {}

  std::string Add(std::shared_ptr<Segments> segments) {
    std::lock_guard lock(mutex);
    exchanges.push_back(std::move(segments));
    return std::to_string(exchanges.size() - 1);
  }
  std::shared_ptr<Segments> Find(const std::string& number) {
    std::lock_guard lock(mutex);
    return exchanges.at(std::stoul(number));
  }

  Exchange<std::string> bytes;
  std::mutex mutex;
  std::vector<std::shared_ptr<Segments>> exchanges;
};

class ThreadExchange : public ops::SegmentExchange {
 public:
  ThreadExchange(std::shared_ptr<Job> job, ops::Bootstrap& ranks)
      : job_(std::move(job)), rank_(ranks.rank()), size_(ranks.size()) {
    const std::string number = rank_ == 0 ? job_->Add(std::make_shared<Segments>(size_)) : "";
    segments_ = job_->Find(ranks.AllGather(number)[0]);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::shared_ptr<ops::Segment>> AllGather(
      std::shared_ptr<ops::Segment> mine) override {
    return segments_->AllGather(rank_, std::move(mine));
  }
  std::unique_ptr<ops::SegmentExchange> ConnectAnother(ops::Bootstrap& ranks) override {
    return std::make_unique<ThreadExchange>(job_, ranks);
  }

 private:
  std::shared_ptr<Job> job_;
  int rank_, size_;
  std::shared_ptr<Segments> segments_;
};

class ThreadBootstrap : public ops::Bootstrap {
 public:
  ThreadBootstrap(std::shared_ptr<Job> job, int rank, int size)
      : job_(std::move(job)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> AllGather(const std::string& bytes) override {
    return job_->bytes.AllGather(rank_, bytes);
  }
  std::unique_ptr<ops::SegmentExchange> ConnectSegmentExchange(ops::Bootstrap& ranks) override {
    return std::make_unique<ThreadExchange>(job_, ranks);
  }

 private:
  std::shared_ptr<Job> job_;
  int rank_, size_;
};

}  // namespace

std::vector<std::string> RunRanks(int size, const std::function<void(ops::Bootstrap&)>& rank_main) {
  auto job = std::make_shared<Job>(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadBootstrap bootstrap(job, rank, size);
        rank_main(bootstrap);
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
