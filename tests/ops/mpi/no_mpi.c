// The functions of MPI that mpi_trainer.cc calls, for the linker. At run time, tests preload an
// MPI, whose functions come first.

#include <stdlib.h>

int MPI_Allreduce(void) { abort(); }
int MPI_Comm_rank(void) { abort(); }
int MPI_Comm_split(void) { abort(); }
int MPI_Finalize(void) { abort(); }
int MPI_Finalized(void) { abort(); }
int MPI_Get_library_version(void) { abort(); }
int MPI_Init_thread(void) { abort(); }
int MPI_Intercomm_create(void) { abort(); }
