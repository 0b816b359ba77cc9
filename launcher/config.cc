#include "launcher/config.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <set>
#include <sstream>

#include "base/text.h"
#include "launcher/closest.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
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
    if (!seen_.insert(name).second) Refuse(key.Mark(), Text(name, " stands here twice"));
    // Where nothing stands, the parser is at the next line already.
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

  // The values of an option, one or, where it takes them, several.
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

// Where the last thing of a document stands.
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

// YAML::Load leaves out in silence what follows the first document, be it another one or a bracket
// too many, and YAML::LoadAll never ends on some texts.
void RefuseLeftOvers(const std::string& text, const ConfigReader& reader) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  LastMark last;
  parser.HandleNextDocument(last);
  if (parser) reader.Refuse(last.mark(), "the document ends here, but the file goes on");
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
    reader.Refuse(error.mark, Text("no YAML: ", error.msg));
  }
}

}  // namespace dtrun::launcher
