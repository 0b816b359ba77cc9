// An MPI program with its own communicator. Every rank fits y = 3x + 2 to its own data. Without
// dtrun, the program reduces its gradients by MPI_Allreduce. With dtrun, the gradients lie in
// memory that all ranks of a host share, and their reduction needs no copy. The rest of the program
// stays MPI.
//
//   mpirun -np 2 mpi_sgd      or      dtrun -np 2 mpi_sgd

#include <dtrun/dtrun.h>
#include <dtrun/mpi.h>

#include <cstdio>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm trainers = MPI_COMM_NULL;  // the trainer's own: here all ranks
  MPI_Comm_dup(MPI_COMM_WORLD, &trainers);
  {
    dtrun::Context job = dtrun::Init(trainers);
    dtrun::GradientReducer reducer(
        job.world(), {{"slope", dtrun::Buffer(nullptr, 1, dtrun::DType::kF32)},
                      {"offset", dtrun::Buffer(nullptr, 1, dtrun::DType::kF32)}});
    float* slope_gradient = static_cast<float*>(reducer.gradient(0).data);
    float* offset_gradient = static_cast<float*>(reducer.gradient(1).data);

    float slope = 0, offset = 0;
    for (int step = 0; step < 500; ++step) {
      *slope_gradient = *offset_gradient = 0;
      for (int i = 0; i < 4; ++i) {  // every rank has different points
        const float x = static_cast<float>((i * job.size() + job.rank()) % 8) / 8;
        const float error = slope * x + offset - (3 * x + 2);
        *slope_gradient += error * x / 2;
        *offset_gradient += error / 2;
      }
      reducer.Wait();  // was: MPI_Allreduce of both, and a division by the number of ranks
      slope -= 0.5F * *slope_gradient;
      offset -= 0.5F * *offset_gradient;
    }

    // Other calls of MPI in the program go on as before.
    float lowest = slope;
    MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_FLOAT, MPI_MIN, trainers);
    if (job.rank() == 0)
      std::printf(
          "y = %.2fx + %.2f on %d ranks, %s\n", static_cast<double>(slope),
          static_cast<double>(offset), job.size(), lowest == slope ? "all equal" : "not equal");
    job.Shutdown();
  }
  MPI_Comm_free(&trainers);
  MPI_Finalize();
}
