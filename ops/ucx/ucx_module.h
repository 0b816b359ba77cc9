#ifndef DTRUN_OPS_UCX_UCX_MODULE_H_
#define DTRUN_OPS_UCX_UCX_MODULE_H_

#include <memory>

#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/wire/wire.h"

namespace dtrun::ops {

/// The function that libdtrun_ucx.so exports under this name, with C linkage.
inline constexpr char kUcxModuleEntry[] = "dtrun_ucx_module";
struct UcxModule {
  const char* version;  ///< of the build; must equal the version of the core library
  /// A communicator of all ranks of `bootstrap`, on any number of hosts, over OpenUCX. Collective.
  /// Throws Error kUnavailable if UCX refuses the settings or finds no network.
  std::unique_ptr<Communicator> (*create)(
      Bootstrap& bootstrap, Engine& engine, Members members, const wire::Settings& settings);
};

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_UCX_UCX_MODULE_H_
