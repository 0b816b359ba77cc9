"""Horovod's API for PyTorch, on dtrun: change the import, and start the script with dtrun.

    import dtrun.torch as hvd

docs/guides/python.md lists what is different.
"""
from .. import Error as HorovodInternalError
from .._job import (ProcessSet, add_process_set, cross_rank, cross_size, global_process_set, init, is_homogeneous, is_initialized,
                    local_rank, local_size, rank, remove_process_set, shutdown, size, start_timeline, stop_timeline)
from . import elastic
from .broadcasts import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .collectives import (Adasum, Average, Max, Min, Product, Sum, allgather, allgather_async, allreduce, allreduce_, allreduce_async,
                          allreduce_async_, alltoall, alltoall_async, barrier, broadcast, broadcast_, broadcast_async,
                          broadcast_async_, grouped_allgather, grouped_allgather_async, grouped_allreduce, grouped_allreduce_,
                          grouped_allreduce_async, grouped_allreduce_async_, grouped_reducescatter, grouped_reducescatter_async,
                          join, poll, reducescatter, reducescatter_async, sparse_allreduce_async, synchronize)
from .compression import Compression
from .optimizer import DistributedOptimizer
from .sync_batch_norm import SyncBatchNorm


def mpi_threads_supported():
    """Whether several threads may call: they may, whatever MPI supports."""
    return True


def _says(answer, what):
    def function():
        return answer

    function.__doc__ = what
    return function


mpi_built = _says(True, "Whether jobs of mpirun are possible.")
mpi_enabled = _says(False, "Whether MPI moves the data of this queue: dtrun chooses by job; see dtrun.description().")
gloo_built = _says(True, "Whether jobs without MPI are possible: they are, without Gloo.")
gloo_enabled = _says(False, "dtrun does not use Gloo.")
nccl_built = _says(0, "The version of NCCL that moves named tensors: none, they go through host memory.")
cuda_built = _says(False, "Whether named tensors move between GPUs directly: they go through host memory.")
ccl_built = _says(False, "dtrun does not use oneCCL.")
ddl_built = _says(False, "dtrun does not use DDL.")
rocm_built = _says(False, "dtrun does not use ROCm.")
