// A rank that takes some steps: `steps [STEPS] [END] [FOLDER]`. Rank 1 is late in each step. With
// END "kill", rank 1 ends by SIGKILL after its steps while rank 0 waits in one more reduction. With
// END "broadcast" or "load", the ranks first share 20 tensors, from the memory of rank 0 or from a
// checkpoint in FOLDER. Any other END is the file for the timeline of the steps.

#include <dtrun/checkpoint.h>
#include <dtrun/context.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/optimizer.h>
#include <dtrun/tensors.h>
#include <dtrun/types.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace programs::steps {

void ShareTensors(dtrun::Context& job, const std::string& way, const std::string& folder) {
  constexpr size_t kTensors = 20, kCount = 1000;
  std::vector<std::vector<float>> values(kTensors, std::vector<float>(kCount));
  std::vector<dtrun::NamedBuffer> buffers;
  std::vector<dtrun::NamedTensor> tensors;
  for (size_t i = 0; i < kTensors; ++i) {
    const dtrun::Buffer buffer(values[i].data(), kCount);
    buffers.push_back({std::to_string(i), buffer});
    tensors.emplace_back(std::to_string(i), buffer);
  }
  if (way == "broadcast") return dtrun::BroadcastBuffers(job.world(), buffers);
  dtrun::CheckpointManager checkpoints(job.world(), folder);
  checkpoints.Save({}, tensors);
  checkpoints.Load(tensors);
}

int Main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 10;
  const std::string end = argc > 2 ? argv[2] : "";
  dtrun::Context job = dtrun::Init();
  // A name may contain any bytes.
  dtrun::GradientReducer reducer(
      job.world(), {{"conv \"1\"\\\n\x01/w\xff", {nullptr, 30'000, dtrun::DType::kF32}},
                    {"dense/\xc3\xa4", {nullptr, 1000, dtrun::DType::kF32}}});
  const bool shares = end == "broadcast" || end == "load";
  if (shares) ShareTensors(job, end, argc > 3 ? argv[3] : "");
  if (!end.empty() && end != "kill" && !shares) job.StartTimeline(end);
  for (int step = 0; step < steps; ++step) {
    if (job.rank() == 1) usleep(2000);
    reducer.MarkReady(1);
    reducer.MarkReady(0);
    reducer.Wait();
    job.ReportProgress(static_cast<uint64_t>(step) + 1, 8 * (static_cast<uint64_t>(step) + 1));
  }
  if (end == "kill") {
    // Rank 1 waits until rank 0 has begun another reduction.
    int begun = 1;
    const dtrun::Buffer message(&begun, 1);
    if (job.rank() == 1) {
      job.world().StartReceive(message, 0).Wait();
      kill(getpid(), SIGKILL);
    }
    reducer.MarkReady(1);
    reducer.MarkReady(0);
    if (job.rank() == 0) job.world().StartSend(message, 1).Wait();
    reducer.Wait();
  }
  job.Shutdown();
  return 0;
}

}  // namespace programs::steps
