// Each source (command line, configuration file, environment) yields settings. MergeSettings keeps
// the strongest setting of each option. UnderstandSettings applies the values to Options through
// the option table.

#include "launcher/cli/option_settings.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>
#include <sstream>

#include "base/options.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "launcher/hosts/hosts.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

// The library's value as the user types it: bytes become MiB, and on or off becomes true or false.
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

// The default of an option. A default of the library may depend on another knob.
std::string DefaultValue(const OptionRow& row, const base::Options& library) {
  for (const auto& [name, value] : base::OptionValues(library))
    if (name == row.knob) return AsTyped(row, value);
  return row.initial;
}

// Quotes any text that YAML may not read as a plain word.
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
  LibraryOptions(options.knobs);  // throws if the knobs do not fit together
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
    // The hosts of a host file are printed under `hosts`.
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

namespace {

using base::Text;

constexpr size_t kMaxBytes = 1 << 20;

class ConfigReader {
 public:
  explicit ConfigReader(const std::string& file) : file_(file) {}

  Settings Read(const YAML::Node& document) {
    if (document.IsNull()) return {};
    if (!document.IsMap()) Refuse(document.Mark(), "expected a map, such as np: 4");
    Settings settings;
    for (const auto& entry : document) settings.push_back(ReadEntry(entry.first, entry.second));
    return settings;
  }

  [[noreturn]] void Refuse(const YAML::Mark& mark, const std::string& why) const {
    throw UsageError(Text(Place(mark), ": ", why));
  }

 private:
  std::string Place(const YAML::Mark& mark) const {
    return Text(file_, ':', mark.line + 1, ':', mark.column + 1);
  }

  Setting ReadEntry(const YAML::Node& key, const YAML::Node& value) {
    if (!key.IsScalar()) Refuse(key.Mark(), "expected the name of an option");
    const std::string& name = key.Scalar();
    const OptionRow& option = FindOption(key, name);
    if (!seen_.insert(name).second)
      Refuse(key.Mark(), Text(name, " is set twice; expected each option once"));
    // The parser places an empty value on the next line, so the message names the place of the key.
    if (value.IsNull()) Refuse(key.Mark(), Text(name, ": expected a value, found nothing"));
    Setting setting = {&option, Source::kConfig, {}};
    const std::string where = Text(Place(value.Mark()), ": ", name);
    for (const std::string& text : Scalars(option, name, value))
      setting.values.push_back({text, where});
    return setting;
  }

  const OptionRow& FindOption(const YAML::Node& key, const std::string& name) const {
    std::vector<std::string> known;
    for (const OptionRow& row : OptionTable()) {
      if (row.kind == OptionKind::kAction || row.apply == nullptr) {
        if (KeyOf(row) == name) Refuse(key.Mark(), Text(name, " belongs on the command line"));
        continue;
      }
      if (KeyOf(row) == name) return row;
      known.push_back(KeyOf(row));
    }
    const std::string meant = ClosestTo(name, known);
    Refuse(
        key.Mark(), Text(
                        "unknown key ", Excerpt(name),
                        meant.empty() ? std::string(" (dtrun --print-config lists them)")
                                      : "; did you mean " + meant + "?"));
  }

  // The values of an option. Only kCommaList and kRepeated options take several.
  std::vector<std::string> Scalars(
      const OptionRow& option, const std::string& name, const YAML::Node& value) const {
    if (value.IsScalar()) return {value.Scalar()};
    const bool takes_list =
        option.kind == OptionKind::kCommaList || option.kind == OptionKind::kRepeated;
    const char* expected = takes_list ? "a value or a list of values" : "one value";
    if (!value.IsSequence() || !takes_list)
      Refuse(
          value.Mark(),
          Text(name, ": expected ", expected, ", found ", value.IsSequence() ? "a list" : "a map"));
    std::vector<std::string> items;
    for (const YAML::Node& item : value) {
      if (!item.IsScalar()) Refuse(item.Mark(), Text(name, ": expected a value in the list"));
      items.push_back(item.Scalar());
    }
    if (items.empty()) Refuse(value.Mark(), Text(name, ": the list is empty"));
    if (option.kind == OptionKind::kCommaList) return {base::Join(items, ",")};
    return items;
  }

  const std::string& file_;
  std::set<std::string> seen_;
};

// Finds the place of the last node in a document.
class LastMark : public YAML::EventHandler {
 public:
  const YAML::Mark& mark() const { return mark_; }

 private:
  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { mark_ = mark; }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { mark_ = mark; }
  void OnScalar(
      const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override {
    mark_ = mark;
  }
  void OnSequenceStart(
      const YAML::Mark& mark, const std::string&, YAML::anchor_t,
      YAML::EmitterStyle::value) override {
    mark_ = mark;
  }
  void OnSequenceEnd() override {}
  void OnMapStart(
      const YAML::Mark& mark, const std::string&, YAML::anchor_t,
      YAML::EmitterStyle::value) override {
    mark_ = mark;
  }
  void OnMapEnd() override {}

  YAML::Mark mark_;
};

// YAML::Load silently ignores text after the first document, such as a second document or an extra
// bracket. YAML::LoadAll never ends on some texts.
void RefuseLeftOvers(const std::string& text, const ConfigReader& reader) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  LastMark last;
  parser.HandleNextDocument(last);
  if (parser)
    reader.Refuse(
        last.mark(), "found text after the end of the document; expected one YAML document");
}

}  // namespace

Settings ParseConfig(const std::string& name, const std::string& text) {
  ConfigReader reader(name);
  if (text.size() > kMaxBytes)
    reader.Refuse({}, Text("a file of ", text.size(), " bytes; expected at most ", kMaxBytes));
  try {
    RefuseLeftOvers(text, reader);
    return reader.Read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    reader.Refuse(error.mark, Text("invalid YAML: ", error.msg));
  }
}

namespace {

// The number of letters to insert, delete or replace.
int EditDistance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string ClosestTo(const std::string& word, const std::vector<std::string>& known) {
  constexpr size_t kMaxWord = 100;
  std::string closest;
  int distance = 3;
  for (const std::string& candidate : known) {
    if (word.size() > kMaxWord || EditDistance(word, candidate) >= distance) continue;
    distance = EditDistance(word, candidate);
    closest = candidate;
  }
  return closest;
}

}  // namespace dtrun::launcher
