/// \file
/// For a trainer that uses MPI itself: `Init(comm)` makes every process of an MPI communicator a
/// rank. Ranks have the order of `comm`. Errors and warnings name a rank by its number in
/// MPI_COMM_WORLD. Supported: Open MPI 4 and 5, and MPIs with the MPICH ABI: MPICH 3.1 and later,
/// Intel MPI 5 and later.
///
/// **Before MPI_Init.** `comm` is MPI_COMM_WORLD. dtrun initialises MPI at MPI_THREAD_MULTIPLE. If
/// `Shutdown()` was called, MPI is finalised when the process ends. The trainer calls neither
/// MPI_Init nor MPI_Finalize.
///
/// **After MPI_Init**, at any thread level. `comm` is any intra-communicator. dtrun uses a
/// duplicate of it, so the trainer's messages never mix with dtrun's messages. `Shutdown()` frees
/// the duplicate, and MPI stays initialised. The trainer calls MPI_Finalize afterwards. One context
/// may follow another.
///
/// **Threads.** Operations go through shared memory and, between hosts, through TCP. They overlap
/// with the trainer's own work at any thread level. If MPI carries them between hosts (the option
/// `transport`), they overlap only at MPI_THREAD_MULTIPLE, because a thread of dtrun calls MPI. At
/// lower levels, operations then advance only while the trainer calls dtrun (MarkReady, Test,
/// Wait), and rank 0 prints a warning. At MPI_THREAD_SINGLE and
/// MPI_THREAD_FUNNELED, the thread that initialised MPI makes all calls of dtrun.
///
///   MPI_Init(&argc, &argv);
///   dtrun::Context context = dtrun::Init(MPI_COMM_WORLD);
///   ...
///   context.Shutdown();
///   MPI_Finalize();
#ifndef DTRUN_MPI_H_
#define DTRUN_MPI_H_

#include <dtrun/c.h>
#include <mpi.h>

#ifdef __cplusplus

#include <dtrun/context.h>
#include <dtrun/error.h>

#include <vector>

namespace dtrun {

/// Makes this process a rank of `comm`; see the top of this file. Collective over `comm`. Errors:
/// those of `Init()`, kUnavailable (dtrun's library for this MPI cannot be loaded), and kInvalidArgument (the
/// communicator cannot be joined). A job of several ranks that was started without MPI is also
/// kInvalidArgument, because its MPI_COMM_WORLD has one rank.
inline Context Init(MPI_Comm comm, const Options& options = {}) {
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(library, &length);
  const std::vector<dtrun_option> list = detail::ToC(options);
  dtrun_context* context = nullptr;
  detail::Check(dtrun_init_mpi(&comm, sizeof comm, library, list.data(), list.size(), &context));
  return Context(context);
}

}  // namespace dtrun

#else

/// Makes this process a rank of `comm`, for programs in C; see the top of this file. Collective
/// over `comm`. Errors: those of `Init(comm)` in C++.
static inline dtrun_error* dtrun_init_comm(
    MPI_Comm comm, const dtrun_option* options, size_t option_count, dtrun_context** context) {
  char library[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(library, &length);
  return dtrun_init_mpi(&comm, sizeof comm, library, options, option_count, context);
}

#endif
#endif
