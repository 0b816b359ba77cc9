// Slurm's lists of nodes and of tasks, "n[1-3,7],gpu[01-04]" and "4(x2),3", and the hosts of PBS,
// LSF and Grid Engine.

#include "launcher/hosts/cluster_environment.h"
#include "launcher/hosts/hosts.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

FUZZ_TARGET(slurm) {
  const std::string text = fuzz::TextOf(data, size);
  const size_t middle = text.find('\n');
  const std::string tasks = middle == std::string::npos ? "2" : text.substr(middle + 1);
  fuzz::TakesOrRefuses([&] {
    for (const launcher::Host& host : launcher::SlurmHosts(text.substr(0, middle), tasks))
      fuzz::Expect(!launcher::RefusalOfHost(host.name) && host.slots >= 0);
  });
  const auto check = [](const std::vector<launcher::Host>& hosts) {
    fuzz::Expect(!hosts.empty() && launcher::SlotCount(hosts) <= launcher::kMaxRanks);
    for (const launcher::Host& host : hosts)
      fuzz::Expect(!launcher::RefusalOfHost(host.name) && host.slots > 0);
  };
  fuzz::TakesOrRefuses([&] { check(launcher::SlotFileHosts("PBS_NODEFILE", text)); });
  fuzz::TakesOrRefuses([&] { check(launcher::GridEngineHosts(text)); });
  fuzz::TakesOrRefuses([&] { check(launcher::LsfHosts(text)); });
  return 0;
}
