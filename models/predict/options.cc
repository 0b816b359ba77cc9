#include "models/predict/options.h"

#include <CLI/CLI.hpp>

#include "models/text.h"

namespace dtrun::models {
namespace {

void AddOptions(CLI::App& app, PredictOptions& o) {
  app.add_option("MODEL", o.model, "Folder of a saved model")->required();
  app.add_option(
         "--data-dir", o.data_dir,
         Text("Folder of an IDX data set, gzipped or not [", kFashionMnistDir, "]"))
      ->type_name("DIR");
  app.add_option("--split", o.split, "Images to predict: test or train [test]")
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            if (text == "test" || text == "train") return "";
            return Text("'", text, "', expected test or train");
          },
          "", "split"))
      ->type_name("NAME");
  app.add_option(
         "--output", o.output,
         "Write the prediction and the probability of each class, a line of CSV per image in the "
         "order of the data, to this file")
      ->type_name("FILE");
  app.add_option("--json", o.json, "Write the result to this file")->type_name("FILE");
  app.add_option("--threads", o.threads, "Compute threads per rank [the CPUs that are its own]")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
}

// CLI11 has errors of several lines.
std::string OneLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

ParsedPredictOptions ParsePredictOptions(int argc, const char* const* argv) {
  ParsedPredictOptions parsed;
  CLI::App app(
      "Loads a saved model and says how many images of a data set it classifies rightly, alone or "
      "as the ranks of a dtrun job, which share the images.\n"
      "Exit codes: 0 success, 2 usage, 66 model or data unusable, 73 a file could not be written, "
      "76 ranks disagree.",
      "predict");
  AddOptions(app, parsed.options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    parsed.help = app.help();
  } catch (const CLI::ParseError& error) {
    parsed.error = OneLine(error.what());
  }
  return parsed;
}

}  // namespace dtrun::models
