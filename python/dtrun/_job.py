"""This process as a rank of its job: the context of libdtrun, its queue of named tensors, and process sets.

A process has one job at a time. The module's functions act on it; before init() they say so.
"""
import atexit
import ctypes as c
import itertools
import sys
import threading

from . import _abi
from ._abi import check, library


class ProcessSet:
    """Some ranks of the job, which run collectives without the others.

    process_set_id is None until the set is added: by init(process_sets=...) or add_process_set, which all ranks call.
    """

    def __init__(self, ranks):
        ranks = list(ranks)
        if any(not isinstance(rank, int) for rank in ranks):
            raise ValueError(f"ProcessSet({ranks}): expected a list of rank numbers")
        self.ranks = sorted(ranks)
        self.process_set_id = None

    def size(self):
        """The number of ranks in the set. None if the set is not added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self):
        """The place of this rank in the set, from 0. None if the set is not added. Collectives take ranks of the job."""
        if self.process_set_id is None:
            return None
        if not self.included():
            raise _abi.InvalidArgument(f"rank {rank()} is not in process set {self.process_set_id} (ranks {self.ranks})")
        return self.ranks.index(rank())

    def included(self):
        """Whether this rank is in the set. None if the set is not added."""
        return None if self.process_set_id is None else rank() in self.ranks

    def __repr__(self):
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


class Job:
    """A context and its queue, from init to shutdown."""

    def __init__(self, options, mpi_comm):
        self.context = c.c_void_p()
        self.queue = c.c_void_p()
        self.lock = threading.Lock()  # sets are added and removed by one thread at a time
        self.counters = {}
        self.plans = {}
        self.sets = {}
        given = (_abi.Option * len(options))(*[(name.encode(), str(value).encode()) for name, value in options.items()])
        if mpi_comm is None:
            check(library.dtrun_init(given, len(given), c.byref(self.context)))
        else:
            self._init_mpi(mpi_comm, given)
        self.topology = library.dtrun_context_topology(self.context)

    def open_queue(self, sets):
        """Makes the queue, with process sets. All ranks call it."""
        lists = [(c.c_int32 * len(one.ranks))(*one.ranks) for one in sets]
        rank_lists = (_abi.RankList * len(sets))(*[(ranks, len(ranks)) for ranks in lists])
        settings = _abi.QueueOptions(c.sizeof(_abi.QueueOptions), 4 << 20, 1024, 0, 0, rank_lists, len(sets))
        world = library.dtrun_context_world(self.context)
        check(library.dtrun_named_queue_create(world, c.byref(settings), c.byref(self.queue)))
        global_process_set.ranks = list(range(self.topology.size))
        self.sets = dict(enumerate([global_process_set, *sets]))
        for number, one in self.sets.items():
            one.process_set_id = number

    def _init_mpi(self, comm, options):
        from mpi4py import MPI

        check(library.dtrun_init_mpi(MPI._addressof(comm), MPI._sizeof(MPI.Comm), MPI.Get_library_version().encode(), options,
                                     len(options), c.byref(self.context)))

    def next_name(self, kind, process_set):
        """A name for a tensor without one. The ranks of a set count alike, whatever other sets do."""
        counter = self.counters.get((kind, process_set))
        if counter is None:
            counter = self.counters.setdefault((kind, process_set), itertools.count())
        return f"{kind}.noname.{next(counter)}"

    def close(self):
        """Frees the queue and the context. Without a shutdown before, the job ends with an error that names this rank."""
        library.dtrun_named_queue_destroy(self.queue)
        library.dtrun_context_destroy(self.context)
        self.queue, self.context = c.c_void_p(), c.c_void_p()
        for one in self.sets.values():
            one.process_set_id = None


global_process_set = ProcessSet([])
_job = None
_last_init = {}


def job():
    """The job of this process."""
    if _job is None:
        raise _abi.InvalidArgument("dtrun is not initialised; call init() first")
    return _job


def init(comm=None, process_sets=None, **options):
    """Makes this process a rank of its job. All processes of the job call it.

    comm is a communicator of mpi4py to use, or None. process_sets is a list of ProcessSet or of lists of ranks that exist from
    the start. Other arguments are options of dtrun, for example engine_thread="on", by the names of docs/reference/options.md.
    A second call does nothing.
    """
    global _job, _last_init
    if _job is not None:
        return
    if comm is not None and not hasattr(comm, "Get_rank"):
        raise ValueError(f"init(comm={comm!r}): expected a communicator of mpi4py; for some of the ranks, use process_sets")
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f"init(process_sets={process_sets!r}): expected a list of ProcessSet, or 'dynamic'")
        process_sets = None
    sets = [one if isinstance(one, ProcessSet) else ProcessSet(one) for one in process_sets or []]
    _last_init = {"comm": comm, "process_sets": sets, **options}
    while _job is None:
        _job = Job(options, comm)
        try:
            _job.open_queue(sets)
        except _abi.Error as error:
            if not recover(error):
                ended, _job = _job, None
                ended.close()
                raise


def shutdown():
    """Ends the job on this rank. All ranks call it; then they may call init again. Does nothing before init."""
    global _job
    if _job is None:
        return
    ended, _job = _job, None
    try:
        check(library.dtrun_shutdown(ended.context))
    finally:
        ended.close()


def recover(error):
    """After an error: True if the job goes on with other processes. Then this process has left the job and calls init again."""
    global _job
    if _job is None:
        return False
    recovers = c.c_int32()
    check(library.dtrun_await_recovery(_job.context, error.code, c.byref(recovers)))
    if recovers.value:
        ended, _job = _job, None
        ended.close()
    return bool(recovers.value)


def restart():
    """init with the arguments of the last init."""
    init(**_last_init)


def keeps_state():
    """Whether this rank keeps the state of its training in the host's memory: a loss ends all processes of the job."""
    return bool(library.dtrun_context_keeps_state(job().context))


def keep_state(name, step, state):
    """Keeps bytes, the state after `step` steps, for the processes that take the place of this one after a loss."""
    check(library.dtrun_keep_state(job().context, name.encode(), step, state, len(state)))


def load_state(name):
    """The steps and the bytes that an earlier process of this host has kept. (0, b"") if there are none."""
    step, state, size = c.c_uint64(), c.c_void_p(), c.c_size_t()
    check(library.dtrun_load_state(job().context, name.encode(), c.byref(step), c.byref(state), c.byref(size)))
    return (step.value, c.string_at(state, size.value)) if state.value else (0, b"")


def is_initialized():
    """Whether init was called, and shutdown not since."""
    return _job is not None


def rank():
    """The number of this process among the ranks of the job, from 0."""
    return job().topology.rank


def size():
    """The number of ranks of the job."""
    return job().topology.size


def local_rank():
    """The number of lower ranks on this host."""
    return job().topology.local_rank


def local_size():
    """The number of ranks on this host."""
    return job().topology.local_size


def cross_rank():
    """The number of lower hosts that have this local_rank."""
    return job().topology.cross_rank


def cross_size():
    """The number of hosts that have this local_rank."""
    return job().topology.cross_size


def hosts_of(ranks):
    """The names of the hosts of these ranks, with their numbers of the launch; () before init()."""
    if _job is None:
        return ()
    host_of, name = library.dtrun_context_host_of_rank, library.dtrun_context_host_name
    return tuple((name(_job.context, host_of(_job.context, rank)) or b"").decode() for rank in ranks)


def is_homogeneous():
    """Whether all hosts have the same number of ranks."""
    context = job().context
    return len({library.dtrun_context_host_slots(context, host) for host in range(library.dtrun_context_host_count(context))}) == 1


def threads():
    """The number of compute threads that this rank should use, from the CPUs that it may run on."""
    return library.dtrun_context_threads(job().context)


def description():
    """One line for logs: version, rank, backend, threads, options, and whether operations overlap with computation."""
    return library.dtrun_context_description(job().context).decode()


def option(name):
    """The value in use of an option of dtrun, as text. None for an unknown name."""
    value = library.dtrun_context_option(job().context, name.encode())
    return None if value is None else value.decode()


def report_progress(step, examples=0):
    """Reports the steps done and the examples computed by this rank since its start, for `dtrun --progress`."""
    check(library.dtrun_report_progress(job().context, step, examples))


def start_timeline(file_path, mark_cycles=False):
    """Starts a timeline of all ranks, written by rank 0 at stop_timeline. All ranks call it. dtrun has no cycles to mark."""
    check(library.dtrun_timeline_start(job().context, str(file_path).encode()))


def stop_timeline():
    """Stops the timeline and writes it: JSON in the trace event format of Chrome and Perfetto. All ranks call it."""
    check(library.dtrun_timeline_stop(job().context))


def add_process_set(process_set):
    """Adds a process set, a ProcessSet or a list of ranks, and returns it. All ranks of the job call it."""
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    here = job()
    with here.lock:
        number = c.c_int32()
        ranks = (c.c_int32 * len(one.ranks))(*one.ranks)
        check(library.dtrun_named_queue_add_set(here.queue, ranks, len(ranks), c.byref(number)))
        one.process_set_id = number.value
        here.sets[number.value] = one
    return one


def remove_process_set(process_set):
    """Removes a process set. All ranks of the job call it. False if the set is not added, or is that of all ranks."""
    here = job()
    with here.lock:
        number = process_set.process_set_id
        if number in (None, 0):
            return False
        check(library.dtrun_named_queue_remove_set(here.queue, number))
        del here.sets[number]
        process_set.process_set_id = None
    return True


# A rank that ends by an exception must not look like one that has done its work.
_failed = False


def _note_failure(kind, value, trace, previous=sys.excepthook):
    global _failed
    _failed = True
    previous(kind, value, trace)


def _at_exit():
    if not _failed:
        shutdown()


sys.excepthook = _note_failure
atexit.register(_at_exit)
