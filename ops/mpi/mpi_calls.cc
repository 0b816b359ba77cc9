#include "ops/mpi/mpi_calls.h"

#include <chrono>
#include <thread>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::mpi {

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
  MPI_Comm duplicate = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  Check(MPI_Comm_idup(comm, &duplicate, &request), "MPI_Comm_idup");
  const bool done = WaitUntil(timeout, [&request] {
    int ended = 0;
    Check(MPI_Test(&request, &ended, MPI_STATUS_IGNORE), "MPI_Test");
    return ended != 0;
  });
  if (!done)
    throw Error(ErrorCode::kTimeout, "waited too long for the other ranks to join the job");
  Check(MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return duplicate;
}

}  // namespace dtrun::ops::mpi
