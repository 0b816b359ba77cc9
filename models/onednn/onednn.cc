// Functions that are the same in every version of oneDNN.

#include "models/onednn/onednn.h"

#include <string>

namespace dtrun::models::onednn {
namespace {

struct NamedIsa {
  dnnl::cpu_isa isa;
  const char* name;
};

constexpr NamedIsa kIsas[] = {
    {dnnl::cpu_isa::sse41, "SSE41"},
    {dnnl::cpu_isa::avx, "AVX"},
    {dnnl::cpu_isa::avx2, "AVX2"},
    {dnnl::cpu_isa::avx2_vnni, "AVX2_VNNI"},
    {dnnl::cpu_isa::avx512_core, "AVX512_CORE"},
    {dnnl::cpu_isa::avx512_core_vnni, "AVX512_CORE_VNNI"},
    {dnnl::cpu_isa::avx512_core_bf16, "AVX512_CORE_BF16"},
    {dnnl::cpu_isa::avx512_core_amx, "AVX512_CORE_AMX"},
};

}  // namespace

bool IsEmpty(const dnnl::memory::desc& description) { return description.get_size() == 0; }

// A value without a name in kIsas comes from a newer oneDNN.
std::string InstructionSet() {
  const dnnl::cpu_isa effective = dnnl::get_effective_cpu_isa();
  for (const NamedIsa& known : kIsas)
    if (known.isa == effective) return known.name;
  return "AVX512_CORE_BF16 or newer";
}

std::string Version() {
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

}  // namespace dtrun::models::onednn
