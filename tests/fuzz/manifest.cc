// The manifest of a checkpoint. The input is the body of a manifest, so that the checksum does not
// stop the fuzzer.

#include "runtime/checkpoint/checkpoint_manifest.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

FUZZ_TARGET(manifest) {
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
