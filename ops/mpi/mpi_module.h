#ifndef DTRUN_OPS_MPI_MPI_MODULE_H_
#define DTRUN_OPS_MPI_MPI_MODULE_H_

#include <memory>
#include <string>

#include "base/clock.h"
#include "ops/bootstrap.h"
#include "ops/communicator.h"
#include "ops/engine.h"

namespace dtrun::ops {

/// The processes that one MPI launcher started, seen from one of them. What libdtrun_mpi.so gives
/// to the core library, so that the core depends on no MPI. One per process, used by one thread at
/// a time.
class MpiJob {
 public:
  /// Local: it does not finalise MPI.
  virtual ~MpiJob() = default;

  /// Between all processes.
  virtual Bootstrap& bootstrap() = 0;
  /// Lowest rank of those that MPI sees on this rank's host, and that host's name.
  virtual int host_leader() const = 0;
  virtual std::string host_name() const = 0;
  /// "MPI_THREAD_SERIALIZED" and so on, and whether another thread than the caller's may drive MPI.
  virtual std::string thread_level() const = 0;
  virtual bool engine_thread_allowed() const = 0;

  /// Collective: a communicator of all processes.
  virtual std::unique_ptr<Communicator> CreateCommunicator(Engine& engine, Members members) = 0;
  /// Collective: finalises MPI if this job has initialised it. Nothing of MPI may be used
  /// afterwards.
  virtual void Finalize() = 0;
  /// Ends all processes of the job, this one too, with this exit code, whatever they are doing.
  virtual void Abort(int code) = 0;
};

/// Loads libdtrun_mpi.so, which lies beside this library (or in the folder `directory`, if it is
/// not empty), and joins the job. Collective. Throws Error kUnavailable when the library or Open
/// MPI cannot be loaded, or is of another version; kSystem when MPI fails. A wait of the bootstrap
/// lasts `timeout` at most.
std::unique_ptr<MpiJob> JoinMpiJob(const std::string& directory, base::Duration timeout);

/// What libdtrun_mpi.so exports, under this name, with C linkage.
inline constexpr char kMpiModuleEntry[] = "dtrun_mpi_module";
struct MpiModule {
  const char* version;  ///< of the build: has to be the core library's
  std::unique_ptr<MpiJob> (*join)(base::Duration timeout);
};
using MpiModuleEntry = const MpiModule* (*)();

}  // namespace dtrun::ops

#endif
