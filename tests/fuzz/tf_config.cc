// TF_CONFIG with any JSON. dtrun reads its hosts from it, and a process started by hand its peers.

#include "launcher/hosts/cluster_environment.h"
#include "launcher/hosts/hosts.h"
#include "runtime/job/join_by_hand.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

FUZZ_TARGET(tf_config) {
  const std::string text = fuzz::TextOf(data, size);
  fuzz::TakesOrRefuses([&] {
    const launcher::TfConfig config = launcher::ReadTfConfig(text);
    int slots = 0;
    for (const launcher::Host& host : config.hosts) {
      fuzz::Expect(!launcher::RefusalOfHost(host.name) && host.slots > 0);
      slots += host.slots;
    }
    fuzz::Expect(config.servers == 0 || config.servers + (config.evaluator ? 1 : 0) < slots);
  });
  fuzz::TakesOrRefuses([&] {
    const runtime::TfCluster cluster = runtime::ReadTfCluster(text);
    fuzz::Expect(cluster.rank >= -1 && cluster.rank < static_cast<int>(cluster.addresses.size()));
    for (const std::string& address : cluster.addresses)
      fuzz::Expect(!runtime::HostOfAddress(address).empty());
  });
  return 0;
}
