// What an agent says of a rank that ended badly: any JSON; and what the kernel says of its limits.

#include "launcher/end_facts.h"

#include <nlohmann/json.hpp>

#include "tests/fuzz/refused.h"

using namespace dtrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::TextOf(data, size);
  const nlohmann::json said = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const launcher::EndFacts facts = launcher::EndFactsOf(said);
  fuzz::Expect(launcher::EndFactsOf(launcher::JsonOf(facts)) == facts);
  bool unified = false;
  launcher::MemoryCgroupIn(text, &unified);
  launcher::AddressLimitIn(text);
  return 0;
}
