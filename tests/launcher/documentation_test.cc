// docs/reference/options.md lists the same options as dtrun.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/text.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/option_settings.h"

namespace dtrun::launcher {
namespace {

std::string Page() {
  std::ifstream stream(std::getenv("OPTIONS_PAGE"));
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// "| `--bind auto\\|none` | ... | auto |" -> " `--bind auto|none`  auto"
std::string RowOfPage(std::string line) {
  for (size_t bar; (bar = line.find("\\|")) != std::string::npos;) line.replace(bar, 2, "\1");
  std::vector<std::string> cells = base::Split(line, '|');
  REQUIRE(cells.size() == 5);
  std::string row = cells[1] + cells[3];
  std::replace(row.begin(), row.end(), '\1', '|');
  while (row.back() == ' ') row.pop_back();
  return row;
}

std::string RowOfTable(const OptionRow& option) {
  const std::string value = option.value;
  const std::string initial = option.initial;
  return " `" + std::string(option.spellings) + (value.empty() ? "" : " " + value) + "`" +
         (initial.empty() || initial == "false" ? "" : "  " + initial);
}

TEST_CASE("the page lists exactly the options of dtrun with their values and defaults") {
  std::vector<std::string> page;
  for (const std::string& line : base::Split(Page(), '\n'))
    if (line.starts_with("| `-")) page.push_back(RowOfPage(line));
  std::vector<std::string> table;
  for (const OptionRow& option : OptionTable()) table.push_back(RowOfTable(option));
  CHECK(page == table);
}

TEST_CASE("the page lists the option names of other launchers") {
  for (const OptionRow& option : OptionTable())
    for (const std::string& alias : base::Split(option.aliases, ','))
      if (!alias.empty())
        CHECK_THAT(Page(), Catch::Contains("\n- `" + alias + "`: `" + TypedName(option) + "`\n"));
}

TEST_CASE("help lines have at most 80 columns and the short help has at most 50 lines") {
  for (const bool all : {false, true})
    for (const std::string& line : base::Split(HelpText(all), '\n')) {
      CAPTURE(line);
      CHECK(line.size() <= 80);
    }
  CHECK(base::Split(HelpText(false), '\n').size() <= 50);
}

TEST_CASE("the help lists every option") {
  std::string help = HelpText(true);
  for (size_t gap; (gap = help.find("\n" + std::string(30, ' '))) != std::string::npos;)
    help.replace(gap, 31, " ");  // join wrapped lines
  for (const OptionRow& option : OptionTable()) {
    const std::string value = option.value;
    CHECK_THAT(
        help, Catch::Contains(
                  "\n  " + std::string(option.spellings) + (value.empty() ? "" : " " + value)));
    CHECK_THAT(help, Catch::Contains(option.help));
  }
}

}  // namespace
}  // namespace dtrun::launcher
