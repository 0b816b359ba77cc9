// -H, and the names of hosts and networks: what was taken can be written down and read again.

#include "launcher/hosts.h"

#include "launcher/networks.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
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
