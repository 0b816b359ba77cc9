#include "base/options.h"

#include <catch2/catch.hpp>
#include <map>

#include "dtrun/error.h"

namespace {

using namespace dtrun::base;

Options Read(
    const std::map<std::string, std::string>& env,
    const std::map<std::string, std::string>& given = {}) {
  return ReadOptions(
      [&env](const std::string& name) -> std::optional<std::string> {
        const auto found = env.find(name);
        return found == env.end() ? std::nullopt : std::optional(found->second);
      },
      {given.begin(), given.end()});
}

std::string RefusalOf(
    const std::map<std::string, std::string>& env,
    const std::map<std::string, std::string>& given = {}) {
  try {
    Read(env, given);
  } catch (const dtrun::Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("an option given to Init overrides the environment which overrides the default") {
  CHECK(Read({}) == Options{});
  CHECK(Read({{"DTRUN_BUCKET_BYTES", "100"}}).bucket_bytes == 100);
  CHECK(Read({{"DTRUN_BUCKET_BYTES", "100"}}, {{"bucket_bytes", "7"}}).bucket_bytes == 7);
  CHECK(
      Read({{"DTRUN_BUCKET_BYTES", "100"}}, {{"bucket_bytes", "auto"}}).bucket_bytes ==
      Options{}.bucket_bytes);
  CHECK(Read({{"DTRUN_LOG_LEVEL", "info"}}).log_level == LogLevel::kInfo);
  const Options tuned = Read(
      {{"DTRUN_AUTOTUNE", "on"}, {"DTRUN_AUTOTUNE_LOG", "a.csv"}},
      {{"autotune_cache", "b"}, {"autotune_wire", "on"}});
  CHECK((tuned.autotune && tuned.autotune_wire));
  CHECK(tuned.autotune_log == "a.csv");
  CHECK(tuned.autotune_cache == "b");
}

TEST_CASE("an invalid value is refused with its name and the expected value") {
  CHECK(
      RefusalOf({{"DTRUN_TIMEOUT_S", "soon"}}) ==
      "environment variable DTRUN_TIMEOUT_S is 'soon'; expected a number of seconds from 1 to "
      "1000000");
  CHECK(
      RefusalOf({}, {{"backend", "nccl"}}) ==
      "option backend is 'nccl'; expected auto, shm, hierarchical, tcp, ucx or mpi");
  CHECK(
      RefusalOf({}, {{"bucket_bytes", "0"}}).find("expected auto or a number of bytes from 1") !=
      std::string::npos);
  CHECK(
      RefusalOf({}, {{"bucket_mb", "4"}}) ==
      "unknown option 'bucket_mb'; the options are bucket_bytes, backend, device_backend, "
      "gpu_memory_bytes, transport, peer_timeout_s, tcp_ports, wire_dtype, reduce_isa, "
      "engine_thread, timeout_s, "
      "stall_warning_s, on_stall, "
      "autotune, autotune_log, "
      "autotune_cache, autotune_wire, log_level");
}

TEST_CASE("tcp_ports takes a range of ports, one port or any") {
  const auto ports = [](const std::string& text) {
    const auto range = dtrun::base::ParsePortRange(text);
    return range ? dtrun::base::ShowPortRange(*range) : "refused";
  };
  for (const char* text : {"any", "7000", "20000-20099", "1-65535"}) CHECK(ports(text) == text);
  for (const char* text : {"", "-", "0", "0-5", "9-8", "1-65536", "1-2-3", "a-b", " 1", "any-9"})
    CHECK(ports(text) == "refused");
  CHECK(
      RefusalOf({{"DTRUN_TCP_PORTS", "all"}}) ==
      "environment variable DTRUN_TCP_PORTS is 'all'; expected any, or ports from 1 to 65535, such "
      "as 20000-20099");
}

TEST_CASE("autotune options are refused without autotune") {
  CHECK(
      RefusalOf({{"DTRUN_AUTOTUNE_LOG", "a.csv"}}) ==
      "autotune_log is given, but autotune is off; expected both");
  CHECK(
      RefusalOf({}, {{"autotune_cache", "c"}, {"autotune", "off"}}) ==
      "autotune_cache is given, but autotune is off; expected both");
  CHECK(
      RefusalOf({{"DTRUN_AUTOTUNE_WIRE", "on"}}) ==
      "autotune_wire is given, but autotune is off; expected both");
  CHECK(RefusalOf({{"DTRUN_AUTOTUNE_WIRE", "on"}}, {{"autotune", "on"}}) == "accepted");
}

TEST_CASE("the stall warning comes no later than the timeout") {
  CHECK(Read({{"DTRUN_TIMEOUT_S", "7"}}).stall_warning_s == 7);
  CHECK(Read({{"DTRUN_TIMEOUT_S", "70"}}).stall_warning_s == 30);
  CHECK(Read({{"DTRUN_TIMEOUT_S", "70"}}, {{"stall_warning_s", "70"}}).stall_warning_s == 70);
  CHECK(
      RefusalOf({{"DTRUN_STALL_WARNING_S", "8"}}, {{"timeout_s", "7"}}) ==
      "stall_warning_s is 8, but timeout_s is 7; expected a warning no later than the timeout");
  CHECK(
      RefusalOf({{"DTRUN_STALL_WARNING_S", "0"}}) ==
      "environment variable DTRUN_STALL_WARNING_S is '0'; expected a number of seconds from 1 to "
      "1000000");
}

TEST_CASE("on_stall accepts only error and abort") {
  CHECK(Read({}).on_stall == "error");
  CHECK(Read({{"DTRUN_ON_STALL", "abort"}}).on_stall == "abort");
  CHECK(
      RefusalOf({}, {{"on_stall", "die"}}) == "option on_stall is 'die'; expected error or abort");
}

TEST_CASE("the stall options and the timeout must agree on all ranks") {
  const auto differs = [](const std::map<std::string, std::string>& env) {
    return AgreedOptions(Read(env)) != AgreedOptions(Read({}));
  };
  CHECK(differs({{"DTRUN_STALL_WARNING_S", "5"}}));
  CHECK(differs({{"DTRUN_TIMEOUT_S", "500"}}));
  CHECK(differs({{"DTRUN_ON_STALL", "abort"}}));
}

TEST_CASE("ExpectedOption checks a single value and describes the accepted values") {
  CHECK(ExpectedOption("on_stall", "abort") == std::nullopt);
  CHECK(ExpectedOption("on_stall", "wait") == "error or abort");
  CHECK(OptionVariable("on_stall") == "DTRUN_ON_STALL");
}

}  // namespace
