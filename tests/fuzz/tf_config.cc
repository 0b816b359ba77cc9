// TF_CONFIG: any JSON, as dtrun reads it for its hosts and a process started by hand for its peers.

#include "launcher/tf_config.h"

#include "launcher/hosts.h"
#include "runtime/tf_cluster.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::TextOf(data, size);
  fuzz::TakesOrRefuses([&] {
    for (const launcher::Host& host : launcher::TfConfigHosts(text))
      fuzz::Expect(!launcher::RefusalOfHost(host.name) && host.slots > 0);
  });
  fuzz::TakesOrRefuses([&] {
    const runtime::TfCluster cluster = runtime::ReadTfCluster(text);
    fuzz::Expect(cluster.rank >= -1 && cluster.rank < static_cast<int>(cluster.addresses.size()));
    for (const std::string& address : cluster.addresses)
      fuzz::Expect(!runtime::HostOfAddress(address).empty());
  });
  return 0;
}
