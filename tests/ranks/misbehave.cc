// Ranks that misuse dtrun; argv[1] names the case. Each rank prints its error as "<rank>: <code>:
// <text>". If the communicator is still usable, all ranks then call a barrier and Shutdown. With
// "uncaught" as argv[2], the error is not caught.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace programs::misbehave {

using dtrun::Buffer;
using dtrun::Communicator;
using dtrun::DType;
using dtrun::ErrorCode;
using dtrun::ReduceOp;

float in[12], out[24];

Buffer In(uint64_t count) { return Buffer(in, count); }
Buffer Out(uint64_t count) { return Buffer(out, count); }

// Every rank calls the function of a case and finds its own mistake or that of another rank. A case
// needs at least two ranks.
const std::map<std::string, std::function<void(Communicator&)>> kCases = {
    // each rank refuses its own call
    {"null", [](Communicator& c) { c.AllReduce(Buffer(nullptr, 4, DType::kF32)); }},
    {"null_output", [](Communicator& c) { c.AllGather(In(1), Buffer(nullptr, 2, DType::kF32)); }},
    {"no_dtype", [](Communicator& c) { c.AllReduce(Buffer(in, 4, static_cast<DType>(77))); }},
    {"no_op", [](Communicator& c) { c.AllReduce(In(4), static_cast<ReduceOp>(9)); }},
    {"no_root", [](Communicator& c) { c.Broadcast(In(4), c.size()); }},
    {"no_peer", [](Communicator& c) { c.Send(In(4), -1); }},
    {"to_itself", [](Communicator& c) { c.Send(In(4), c.rank()); }},
    {"overlap", [](Communicator& c) { c.AllReduce(Buffer(in, 4), Buffer(in + 1, 4)); }},
    {"short_table", [](Communicator& c) { c.AllGather(In(1), Out(2), {2}); }},
    {"splits",
     [](Communicator& c) {
       c.AllToAll(In(4), Out(4), {3, 2}, {2, 2});
     }},
    {"overflow",
     [](Communicator& c) {
       c.AllToAll(In(0), Out(0), {UINT64_MAX, 1}, {0, 0});
     }},
    {"twice_listed",
     [](Communicator& c) {
       c.Subset({0, 0});
     }},
    // the ranks find the mismatch together
    {"kind",
     [](Communicator& c) {
       if (c.rank() == 0) c.Barrier();
       if (c.rank() != 0) c.AllReduce(In(4));
     }},
    {"count", [](Communicator& c) { c.AllReduce(In(c.rank() == 1 ? 5 : 4)); }},
    {"dtype",
     [](Communicator& c) {
       c.AllReduce(Buffer(in, 4, c.rank() == 1 ? DType::kI32 : DType::kF32));
     }},
    {"op",
     [](Communicator& c) { c.AllReduce(In(4), c.rank() == 1 ? ReduceOp::kMax : ReduceOp::kSum); }},
    {"root", [](Communicator& c) { c.Broadcast(In(4), c.rank() == 1 ? 1 : 0); }},
    {"scale",
     [](Communicator& c) {
       c.AllReduce(In(4), ReduceOp::kSum, {c.rank() == 1 ? 0.5 : 0.25, 1});
     }},
    {"shares",
     [](Communicator& c) {
       const dtrun::Counts shares = c.rank() == 1 ? dtrun::Counts{2, 2} : dtrun::Counts{3, 1};
       c.ReduceScatter(In(4), Out(c.rank() == 1 ? 2 : 3), ReduceOp::kSum, {}, shares);
     }},
    {"receive_counts",
     [](Communicator& c) {
       if (c.rank() == 0) c.AllToAll(In(4), Out(5), {1, 3}, {1, 4});
       if (c.rank() == 1) c.AllToAll(In(4), Out(4), {2, 2}, {3, 1});
     }},
    {"gather",
     [](Communicator& c) {
       c.Gather(In(c.rank() == 0 ? 2 : 3), Out(4), 0, {2, 2});
     }},
    {"members", [](Communicator& c) { c.Subset({c.rank()}); }},
    {"message",
     [](Communicator& c) {
       if (c.rank() == 0) c.Send(In(4), 1);
       if (c.rank() == 1) c.Receive(Out(3), 0);
     }},
    // the time limit ends the wait
    {"never",
     [](Communicator& c) {
       if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
       c.Barrier();
     }},
    {"no_receive",
     [](Communicator& c) {
       // Too large to be sent before the receiver is ready.
       std::vector<float> large(10'000'000);
       if (c.rank() != 0) std::this_thread::sleep_for(std::chrono::seconds(30));
       c.Send(Buffer(large.data(), large.size()), 1);
     }},
};

void Print(const dtrun::Context& job, const dtrun::Error& error) {
  std::printf("%d: %d: %s\n", job.rank(), static_cast<int>(error.code()), error.what());
  std::fflush(stdout);
}

// Whether the communicator is usable after the error.
bool Usable(const dtrun::Error& error) {
  return error.code() != ErrorCode::kTimeout && error.code() != ErrorCode::kPeerLost;
}

int Run(const std::string& what) {
  dtrun::Context job = dtrun::Init(
      what == "option" ? std::map<std::string, std::string>{{"bucket_mb", "4"}}
                       : std::map<std::string, std::string>{});
  const auto found = kCases.find(what);
  bool usable = true;
  try {
    if (found != kCases.end()) found->second(job.world());
  } catch (const dtrun::Error& error) {
    Print(job, error);
    usable = Usable(error);
  }
  // After these time limits, the other ranks do not come to Shutdown. Case "leave" tests a rank
  // that exits without Shutdown.
  if (what == "never" || what == "no_receive" || (what == "leave" && job.rank() == 1)) return 0;
  // Prints before Shutdown, because the first rank to exit ends the other ranks.
  if (what == "refuse" && job.rank() == 0) std::fprintf(stderr, "misbehave: refused\n");
  try {
    if (usable) job.world().Barrier();
    job.Shutdown();
    if (what == "twice") job.Shutdown();
  } catch (const dtrun::Error& error) {
    Print(job, error);
  }
  return what == "refuse" ? 66 : 0;
}

int Main(int argc, char** argv) {
  if (argc > 2 && argv[2] == std::string("uncaught")) {
    dtrun::Context job = dtrun::Init();
    kCases.at(argv[1])(job.world());
  }
  try {
    return Run(argc > 1 ? argv[1] : "");
  } catch (const dtrun::Error& error) {
    std::printf("%d: %s\n", static_cast<int>(error.code()), error.what());
    return 2;
  }
}

}  // namespace programs::misbehave
