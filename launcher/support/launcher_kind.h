#ifndef DTRUN_LAUNCHER_SUPPORT_LAUNCHER_KIND_H_
#define DTRUN_LAUNCHER_SUPPORT_LAUNCHER_KIND_H_

namespace dtrun::launcher {

/// What starts the ranks.
enum class Launcher {
  kMpirun,  ///< Open MPI's mpirun, on any hosts
  kLocal,   ///< dtrun_local, on this host and without MPI
};

/// The program that does it, for messages.
inline const char* ProgramOf(Launcher launcher) {
  return launcher == Launcher::kMpirun ? "mpirun" : "dtrun_local";
}

}  // namespace dtrun::launcher

#endif
