// --config with any YAML.

#include "launcher/cli/option_settings.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

FUZZ_TARGET(config) {
  fuzz::TakesOrRefuses([&] {
    launcher::UnderstandSettings(
        launcher::MergeSettings(launcher::ParseConfig("c", fuzz::TextOf(data, size))));
  });
  return 0;
}
