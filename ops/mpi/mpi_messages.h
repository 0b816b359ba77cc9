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

/// Told when its messages have ended. It has to take that down and no more: it is called while
/// messages of others wait to be told.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void Ended(uint64_t key) = 0;
};

/// All open messages of this process, over one communicator of MPI. Not thread-safe: the engine's
/// lock orders the calls. Ranks are those of the job, bytes less than 2^31.
///
/// MPI owns the memory of an open message. Its listener is kept as long, so memory that belongs to
/// the listener lives long enough, whatever becomes of the operation.
class Messages {
 public:
  explicit Messages(MPI_Comm comm);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  enum class Mode {
    kBuffered,     ///< ends when MPI has a copy
    kSynchronous,  ///< ends when a receive of the other side has got it
  };
  void Send(
      int rank, int tag, const void* data, uint64_t bytes, Mode mode,
      std::shared_ptr<Listener> listener, uint64_t key);
  void Receive(
      int rank, int tag, void* data, uint64_t bytes, std::shared_ptr<Listener> listener,
      uint64_t key);

  /// Lets MPI progress and tells the listeners what has ended. Everyone who waits calls this with a
  /// number of his own, 0 at first: it does nothing if somebody else has polled since the caller's
  /// last call, so MPI is looked at once per round of the engine, however many wait. While
  /// synchronous sends are open and nothing has ended for a while, it offers the core to others.
  void Poll(uint64_t& seen);

  /// Withdraws open receives with this listener; from then on Poll does nothing.
  void Close(const Listener& listener);

  /// MPI is about to be finalised by somebody else: from now on everything fails with
  /// kInvalidArgument, which says so. From any thread.
  void SetFinalized() { finalized_ = true; }

  /// MPI can be called for them.
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
  std::vector<Open> open_;  // beside requests_
  std::vector<int> indices_;
  std::vector<Open> ended_;
  int synchronous_ = 0;  // of open_
  int idle_polls_ = 0;   // in a row
  uint64_t polls_ = 0;
  std::string broken_;  // what MPI said when it failed
  std::atomic<bool> closed_{false}, finalized_{false};
};

/// Throws Error kSystem with MPI's own words unless `result` is MPI_SUCCESS.
void Check(int result, const char* call);

/// Counts of MPI are ints: the caller sees to it that `count` is less than 2^31.
inline int Int(uint64_t count) { return static_cast<int>(count); }

/// Looks again and again, soon with pauses, until `done()`; false when that lasts longer than
/// `timeout`. For the time before there is an engine.
bool WaitUntil(base::Duration timeout, const std::function<bool()>& done);

/// Collective: a communicator of the same ranks that returns errors. Throws Error kTimeout.
MPI_Comm DuplicateOf(MPI_Comm comm, base::Duration timeout);

/// Throws Error kUnavailable unless `library`, what MPI_Get_library_version says of itself, is an
/// Open MPI that dtrun works with: 4 or 5.
void CheckIsOpenMpi(const std::string& library);

/// Its first words, for people: "Open MPI v4.1.4", "MPICH Version: 4.0.2".
std::string NameOfLibrary(const std::string& library);

}  // namespace dtrun::ops::mpi

#endif  // DTRUN_OPS_MPI_MPI_MESSAGES_H_
