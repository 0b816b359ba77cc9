// Opens a report's page in headless Chromium.

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "models/report/page.h"
#include "tests/models/report/example_reports.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

using models::RunReport;
using models::ToHtml;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

struct Opened {
  std::string dom;
  Words console;  // the page's own, and Chromium's about the page
};

// Drops the browser's own noise about the machine. Messages about the page are marked:
// "...:INFO:CONSOLE:12] "text", source: ...".
Words ConsoleOf(const std::string& log) {
  Words messages;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("CONSOLE") != std::string::npos) messages.push_back(line);
  }
  return messages;
}

Opened Open(const std::string& html, const Words& options = {}) {
  const TemporaryFolder folder;
  const std::string page = folder.Write("page.html", html);
  Words argv = {
      "chromium",
      "--headless",
      "--no-sandbox",
      "--disable-gpu",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--enable-logging=stderr",
      "--v=0",
      "--user-data-dir=" + folder.path() + "/profile",
      "--dump-dom"};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.push_back("file://" + page);
  const CommandResult result =
      Run({argv, {{"HOME", folder.path()}}, "", std::chrono::seconds(100)});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return {result.out, ConsoleOf(result.err)};
}

std::string InAttribute(const std::string& html) {
  std::string quoted;
  for (char c : html) quoted += c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return quoted;
}

// Measures the report's page in a frame of the given width, from the page around the frame.
constexpr char kLook[] = R"(<script>
window.onload = () => {
  const frame = document.querySelector('iframe').contentDocument;
  const root = frame.documentElement, seen = {outside: [], overlapping: [], small: 0};
  seen.width = root.clientWidth;
  seen.content_width = root.scrollWidth;
  seen.background = getComputedStyle(frame.body).backgroundColor;
  seen.scrolling = [...frame.querySelectorAll('.scroll')]
    .filter(table => table.scrollWidth > table.clientWidth).map(table => table.textContent.slice(0, 60));
  seen.drawings = frame.querySelectorAll('svg.drawing').length;
  for (const svg of frame.querySelectorAll('svg.drawing')) {
    const box = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    for (const shape of svg.querySelectorAll('text, rect, path, circle, line')) {
      const b = shape.getBoundingClientRect();
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1)
        seen.outside.push(shape.tagName + ' ' + shape.textContent);
    }
    for (const [text, b] of texts) {
      if (b.height < 10) ++seen.small;
      for (const [other, o] of texts)
        if (text < other && b.left < o.right - 1 && o.left < b.right - 1 && b.top < o.bottom - 3 && o.top < b.bottom - 3)
          seen.overlapping.push(text + ' on ' + other);
    }
  }
  document.querySelector('pre').textContent = JSON.stringify(seen);
};
</script>)";

Json LookAt(const std::string& html, int width, const Words& options = {}) {
  const std::string around =
      "<!DOCTYPE html><meta charset=utf-8><iframe style='border:0' width=" + std::to_string(width) +
      " height=900 srcdoc=\"" + InAttribute(html) + "\"></iframe><pre></pre>" + kLook;
  Words all = {"--window-size=1600,1000"};
  all.insert(all.end(), options.begin(), options.end());
  const std::string dom = Open(around, all).dom;
  const size_t begin = dom.rfind("<pre>"), end = dom.rfind("</pre>");
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  return Json::parse(dom.substr(begin + 5, end - begin - 5));
}

TEST_CASE("a browser shows the numbers of a run and logs no message") {
  const Opened opened = Open(ToHtml(ExampleReport(8, 4)));
  CHECK(opened.console == Words{});
  // In epoch 8, the loss is 0.18 + 0.5 exp(-2.8). On rank 3, 3 s + cos 5.1 s are exposed.
  for (const char* number :
       {"0.2104", "92.78 %", "3.38 (4.6 %)", "12,453", "94.3 %", "9f86d081884c7d65"})
    CHECK_THAT(opened.dom, Catch::Contains(number));
  CHECK_THAT(opened.dom, Catch::Contains("<dd>/usr/share/datasets/fashion-mnist &amp; more</dd>"));
}

TEST_CASE("a message on the browser's console is detected") {
  CHECK(Open("<script>console.log('here')</script>").console.size() == 1);
  CHECK(Open("<script>throw new Error('here')</script>").console.size() == 1);
  // The page's content policy refuses the added script and the added image.
  std::string page = ToHtml({});
  page.insert(page.find("</body>"), "<script>1</script><img src='nowhere.png'>");
  CHECK(Open(page).console.size() == 2);
}

TEST_CASE("the page fits wide and narrow windows without overlapping text for any run") {
  const std::vector<RunReport> reports = {
      ExampleReport(1, 1), ExampleReport(100, 64), ExampleReport(8, 2), DivergedReport()};
  for (const RunReport& report : reports) {
    const std::string html = ToHtml(report);
    for (int width : {340, 1400}) {
      const Json seen = LookAt(html, width);
      INFO(report.title << ", " << width << " wide: " << seen.dump());
      CHECK(seen["width"].get<int>() >= width - 20);
      CHECK(seen["content_width"] <= seen["width"]);
      CHECK(seen["drawings"] == 5);
      CHECK(seen["outside"].empty());
      CHECK(seen["overlapping"].empty());
      CHECK(seen["small"] == 0);
    }
  }
}

TEST_CASE("every table fits a window of 1,200 pixels for long host names and long times") {
  RunReport reports[] = {ExampleReport(100, 64), ExampleReport(8, 2), DivergedReport()};
  reports[1].ranks[0] = {"ip-10-31-207-118.eu-central-1.compute.internal", {0.1079, 0.0022, 4e-4}};
  reports[2].ranks[1] = {"node1", {123456.7, 12345.6, 1234.5}};
  for (const RunReport& report : reports) {
    const Json seen = LookAt(ToHtml(report), 1200);
    INFO(report.title << ": " << seen.dump());
    CHECK(seen["content_width"] <= seen["width"]);
    CHECK(seen["scrolling"] == Json::array());
  }
}

TEST_CASE("the page is dark if the reader prefers a dark scheme") {
  const std::string html = ToHtml(ExampleReport(2, 1));
  CHECK(LookAt(html, 800)["background"] == "rgb(255, 255, 255)");
  CHECK(
      LookAt(html, 800, {"--blink-settings=preferredColorScheme=0"})["background"] ==
      "rgb(13, 17, 23)");
}

}  // namespace
}  // namespace dtrun::testing
