// The manifest of a checkpoint. The input is what stands inside, so that its checksum is no
// obstacle.

#include "runtime/checkpoint/manifest.h"

#include "tests/fuzz/refused.h"

using namespace dtrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::TextOf(data, size);
  const auto expect_refused = [](const std::string& whole) {
    try {
      runtime::ParseManifest(whole);
    } catch (const Error&) {
      return;
    }
    fuzz::Expect(false);
  };
  fuzz::TakesOrRefuses([&] {
    const runtime::Manifest manifest = runtime::ParseManifestBody(text);
    const std::string again = runtime::FormatManifest(manifest);
    fuzz::Expect(runtime::FormatManifest(runtime::ParseManifest(again)) == again);
    std::string changed = again;
    changed[size % changed.size()] = static_cast<char>(changed[size % changed.size()] ^ 1);
    expect_refused(changed);
  });
  fuzz::TakesOrRefuses([&] { runtime::ParseManifest(text); });
  return 0;
}
