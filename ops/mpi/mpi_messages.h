#ifndef DTRUN_OPS_MPI_MPI_MESSAGES_H_
#define DTRUN_OPS_MPI_MPI_MESSAGES_H_

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"

namespace dtrun::ops::mpi {

/// Is told when its messages have ended. Ended may record the end, and do no more: the listeners of
/// other messages still wait for their call.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void Ended(uint64_t key) = 0;
};

/// All open messages of this process, over one MPI communicator. Not thread-safe: the engine's lock
/// orders the calls. Ranks are ranks of the job. A message has fewer than 2^31 bytes.
///
/// MPI owns the memory of an open message. The listener of a message is kept until the message
/// ends. Memory that belongs to the listener therefore lives long enough, even if the operation
/// ends first.
class Messages {
 public:
  explicit Messages(MPI_Comm comm);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  enum class Mode {
    kBuffered,     ///< ends when MPI has a copy
    kSynchronous,  ///< ends when a receive of the other rank has taken it
  };
  void Send(
      int rank, int tag, const void* data, uint64_t bytes, Mode mode,
      std::shared_ptr<Listener> listener, uint64_t key);
  void Receive(
      int rank, int tag, void* data, uint64_t bytes, std::shared_ptr<Listener> listener,
      uint64_t key);

  /// Lets MPI progress, and tells the listeners which messages have ended. Each waiting caller
  /// passes its own number, 0 at first. If another caller has polled since this caller's last call,
  /// Poll does not call MPI. So MPI is polled once per round of the engine, however many callers
  /// wait. If synchronous sends are open and no message has ended for a while, Poll yields the
  /// core.
  void Poll(uint64_t& seen);

  /// Withdraws the open receives with this listener. From then on, Poll does not call MPI.
  void Close(const Listener& listener);

  /// Records that the program finalises MPI. From now on, every call fails with kInvalidArgument,
  /// which gives this reason. Thread-safe.
  void SetFinalized() { finalized_ = true; }

  /// Whether MPI can still be called for these messages.
  bool usable() const { return !closed_ && !finalized_ && broken_.empty(); }

  /// The largest tag that MPI allows.
  int largest_tag() const { return largest_tag_; }

 private:
  struct Open {
    std::shared_ptr<Listener> listener;
    uint64_t key;
    bool synchronous;
  };
  void CheckNotFinalized() const;
  void Add(MPI_Request request, std::shared_ptr<Listener> listener, uint64_t key, bool synchronous);
  bool TestSome();
  void Remove(size_t index);

  MPI_Comm comm_;
  int largest_tag_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<Open> open_;  // parallel to requests_
  std::vector<int> indices_;
  std::vector<Open> ended_;
  int synchronous_ = 0;  // the synchronous sends in open_
  int idle_polls_ = 0;   // in a row
  uint64_t polls_ = 0;
  std::string broken_;  // MPI's error, once MPI has failed
  std::atomic<bool> closed_{false}, finalized_{false};
};

/// Throws Error kSystem with MPI's own message unless `result` is MPI_SUCCESS.
void Check(int result, const char* call);

/// Converts a count for MPI, where counts are ints. The caller ensures that it is below 2^31.
inline int Int(uint64_t count) { return static_cast<int>(count); }

/// Polls until `done()`, after a while with pauses. Returns false if that takes longer than
/// `timeout`. For the time before there is an engine.
bool WaitUntil(base::Duration timeout, const std::function<bool()>& done);

/// Collective: returns a communicator of the same ranks that returns errors. Throws Error kTimeout.
MPI_Comm DuplicateOf(MPI_Comm comm, base::Duration timeout);

/// Throws Error kUnavailable unless `library`, the text of MPI_Get_library_version, is of Open MPI
/// 4 or 5. dtrun works with these versions.
void CheckIsOpenMpi(const std::string& library);

/// The start of that text, for people: "Open MPI v4.1.4", "MPICH Version: 4.0.2".
std::string NameOfLibrary(const std::string& library);

}  // namespace dtrun::ops::mpi

#endif  // DTRUN_OPS_MPI_MPI_MESSAGES_H_
