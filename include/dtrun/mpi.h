/// For a trainer that speaks MPI itself: `Init(comm)` makes a rank of every process of an MPI
/// communicator. Its ranks are those of `comm`, in its order. Errors and warnings name a rank by
/// its number in MPI_COMM_WORLD.
///
/// **Before MPI_Init** `comm` is MPI_COMM_WORLD, and dtrun initialises MPI at MPI_THREAD_MULTIPLE;
/// `Shutdown()` finalises it, so the trainer calls neither MPI_Init nor MPI_Finalize.
///
/// **After MPI_Init** at any thread level, `comm` is any intra-communicator. dtrun talks over a
/// duplicate of it: the trainer's own messages never meet dtrun's. `Shutdown()` gives the duplicate
/// back, MPI stays initialised, and the trainer calls MPI_Finalize after it. One context may follow
/// another.
///
/// **Threads.** On one host operations go through shared memory and overlap with the trainer's own
/// work at any level. Between hosts a thread of dtrun's has to call MPI: only at
/// MPI_THREAD_MULTIPLE. Below, operations move while dtrun is called (MarkReady, Test, Wait), a
/// warning of rank 0 says so, and at MPI_THREAD_SINGLE and MPI_THREAD_FUNNELED the thread that
/// initialised MPI makes all calls of dtrun.
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

/// Collective over `comm`; see the top of this file. Errors: those of `Init()`, and
/// kInvalidArgument for a communicator that cannot be joined, also where a job of several ranks was
/// started without MPI, so that MPI_COMM_WORLD has one, kUnavailable when libdtrun_mpi.so
/// cannot be loaded.
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

/// The same for C.
static inline dtrun_error* dtrun_init_comm(
    MPI_Comm comm, const dtrun_option* options, size_t option_count, dtrun_context** context) {
  char library[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(library, &length);
  return dtrun_init_mpi(&comm, sizeof comm, library, options, option_count, context);
}

#endif
#endif
