#include "ops/mpi/open_mpi.h"

#include <algorithm>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::mpi {

std::string NameOfLibrary(const std::string& library) {
  std::string name = library.substr(0, library.find_first_of(std::string("\n,\0", 3)));
  std::replace(name.begin(), name.end(), '\t', ' ');
  return name;
}

void CheckIsOpenMpi(const std::string& library) {
  if (library.starts_with("Open MPI v4.") || library.starts_with("Open MPI v5.")) return;
  throw Error(
      ErrorCode::kUnavailable, base::Text(
                                   "the MPI library that was loaded calls itself '",
                                   NameOfLibrary(library), "'; expected Open MPI 4 or 5"));
}

}  // namespace dtrun::ops::mpi
