#ifndef DTRUN_OPS_WIRE_WAKER_H_
#define DTRUN_OPS_WIRE_WAKER_H_

#include <atomic>
#include <memory>
#include <thread>

#include "ops/bootstrap/segment.h"

namespace dtrun::ops::wire {

/// A thread that rings the engine's doorbell when a file becomes readable. It does so once after
/// each call of Arm.
class Waker {
 public:
  Waker(int file, std::shared_ptr<Segment> doorbell);
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  void Arm();

 private:
  void Run();

  int file_;
  std::shared_ptr<Segment> doorbell_;
  FileDescriptor stopper_;  // readable once the object is destroyed
  std::atomic<bool> armed_{false}, stop_{false};
  std::thread thread_;
};

}  // namespace dtrun::ops::wire

#endif  // DTRUN_OPS_WIRE_WAKER_H_
