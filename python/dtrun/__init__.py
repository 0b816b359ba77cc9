"""dtrun for Python: ranks, process sets and collectives of the data-parallel runtime dtrun.

    dtrun -np 4 python train.py

  dtrun         init, shutdown, the place of this process in the job, process sets, errors; run starts a job
  dtrun.numpy   collectives on NumPy arrays
  dtrun.torch   collectives and a DistributedOptimizer for PyTorch, with the names of Horovod's API
"""
from ._abi import (DuplicateName, DuplicateSet, Error, InvalidArgument, Mismatch, NotInSet, PeerLost, SystemFailure, Timeout,
                   Unavailable, library as _library)
from ._job import (ProcessSet, add_process_set, cross_rank, cross_size, description, global_process_set, init, is_homogeneous,
                   is_initialized, local_rank, local_size, option, rank, remove_process_set, report_progress, shutdown, size,
                   start_timeline, stop_timeline, threads)
from ._run import run

__version__ = _library.dtrun_version().decode()

__all__ = ["DuplicateName", "DuplicateSet", "Error", "InvalidArgument", "Mismatch", "NotInSet", "PeerLost", "ProcessSet",
           "SystemFailure", "Timeout", "Unavailable", "add_process_set", "cross_rank", "cross_size", "description",
           "global_process_set", "init", "is_homogeneous", "is_initialized", "local_rank", "local_size", "option", "rank",
           "remove_process_set", "report_progress", "run", "shutdown", "size", "start_timeline", "stop_timeline", "threads"]
