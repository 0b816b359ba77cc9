#ifndef DTRUN_TESTS_GPU_SIMULATOR_BLOCK_H_
#define DTRUN_TESTS_GPU_SIMULATOR_BLOCK_H_

#include <cstdint>

// Runs the threads of a block on a CPU, as fibers of one system thread. Each fiber runs until it
// waits for others. Blocks alternate between ascending and descending order of threads. So a
// missing barrier gives a wrong result in one of the two orders.

namespace dtrun::gpu_simulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// The indices of the running thread of a kernel.
struct Place {
  Index thread, block, block_size, grid;
};
extern constinit thread_local const Place* here;
inline const Place& Here() { return *here; }
void* DynamicShared();

/// Lets other threads of the block run. If all runnable threads of a block only yield, the stream
/// sleeps until the bell rings or some time has passed.
void Yield();
/// Wakes other kernels of the process, which may wait for a store of this kernel.
void RingBell();
/// Waits until all threads of the block have come or ended.
void SyncBlock();
/// Waits until all threads of the warp have come or ended.
void SyncWarp();
/// Copies to `theirs` the value `mine` of thread `lane` of the warp, at most 8 bytes. All threads
/// of the warp call it.
void Exchange(const void* mine, void* theirs, unsigned bytes, unsigned lane);
/// Returns one bit per thread of the warp, set if the thread passes true. All threads of the warp
/// call it.
unsigned Ballot(bool yes);

using Kernel = void (*)(void** parameters);

struct Launch {
  Kernel kernel = nullptr;
  const char* name = "";
  Index grid, block;
  unsigned shared_bytes = 0;
};

/// Runs all blocks in order on this thread. If the threads of a block deadlock, prints a line and
/// aborts the process.
void Run(const Launch& launch, void** parameters);

/// A kernel that the driver finds by name, and the size of its parameter.
struct Known {
  Kernel kernel = nullptr;
  unsigned parameter_bytes = 0;
};
struct Registration {
  Registration(const char* name, Known known);
};
/// Returns a Known without a kernel if the name is unknown.
Known FindKernel(const char* name);

}  // namespace dtrun::gpu_simulator

#endif
