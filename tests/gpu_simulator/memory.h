#ifndef DTRUN_TESTS_GPU_SIMULATOR_MEMORY_H_
#define DTRUN_TESTS_GPU_SIMULATOR_MEMORY_H_

#include <cstdint>

// Device memory consists of pages of this process. New memory is filled with 0xFF bytes, which are
// NaNs. An inaccessible guard page follows each allocation. Memory that other processes map is an
// unnamed file (memfd).

namespace dtrun::gpu_simulator {

constexpr uint64_t kGranularity = 2 << 20;

/// Returns the address of a new allocation, or 0 if the memory does not fit.
uint64_t Allocate(int device, uint64_t bytes);
bool Free(uint64_t base);

/// The memory of a simulated GPU: DTRUN_SIMULATED_GPU_BYTES, 1 GiB by default.
uint64_t TotalBytes();
uint64_t TakenBytes(int device);
/// Returns false if the bytes do not fit.
bool Take(int device, uint64_t bytes);
void GiveBack(int device, uint64_t bytes);

/// Returns an unnamed file of this size, or -1.
int NewFile(uint64_t bytes);

}  // namespace dtrun::gpu_simulator

#endif
