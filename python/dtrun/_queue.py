"""Submissions to the queue of named tensors, for any kind of array.

The modules for NumPy and PyTorch say what an array is: view() returns where it lies and its shape, state() what must be the same for
the view to be the same. Descriptors of a name that was used before are kept, and only views that have changed are made again: a
training step submits the same tensors again and again.
"""
import collections
import ctypes as c

from . import _abi
from ._abi import NamedTensor, Operation, check, fail, library
from ._job import job

# Memory of one tensor. `dtype` is a number of _abi, `device` -1 for host memory, `stream` that of a GPU or None.
View = collections.namedtuple("View", "data count dtype device stream shape")

_KINDS = {_abi.ALL_REDUCE: "all_reduce", _abi.ALL_GATHER: "all_gather", _abi.BROADCAST: "broadcast",
          _abi.ALL_TO_ALL: "all_to_all", _abi.REDUCE_SCATTER: "reduce_scatter"}
_MAX_PLANS = 4096
_submit = library.dtrun_named_submit
_wait = library.dtrun_named_work_wait
_destroy = library.dtrun_named_work_destroy


class Handle:
    """A work of the library. Results that lie in its memory keep it, and not the Work, which has them."""

    __slots__ = ("value", "__weakref__")

    def __init__(self, value):
        self.value = value

    def __del__(self):
        _destroy(self.value)


class Work:
    """Submitted tensors. Keeps the memory of the tensors until the work is done."""

    __slots__ = ("owner", "inputs", "results", "finish", "done", "__weakref__")

    def __init__(self, handle, inputs=None, results=None, finish=None):
        self.owner = Handle(handle)
        self.inputs = inputs
        self.results = results
        self.finish = finish  # makes the results from the work
        self.done = False

    @property
    def handle(self):
        return self.owner.value

    def test(self):
        """Whether the work is done or has failed. Does not wait."""
        done = c.c_int32()
        check(library.dtrun_named_work_test(self.handle, c.byref(done)))
        return bool(done.value)

    def wait(self):
        """Waits for the work and returns its results. Raises its error."""
        if not self.done:
            error = _wait(self.handle)
            if error is not None:
                fail(error)
            if self.finish is not None:
                self.results = self.finish(self)
            self.done, self.inputs, self.finish = True, None, None
        return self.results

    def result(self, index):
        """The result of tensor `index` as a view. Its memory is valid as long as `owner`, or is the tensor's output."""
        buffer, shape, dimensions = _abi.Buffer(), c.POINTER(c.c_uint64)(), c.c_uint64()
        check(library.dtrun_named_work_result(self.handle, index, c.byref(buffer), c.byref(shape), c.byref(dimensions)))
        return View(buffer.data, buffer.count, buffer.dtype, buffer.device, buffer.stream, tuple(shape[:dimensions.value]))

    def received_splits(self, index, ranks):
        """The rows that each of the `ranks` ranks of the set has sent, for an all_to_all."""
        splits = c.POINTER(c.c_uint64)()
        check(library.dtrun_named_work_received_splits(self.handle, index, c.byref(splits)))
        return splits[:ranks]

    def last_joined(self):
        """The rank that joined last."""
        last = c.c_int32()
        check(library.dtrun_named_work_last_joined(self.handle, c.byref(last)))
        return last.value

    def __del__(self):
        if not self.done and not _is_over(self.handle):  # nobody waits for it, but the queue still has its memory
            _abandoned[:] = [one for one in _abandoned if not _is_over(one[0].value)] + [(self.owner, self.inputs, self.results)]


_abandoned = []


def _is_over(handle):
    done = c.c_int32()
    error = library.dtrun_named_work_test(handle, c.byref(done))
    if error is not None:
        library.dtrun_error_destroy(error)
    return error is not None or bool(done.value)


class Plan:
    """Descriptors of the tensors of one submission, at fixed places."""

    def __init__(self, names):
        self.array = (NamedTensor * len(names))()
        self.slots = [self.array[i] for i in range(len(names))]
        self.inputs = [slot.input for slot in self.slots]
        self.outputs = [slot.output for slot in self.slots]
        self.known = [None] * len(names)
        self.kept = [None] * len(names)  # what the descriptors point to
        self.names = [name.encode() for name in names]
        for slot, name in zip(self.slots, self.names):
            slot.name = name
        self.operation = Operation(c.sizeof(Operation))

    def describe(self, index, told, view, output, splits):
        """Makes descriptor `index` that of `view`. `told` is the state of the array and of its output."""
        self.known[index] = None
        slot = self.slots[index]
        shape = (c.c_uint64 * len(view.shape))(*view.shape)
        slot.shape, slot.dimensions = shape, len(view.shape)
        rows = None if splits is None else (c.c_uint64 * len(splits))(*splits)
        slot.splits = rows
        _fill(self.inputs[index], view)
        if output is None:
            self.outputs[index].data = None
        else:
            _fill(self.outputs[index], output)
        self.kept[index] = (shape, rows)
        self.known[index] = told


def _fill(buffer, view):
    buffer.data, buffer.count, buffer.dtype, buffer.device, buffer.stream = view[:5]


class Arrays:
    """Arrays of a module: `view` and `state` are functions of one array."""

    def __init__(self, view, state):
        self.view, self.state = view, state


def submit(kind, name, process_set, arrays, inputs, outputs=None, *, op=_abi.SUM, root=0, before=1.0, after=1.0, splits=None,
           results=None, finish=None):
    """Submits a list of arrays under `name`: several are a group, all of which are done or have failed.

    `outputs` are the places of results, None for the default of the operation. Work.wait returns `results`, or what `finish` makes
    from the work.
    """
    here = job()
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set}: the process set is not registered; pass it to init or to add_process_set")
    if name is None:
        names = [here.next_name(_KINDS[kind], process_set.process_set_id)]
        if len(inputs) > 1:
            names = [f"{names[0]}.{i}" for i in range(len(inputs))]
        key, plan = None, Plan(names)
    else:
        key = (kind, name, len(inputs), process_set.process_set_id)
        plan = here.plans.pop(key, None)  # a thread has it for itself
        if plan is None:
            plan = Plan([name] if len(inputs) == 1 else [f"{name}.{i}" for i in range(len(inputs))])
    state, known = arrays.state, plan.known
    for i, array in enumerate(inputs):
        told = state(array) if outputs is None else (state(array), state(outputs[i]))
        if splits is not None:
            told = (told, splits)
        if known[i] != told:
            plan.describe(i, told, arrays.view(array), None if outputs is None else arrays.view(outputs[i]), splits)
    operation = plan.operation
    operation.kind, operation.reduce_op, operation.root, operation.set = kind, op, root, process_set.process_set_id
    operation.before, operation.after = before, after
    handle = c.c_void_p()
    error = _submit(here.queue, c.byref(operation), plan.array, len(inputs), c.byref(handle))
    if error is not None:
        fail(error)
    if key is not None and len(here.plans) < _MAX_PLANS:
        here.plans[key] = plan
    return Work(handle, (inputs, outputs), results, finish)


def check_splits(splits, process_set):
    """The numbers of rows for the ranks of the set, as a tuple."""
    splits = tuple(int(rows) for rows in splits)
    if len(splits) != process_set.size() or any(rows < 0 for rows in splits):
        raise ValueError(f"splits are {list(splits)}; expected {process_set.size()} numbers, one for each rank of the process set")
    return splits


def barrier(process_set):
    """Waits until every rank of the set has called it."""
    handle = c.c_void_p()
    check(library.dtrun_named_barrier(job().queue, process_set.process_set_id, c.byref(handle)))
    Work(handle).wait()


def join(process_set):
    """Says that this rank has no more to submit, waits until all ranks of the set have, and returns the last of them."""
    handle = c.c_void_p()
    check(library.dtrun_named_join(job().queue, process_set.process_set_id, c.byref(handle)))
    work = Work(handle)
    work.wait()
    return work.last_joined()
