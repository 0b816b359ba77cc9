#ifndef DTRUN_LAUNCHER_RANK_OUTPUT_H_
#define DTRUN_LAUNCHER_RANK_OUTPUT_H_

namespace dtrun::launcher {

/// The two ends of what a program writes to.
struct OutputPipe {
  int read = -1;
  int write = -1;
};

/// A terminal of `columns` columns (where the system has one to give; else a pipe), so that
/// programs write line by line as they do for a person. It changes no byte. Throws LaunchError
/// kInternal.
OutputPipe MakeTerminal(int columns);

/// Throws LaunchError kInternal.
OutputPipe MakePipe();

}  // namespace dtrun::launcher

#endif
