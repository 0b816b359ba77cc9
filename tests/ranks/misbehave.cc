// A rank of a job in which something is wrong; argv[1] says what. Prints what it was told, once, on
// rank 0.

#include <dtrun/dtrun.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    dtrun::Context job = dtrun::Init(
        what == "option" ? std::map<std::string, std::string>{{"bucket_mb", "4"}}
                         : std::map<std::string, std::string>{});
    try {
      float data[4] = {};
      if (what == "mismatch") {
        if (job.rank() == 0) job.world().Barrier();
        if (job.rank() != 0) job.world().AllReduce(dtrun::Buffer(data, 4));
      } else if (what == "twice") {
        job.Shutdown();
      } else if (what == "leave") {
        if (job.rank() == 1) return 0;
      }
      job.Shutdown();
      if (what == "refuse") {
        if (job.rank() == 0) std::fprintf(stderr, "misbehave: refused\n");
        return 66;
      }
    } catch (const dtrun::Error& error) {
      if (job.rank() == 0) std::printf("%d: %s\n", static_cast<int>(error.code()), error.what());
      if (what != "twice") job.Shutdown();
    }
  } catch (const dtrun::Error& error) {
    std::printf("%d: %s\n", static_cast<int>(error.code()), error.what());
    return 2;
  }
  return 0;
}
