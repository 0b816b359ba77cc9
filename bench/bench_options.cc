#include "bench/bench_options.h"

#include <CLI/CLI.hpp>

namespace dtrun::bench {
namespace {

CLI::Option* AddTo(CLI::App& app, const std::string& flag, bool* value, const std::string& help) {
  return app.add_flag(flag, *value, help);
}

template <class T>
CLI::Option* AddTo(CLI::App& app, const std::string& flag, T* value, const std::string& help) {
  return app.add_option(flag, *value, help);
}

template <class T>
CLI::Option* AddTo(
    CLI::App& app, const std::string& flag, std::vector<T>* values, const std::string& help) {
  return app.add_option(flag, *values, help)->delimiter(',');
}

void Check(CLI::Option&, std::monostate) {}
void Check(CLI::Option& option, const Words& words) { option.check(CLI::IsMember(words)); }
template <class T>
void Check(CLI::Option& option, const Range<T>& range) {
  option.check(CLI::Range(range.first, range.second));
}

}  // namespace

struct OptionSet::Parser {
  CLI::App app;
};

OptionSet::OptionSet(const std::string& description, const std::string& name)
    : parser_(new Parser{CLI::App(description, name)}) {}

OptionSet::~OptionSet() = default;

void OptionSet::Add(
    const std::string& flag, Variable variable, const std::string& help, const Accepted& accepted,
    Default shown) {
  CLI::Option& option =
      *std::visit([&](auto* value) { return AddTo(parser_->app, flag, value, help); }, variable);
  std::visit([&](const auto& each) { Check(option, each); }, accepted);
  if (shown == Default::kShown && !std::holds_alternative<bool*>(variable))
    option.capture_default_str();
}

void OptionSet::AddRepeated(const std::string& flag, Words& values, const std::string& help) {
  parser_->app.add_option(flag, values, help)->allow_extra_args(false);
}

void OptionSet::NameValue(const std::string& flag, const std::string& name) {
  parser_->app.get_option(flag)->type_name(name);
}

std::optional<int> OptionSet::Parse(int argc, char** argv) {
  try {
    parser_->app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return parser_->app.exit(error);
  }
}

}  // namespace dtrun::bench
