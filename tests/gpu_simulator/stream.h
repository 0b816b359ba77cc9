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

/// The tasks of a capture, in the order of the calls. The dependencies of the tasks allow this
/// order.
struct Capture {
  Stream* origin = nullptr;
  std::vector<Task> tasks;
  /// For each stream in the capture: the number of its tasks, and the number that another stream
  /// waits for.
  std::map<Stream*, uint64_t> enqueued, joined;
  bool invalid = false;
};

/// The driver's event: the number of records, and the last record that the stream has reached.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
  uint64_t work = 0;                 // of its stream before the last record
  std::shared_ptr<Capture> capture;  // of the last record, or null
  Stream* capture_stream = nullptr;
  uint64_t capture_position = 0;

  void Reach(uint64_t record);
  void WaitFor(uint64_t record);
};

/// The time between two events, per piece of work. It is constant, because real times would make
/// the product's choices by speed random in tests.
constexpr float kMillisecondsOfWork = 0.01f;

/// A thread that runs the enqueued tasks in order.
class Stream {
 public:
  explicit Stream(int device);
  ~Stream();
  int device() const { return device_; }

  /// Runs the task later, or adds it to the capture. The task counts as `pieces` pieces of work.
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
