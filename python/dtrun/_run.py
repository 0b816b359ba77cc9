"""run(): calls a Python function on the ranks of a job of its own.

The caller writes the function and its arguments into a folder, and dtrun starts Python with work(FOLDER) on each rank. A rank
leaves its result there, as a whole file or none.
"""
import os
import pickle
import shutil
import subprocess
import sys
import tempfile

from ._abi import Error, InvalidArgument, Unavailable

_CALL, _RESULT = "call.pickle", "result.{}.pickle"
# The number of a rank, as the launchers say it.
_RANKS = ("DTRUN_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def run(func, args=(), kwargs=None, np=1, hosts=None, hostfile=None, folder=None, options=(), use_gloo=False, use_mpi=False,
        verbose=0):
    """Calls func(*args, **kwargs) on each of np ranks and returns the list of their results, by rank.

    The function calls init() itself, as in a program of its own. hosts and hostfile are those of dtrun, for example "a:2,b:2";
    jobs on other hosts need a folder that all hosts share. options are more words for dtrun's command line, for example
    ["--timeout", "60"]. A function that pickle does not find in a module needs the package cloudpickle.
    As for Horovod: use_mpi starts the ranks through mpirun, use_gloo chooses nothing, because ranks need no MPI, and verbose=2
    prints how they are started.

    Error: the job failed, and its output says why. InvalidArgument: arguments that do not fit, or cannot be pickled.
    """
    if not callable(func):
        raise InvalidArgument(f"run({func!r}): expected a function")
    only_here = hosts is not None and all(host.split(":")[0] == "localhost" for host in hosts.split(","))
    if (hosts and not only_here or hostfile) and folder is None:
        raise InvalidArgument("run(hosts=...): expected folder=, a folder that all hosts share")
    with tempfile.TemporaryDirectory(prefix="dtrun-run-", dir=folder) as place:
        with open(os.path.join(place, _CALL), "wb") as file:
            pickle.dump({"path": sys.path, "call": _pickled(func, args, kwargs or {})}, file)
        command = [_program(), "-np", str(np)]
        command += ["-H", hosts] if hosts else []
        command += ["--hostfile", hostfile] if hostfile else []
        command += ["--launcher", "mpirun"] if use_mpi else []
        command += ["--verbose"] if verbose >= 2 else []
        command += [*options, sys.executable, "-c", f"import {__name__} as run; run.work({place!r})"]
        code = subprocess.run(command, env={**os.environ, "PYTHONPATH": _python_path()}, check=False).returncode
        if code != 0:
            raise Error(f"run({_name(func)}): the job ended with exit code {code}; its output says why")
        return [_read(os.path.join(place, _RESULT.format(rank)), rank) for rank in range(int(np))]


def _name(func):
    return getattr(func, "__name__", repr(func))


def _pickled(func, args, kwargs):
    try:
        import cloudpickle

        return cloudpickle.dumps((func, args, kwargs))
    except ImportError:
        pass
    if getattr(func, "__module__", None) == "__main__":
        raise InvalidArgument(f"run({_name(func)}): ranks cannot import a function of the program itself; "
                              "move it to a module, or install the package cloudpickle")
    try:
        return pickle.dumps((func, args, kwargs))
    except Exception as error:
        raise InvalidArgument(f"run({_name(func)}): {error}; with the package cloudpickle, any function can be called") from error


# Ranks import this package from where the caller has it.
def _python_path():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


# The dtrun of the wheel, otherwise the one in PATH.
def _program():
    packed = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prefix", "bin", "dtrun")
    found = packed if os.access(packed, os.X_OK) else shutil.which("dtrun")
    if found is None:
        raise Unavailable("run(): the program dtrun was not found in PATH; install the wheel, or add its folder")
    return found


def _read(path, rank):
    try:
        with open(path, "rb") as file:
            return pickle.load(file)
    except FileNotFoundError:
        raise Error(f"run(): rank {rank} left no result in {os.path.dirname(path)}; expected a folder that all hosts share") from None


def work(folder):
    """The work of a rank: calls the function, and leaves its result in the folder."""
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), "0")
    with open(os.path.join(folder, _CALL), "rb") as file:
        told = pickle.load(file)
    sys.path[:] = told["path"]
    func, args, kwargs = pickle.loads(told["call"])
    result = func(*args, **kwargs)
    path = os.path.join(folder, _RESULT.format(rank))
    try:
        import cloudpickle as writer
    except ImportError:
        writer = pickle
    with open(path + ".part", "wb") as file:
        writer.dump(result, file)
    os.replace(path + ".part", path)

