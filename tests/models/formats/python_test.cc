#include "tests/support/python.h"

#include <catch2/catch.hpp>
#include <string>

namespace dtrun::testing {
namespace {

TEST_CASE("every Python package of the tests has the version in scripts/python.txt") {
  if (PythonIsMissing()) return;
  TemporaryFolder folder;
  const std::string script = folder.Write("versions.py", R"(
import importlib.metadata, sys
for line in open(sys.argv[1]):
    name, _, version = line.strip().partition("==")
    if version and not line.startswith("#"):
        assert importlib.metadata.version(name) == version, line
        print(name)
)");
  const CommandResult result = RunPython({script, "scripts/python.txt"});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  for (const char* name : {"numpy", "onnx", "onnxruntime", "safetensors", "tensorboard"})
    CHECK_THAT(result.out, Catch::Contains(name + std::string("\n")));
}

}  // namespace
}  // namespace dtrun::testing
