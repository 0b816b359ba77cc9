#include "launcher/support/environment.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/plan/rank_environment.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

TEST_CASE("secrets, this host's devices and names that no shell sets are not forwarded") {
  CHECK(
      ForwardedNames(
          {"PATH=/bin", "HF_TOKEN=x", "my_secret_=x", "DB_PASSWORD=x", "API_KEY=x", "AWS_REGION=x",
           "SSH_AUTH_SOCK=x", "GOOGLE_CREDENTIALS=x", "BASH_FUNC_f%%=() { :; }", "a.b=x", "1A=x",
           "OMPI_COMM_WORLD_RANK=1", "CUDA_VISIBLE_DEVICES=0", "KEYBOARD=de", "_x9=1",
           "DTRUN_BUCKET_BYTES=9"}) == Words{"PATH", "KEYBOARD", "_x9", "DTRUN_BUCKET_BYTES"});
}

TEST_CASE("what is allowed goes, what is denied stays, what is named goes in any case") {
  const Variables variables = {"HF_TOKEN=x",    "WANDB_TOKEN=x",          "PATH=/bin",
                               "PYTHONPATH=/p", "CUDA_VISIBLE_DEVICES=0", "BASH_FUNC_f%%=x"};
  CHECK(
      ForwardedNames(variables, {.deny = {"python*"}, .allow = {"*_TOKEN"}}) ==
      Words{"HF_TOKEN", "WANDB_TOKEN", "PATH"});
  CHECK(
      ForwardedNames(
          variables, {.named = {"CUDA_VISIBLE_DEVICES", "PATH"}, .deny = {"*"}, .allow = {"*"}}) ==
      Words{"PATH", "CUDA_VISIBLE_DEVICES"});
}

TEST_CASE("the printed environment is one that a shell reads, without secrets") {
  CHECK(
      PrintedEnvironment({"B=x y", "A=1", "MY_TOKEN=hush", "C=n\nl"}, {"A", "B"}) ==
      "# all ranks\n"
      "A=1\n"
      "B='x y'\n"
      "# ranks on this host alone\n"
      "C=$'n\\nl'\n"
      "MY_TOKEN=<not shown>\n");
}

TEST_CASE("a rank finds itself by the names of PyTorch and TensorFlow") {
  const std::vector<base::HostSlots> hosts = {{"h1", 2}, {"h2", 3}};
  CHECK(
      RankVariables(hosts, 3, "m", 100) ==
      base::Environment{
          {"RANK", "3"},
          {"WORLD_SIZE", "5"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "3"},
          {"TF_CONFIG", R"({"cluster":{"worker":["m:101","m:102","h2:101","h2:102","h2:103"]},)"
                        R"("task":{"index":3,"type":"worker"}})"}});
}

TEST_CASE("a job too large for a variable has no TF_CONFIG") {
  CHECK(RankVariables({{"host", 100'000}}, 7, "m", 100).size() == 4);
}

TEST_CASE("ports are chosen by chance below those that the system gives away, past those in use") {
  CHECK(ChoosePort(0, 2, [](int) { return true; }) == 20'000);
  CHECK(ChoosePort(0, 2, [](int port) { return port != 20'001; }) == 20'003);
  for (unsigned random : {1U, 77U, 0xfffffffU}) {
    const int port = ChoosePort(random, 999'999, [](int) { return true; });
    CHECK((port >= 20'000 && port + 1000 < 32'768));
  }
}

}  // namespace
}  // namespace dtrun::launcher
