#include "ops/mpi/mpi_calls.h"

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

bool Request::Test() {
  int done = 0;
  Check(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

}  // namespace dtrun::ops::mpi
