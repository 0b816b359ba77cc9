// A subset gathers over all ranks of the parent. A rank that gathers for its group sends "+" and
// its bytes. A rank that has finished sends an empty string.
//
// Ranks that are threads meet at points in memory: one for bytes, and one for the segments of each
// exchange.

#include "ops/bootstrap/bootstrap.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {

int SubsetBootstrap::rank() const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), parent_.rank());
  return static_cast<int>(found - ranks_.begin());
}

std::vector<std::string> SubsetBootstrap::AllGather(const std::string& bytes) {
  const std::vector<std::string> all = parent_.AllGather("+" + bytes);
  std::vector<std::string> result;
  for (const int rank : ranks_) {
    const std::string& entry = all[static_cast<size_t>(rank)];
    if (entry.empty()) {
      throw Error(
          ErrorCode::kSystem, base::Text("rank ", rank, " could not set up its communicator"));
    }
    result.push_back(entry.substr(1));
  }
  return result;
}

std::unique_ptr<SegmentExchange> SubsetBootstrap::ConnectSegmentExchange(Bootstrap& ranks) {
  return parent_.ConnectSegmentExchange(ranks);
}

void SubsetBootstrap::Finish() {
  for (bool all_done = false; !all_done;) {
    const std::vector<std::string> all = parent_.AllGather("");
    all_done = std::all_of(all.begin(), all.end(), [](const auto& s) { return s.empty(); });
  }
}

// A meeting point of `size` threads: each thread brings a value and gets the values of all.
template <typename T>
class ThreadMeetingPoint {
 public:
  explicit ThreadMeetingPoint(int size) : incoming_(static_cast<size_t>(size)) {}

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

using Segments = ThreadMeetingPoint<std::shared_ptr<Segment>>;

// The state that all ranks share: the exchanges of all their groups, by number.
struct ThreadMeetings {
  explicit ThreadMeetings(int size) : bytes(size) {}

  std::string Add(std::shared_ptr<Segments> segments) {
    std::lock_guard lock(mutex);
    exchanges.push_back(std::move(segments));
    return std::to_string(exchanges.size() - 1);
  }
  std::shared_ptr<Segments> Find(const std::string& number) {
    std::lock_guard lock(mutex);
    return exchanges.at(std::stoul(number));
  }

  ThreadMeetingPoint<std::string> bytes;
  std::mutex mutex;
  std::vector<std::shared_ptr<Segments>> exchanges;
};

namespace {

class ThreadExchange : public SegmentExchange {
 public:
  ThreadExchange(std::shared_ptr<ThreadMeetings> meetings, Bootstrap& ranks)
      : meetings_(std::move(meetings)), rank_(ranks.rank()), size_(ranks.size()) {
    const std::string number = rank_ == 0 ? meetings_->Add(std::make_shared<Segments>(size_)) : "";
    segments_ = meetings_->Find(ranks.AllGather(number)[0]);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::shared_ptr<Segment>> AllGather(std::shared_ptr<Segment> mine) override {
    return segments_->AllGather(rank_, std::move(mine));
  }
  std::unique_ptr<SegmentExchange> ConnectAnother(Bootstrap& ranks) override {
    return std::make_unique<ThreadExchange>(meetings_, ranks);
  }

 private:
  std::shared_ptr<ThreadMeetings> meetings_;
  int rank_, size_;
  std::shared_ptr<Segments> segments_;
};

class ThreadBootstrap : public Bootstrap {
 public:
  ThreadBootstrap(std::shared_ptr<ThreadMeetings> meetings, int rank, int size)
      : meetings_(std::move(meetings)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> AllGather(const std::string& bytes) override {
    return meetings_->bytes.AllGather(rank_, bytes);
  }
  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override {
    return std::make_unique<ThreadExchange>(meetings_, ranks);
  }

 private:
  std::shared_ptr<ThreadMeetings> meetings_;
  int rank_, size_;
};

}  // namespace

ThreadRanks::ThreadRanks(int size)
    : size_(size), meetings_(std::make_shared<ThreadMeetings>(size)) {}

std::unique_ptr<Bootstrap> ThreadRanks::Join(int rank) const {
  return std::make_unique<ThreadBootstrap>(meetings_, rank, size_);
}

}  // namespace dtrun::ops
