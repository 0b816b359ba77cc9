#include "models/report/page.h"

#include <dtrun/error.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "tests/models/report/example_reports.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::models {
namespace {

using testing::CountOf;
using testing::DivergedReport;
using testing::ExampleReport;
using testing::ReadText;

bool Has(const std::string& text, const std::string& part) { return CountOf(text, part) > 0; }

std::string NumberCell(const std::string& text) { return "<td class=\"number\">" + text + "</td>"; }

TEST_CASE("the tables of a page have the numbers of the report") {
  RunReport report;
  report.results = {{"test accuracy", "91.63 %"}};
  report.settings = {{"optimizer", "adam"}};
  report.epochs = {{0.5123, 0.8123, 0.41, 0.8521, 6612.4, 9.0737}};
  report.ranks = {{"node1", {6, 3, 1}}, {"node2", {8, 2, 0}}};
  report.scaling = {{1, 3281.25, 1, 1}, {2, 6299.4, 1.9198, 0.9599}};
  const std::string page = ToHtml(report);
  for (const char* cell : {"0.5123", "81.23 %", "0.4100", "85.21 %", "6,612", "9.074"})
    CHECK(Has(page, NumberCell(cell)));
  for (const char* cell :
       {"6.00 (60.0 %)", "3.00 (30.0 %)", "1.00 (10.0 %)", "8.00 (80.0 %)", "0.00 (0.0 %)",
        "10.00"})
    CHECK(Has(page, NumberCell(cell)));
  for (const char* cell : {"3,281", "6,299", "1.92", "96.0 %"}) CHECK(Has(page, NumberCell(cell)));
  CHECK(Has(page, "<dt>test accuracy</dt><dd>91.63 %</dd>"));
  CHECK(Has(page, "<dt>optimizer</dt><dd>adam</dd>"));
}

TEST_CASE("the times of a table have one unit and as many decimals, whatever their size") {
  const auto page_of = [](double scale) {
    RunReport report;
    report.epochs = {{.seconds = scale * 0.110642}, {.seconds = scale * 0.0000314}};
    report.ranks = {{"node1", {scale * 0.107911, scale * 0.002231, scale * 0.0004225}}};
    return ToHtml(report);
  };
  const std::string brief = page_of(1);
  CHECK(Has(brief, "compute (ms)</th>"));
  for (const char* cell : {"110.6", "0.0", "107.9 (97.6 %)", "2.2 (2.0 %)", "0.4 (0.4 %)"})
    CHECK(Has(brief, NumberCell(cell)));
  const std::string usual = page_of(100);
  CHECK(Has(usual, "compute (s)</th>"));
  for (const char* cell : {"11.06", "0.00", "10.79 (97.6 %)", "0.22 (2.0 %)", "0.04 (0.4 %)"})
    CHECK(Has(usual, NumberCell(cell)));
  const std::string lengthy = page_of(100000);
  for (const char* cell : {"11,064", "3", "10,791 (97.6 %)", "223 (2.0 %)", "42 (0.4 %)"})
    CHECK(Has(lengthy, NumberCell(cell)));
}

TEST_CASE("accuracies and losses have one form") {
  CHECK(AccuracyText(0.4731) == "47.31 %");
  CHECK(AccuracyText(1) == "100.00 %");
  CHECK(LossText(1.95231) == "1.9523");
  CHECK(LossText(0.41) == "0.4100");
  CHECK(LossText(0.000123456) == "0.0001235");
  CHECK(LossText(98765.4) == "98,765");
}

TEST_CASE("a page loads no other resources") {
  const std::string page = ToHtml(ExampleReport(100, 64));
  CHECK(!Has(page, "://"));
  CHECK(!Has(page, "<script"));
  CHECK(!Has(page, "src="));
  CHECK(!Has(page, "url("));
  CHECK(!Has(page, "@import"));
  CHECK(Has(page, "default-src 'none'"));
}

TEST_CASE("values that were not measured leave no sections or drawings") {
  const std::string empty = ToHtml({});
  CHECK(!Has(empty, "<section>"));
  CHECK(!Has(empty, "<svg"));

  RunReport report;
  report.epochs = {{.loss = 0.5}, {.loss = 0.4}};
  const std::string page = ToHtml(report);
  CHECK(Has(page, "<h3>Loss</h3>"));
  CHECK(!Has(page, "<h3>Accuracy</h3>"));
  CHECK(!Has(page, "<h3>Training speed</h3>"));
  CHECK(Has(page, NumberCell("-")));
}

TEST_CASE("a loss that is NaN or infinite is shown as such and drawn as a cross") {
  const std::string page = ToHtml(DivergedReport());
  CHECK(CountOf(page, NumberCell("NaN")) == 4);
  CHECK(CountOf(page, NumberCell("infinity")) == 1);
  CHECK(CountOf(page, "class=\"cross first\"") == 4);
  CHECK(CountOf(page, "class=\"cross second\"") == 1);
  CHECK(!Has(page, "nan"));
  CHECK(!Has(page, "inf\""));
}

TEST_CASE("text of the user is escaped on the page") {
  RunReport report;
  report.title = "<script>alert(1)</script>";
  report.settings = {{"--data-dir", "a&b\"<c>"}};
  const std::string page = ToHtml(report);
  CHECK(!Has(page, "<script"));
  CHECK(Has(page, "<title>&lt;script&gt;alert(1)&lt;/script&gt;</title>"));
  CHECK(Has(page, "<dd>a&amp;b&quot;&lt;c&gt;</dd>"));
}

TEST_CASE("every rank has a bar with at most three parts") {
  const std::string page = ToHtml(ExampleReport(1, 64));
  for (const char* part : {"compute", "exposed", "input"})
    CHECK(CountOf(page, std::string("<rect class=\"") + part + "\"") == 64);
  RunReport idle;
  idle.ranks = {{"node1", {}}, {"node1", {1, 0, 0}}};
  CHECK(CountOf(ToHtml(idle), "<rect") == 1);
}

TEST_CASE("the parts of a training time add up and are never negative") {
  const RankTime time = SplitTrainingTime(10, 2, 1);
  CHECK(time.compute_s == 7);
  CHECK(time.exposed_s == 2);
  CHECK(time.input_wait_s == 1);
  CHECK(SplitTrainingTime(10, 9, 2).compute_s == 0);
  CHECK(SplitTrainingTime(10, -1e-9, 0).exposed_s == 0);
}

TEST_CASE("the page of a job has the times of all ranks") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/run.html";
  const auto result =
      testing::Run({{"launcher/dtrun", "-np", "3", "tests/models/report/write_report", path}});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string page = ReadText(path);
  // Rank r trained for 10 + r s, waited 1 s for gradients and r / 4 s for input.
  CHECK(Has(page, NumberCell("9.00 (90.0 %)")));
  CHECK(Has(page, NumberCell("9.75 (88.6 %)")));
  CHECK(Has(page, NumberCell("10.50 (87.5 %)")));
  CHECK(Has(page, NumberCell("0.25 (2.3 %)")));
  CHECK(Has(page, NumberCell("12.00")));
  CHECK(folder.Entries() == std::vector<std::string>{"run.html"});
}

TEST_CASE("writing a page replaces only the old page and a failed write names the path") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.Write("run.html", "the old page");
  WriteRunReport(path, ExampleReport(1, 1));
  CHECK(Has(ReadText(path), "</html>"));
  CHECK(folder.Entries() == std::vector<std::string>{"run.html"});
  const std::string nowhere = folder.path() + "/missing/run.html";
  try {
    WriteRunReport(nowhere, {});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kSystem);
    CHECK(Has(error.what(), nowhere));
  }
}

}  // namespace
}  // namespace dtrun::models
