// TF_CONFIG: any JSON.

#include "launcher/tf_config.h"

#include "launcher/hosts.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::TakesOrRefuses([&] {
    for (const launcher::Host& host : launcher::TfConfigHosts(fuzz::TextOf(data, size)))
      fuzz::Expect(!launcher::RefusalOfHost(host.name));
  });
  return 0;
}
