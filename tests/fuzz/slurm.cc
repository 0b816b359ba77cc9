// Slurm's lists of nodes and of tasks: "n[1-3,7],gpu[01-04]", "4(x2),3".

#include "launcher/slurm.h"

#include "launcher/hosts.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::TextOf(data, size);
  const size_t middle = text.find('\n');
  const std::string tasks = middle == std::string::npos ? "2" : text.substr(middle + 1);
  fuzz::TakesOrRefuses([&] {
    for (const launcher::Host& host : launcher::SlurmHosts(text.substr(0, middle), tasks))
      fuzz::Expect(!launcher::RefusalOfHost(host.name) && host.slots >= 0);
  });
  return 0;
}
