#ifndef DTRUN_OPS_MPI_MPI_WIRE_H_
#define DTRUN_OPS_MPI_MPI_WIRE_H_

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "ops/wire/wire.h"

namespace dtrun::ops::mpi {

/// The wire over one MPI communicator of the job. If one rank is lost, MPI fails as a whole.
class MpiWire : public wire::Wire {
 public:
  explicit MpiWire(MPI_Comm comm);
  ~MpiWire() override;
  MpiWire(const MpiWire&) = delete;
  MpiWire& operator=(const MpiWire&) = delete;

  void Send(
      int rank, int tag, const void* data, uint64_t bytes, Mode mode,
      std::shared_ptr<wire::Listener> listener, uint64_t key) override;
  void Receive(
      int rank, int tag, void* data, uint64_t bytes, std::shared_ptr<wire::Listener> listener,
      uint64_t key) override;
  /// If synchronous sends are open and no message has ended for a while, Poll yields the core.
  void Poll(uint64_t& seen) override;
  bool needs_polling() const override { return true; }
  const std::vector<wire::LostPeer>& lost() const override { return lost_; }
  void Close(const wire::Listener& listener) override;
  bool usable() const override { return !closed_ && !finalized_ && broken_.empty(); }
  int largest_tag() const override { return largest_tag_; }
  /// Open MPI sends a message of this size at once, without asking the receiver first. Over TCP, it
  /// does so up to 64 KiB, its envelope included. On a busy wire, the question and the answer would
  /// wait behind the data of both directions.
  uint64_t message_bytes() const override { return 60 << 10; }

  /// Records that the program finalises MPI. From now on, every call fails with kInvalidArgument,
  /// which gives this reason. Thread-safe.
  void SetFinalized() { finalized_ = true; }

 private:
  struct Open {
    std::shared_ptr<wire::Listener> listener;
    uint64_t key;
    bool synchronous;
  };
  void CheckNotFinalized() const;
  void Add(
      MPI_Request request, std::shared_ptr<wire::Listener> listener, uint64_t key,
      bool synchronous);
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
  std::string broken_;                      // MPI's error, once MPI has failed
  const std::vector<wire::LostPeer> lost_;  // stays empty
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

/// The MPIs that this library was built for (open_mpi.cc, mpich.cc): "Open MPI 4 or 5".
std::string ExpectedMpi();
/// Whether `library`, the text of MPI_Get_library_version, is of such an MPI.
bool IsExpectedMpi(const std::string& library);
/// Throws Error kUnavailable unless it is.
void CheckIsExpected(const std::string& library);

/// The start of that text, for people: "Open MPI v4.1.4", "MPICH Version: 4.0.2".
std::string NameOfLibrary(const std::string& library);

}  // namespace dtrun::ops::mpi

#endif  // DTRUN_OPS_MPI_MPI_WIRE_H_
