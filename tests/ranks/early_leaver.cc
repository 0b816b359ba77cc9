// Rank 1 calls Shutdown while the other ranks wait for it. argv[1] names the operation in which
// they wait. A rank with an error prints "<rank>: <code>: <text>".

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/named_queue.h>
#include <dtrun/types.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

namespace programs::early_leaver {

using dtrun::Buffer;
using dtrun::Communicator;

float data[4];

void Print(int rank, const dtrun::Error& error) {
  std::printf("%d: %d: %s\n", rank, static_cast<int>(error.code()), error.what());
  std::fflush(stdout);
}

// All ranks but rank 1 call `wait`.
int LeaveOrWait(dtrun::Context& job, const std::function<void()>& wait) {
  bool failed = false;
  try {
    if (job.rank() != 1) wait();
  } catch (const dtrun::Error& error) {
    Print(job.rank(), error);
    failed = true;
  }
  try {
    job.Shutdown();
  } catch (const dtrun::Error& error) {
    Print(job.rank(), error);
    failed = true;
  }
  return failed ? 3 : 0;
}

int Run(const std::string& what) {
  dtrun::Context job = dtrun::Init();
  Communicator other = job.world().Duplicate();
  std::optional<dtrun::NamedQueue> queue(job.world());
  other.Barrier();
  if (what == "gone_queue" && job.rank() == 1) queue.reset();
  const std::map<std::string, std::function<void()>> waits = {
      {"world", [&] { job.world().AllReduce(Buffer(data, 4)); }},
      {"duplicate", [&] { other.AllReduce(Buffer(data, 4)); }},
      {"message", [&] { other.Receive(Buffer(data, 4), 1); }},
      {"named", [&] { queue->AllReduce("x", Buffer(data, 4)).Wait(); }},
      {"gone_queue", [&] { queue->AllReduce("x", Buffer(data, 4)).Wait(); }},
      {"joined", [&] { queue->Join().Wait(); }},
      {"late", [] { std::this_thread::sleep_for(std::chrono::milliseconds(1500)); }},
  };
  return LeaveOrWait(job, waits.at(what));
}

int Main(int, char** argv) { return Run(argv[1]); }

}  // namespace programs::early_leaver
