#include "launcher/support/environment.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/plan/rank_environment.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

TEST_CASE("secrets and device variables and names that no shell can set are not forwarded") {
  CHECK(
      ForwardedNames(
          {"PATH=/bin", "HF_TOKEN=x", "my_secret_=x", "DB_PASSWORD=x", "API_KEY=x", "AWS_REGION=x",
           "SSH_AUTH_SOCK=x", "GOOGLE_CREDENTIALS=x", "BASH_FUNC_f%%=() { :; }", "a.b=x", "1A=x",
           "OMPI_COMM_WORLD_RANK=1", "CUDA_VISIBLE_DEVICES=0", "KEYBOARD=de", "_x9=1",
           "SLURM_PROCID=0", "SLURM_JOB_ID=4", "DTRUN_BUCKET_BYTES=9"}) ==
      Words{"PATH", "KEYBOARD", "_x9", "SLURM_JOB_ID", "DTRUN_BUCKET_BYTES"});
}

TEST_CASE("allowed secrets are forwarded unless denied and named variables are always forwarded") {
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

TEST_CASE("the printed environment is valid shell code without secrets") {
  CHECK(
      PrintedEnvironment({"B=x y", "A=1", "MY_TOKEN=hush", "C=n\nl"}, {"A", "B"}) ==
      "# all ranks\n"
      "A=1\n"
      "B='x y'\n"
      "# ranks on this host alone\n"
      "C=$'n\\nl'\n"
      "MY_TOKEN=<not shown>\n");
}

TEST_CASE("a rank gets the variables of PyTorch and TensorFlow") {
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

TEST_CASE("TF_CONFIG tells each rank of a job with parameter servers its role") {
  const std::vector<base::HostSlots> hosts = {{"h1", 2}, {"h2", 2}};
  const auto config = [&](int rank) {
    return RankVariables(hosts, rank, "m", 100, {.servers = 1, .evaluator = true}).back().second;
  };
  const std::string cluster =
      R"({"cluster":{"evaluator":["h2:102"],"ps":["m:101"],"worker":["m:102","h2:101"]},"task":)";
  CHECK(config(0) == cluster + R"({"index":0,"type":"ps"}})");
  CHECK(config(1) == cluster + R"({"index":0,"type":"worker"}})");
  CHECK(config(2) == cluster + R"({"index":1,"type":"worker"}})");
  CHECK(config(3) == cluster + R"({"index":0,"type":"evaluator"}})");
}

TEST_CASE("TF_CONFIG is left out if it does not fit into a variable") {
  CHECK(RankVariables({{"host", 100'000}}, 7, "m", 100).size() == 4);
}

TEST_CASE("the rendezvous ports are random and free and below the ephemeral ports") {
  CHECK(ChoosePort(0, 2, [](int) { return true; }) == 20'000);
  CHECK(ChoosePort(0, 2, [](int port) { return port != 20'001; }) == 20'003);
  for (unsigned random : {1U, 77U, 0xfffffffU}) {
    const int port = ChoosePort(random, 999'999, [](int) { return true; });
    CHECK((port >= 20'000 && port + 1000 < 32'768));
  }
}

TEST_CASE("the rendezvous ports are in the range that the user allows") {
  const auto free = [](int) { return true; };
  for (unsigned random : {0U, 1U, 77U, 0xfffffffU}) {
    const int port = ChoosePort(random, 2, free, {7000, 7011});
    CHECK((port >= 7000 && port + 2 <= 7011));
    CHECK(ChoosePort(random, 8, free, {7000, 7001}) == 7000);
  }
  CHECK(ChoosePort(0, 1, [](int port) { return port > 7003; }, {7000, 7009}) == 7004);
}

}  // namespace
}  // namespace dtrun::launcher
