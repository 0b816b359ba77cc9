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

/// A communicator of MPI that the trainer owns, as the core hands it on without knowing its type.
struct MpiHandle {
  const void* comm = nullptr;  ///< where its MPI_Comm lies; null: none, all that were launched
  uint64_t bytes = 0;          ///< of an MPI_Comm
  std::string library;         ///< the trainer's MPI, as MPI_Get_library_version calls it
};

/// The processes of one communicator of MPI, seen from one of them. What libdtrun_mpi.so gives to
/// the core library, so that the core depends on no MPI. Used by one thread at a time.
class MpiJob {
 public:
  /// Local: it does not finalise MPI.
  virtual ~MpiJob() = default;

  /// Between all processes.
  virtual Bootstrap& bootstrap() = 0;
  /// This process among all that were launched together.
  virtual int launch_rank() const = 0;
  /// How many these are: the size of MPI_COMM_WORLD.
  virtual int launch_size() const = 0;
  /// Lowest rank of those that MPI sees on this rank's host, and that host's name.
  virtual int host_leader() const = 0;
  virtual std::string host_name() const = 0;
  /// "MPI_THREAD_SERIALIZED" and so on, and whether another thread than the caller's may drive MPI.
  virtual std::string thread_level() const = 0;
  virtual bool engine_thread_allowed() const = 0;

  /// Collective: a communicator of all processes.
  virtual std::unique_ptr<Communicator> CreateCommunicator(Engine& engine, Members members) = 0;
  /// Collective: gives back what it has of MPI. If a job of this process has initialised MPI, MPI
  /// is finalised when the process ends: by exit, or a return from main. Throws Error
  /// kInvalidArgument when somebody else has done so.
  virtual void Finalize() = 0;
  /// Ends all processes of the job, this one too, with this exit code, whatever they are doing.
  virtual void Abort(int code) = 0;
};

/// Loads libdtrun_mpi.so, which lies beside this library (or in the folder `directory`, if it is
/// not empty), and joins the processes of `handle`. Collective over them. Initialises MPI if nobody
/// has. Throws Error kUnavailable when the library or Open MPI cannot be loaded, or is of another
/// version; kInvalidArgument for a handle that cannot be used; kSystem when MPI fails. A wait of
/// the bootstrap lasts `timeout` at most.
std::unique_ptr<MpiJob> JoinMpiJob(
    const std::string& directory, const MpiHandle& handle, base::Duration timeout);

/// What libdtrun_mpi.so exports, under this name, with C linkage.
inline constexpr char kMpiModuleEntry[] = "dtrun_mpi_module";
struct MpiModule {
  const char* version;  ///< of the build: has to be the core library's
  std::unique_ptr<MpiJob> (*join)(const MpiHandle& handle, base::Duration timeout);
};
using MpiModuleEntry = const MpiModule* (*)();

}  // namespace dtrun::ops

#endif
