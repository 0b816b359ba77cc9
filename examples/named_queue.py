"""Tensors by name from Python, by ctypes alone: run it with dtrun -np 2 python3 named_queue.py

DTRUN_LIBRARY says where libdtrun.so.0 is, if the loader does not find it.
"""
import array
import ctypes as c
import os

dtrun = c.CDLL(os.environ.get("DTRUN_LIBRARY", "libdtrun.so.0"))
F32, ALL_REDUCE, ALL_GATHER, AVERAGE = 10, 0, 1, 1


class Buffer(c.Structure):
    _fields_ = [("data", c.c_void_p), ("count", c.c_uint64), ("dtype", c.c_int32), ("device", c.c_int32), ("stream", c.c_void_p)]


class Tensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("input", Buffer), ("output", Buffer), ("shape", c.POINTER(c.c_uint64)),
                ("dimensions", c.c_uint64), ("splits", c.POINTER(c.c_uint64))]


class Operation(c.Structure):
    _fields_ = [("struct_bytes", c.c_uint64), ("kind", c.c_int32), ("reduce_op", c.c_int32), ("root", c.c_int32), ("set", c.c_int32),
                ("before", c.c_double), ("after", c.c_double), ("callback", c.c_void_p), ("argument", c.c_void_p)]


class Topology(c.Structure):
    _fields_ = [(name, c.c_int32) for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")]


dtrun.dtrun_error_message.restype = c.c_char_p
dtrun.dtrun_context_world.restype = c.c_void_p
dtrun.dtrun_context_topology.restype = Topology


def call(name, *arguments):
    function = getattr(dtrun, name)
    function.restype = c.c_void_p
    error = function(*arguments)
    if error:
        raise RuntimeError(dtrun.dtrun_error_message(c.c_void_p(error)).decode())


class Queue:
    def __init__(self, communicator):
        self.handle = c.c_void_p()
        self.inputs = {}  # by work: not to be collected before it is done
        call("dtrun_named_queue_create", c.c_void_p(communicator), None, c.byref(self.handle))

    def submit(self, kind, name, values, reduce_op=0):
        """Values are an array of floats, which belongs to the queue until the work is done."""
        operation = Operation(c.sizeof(Operation), kind, reduce_op, 0, 0, 1, 1, None, None)
        address, count = values.buffer_info()
        tensor = Tensor(name.encode(), Buffer(address, count, F32, -1), Buffer(), c.pointer(c.c_uint64(count)), 1)
        work = c.c_void_p()
        call("dtrun_named_submit", self.handle, c.byref(operation), c.byref(tensor), c.c_size_t(1), c.byref(work))
        self.inputs[work.value] = values
        return work

    def wait(self, work):
        """The result, as a list."""
        call("dtrun_named_work_wait", work)
        del self.inputs[work.value]
        result = Buffer()
        call("dtrun_named_work_result", work, c.c_size_t(0), c.byref(result), None, None)
        values = list((c.c_float * result.count).from_address(result.data)) if result.count else []
        dtrun.dtrun_named_work_destroy(work)
        return values


def main():
    job = c.c_void_p()
    call("dtrun_init", None, c.c_size_t(0), c.byref(job))
    me = dtrun.dtrun_context_topology(job)
    queue = Queue(dtrun.dtrun_context_world(job))

    tensors = {"weight": array.array("f", [me.rank]), "bias": array.array("f", [1, 2])}
    names = sorted(tensors, reverse=me.rank % 2 == 1)  # half of the ranks begin with the other one
    works = {name: queue.submit(ALL_REDUCE, name, tensors[name], AVERAGE) for name in names}
    means = {name: queue.wait(work) for name, work in works.items()}
    rows = queue.wait(queue.submit(ALL_GATHER, "rows", array.array("f", [me.rank] * (me.rank + 1))))
    if me.rank == 0:
        print(f"{me.size} ranks: weight {means['weight']}, bias {means['bias']}, rows {rows}", flush=True)

    dtrun.dtrun_named_queue_destroy(queue.handle)
    call("dtrun_shutdown", job)
    dtrun.dtrun_context_destroy(job)


main()
