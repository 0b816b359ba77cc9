#include <cstdlib>
#include <utility>

#include "dtrun/error.h"
#include "ops/ucx/ucx_module.h"

namespace dtrun::ops {
namespace {

const UcxModule* loaded = nullptr;

}  // namespace

std::string LoadUcx(const std::string& directory) {
  // UCX reads these variables when it is loaded. It would write warnings to stdout, and a backtrace
  // at a crash. Values that the user has set stay.
  ::setenv("UCX_LOG_LEVEL", "error", 0);
  ::setenv("UCX_HANDLE_ERRORS", "none", 0);
  ::setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
  try {
    loaded = static_cast<const UcxModule*>(
        base::LoadModule(directory, "libdtrun_ucx.so", kUcxModuleEntry, "the UCX backend", false));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::unique_ptr<Communicator> CreateUcxCommunicator(
    Bootstrap& bootstrap, Engine& engine, Members members, const wire::Settings& settings) {
  return loaded->create(bootstrap, engine, std::move(members), settings);
}

}  // namespace dtrun::ops
