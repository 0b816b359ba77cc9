"""Collectives on NumPy arrays, by name: ranks may submit them in any order.

    import dtrun
    import dtrun.numpy as collectives

    dtrun.init()
    mean = collectives.all_reduce(gradient, name="weight")

Arrays are read where they lie, in row-major order. Results are new arrays unless `out` is given. Without a name, a tensor is
matched by the order of the calls. With asynchronous=True a function returns a Work: work.wait() returns the result, work.test()
does not wait. Until then the arrays belong to dtrun.
"""
import ctypes as c

import numpy as np

from . import _abi, _queue
from ._job import global_process_set
from ._queue import View

SUM, AVERAGE, MIN, MAX, PRODUCT, ADASUM = _abi.SUM, _abi.AVERAGE, _abi.MIN, _abi.MAX, _abi.PRODUCT, _abi.ADASUM

_TYPES = {"uint8": _abi.U8, "int8": _abi.I8, "uint16": _abi.U16, "int16": _abi.I16, "uint32": _abi.U32, "int32": _abi.I32,
          "uint64": _abi.U64, "int64": _abi.I64, "float16": _abi.F16, "bfloat16": _abi.BF16, "float32": _abi.F32,
          "float64": _abi.F64, "bool": _abi.BOOL}


def _view(array):
    number = _TYPES.get(array.dtype.name)
    if not array.dtype.isnative:
        raise ValueError(f"dtype {array.dtype} has another byte order than this machine; expected {array.dtype.newbyteorder('=')}")
    if number is None:
        raise ValueError(f"dtype {array.dtype} has no counterpart in dtrun; expected one of {', '.join(_TYPES)}")
    return View(array.ctypes.data, array.size, number, -1, None, array.shape)


_ARRAYS = _queue.Arrays(_view, lambda array: (array.ctypes.data, array.dtype, array.shape))


def _input(array):
    return np.asarray(array, order="C")


def _output(out, shape, dtype):
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out is {out.dtype}{list(out.shape)}; expected a writeable array {dtype}{list(shape)} in row-major order")
    return out


# The memory of a work as an array, which keeps this memory.
def _array(work, index, dtype):
    view = work.result(index)
    if view.count == 0:
        return np.empty(view.shape, dtype)
    memory = (c.c_char * (view.count * dtype.itemsize)).from_address(view.data)
    memory.owner = work.owner
    return np.frombuffer(memory, dtype).reshape(view.shape)


def _begin(work, asynchronous):
    return work if asynchronous else work.wait()


def all_reduce(array, op=AVERAGE, name=None, out=None, before=1.0, after=1.0, process_set=global_process_set, asynchronous=False):
    """The reduction of the arrays of all ranks. Inputs are multiplied by `before`, the result by `after`."""
    array = _input(array)
    out = _output(out, array.shape, array.dtype)
    return _begin(_queue.submit(_abi.ALL_REDUCE, name, process_set, _ARRAYS, [array], [out], op=op, before=before, after=after,
                                results=out), asynchronous)


def all_gather(array, name=None, process_set=global_process_set, asynchronous=False):
    """The arrays of all ranks in rank order, along the first dimension, which may differ between ranks."""
    array = _input(array)
    return _begin(_queue.submit(_abi.ALL_GATHER, name, process_set, _ARRAYS, [array],
                                finish=lambda work: _array(work, 0, array.dtype)), asynchronous)


def broadcast(array, root=0, name=None, out=None, process_set=global_process_set, asynchronous=False):
    """The array of rank `root`, a rank of the job. All ranks pass the same shape."""
    array = _input(array)
    out = _output(out, array.shape, array.dtype)
    return _begin(_queue.submit(_abi.BROADCAST, name, process_set, _ARRAYS, [array], [out], root=root, results=out),
                  asynchronous)


def all_to_all(array, splits=None, name=None, process_set=global_process_set, asynchronous=False):
    """Sends splits[r] rows to rank r, or the same number to each. Returns the rows received and the numbers from each rank."""
    array = _input(array)

    def finish(work):
        return _array(work, 0, array.dtype), np.array(work.received_splits(0, process_set.size()), np.int64)

    return _begin(_queue.submit(_abi.ALL_TO_ALL, name, process_set, _ARRAYS, [array], finish=finish,
                                splits=None if splits is None else _queue.check_splits(splits, process_set)), asynchronous)


def reduce_scatter(array, op=AVERAGE, name=None, before=1.0, after=1.0, process_set=global_process_set, asynchronous=False):
    """This rank's rows of the reduction: the first rows % p of p ranks get one row more."""
    array = _input(array)
    return _begin(_queue.submit(_abi.REDUCE_SCATTER, name, process_set, _ARRAYS, [array], op=op, before=before, after=after,
                                finish=lambda work: _array(work, 0, array.dtype)), asynchronous)


def barrier(process_set=global_process_set):
    """Waits until every rank of the set has called it."""
    _queue.barrier(process_set)


def join(process_set=global_process_set):
    """Says that this rank has no more to submit. Waits for all ranks of the set; returns the last that joined."""
    return _queue.join(process_set)
