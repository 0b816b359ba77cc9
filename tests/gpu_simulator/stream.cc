#include "tests/gpu_simulator/stream.h"

#include <utility>

namespace dtrun::gpu_simulator {

void Event::Reach(uint64_t record) {
  std::lock_guard lock(mutex);
  reached = std::max(reached, record);
  changed.notify_all();
}

void Event::WaitFor(uint64_t record) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return reached >= record; });
}

Stream::Stream(int device) : device_(device), thread_([this] { Work(); }) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
    --pending_;
    changed_.notify_all();
  }
}

void Stream::Enqueue(Task task, uint64_t pieces) {
  if (capture != nullptr) {
    capture->tasks.push_back(std::move(task));
    ++capture->enqueued[this];
    return;
  }
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  ++pending_;
  work_ += pieces;
  changed_.notify_all();
}

void Stream::Synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending_ == 0; });
}

bool Stream::Idle() {
  std::lock_guard lock(mutex_);
  return pending_ == 0;
}

void Stream::Record(const std::shared_ptr<Event>& event) {
  event->capture = capture;
  if (capture != nullptr) {
    event->capture_stream = this;
    event->capture_position = capture->enqueued[this];
    return;
  }
  uint64_t record;
  {
    std::scoped_lock lock(mutex_, event->mutex);
    record = ++event->recorded;
    event->work = work_;
  }
  Enqueue([event, record] { event->Reach(record); }, 0);
}

void Stream::Delay(const std::shared_ptr<Event>& event) {
  if (event->capture != nullptr) {
    uint64_t& joined = event->capture->joined[event->capture_stream];
    joined = std::max(joined, event->capture_position);
    if (capture == nullptr) {
      capture = event->capture;
      capture->enqueued[this];
    }
    // The work that follows on this stream must be joined again before the capture ends.
    if (this != capture->origin) ++capture->enqueued[this];
    return;
  }
  uint64_t record;
  {
    std::lock_guard lock(event->mutex);
    record = event->recorded;
  }
  Enqueue([event, record] { event->WaitFor(record); }, 0);
}

}  // namespace dtrun::gpu_simulator
