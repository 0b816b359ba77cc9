#ifndef DTRUN_OPS_MPI_MPI_MODULE_H_
#define DTRUN_OPS_MPI_MPI_MODULE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/process.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops {

/// An MPI communicator of the trainer, in a form that the core hands on without MPI's types.
struct MpiHandle {
  const void* comm = nullptr;  ///< the address of the MPI_Comm; null: MPI_COMM_WORLD
  uint64_t bytes = 0;          ///< the size of an MPI_Comm
  std::string library;         ///< MPI_Get_library_version of the trainer's MPI; "": Open MPI
};

/// Whether `library`, the text of MPI_Get_library_version, is of an MPI with the MPICH ABI.
inline bool IsOfMpich(const std::string& library) {
  return library.starts_with("MPICH") || library.starts_with("Intel(R) MPI") ||
         library.starts_with("MVAPICH");
}

/// The processes of one MPI communicator, as one of them sees them. libdtrun_mpi.so (Open MPI) and
/// libdtrun_mpich.so (the MPICH ABI) implement this interface for the core library, so that the
/// core does not depend on MPI. Used by one thread at a time.
class MpiJob {
 public:
  /// Local. Does not finalise MPI.
  virtual ~MpiJob() = default;

  /// The bootstrap of all processes.
  virtual Bootstrap& bootstrap() = 0;
  /// The rank of this process in MPI_COMM_WORLD.
  virtual int launch_rank() const = 0;
  /// The size of MPI_COMM_WORLD: the number of processes that were launched together.
  virtual int launch_size() const = 0;
  /// The lowest rank on this rank's host, by MPI's view of hosts, and the name of the host.
  virtual int host_leader() const = 0;
  virtual std::string host_name() const = 0;
  /// "MPI_THREAD_SERIALIZED" and so on, and whether a thread other than the caller's may drive MPI.
  virtual std::string thread_level() const = 0;
  virtual bool engine_thread_allowed() const = 0;
  /// Whether a communicator has been created, so that MPI carries data.
  virtual bool carries() const = 0;

  /// Collective: creates a communicator of all processes.
  virtual std::unique_ptr<Communicator> CreateCommunicator(Engine& engine, Members members) = 0;
  /// Collective: releases the job's objects of MPI. If a job of this process has initialised MPI,
  /// MPI is finalised when the process ends, by exit or by a return from main. Throws Error
  /// kInvalidArgument if the program has finalised MPI already.
  virtual void Finalize() = 0;
  /// Ends all processes of the job at once, this process included, with this exit code.
  virtual void Abort(int code) = 0;
};

/// The function that these libraries export under this name, with C linkage.
inline constexpr char kMpiModuleEntry[] = "dtrun_mpi_module";
struct MpiModule {
  const char* version;  ///< of the build; must equal the version of the core library
  std::unique_ptr<MpiJob> (*join)(const MpiHandle& handle, base::Duration timeout);
};

/// Loads the library for the MPI of `handle` and joins the processes of `handle`. The library lies
/// beside this library or in the folder dtrun/ there. If `directory` is not empty, it stands for
/// this library's folder. Collective over the processes. Initialises MPI if it is not initialised.
/// Throws Error kUnavailable if the library or MPI cannot be loaded, or has another version;
/// kInvalidArgument for a handle that cannot be used; kSystem if MPI fails. A wait of the bootstrap
/// lasts `timeout` at most.
std::unique_ptr<MpiJob> JoinMpiJob(
    const std::string& directory, const MpiHandle& handle, base::Duration timeout);

}  // namespace dtrun::ops

#endif
