#include "ops/ucx/ucx_module.h"

#include <numeric>
#include <vector>

#include "base/version.h"
#include "ops/ucx/ucx_wire.h"
#include "ops/wire/wire_communicator.h"

namespace dtrun::ops {
namespace {

std::unique_ptr<Communicator> Create(
    Bootstrap& bootstrap, Engine& engine, Members members, const wire::Settings& settings) {
  auto of_job = std::make_unique<ucx::UcxWire>(bootstrap, engine, settings);
  std::vector<int> all(static_cast<size_t>(bootstrap.size()));
  std::iota(all.begin(), all.end(), 0);
  return wire::CreateWireCommunicator(
      "ucx", wire::MakeEndpoint(std::move(of_job), bootstrap.size(), engine), bootstrap,
      std::move(all), engine, std::move(members));
}

const UcxModule kModule = {.version = base::kVersion, .create = &Create};

}  // namespace
}  // namespace dtrun::ops

extern "C" __attribute__((visibility("default"))) const dtrun::ops::UcxModule* dtrun_ucx_module() {
  return &dtrun::ops::kModule;
}
