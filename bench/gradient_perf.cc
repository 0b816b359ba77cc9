// What a step costs after the backward pass. Run it under dtrun or mpirun.
//
// The time to reduce all gradients of a model that are ready at once, beside Horovod's way to do it
// over raw MPI (copy into a buffer of 64 MiB, MPI_Allreduce, copy back), and beside the time in
// which one core copies as many bytes while the other ranks are idle. The three take turns in the
// same processes.
//
//   mapped:    the gradients lie in the reducer's block, which the ranks of a host share
//   scattered: each lies in memory of its own, as an existing trainer has it
//
// The time to reduce and to step with SGD and momentum, the modes by turns:
//
//   local_step:            mapped gradients are reduced, then every rank steps the whole model
//   sharded_step:          every rank steps a share of it, in one pass with the reduction
//   sharded_step_one_copy: the same, and the ranks of a host share the parameters

#include <dtrun/dtrun.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gradient_modes.h"
#include "bench/measure.h"
#include "bench/model_shapes.h"
#include "bench/program.h"

namespace {

using nlohmann::json;

const std::vector<std::string> kReductions = {"mapped", "scattered"};
const std::vector<std::string> kSteps = {"local_step", "sharded_step", "sharded_step_one_copy"};

struct Settings {
  std::string model = "resnet50";
  std::string mode = "all";
  int least_rounds = 15;
};

dtrun::bench::GradientCase CaseOf(const Settings& settings) {
  return {
      settings.model,
      settings.model == "resnet50" ? dtrun::bench::ResNet50() : dtrun::bench::Equal(1000, 256),
      settings.least_rounds};
}

bool Contains(const std::vector<std::string>& modes, const std::string& mode) {
  return std::find(modes.begin(), modes.end(), mode) != modes.end();
}

std::vector<std::string> ModeNames() {
  std::vector<std::string> names = {"all"};
  names.insert(names.end(), kReductions.begin(), kReductions.end());
  names.insert(names.end(), kSteps.begin(), kSteps.end());
  return names;
}

void PrintHeader(dtrun::Context& job) {
  std::printf(
      "# %d ranks, backend %s; beside it %s\n", job.size(), job.world().backend().c_str(),
      dtrun::bench::ReadPeerSettings().version.c_str());
}

// What stands in every row.
void PrintStart(const json& row) {
  std::printf(
      "%-10s %-21s %8d %12lld %12.1f %12.1f %10.2f ", row["case"].get<std::string>().c_str(),
      row["mode"].get<std::string>().c_str(), row["tensors"].get<int>(),
      row["bytes"].get<long long>(), row["time_us"].get<double>(), row["memcpy_us"].get<double>(),
      row["ratio_to_memcpy"].get<double>());
}

void PrintTitles(const char* peer, const char* ratio) {
  std::printf(
      "%-10s %-21s %8s %12s %12s %12s %10s %13s %13s %6s\n", "case", "mode", "tensors", "bytes",
      "time us", "memcpy us", "of memcpy", peer, ratio, "wrong");
}

void PrintRow(const json& row, const char* peer, const char* ratio) {
  PrintStart(row);
  std::printf(
      "%13.1f %13.2f %6lld\n", row[peer].get<double>(), row[ratio].get<double>(),
      row["wrong"].get<long long>());
  std::fflush(stdout);
}

void MeasureReductions(dtrun::Context& job, const Settings& settings, json& rows) {
  if (job.rank() == 0) PrintTitles("MPI fused us", "times faster");
  for (const std::string& mode : kReductions) {
    if (settings.mode != "all" && settings.mode != mode) continue;
    rows.push_back(dtrun::bench::MeasureReduction(job.world(), CaseOf(settings), mode));
    if (job.rank() == 0) PrintRow(rows.back(), "mpi_fused_us", "ratio");
  }
}

void MeasureSteps(dtrun::Context& job, const Settings& settings, json& rows) {
  if (job.rank() == 0) PrintTitles("local step us", "of local step");
  for (json& row : dtrun::bench::MeasureSteps(job.world(), CaseOf(settings))) {
    if (settings.mode != "all" && settings.mode != row["mode"]) continue;
    if (job.rank() == 0) PrintRow(row, "local_step_us", "ratio_to_local_step");
    rows.push_back(std::move(row));
  }
}

json MeasureAll(dtrun::Context& job, const Settings& settings) {
  if (job.rank() == 0) PrintHeader(job);
  json rows = json::array();
  if (!Contains(kSteps, settings.mode)) MeasureReductions(job, settings, rows);
  if (!Contains(kReductions, settings.mode)) MeasureSteps(job, settings, rows);
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("The time to reduce a model's gradients, and to step with them.", "gradient_perf");
  app.add_option("--case", settings.model, "the gradients: ResNet-50's 161, or 1,000 of 1 KiB")
      ->check(CLI::IsMember({"resnet50", "thousand"}))
      ->capture_default_str();
  app.add_option("--mode", settings.mode, "where they lie, or how the step is made")
      ->check(CLI::IsMember(ModeNames()))
      ->capture_default_str();
  app.add_option("--rounds", settings.least_rounds, "timed rounds of each side, at least")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  return dtrun::bench::Main(
      app,
      {"gradient_perf", [&](dtrun::Context& job) { return MeasureAll(job, settings); },
       dtrun::bench::ObstacleBesideMpi},
      argc, argv);
}
