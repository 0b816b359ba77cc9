#include "ops/mpi/mpi_wire.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::mpi {
namespace {

constexpr int kIdlePolls = 100;  // some tens of microseconds: a peer on this host needs less

}  // namespace

MpiWire::MpiWire(MPI_Comm comm) : comm_(comm) {
  int* bound = nullptr;
  int found = 0;
  Check(MPI_Comm_get_attr(comm, MPI_TAG_UB, &bound, &found), "MPI_Comm_get_attr");
  largest_tag_ = found != 0 ? *bound : 32767;  // the least that MPI guarantees
}

MpiWire::~MpiWire() {
  // MPI may still write into the memory of open messages, so that memory is never freed.
  if (!open_.empty()) new std::vector<Open>(std::move(open_));
}

void MpiWire::Send(
    int rank, int tag, const void* data, uint64_t bytes, Mode mode,
    std::shared_ptr<wire::Listener> listener, uint64_t key) {
  CheckNotFinalized();
  MPI_Request request = MPI_REQUEST_NULL;
  const auto send = mode == Mode::kSynchronous ? MPI_Issend : MPI_Isend;
  Check(send(data, Int(bytes), MPI_BYTE, rank, tag, comm_, &request), "MPI_Isend");
  Add(request, std::move(listener), key, mode == Mode::kSynchronous);
}

void MpiWire::Receive(
    int rank, int tag, void* data, uint64_t bytes, std::shared_ptr<wire::Listener> listener,
    uint64_t key) {
  CheckNotFinalized();
  MPI_Request request = MPI_REQUEST_NULL;
  Check(
      MPI_Irecv(
          data, Int(bytes), MPI_BYTE, rank == kAnySource ? MPI_ANY_SOURCE : rank, tag, comm_,
          &request),
      "MPI_Irecv");
  Add(request, std::move(listener), key, false);
}

void MpiWire::CheckNotFinalized() const {
  if (!finalized_) return;
  throw Error(ErrorCode::kInvalidArgument, "MPI_Finalize was called before Shutdown");
}

void MpiWire::Add(
    MPI_Request request, std::shared_ptr<wire::Listener> listener, uint64_t key, bool synchronous) {
  requests_.push_back(request);
  open_.push_back({std::move(listener), key, synchronous});
  if (synchronous) ++synchronous_;
}

void MpiWire::Poll(uint64_t& seen) {
  if (seen != polls_) {
    seen = polls_;
    return;
  }
  seen = ++polls_;
  ++idle_polls_;
  for (; !closed_ && TestSome(); idle_polls_ = 0) {
    std::vector<Open> ended = std::move(ended_);
    for (const Open& open : ended) open.listener->Ended(open.key);
    ended.clear();
    ended_ = std::move(ended);
  }
  // Data takes time on the wire. On a busy host, spinning would use up this process's share of the
  // core before the data has come.
  if (synchronous_ > 0 && idle_polls_ > kIdlePolls) ::sched_yield();
}

// Open MPI first looks for ended messages. It lets messages progress only if none has ended, and
// reports the result in the next call.
bool MpiWire::TestSome() {
  CheckNotFinalized();
  if (!broken_.empty()) throw Error(ErrorCode::kSystem, broken_);
  indices_.resize(requests_.size());
  int count = 0;
  const int result = MPI_Testsome(
      Int(requests_.size()), requests_.data(), &count, indices_.data(), MPI_STATUSES_IGNORE);
  try {
    Check(result, "MPI_Testsome");
  } catch (const Error& error) {
    // After an error, the state of all other messages is unknown.
    broken_ = error.what();
    throw;
  }
  if (count == MPI_UNDEFINED || count == 0) return false;
  for (int i = 0; i < count; ++i)
    ended_.push_back(open_[static_cast<size_t>(indices_[static_cast<size_t>(i)])]);
  std::sort(indices_.begin(), indices_.begin() + count, std::greater<>());
  for (int i = 0; i < count; ++i) Remove(static_cast<size_t>(indices_[static_cast<size_t>(i)]));
  return true;
}

void MpiWire::Remove(size_t index) {
  if (open_[index].synchronous) --synchronous_;
  requests_[index] = requests_.back();
  open_[index] = std::move(open_.back());
  requests_.pop_back();
  open_.pop_back();
}

void MpiWire::Close(const wire::Listener& listener) {
  closed_ = true;
  for (size_t i = requests_.size(); i-- > 0;) {
    if (open_[i].listener.get() != &listener) continue;
    Check(MPI_Cancel(&requests_[i]), "MPI_Cancel");
    Check(MPI_Request_free(&requests_[i]), "MPI_Request_free");
    Remove(i);
  }
}

void Check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(ErrorCode::kSystem, base::Text(call, " failed: ", text));
}

bool WaitUntil(base::Duration timeout, const std::function<bool()>& done) {
  constexpr int kLooks = 1000;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int looks = 0; !done(); ++looks) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    if (looks > kLooks) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

MPI_Comm DuplicateOf(MPI_Comm comm, base::Duration timeout) {
  struct Duplication {
    MPI_Comm duplicate = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  auto its = std::make_unique<Duplication>();
  Check(MPI_Comm_idup(comm, &its->duplicate, &its->request), "MPI_Comm_idup");
  const bool done = WaitUntil(timeout, [&its] {
    int ended = 0;
    Check(MPI_Test(&its->request, &ended, MPI_STATUS_IGNORE), "MPI_Test");
    return ended != 0;
  });
  if (!done) {
    its.release();  // MPI still writes the communicator there if a late rank comes
    throw Error(ErrorCode::kTimeout, "waited too long for the other ranks to join the job");
  }
  Check(MPI_Comm_set_errhandler(its->duplicate, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return its->duplicate;
}

std::string NameOfLibrary(const std::string& library) {
  std::string name = library.substr(0, library.find_first_of(std::string("\n,\0", 3)));
  std::replace(name.begin(), name.end(), '\t', ' ');
  return name;
}

void CheckIsExpected(const std::string& library) {
  if (IsExpectedMpi(library)) return;
  throw Error(
      ErrorCode::kUnavailable, base::Text(
                                   "the MPI library that was loaded calls itself '",
                                   NameOfLibrary(library), "'; expected ", ExpectedMpi()));
}

}  // namespace dtrun::ops::mpi
