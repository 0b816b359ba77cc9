// A trainer that uses MPI itself. argv[1] is the thread level of MPI_Init_thread: "none" (no call),
// "single", "funneled", "serialized" or "multiple". argv[2] names the communicator to join or the
// mistake to make; "mpi": uses MPI alone.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/mpi.h>
#include <dtrun/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace {

int WorldRank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

void InitMpi(const std::string& level) {
  if (level == "none") return;
  int given = 0;
  const int wanted = level == "single"       ? MPI_THREAD_SINGLE
                     : level == "funneled"   ? MPI_THREAD_FUNNELED
                     : level == "serialized" ? MPI_THREAD_SERIALIZED
                                             : MPI_THREAD_MULTIPLE;
  MPI_Init_thread(nullptr, nullptr, wanted, &given);
  if (given != wanted) std::printf("MPI gave level %d instead of %d\n", given, wanted);
}

MPI_Comm CommFor(const std::string& what) {
  MPI_Comm comm = MPI_COMM_WORLD;
  if (what == "self") return MPI_COMM_SELF;
  if (what == "null") return MPI_COMM_NULL;
  if (what == "reversed") MPI_Comm_split(MPI_COMM_WORLD, 0, -WorldRank(), &comm);
  if (what == "halves") MPI_Comm_split(MPI_COMM_WORLD, WorldRank() % 2, 0, &comm);
  if (what == "inter") {
    MPI_Comm half = MPI_COMM_NULL;
    const int side = WorldRank() % 2;
    MPI_Comm_split(MPI_COMM_WORLD, side, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - side, 0, &comm);
  }
  return comm;
}

// Reduces with dtrun and with MPI in turns over the same ranks, and returns the sum of all results.
float ReduceInTurns(dtrun::Context& job, MPI_Comm comm) {
  float sum = 0;
  for (int i = 0; i < 20; ++i) {
    float ours = 1, theirs = 1;
    dtrun::Work work = job.world().StartAllReduce(dtrun::Buffer(&ours, 1));
    MPI_Allreduce(MPI_IN_PLACE, &theirs, 1, MPI_FLOAT, MPI_SUM, comm);
    work.Wait();
    sum += ours + theirs;
  }
  return sum;
}

void Say(dtrun::Context& job, MPI_Comm comm) {
  const float sum = ReduceInTurns(job, comm);
  std::printf(
      "%d is rank %d of %d over %s, sum %g\n", WorldRank(), job.rank(), job.size(),
      job.world().backend().c_str(), static_cast<double>(sum));
}

// Forks a child that uses the job as its parent does, and prints the child's error.
void UseInChild(dtrun::Context& job) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    try {
      job.world().Barrier();
    } catch (const dtrun::Error& error) {
      std::printf("child: %s\n", error.what());
    }
    job.Shutdown();  // as a handler at the end of a process would
    return;
  }
  int status = 0;
  waitpid(child, &status, 0);
  job.world().Barrier();
  std::printf("parent of %d goes on\n", child);
}

void Train(const std::string& what) {
  const MPI_Comm comm = CommFor(what);
  dtrun::Context job = dtrun::Init(comm);
  const pid_t rank = getpid();
  if (what == "describe") std::printf("%s\n", job.description().c_str());
  if (what == "fork") {
    UseInChild(job);
    if (getpid() != rank) return;
  } else {
    Say(job, comm);
  }
  if (what == "finalized") MPI_Finalize();
  job.Shutdown();
  if (what == "again") {
    dtrun::Context second = dtrun::Init(comm);
    Say(second, comm);
    second.Shutdown();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string level = argc > 1 ? argv[1] : "none", what = argc > 2 ? argv[2] : "world";
  const pid_t rank = getpid();
  InitMpi(level);
  if (what == "mpi") return MPI_Finalize();
  int exit_code = 0;
  try {
    if (what == "thread") {
      std::thread([&] {
        try {
          Train(what);
        } catch (const dtrun::Error& error) {
          std::printf("%s\n", error.what());
        }
      }).join();
    } else {
      Train(what);
    }
  } catch (const dtrun::Error& error) {
    std::printf("%s\n", error.what());
    exit_code = what == "finalized" ? 0 : 3;
  }
  if (getpid() != rank) return 0;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (level != "none" && finalized == 0) MPI_Finalize();
  // If Init has initialised MPI, MPI stays initialised until the process ends. It is finalised at
  // that point, or mpirun reports an error.
  if (level == "none" && finalized != 0) std::printf("MPI was finalised before the end\n");
  return exit_code;
}
