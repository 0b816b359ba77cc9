// Each rank adds its own time. Rank 0 writes the page.
//   write_report FILE
#include <dtrun/context.h>
#include <dtrun/error.h>

#include <cstdio>

#include "models/report/page.h"
#include "tests/models/report/example_reports.h"

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  dtrun::Context job = dtrun::Init();
  const double rank = job.rank();
  dtrun::models::RunReport report = dtrun::testing::ExampleReport(3, 1);
  report.ranks =
      dtrun::models::GatherRankTimes(job, dtrun::models::SplitTrainingTime(10 + rank, 1, rank / 4));
  if (job.rank() == 0) dtrun::models::WriteRunReport(argv[1], report);
  job.Shutdown();
  return 0;
} catch (const dtrun::Error& error) {
  std::fprintf(stderr, "write_report: %s\n", error.what());
  return 1;
}
