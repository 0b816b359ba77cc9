#ifndef DTRUN_TESTS_GPU_SIMULATOR_BLOCK_H_
#define DTRUN_TESTS_GPU_SIMULATOR_BLOCK_H_

#include <cstdint>

// How the threads of a block run on a CPU: as fibers of one thread of the system, one after the
// other, each until it waits for others. The order is by number in every other block and backwards
// in the rest, so that what lacks a barrier comes out wrong in one of them.

namespace dtrun::gpu_simulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// Of the thread of a kernel that runs now.
struct Place {
  Index thread, block, block_size, grid;
};
extern constinit thread_local const Place* here;
inline const Place& Here() { return *here; }
void* DynamicShared();

/// Other threads of the block run. When all of a block's that run at all have done no more than
/// this, the stream sleeps until the bell rings, or some time has passed.
void Yield();
/// Another kernel of the process may wait for what has been done now.
void RingBell();
/// Until all threads of the block have come, or have ended.
void SyncBlock();
/// Until all threads of the warp have come, or have ended.
void SyncWarp();
/// What thread `lane` of the warp brings, of at most 8 bytes; all of its threads call it.
void Exchange(const void* mine, void* theirs, unsigned bytes, unsigned lane);
/// A bit for each thread of the warp that says yes; all of them call it.
unsigned Ballot(bool yes);

using Kernel = void (*)(void** parameters);

struct Launch {
  Kernel kernel = nullptr;
  const char* name = "";
  Index grid, block;
  unsigned shared_bytes = 0;
};

/// Runs all blocks, in their order, on this thread. Ends the process with a line when a block's
/// threads wait for each other for ever.
void Run(const Launch& launch, void** parameters);

/// A kernel that the driver finds by name, with the bytes of its parameter.
struct Known {
  Kernel kernel = nullptr;
  unsigned parameter_bytes = 0;
};
struct Registration {
  Registration(const char* name, Known known);
};
/// Without a kernel where there is none.
Known FindKernel(const char* name);

}  // namespace dtrun::gpu_simulator

#endif
