// --mpi-args is split as a shell would; what was split can be quoted and split again.

#include "launcher/quoting.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::TextOf(data, size);
  fuzz::TakesOrRefuses([&] {
    const std::vector<std::string> words = launcher::SplitWords(text);
    fuzz::Expect(launcher::SplitWords(launcher::ShellLine(words)) == words);
  });
  if (text.find('\0') == std::string::npos)
    fuzz::Expect(
        launcher::SplitWords(launcher::ShellQuoted(text)) == std::vector<std::string>{text});
  return 0;
}
