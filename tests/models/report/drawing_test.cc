// The parts of a page's drawings.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "models/report/charts.h"
#include "models/report/markup.h"
#include "tests/support/text.h"

namespace dtrun::models {
namespace {

using testing::CountOf;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST_CASE("numbers are formatted for readers") {
  CHECK(WithThousands(0) == "0");
  CHECK(WithThousands(-0.2) == "0");
  CHECK(WithThousands(999) == "999");
  CHECK(WithThousands(66175.6) == "66,176");
  CHECK(WithThousands(-1234567) == "-1,234,567");
  CHECK(Significant(0.41234, 4) == "0.4123");
  CHECK(Significant(12.5, 4) == "12.5");
  CHECK(Significant(66175.6, 4) == "66,176");
  CHECK(Fixed(0.9, 4) == "0.9000");
  CHECK(Percent(0.7534, 1) == "75.3 %");
  for (const auto& text :
       {WithThousands(kNan), Significant(kNan, 3), Fixed(kNan, 2), Percent(kNan, 1)})
    CHECK(text == "NaN");
  CHECK(Significant(kInfinity, 3) == "infinity");
  CHECK(WithThousands(-kInfinity) == "-infinity");
  CHECK(Fixed(std::numeric_limits<double>::max(), 1).size() > 300);
}

Extent Of(const std::vector<double>& values) {
  Extent extent;
  for (double value : values) extent.Add(value);
  return extent;
}

std::vector<std::string> Labels(const Axis& axis) {
  std::vector<std::string> labels;
  for (const Tick& tick : axis.ticks) labels.push_back(tick.label);
  return labels;
}

using Texts = std::vector<std::string>;

TEST_CASE("an axis has round ticks and covers its values") {
  CHECK(Labels(RoundAxis("", Of({0.21, 0.48}))) == Texts{"0.2", "0.3", "0.4", "0.5"});
  CHECK(Labels(RoundAxis("", Of({0, 6600}))) == Texts{"0", "2,000", "4,000", "6,000", "8,000"});
  CHECK(
      Labels(RoundAxis("", Of({0.5}))) ==
      Texts{"0.44", "0.46", "0.48", "0.5", "0.52", "0.54", "0.56"});
}

TEST_CASE("for any values an axis is finite and has a few distinct ticks inside") {
  const std::vector<std::vector<double>> cases = {
      {},      {0},       {kNan},         {kNan, 3},       {kInfinity, 1, 2}, {-5},
      {1e300}, {1e-300},  {1, 1 + 1e-15}, {-1e308, 1e308}, {3, 3.0001},       {1e6, 1e6 + 1},
      {-2, 7}, {0, 1e-9}, {99.99, 100.01}};
  for (const std::vector<double>& values : cases) {
    for (const Axis& axis : {RoundAxis("", Of(values)), PercentAxis("", Of(values))}) {
      CAPTURE(values, axis.low, axis.high);
      CHECK(std::isfinite(axis.low));
      CHECK(std::isfinite(axis.high));
      CHECK(axis.low < axis.high);
      CHECK(axis.ticks.size() >= 2);
      CHECK(axis.ticks.size() <= 8);
      for (size_t i = 0; i < axis.ticks.size(); ++i) {
        CHECK(axis.Share(axis.ticks[i].at) >= -1e-6);
        CHECK(axis.Share(axis.ticks[i].at) <= 1 + 1e-6);
        if (i > 0) CHECK(axis.ticks[i].label != axis.ticks[i - 1].label);
      }
    }
  }
}

TEST_CASE("an accuracy axis is in percent and stays between 0 and 100") {
  const Axis axis = PercentAxis("", Of({0.74, 0.998}));
  CHECK(Labels(axis) == Texts{"70", "80", "90", "100"});
  CHECK(axis.low == Approx(0.7));
  CHECK(axis.high == Approx(1));
  CHECK(PercentAxis("", Of({1})).high == Approx(1));
  CHECK(PercentAxis("", Of({0})).low == Approx(0));
}

TEST_CASE("an epoch axis has whole numbers") {
  CHECK(Labels(CountAxis("", 1)) == Texts{"1"});
  CHECK(Labels(CountAxis("", 3)) == Texts{"1", "2", "3"});
  CHECK(Labels(CountAxis("", 8)) == Texts{"1", "2", "4", "6", "8"});
  CHECK(Labels(CountAxis("", 100)) == Texts{"1", "20", "40", "60", "80", "100"});
  const Axis one = CountAxis("", 1);
  CHECK(one.Share(1) == 0.5);
}

TEST_CASE("a rank axis doubles from tick to tick") {
  CHECK(Labels(DoublingAxis("", 8)) == Texts{"1", "2", "4", "8"});
  CHECK(Labels(DoublingAxis("", 6)) == Texts{"1", "2", "4", "8"});
  CHECK(Labels(DoublingAxis("", 1)) == Texts{"1", "2"});
  CHECK(Labels(DoublingAxis("", 1024)).size() <= 7);
}

TEST_CASE("text is escaped in markup") {
  CHECK(Escape("a<b & \"c\">") == "a&lt;b &amp; &quot;c&quot;&gt;");
  CHECK(Escape("Zürich 東京 🎉") == "Zürich 東京 🎉");
  // Invalid UTF-8: a lone byte, an overlong form, half of a surrogate pair, a code point beyond the
  // last one, a truncated character.
  for (const char* bad : {"\xFF", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE6\x9D"})
    CHECK(Escape(bad).find("\xEF\xBF\xBD") == 0);
  CHECK(
      Escape(std::string("a\0b\x1B", 4)) ==
      "a\xEF\xBF\xBD"
      "b\xEF\xBF\xBD");
  CHECK(Element("p", {{"class", "a\"b"}}, "<i>") == "<p class=\"a&quot;b\"><i></p>");
}

TEST_CASE("a line breaks at a value that is not finite and a cross marks the gap") {
  LineChart chart{"d", CountAxis("epoch", 4), RoundAxis("loss", Of({1, 2})), {}};
  chart.lines = {
      {LineStyle::kFirst, {{1, 1, "one"}, {2, kNan, "two is NaN"}, {3, 1.5, ""}, {4, 2, ""}}}};
  const std::string svg = ToSvg(chart);
  const size_t path = svg.find("<path class=\"first\" d=\"");
  REQUIRE(path != std::string::npos);
  const std::string line = svg.substr(path, svg.find('>', path) - path);
  CHECK(CountOf(line, "M") == 2);
  CHECK(CountOf(line, "L") == 1);
  CHECK(CountOf(svg, "class=\"cross first\"") == 1);
  CHECK(svg.find("two is NaN") != std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
}

TEST_CASE("a line of many points has no markers") {
  LineChart chart{"d", CountAxis("epoch", 100), RoundAxis("loss", Of({1, 100})), {{}}};
  for (int i = 1; i <= 100; ++i)
    chart.lines[0].points.push_back({double(i), double(i), "epoch " + std::to_string(i)});
  const std::string svg = ToSvg(chart);
  CHECK(CountOf(svg, "class=\"mark") == 0);
  CHECK(CountOf(svg, "<title>epoch ") == 100);
}

}  // namespace
}  // namespace dtrun::models
