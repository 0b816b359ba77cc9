// Makes a scaling table from the results of one training on several numbers of ranks.

#include <dtrun/error.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "models/message_text.h"
#include "models/report/page.h"
#include "models/report/scaling.h"
#include "models/train/agreement.h"
#include "models/train/report.h"

namespace dtrun::models {
namespace {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

struct Options {
  std::vector<std::string> results;
  std::vector<std::string> facts;  // "name=value"
  std::string json, html;
  std::string example = "image";
};

int Report(const std::string& problem, int exit_code) {
  std::fprintf(stderr, "scaling_report: %s\n", problem.c_str());
  return exit_code;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw Error(ErrorCode::kSystem, Text(path, ": cannot be read"));
  return text;
}

NamedTexts FactsOf(const Options& options) {
  NamedTexts facts;
  for (const std::string& fact : options.facts) {
    const size_t sign = fact.find('=');
    if (sign == std::string::npos || sign == 0)
      throw Error(ErrorCode::kInvalidArgument, Text("--fact: '", fact, "', expected NAME=VALUE"));
    facts.emplace_back(fact.substr(0, sign), fact.substr(sign + 1));
  }
  return facts;
}

RunReport ReportOf(
    const std::vector<ScalingRow>& rows, const NamedTexts& facts, const std::string& example) {
  RunReport report;
  report.title = "Scaling";
  report.example = example;
  report.scaling = rows;
  for (const auto& [name, value] : facts) report.settings.push_back({name, value});
  return report;
}

int WriteFiles(
    const Options& options, const std::vector<ScalingRow>& rows, const NamedTexts& facts) {
  try {
    if (!options.json.empty()) WriteAtomically(options.json, ScalingJson(rows, facts));
    if (!options.html.empty()) WriteRunReport(options.html, ReportOf(rows, facts, options.example));
  } catch (const Error& error) {
    return Report(error.what(), kResultNotWritten);
  }
  return kSuccess;
}

int MakeReport(const Options& options) {
  NamedTexts facts;
  try {
    facts = FactsOf(options);
  } catch (const Error& error) {
    return Report(error.what(), kUsage);
  }
  std::vector<ScalingRow> rows;
  try {
    std::vector<ScalingRun> runs;
    for (const std::string& path : options.results)
      runs.push_back(ParseScalingRun(ReadFile(path), path));
    rows = ScalingTable(runs);
  } catch (const Error& error) {
    return Report(error.what(), kDataUnusable);
  }
  std::fputs(ScalingText(rows, options.example).c_str(), stdout);
  return WriteFiles(options, rows, facts);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Makes the scaling table from the --json files of a trainer.", "scaling_report");
  app.add_option("result", options.results, "--json files, one per number of ranks")->required();
  app.add_option("--json", options.json, "Write the table to this file");
  app.add_option("--html", options.html, "Write the table and its picture to this page");
  app.add_option(
      "--example", options.example, "What an example is called, in the singular [image]");
  app.add_option("--fact", options.facts, "NAME=VALUE to say with the table; any number of times")
      ->allow_extra_args(false);
  CLI11_PARSE(app, argc, argv);
  return MakeReport(options);
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) { return dtrun::models::Main(argc, argv); }
