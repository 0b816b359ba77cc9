// --hostfile: accepted names are valid for ssh, and slots are not negative.

#include "launcher/hosts/hosts.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

FUZZ_TARGET(hostfile) {
  fuzz::TakesOrRefuses([&] {
    for (const launcher::Host& host : launcher::ParseHostfile("f", fuzz::TextOf(data, size)))
      fuzz::Expect(!launcher::RefusalOfHost(host.name) && host.slots >= 0);
  });
  return 0;
}
