#include "base/options.h"

#include <algorithm>
#include <cctype>
#include <functional>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::base {
namespace {

// One row per option: its name, whether all ranks must agree on it, the accepted values (for the
// error), its parser and its printer. A parser returns whether the value was valid.
struct OptionRow {
  const char* name;
  bool agreed;
  const char* expected;
  std::function<bool(const std::string&, Options&)> parse;
  std::function<std::string(const Options&)> show;
};

bool ParseChoice(
    const std::string& value, std::initializer_list<const char*> choices, std::string& option) {
  option = value;
  return std::find(choices.begin(), choices.end(), value) != choices.end();
}

bool ParseInRange(const std::string& value, int64_t least, int64_t most, int64_t& option) {
  const std::optional<int64_t> parsed = ParseInteger(value);
  option = parsed.value_or(0);
  return parsed && *parsed >= least && *parsed <= most;
}

// `zero` is the name of 0.
bool ParseBytes(const std::string& value, const char* zero, uint64_t& option) {
  option = 0;
  if (value == zero) return true;
  int64_t bytes = 0;
  const bool valid = ParseInRange(value, 1, int64_t{1} << 40, bytes);
  option = static_cast<uint64_t>(bytes);
  return valid;
}

std::string ShowBytes(uint64_t option, const char* zero) {
  return option == 0 ? zero : Text(option);
}

bool ParseSwitch(const std::string& value, bool& option) {
  option = value == "on";
  return value == "on" || value == "off";
}

std::string ShowSwitch(bool option) { return option ? "on" : "off"; }

std::string ShowLogLevel(LogLevel level) {
  if (level == LogLevel::kError) return "error";
  return level == LogLevel::kWarning ? "warning" : "info";
}

bool ParseLogLevel(const std::string& value, LogLevel& level) {
  if (value == "error") level = LogLevel::kError;
  if (value == "warning") level = LogLevel::kWarning;
  if (value == "info") level = LogLevel::kInfo;
  return value == "error" || value == "warning" || value == "info";
}

const std::vector<OptionRow>& Rows() {
  static const std::vector<OptionRow> rows = {
      {"bucket_bytes", true, "auto or a number of bytes from 1 to 1099511627776",
       [](const std::string& value, Options& options) {
         return ParseBytes(value, "auto", options.bucket_bytes);
       },
       [](const Options& options) { return ShowBytes(options.bucket_bytes, "auto"); }},
      {"backend", true, "auto, shm, hierarchical, tcp, ucx or mpi",
       [](const std::string& value, Options& options) {
         return ParseChoice(
             value, {"auto", "shm", "hierarchical", "tcp", "ucx", "mpi"}, options.backend);
       },
       [](const Options& options) { return options.backend; }},
      {"device_backend", true, "auto, cuda_ipc, nccl, hierarchical or host_staged",
       [](const std::string& value, Options& options) {
         return ParseChoice(
             value, {"auto", "cuda_ipc", "nccl", "hierarchical", "host_staged"},
             options.device_backend);
       },
       [](const Options& options) { return options.device_backend; }},
      {"gpu_memory_bytes", false, "all or a number of bytes from 1 to 1099511627776",
       [](const std::string& value, Options& options) {
         return ParseBytes(value, "all", options.gpu_memory_bytes);
       },
       [](const Options& options) { return ShowBytes(options.gpu_memory_bytes, "all"); }},
      {"transport", true, "auto, tcp, ucx or mpi",
       [](const std::string& value, Options& options) {
         return ParseChoice(value, {"auto", "tcp", "ucx", "mpi"}, options.transport);
       },
       [](const Options& options) { return options.transport; }},
      {"peer_timeout_s", true, "a number of seconds from 3 to 1000000",
       [](const std::string& value, Options& options) {
         return ParseInRange(value, 3, 1'000'000, options.peer_timeout_s);
       },
       [](const Options& options) { return Text(options.peer_timeout_s); }},
      {"tcp_ports", false, "any, or ports from 1 to 65535, such as 20000-20099",
       [](const std::string& value, Options& options) {
         const std::optional<PortRange> range = ParsePortRange(value);
         options.tcp_ports = range.value_or(PortRange{});
         return range.has_value();
       },
       [](const Options& options) { return ShowPortRange(options.tcp_ports); }},
      {"wire_dtype", true, "none, f16 or bf16",
       [](const std::string& value, Options& options) {
         return ParseChoice(value, {"none", "f16", "bf16"}, options.wire_dtype);
       },
       [](const Options& options) { return options.wire_dtype; }},
      {"reduce_isa", true, "auto, baseline, avx2 or avx512",
       [](const std::string& value, Options& options) {
         return ParseChoice(value, {"auto", "baseline", "avx2", "avx512"}, options.reduce_isa);
       },
       [](const Options& options) { return options.reduce_isa; }},
      {"engine_thread", false, "auto, on or off",
       [](const std::string& value, Options& options) {
         return ParseChoice(value, {"auto", "on", "off"}, options.engine_thread);
       },
       [](const Options& options) { return options.engine_thread; }},
      {"timeout_s", true, "a number of seconds from 1 to 1000000",
       [](const std::string& value, Options& options) {
         return ParseInRange(value, 1, 1'000'000, options.timeout_s);
       },
       [](const Options& options) { return Text(options.timeout_s); }},
      {"stall_warning_s", true, "a number of seconds from 1 to 1000000",
       [](const std::string& value, Options& options) {
         return ParseInRange(value, 1, 1'000'000, options.stall_warning_s);
       },
       [](const Options& options) { return Text(options.stall_warning_s); }},
      {"on_stall", true, "error or abort",
       [](const std::string& value, Options& options) {
         return ParseChoice(value, {"error", "abort"}, options.on_stall);
       },
       [](const Options& options) { return options.on_stall; }},
      {"autotune", true, "on or off",
       [](const std::string& value, Options& options) {
         return ParseSwitch(value, options.autotune);
       },
       [](const Options& options) { return ShowSwitch(options.autotune); }},
      {"autotune_log", false, "the path of a file",
       [](const std::string& value, Options& options) {
         options.autotune_log = value;
         return true;
       },
       [](const Options& options) { return options.autotune_log; }},
      {"autotune_cache", false, "the path of a file",
       [](const std::string& value, Options& options) {
         options.autotune_cache = value;
         return true;
       },
       [](const Options& options) { return options.autotune_cache; }},
      {"autotune_wire", true, "on or off",
       [](const std::string& value, Options& options) {
         return ParseSwitch(value, options.autotune_wire);
       },
       [](const Options& options) { return ShowSwitch(options.autotune_wire); }},
      {"log_level", false, "error, warning or info",
       [](const std::string& value, Options& options) {
         return ParseLogLevel(value, options.log_level);
       },
       [](const Options& options) { return ShowLogLevel(options.log_level); }},
  };
  return rows;
}

const OptionRow* FindRow(const std::string& name) {
  const auto row = std::find_if(
      Rows().begin(), Rows().end(), [&](const OptionRow& r) { return r.name == name; });
  return row == Rows().end() ? nullptr : &*row;
}

void Set(
    const OptionRow& row, const std::string& shown_name, const std::string& value,
    Options& options) {
  if (row.parse(value, options)) return;
  throw Error(
      ErrorCode::kInvalidArgument, Text(shown_name, " is '", value, "'; expected ", row.expected));
}

void SettleStallWarning(Options& options) {
  if (options.stall_warning_s == 0) {
    options.stall_warning_s = std::min(Options().stall_warning_s, options.timeout_s);
  }
  if (options.stall_warning_s <= options.timeout_s) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "stall_warning_s is ", options.stall_warning_s, ", but timeout_s is ", options.timeout_s,
          "; expected a warning no later than the timeout"));
}

// Rejects options that have no effect, instead of ignoring them.
void CheckAutotune(const Options& options) {
  if (options.autotune) return;
  const char* given = !options.autotune_log.empty()     ? "autotune_log"
                      : !options.autotune_cache.empty() ? "autotune_cache"
                      : options.autotune_wire           ? "autotune_wire"
                                                        : nullptr;
  if (given == nullptr) return;
  throw Error(
      ErrorCode::kInvalidArgument, Text(given, " is given, but autotune is off; expected both"));
}

}  // namespace

Options ReadOptions(
    const GetEnv& get, const std::vector<std::pair<std::string, std::string>>& given) {
  Options options;
  options.stall_warning_s = 0;  // not set
  for (const OptionRow& row : Rows()) {
    const std::string variable = OptionVariable(row.name);
    if (const auto value = get(variable))
      Set(row, "environment variable " + variable, *value, options);
  }
  for (const auto& [name, value] : given) {
    const OptionRow* row = FindRow(name);
    if (row == nullptr) {
      std::vector<std::string> names;
      for (const OptionRow& r : Rows()) names.push_back(r.name);
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("unknown option '", name, "'; the options are ", Join(names, ", ")));
    }
    Set(*row, "option " + name, value, options);
  }
  SettleStallWarning(options);
  CheckAutotune(options);
  return options;
}

std::vector<std::pair<std::string, std::string>> OptionValues(const Options& options) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const OptionRow& row : Rows()) values.emplace_back(row.name, row.show(options));
  return values;
}

std::string OptionVariable(const std::string& option) {
  std::string variable = "DTRUN_" + option;
  for (char& c : variable) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable;
}

std::optional<std::string> ExpectedOption(const std::string& name, const std::string& value) {
  const OptionRow& row = *FindRow(name);
  Options options;
  return row.parse(value, options) ? std::nullopt : std::optional<std::string>(row.expected);
}

std::vector<std::string> AgreedOptions(const Options& options) {
  std::vector<std::string> lines;
  for (const OptionRow& row : Rows()) {
    if (row.agreed) lines.push_back(Text(row.name, "=", row.show(options)));
  }
  return lines;
}

}  // namespace dtrun::base
