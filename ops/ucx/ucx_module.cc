#include "ops/ucx/ucx_module.h"

#include <utility>

#include "base/version.h"
#include "ops/ucx/ucx_wire.h"
#include "ops/wire/wire_communicator.h"

namespace dtrun::ops {
namespace {

std::unique_ptr<Communicator> Create(
    Bootstrap& bootstrap, Engine& engine, Members members, const wire::Settings& settings) {
  return wire::CreateWireWorld(
      "ucx", std::make_unique<ucx::UcxWire>(bootstrap, engine, settings), bootstrap, engine,
      std::move(members), settings.relays_from);
}

const UcxModule kModule = {.version = base::kVersion, .create = &Create};

}  // namespace
}  // namespace dtrun::ops

extern "C" __attribute__((visibility("default"))) const dtrun::ops::UcxModule* dtrun_ucx_module() {
  return &dtrun::ops::kModule;
}
