#ifndef DTRUN_TESTS_GPU_SIMULATOR_STREAM_H_
#define DTRUN_TESTS_GPU_SIMULATOR_STREAM_H_

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace dtrun::gpu_simulator {

using Task = std::function<void()>;

class Stream;

/// What is enqueued between the begin and the end of a capture, in the order of its calls, which is
/// an order that its dependencies allow.
struct Capture {
  Stream* origin = nullptr;
  std::vector<Task> tasks;
  /// For streams that have joined: tasks of theirs, and how many of them something has waited for.
  std::map<Stream*, uint64_t> enqueued, joined;
  bool invalid = false;
};

/// Of the driver's event: what was recorded, and what has been reached.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
  uint64_t work = 0;                 // of its stream, before the last record
  std::shared_ptr<Capture> capture;  // the last record is a part of it
  Stream* capture_stream = nullptr;
  uint64_t capture_position = 0;

  void Reach(uint64_t record);
  void WaitFor(uint64_t record);
};

/// What the time between two events is made of: as if each piece of work took as long. A clock
/// would have tests choose by chance where the product chooses by speed.
constexpr float kMillisecondsOfWork = 0.01f;

/// A thread that does what is enqueued, in its order.
class Stream {
 public:
  explicit Stream(int device);
  ~Stream();
  int device() const { return device_; }

  /// Does it later, or notes it in the capture. It is as much work as so many pieces.
  void Enqueue(Task task, uint64_t pieces = 1);
  void Synchronize();
  bool Idle();

  void Record(const std::shared_ptr<Event>& event);
  void Delay(const std::shared_ptr<Event>& event);

  std::shared_ptr<Capture> capture;

 private:
  void Work();

  int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  uint64_t pending_ = 0, work_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace dtrun::gpu_simulator

#endif
