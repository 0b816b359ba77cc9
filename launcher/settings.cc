#include "launcher/settings.h"

#include <algorithm>
#include <cstdio>

#include "base/options.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "launcher/hosts.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

// What the user would have typed: the library's bytes are MiB here, and its switches flags.
std::string AsTyped(const OptionRow& row, const std::string& value) {
  if (row.kind == OptionKind::kFlag) return value == "on" ? "true" : "false";
  if (std::string(row.knob) != "bucket_bytes" || value == "auto") return value;
  char text[64];
  std::snprintf(
      text, sizeof text, "%.17g",
      static_cast<double>(base::ParseInteger(value).value_or(0)) / (1 << 20));
  return text;
}

const Setting* Strongest(const Settings& settings, const OptionRow& option) {
  const Setting* strongest = nullptr;
  for (const Setting& setting : settings)
    if (setting.option == &option && (strongest == nullptr || setting.source < strongest->source))
      strongest = &setting;
  return strongest;
}

void KeepOneSourceOfHosts(Settings& settings) {
  const auto find = [&](const std::string& key) {
    return std::find_if(settings.begin(), settings.end(), [&](const Setting& setting) {
      return KeyOf(*setting.option) == key;
    });
  };
  const auto list = find("hosts");
  const auto file = find("hostfile");
  if (list == settings.end() || file == settings.end()) return;
  if (list->source == file->source)
    throw UsageError(Text(
        list->values[0].where, " and ", file->values[0].where,
        " both name hosts; give one of them"));
  settings.erase(list->source < file->source ? file : list);
}

base::Options LibraryOptions(const base::Environment& knobs) {
  const auto get = [&](const std::string& name) -> std::optional<std::string> {
    for (const auto& [variable, value] : knobs)
      if (variable == name) return value;
    return std::nullopt;
  };
  try {
    return base::ReadOptions(get, {});
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

// A default of the library may follow from another knob.
std::string DefaultValue(const OptionRow& row, const base::Options& library) {
  for (const auto& [name, value] : base::OptionValues(library))
    if (name == row.knob) return AsTyped(row, value);
  return row.initial;
}

// Text that YAML takes for more than a plain word stands in quotes.
std::string YamlScalar(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '/' || c == '_' || c == '-';
  }) && text[0] != '-';
  if (plain) return text;
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? "''" : std::string(1, c);
  return quoted + "'";
}

std::string YamlValue(const Setting& setting) {
  std::vector<std::string> items;
  for (const Value& value : setting.values) items.push_back(YamlScalar(value.text));
  return setting.option->kind == OptionKind::kRepeated ? "[" + base::Join(items, ", ") + "]"
                                                       : items[0];
}

std::string Origin(const Setting& setting) {
  const std::string& where = setting.values[0].where;
  return setting.source == Source::kCommandLine ? "command line, " + where : where;
}

}  // namespace

Settings ReadEnvironment(const base::GetEnv& get) {
  Settings settings;
  for (const OptionRow& row : OptionTable()) {
    if (row.knob[0] == '\0') continue;
    const std::string variable = base::OptionVariable(row.knob);
    const auto value = get(variable);
    if (!value) continue;
    if (const auto expected = base::ExpectedOption(row.knob, *value))
      throw UsageError(
          Text("environment variable ", variable, ' ', Excerpt(*value), ": expected ", *expected));
    settings.push_back({&row, Source::kEnvironment, {{AsTyped(row, *value), variable}}});
  }
  return settings;
}

Settings MergeSettings(const Settings& settings) {
  Settings merged;
  for (const OptionRow& row : OptionTable())
    if (const Setting* setting = Strongest(settings, row)) merged.push_back(*setting);
  KeepOneSourceOfHosts(merged);
  return merged;
}

Options UnderstandSettings(const Settings& settings) {
  Options options;
  for (const Setting& setting : settings) {
    if (setting.option->apply == nullptr) continue;
    for (const Value& value : setting.values) {
      try {
        setting.option->apply(*setting.option, value.text, options);
      } catch (const UsageError& error) {
        throw UsageError(Text(value.where, ' ', Excerpt(value.text), ": ", error.what()));
      }
    }
  }
  LibraryOptions(options.knobs);  // whether they go together
  return options;
}

std::string PrintedConfig(
    const Settings& settings, const Options& options, const std::vector<Host>& hosts) {
  const base::Options library = LibraryOptions(options.knobs);
  std::vector<base::HostSlots> list;
  for (const Host& host : hosts) list.push_back({host.name, host.slots});
  std::string text;
  for (const OptionRow& row : OptionTable()) {
    const std::string key = KeyOf(row);
    // The hosts of a host file are listed as hosts.
    if (row.kind == OptionKind::kAction || row.apply == nullptr || key == "hostfile") continue;
    const Setting* setting = Strongest(settings, row);
    const std::string initial = DefaultValue(row, library);
    if (key == "hosts" && !hosts.empty()) {
      text += Text(key, ": ", YamlScalar(HostList(list)), "  # ", hosts[0].origin, '\n');
    } else if (setting != nullptr) {
      text += Text(key, ": ", YamlValue(*setting), "  # ", Origin(*setting), '\n');
    } else if (!initial.empty()) {
      text += Text(key, ": ", initial, "  # default\n");
    } else {
      text += Text("# ", key, ":  # not set\n");
    }
  }
  return text;
}

}  // namespace dtrun::launcher
