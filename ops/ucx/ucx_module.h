#ifndef DTRUN_OPS_UCX_UCX_MODULE_H_
#define DTRUN_OPS_UCX_UCX_MODULE_H_

#include <memory>
#include <string>

#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/wire/wire.h"

namespace dtrun::ops {

/// Loads libdtrun_ucx.so, which lies where libdtrun_mpi.so lies (JoinMpiJob). Returns why UCX
/// cannot be used in this process, or "".
std::string LoadUcx(const std::string& directory);

/// A communicator of all ranks of `bootstrap`, on any number of hosts, over OpenUCX. Collective.
/// LoadUcx has succeeded. Throws Error kUnavailable if UCX refuses the settings or finds no
/// network.
std::unique_ptr<Communicator> CreateUcxCommunicator(
    Bootstrap& bootstrap, Engine& engine, Members members, const wire::Settings& settings);

/// The function that libdtrun_ucx.so exports under this name, with C linkage.
inline constexpr char kUcxModuleEntry[] = "dtrun_ucx_module";
struct UcxModule {
  const char* version;  ///< of the build; must equal the version of the core library
  std::unique_ptr<Communicator> (*create)(
      Bootstrap& bootstrap, Engine& engine, Members members, const wire::Settings& settings);
};
using UcxModuleEntry = const UcxModule* (*)();

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_UCX_UCX_MODULE_H_
