// --config: any YAML.

#include "launcher/config.h"

#include "launcher/settings.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::TakesOrRefuses([&] {
    launcher::UnderstandSettings(
        launcher::MergeSettings(launcher::ParseConfig("c", fuzz::TextOf(data, size))));
  });
  return 0;
}
