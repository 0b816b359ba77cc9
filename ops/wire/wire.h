#ifndef DTRUN_OPS_WIRE_WIRE_H_
#define DTRUN_OPS_WIRE_WIRE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/bootstrap/bootstrap.h"
#include "ops/bootstrap/segment.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops::wire {

/// Is told when its messages have ended. Ended may record the end, and do no more: the listeners of
/// other messages still wait for their call.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void Ended(uint64_t key) = 0;
};

/// A rank of the job that the wire cannot reach any more.
struct LostPeer {
  int rank = 0;       ///< of the job
  std::string why;    ///< for people: "its host does not answer"
  bool left = false;  ///< it has said that it ends its part in the job
};

/// What a wire must know about this host and this job.
struct Settings {
  /// The address of this host that the other hosts reach, and its network interface: "10.0.0.1",
  /// "eth0". "": not known.
  std::string address = {}, interface = {};
  base::PortRange ports = {};  ///< at which this rank may listen
  /// Known to all ranks of the job, if the job has a secret.
  std::string secret = {};
  /// A rank on a host that does not answer for this long is lost.
  std::chrono::seconds lost_after{30};
  /// From this number of ranks on, headers go through relays (wire_operation.cc). 0: if the cost of
  /// messages makes that faster.
  int relays_from = 0;
};

/// The connections of this process to the other ranks of the job, and all of its open messages. A
/// backend between hosts needs no more than this: the algorithms of this folder do the rest.
/// Messages between two ranks with equal tags match in the order of their start.
///
/// Not thread-safe: the engine's lock orders the calls. Ranks are ranks of the job. A message has
/// fewer than 2^31 bytes.
///
/// The wire owns the memory of an open message. It keeps the listener of a message until the
/// message ends. Memory that belongs to the listener therefore lives long enough, even if the
/// operation ends first.
class Wire {
 public:
  static constexpr int kAnySource = -1;

  virtual ~Wire() = default;

  enum class Mode {
    kBuffered,     ///< ends when the wire has a copy
    kSynchronous,  ///< ends when a receive of the other rank has taken it
  };
  virtual void Send(
      int rank, int tag, const void* data, uint64_t bytes, Mode mode,
      std::shared_ptr<Listener> listener, uint64_t key) = 0;
  /// Receives from `rank`, or from any rank if it is kAnySource.
  virtual void Receive(
      int rank, int tag, void* data, uint64_t bytes, std::shared_ptr<Listener> listener,
      uint64_t key) = 0;

  /// Lets messages progress, and tells the listeners which messages have ended. Each waiting caller
  /// passes its own number, 0 at first. If another caller has polled since this caller's last call,
  /// Poll does nothing. So the wire is polled once per round of the engine, however many callers
  /// wait. Throws Error kSystem if the wire as a whole has failed.
  virtual void Poll(uint64_t& seen) = 0;

  /// Whether a waiting thread has to poll. If false, the wire can ring the engine's doorbell.
  virtual bool needs_polling() const = 0;
  /// For a wire that can ring: asks for a ring at the next event. Returns false if there has been
  /// an event that no Poll has seen.
  virtual bool Arm() { return true; }
  /// For a wire that can ring: the number of messages that have ended and of ranks that were lost.
  virtual uint64_t events() const { return 0; }

  /// The ranks that were lost so far, in the order of their loss. A buffered message to such a rank
  /// ends. Other messages to it or from it do not end any more. A wire that cannot tell which rank
  /// is lost fails as a whole instead.
  virtual const std::vector<LostPeer>& lost() const = 0;
  /// Another rank has lost `rank`. If the reason is its host, this rank may lose the host's other
  /// ranks sooner.
  virtual void Doubt(int /*rank*/) {}

  /// From now on, no other rank waits for messages of this one. The end of the wire need not wait
  /// for messages to leave.
  virtual void LosePeers() {}

  /// Drops the open messages with this listener, of an operation that was given up and whose memory
  /// is about to go. The wire may lose the other ranks of these messages. A wire that keeps the
  /// messages keeps the listener, too, and is never destroyed.
  virtual void Drop(const Listener& /*listener*/) {}
  /// Withdraws the open receives with this listener. From then on, Poll does nothing.
  virtual void Close(const Listener& listener) = 0;
  /// Whether messages can still be sent and received.
  virtual bool usable() const = 0;

  /// The cost of a small message: the time of a CPU at both ends, and the time on its way. For the
  /// choice between algorithms.
  struct Cost {
    double cpu_us = 5, way_us = 15;
  };
  virtual Cost message_cost() const { return {}; }
  /// The largest tag.
  virtual int largest_tag() const = 0;
  /// The best size of a message when much data moves, in bytes.
  virtual uint64_t message_bytes() const = 0;
};

/// A thread that rings the engine's doorbell when a file becomes readable. It does so once after
/// each call of Arm, and looks at the file only after the pause.
class Waker {
 public:
  Waker(int file, std::shared_ptr<Segment> doorbell);
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  void Arm(std::chrono::microseconds pause = {});

 private:
  void Run();

  int file_;
  std::shared_ptr<Segment> doorbell_;
  FileDescriptor stopper_;  // readable once the object is destroyed
  std::atomic<std::chrono::microseconds> pause_{};
  std::atomic<bool> armed_{false}, stop_{false};
  std::thread thread_;
};

/// Collective over `bootstrap`, the ranks of the job: a communicator of all of them over a wire
/// that rings the engine's doorbell. The engine polls the wire from now on. `backend` is the name
/// of the backend, a literal. `relays_from`: see Settings.
std::unique_ptr<Communicator> CreateWireWorld(
    const char* backend, std::unique_ptr<Wire> of_job, Bootstrap& bootstrap, Engine& engine,
    Members members, int relays_from);

struct Endpoint;

/// Collective over the ranks of `bootstrap`, which are `job_ranks`: a communicator over the wire of
/// `endpoint` (wire_group.h).
std::unique_ptr<Communicator> CreateWireCommunicator(
    const char* backend, std::shared_ptr<Endpoint> endpoint, Bootstrap& bootstrap,
    std::vector<int> job_ranks, Engine& engine, Members members);

}  // namespace dtrun::ops::wire

#endif  // DTRUN_OPS_WIRE_WIRE_H_
