// Traces of ranks on other hosts, and the timeline made from them. The input is a trace without its
// magic word. It serves as the trace of two ranks.

#include "base/trace.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/trace_json.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

FUZZ_TARGET(trace) {
  const size_t bytes = size + sizeof(uint64_t);
  std::vector<uint64_t> words(bytes / sizeof(uint64_t));
  if (words.size() * sizeof(uint64_t) < sizeof(base::TraceHeader)) return 0;
  words[0] = base::kTraceMagic;
  std::memcpy(words.data() + 1, data, (words.size() - 1) * sizeof(uint64_t));
  const base::TraceSource source = {
      .clock = {.offset_ns = 5, .uncertainty_ns = 1},
      .read = [&] { return base::ReadTrace(words.data(), words.size() * sizeof(uint64_t)); }};
  std::string text;
  base::WriteTraceJson({source, source}, {}, [&](const std::string& piece) { text += piece; });
  fuzz::Expect(nlohmann::json::accept(text));
  return 0;
}
