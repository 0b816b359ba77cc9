// An agent's facts about a failed rank (any JSON), and the kernel's text about limits of a process.

#include <nlohmann/json.hpp>

#include "launcher/protocol/exit_record.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

FUZZ_TARGET(end_facts) {
  const std::string text = fuzz::TextOf(data, size);
  const nlohmann::json said = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const launcher::EndFacts facts = launcher::EndFactsOf(said);
  fuzz::Expect(launcher::EndFactsOf(launcher::JsonOf(facts)) == facts);
  bool unified = false;
  launcher::MemoryCgroupIn(text, &unified);
  launcher::AddressLimitIn(text);
  return 0;
}
