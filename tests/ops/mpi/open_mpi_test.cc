#include <catch2/catch.hpp>

#include "dtrun/error.h"
#include "ops/mpi/mpi_module.h"
#include "ops/mpi/mpi_wire.h"

namespace {

using dtrun::ops::IsOfMpich;
using dtrun::ops::mpi::CheckIsExpected;

std::string RefusalOf(const std::string& library) {
  try {
    CheckIsExpected(library);
  } catch (const dtrun::Error& error) {
    CHECK(error.code() == dtrun::ErrorCode::kUnavailable);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("Open MPI 4 and 5 are accepted") {
  CHECK(
      RefusalOf("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4") ==
      "accepted");
  CHECK(RefusalOf("Open MPI v5.0.3, package: Open MPI") == "accepted");
}

TEST_CASE("another MPI is refused by its name") {
  const std::string calls = "the MPI library that was loaded calls itself '";
  const std::string expected = "'; expected Open MPI 4 or 5";
  CHECK(
      RefusalOf("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr 7") ==
      calls + "MPICH Version: 4.0.2" + expected);
  CHECK(
      RefusalOf("Intel(R) MPI Library 2021.10 for Linux* OS\n") ==
      calls + "Intel(R) MPI Library 2021.10 for Linux* OS" + expected);
  CHECK(RefusalOf("Open MPI v3.1.6, package") == calls + "Open MPI v3.1.6" + expected);
  CHECK(RefusalOf("") == calls + expected);
}

TEST_CASE("MPIs with the MPICH ABI are known by their names") {
  CHECK(IsOfMpich("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr 7"));
  CHECK(IsOfMpich("MPICH Version:      5.0.2\n"));
  CHECK(IsOfMpich("Intel(R) MPI Library 2021.10 for Linux* OS\n"));
  CHECK(IsOfMpich("MVAPICH2 Version      :\t2.3.7\n"));
  CHECK(!IsOfMpich("Open MPI v4.1.4, package: Debian OpenMPI"));
  CHECK(!IsOfMpich(""));
}

}  // namespace
