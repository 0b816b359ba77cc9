// -H and names of networks. Accepted host names are valid for ssh, and slots are not negative.

#include "launcher/hosts/hosts.h"

#include "launcher/networks/network_choice.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

FUZZ_TARGET(hosts) {
  const std::string text = fuzz::TextOf(data, size);
  fuzz::TakesOrRefuses([&] {
    for (const launcher::Host& host : launcher::ParseHosts(text)) {
      fuzz::Expect(!launcher::RefusalOfHost(host.name) && host.name[0] != '-');
      fuzz::Expect(host.slots >= 0);
    }
  });
  fuzz::TakesOrRefuses([&] { launcher::ParseNetworks(text); });
  return 0;
}
