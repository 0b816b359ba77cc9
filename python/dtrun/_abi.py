"""The C ABI of libdtrun.so (dtrun/c.h) for Python: structs, functions and errors.

ctypes alone, so that one package serves every Python. Calls release Python's lock: other threads run while one waits.
"""
import ctypes as c
import os

U8, I8, U16, I16, U32, I32, U64, I64, F16, BF16, F32, F64, BOOL = range(13)
SUM, AVERAGE, MIN, MAX, PRODUCT, ADASUM = range(6)
ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = range(5)


class Error(RuntimeError):
    """An error of dtrun. Its text names the rank, the cause and the place. `ranks` were lost or waited for in vain, and `hosts` has
    the name of each one's host. `operation` is the kind of the operation that failed, for example "all_reduce"."""

    code = 0
    ranks = ()
    hosts = ()
    operation = ""


class InvalidArgument(Error, ValueError):
    """The caller's mistake, found before anything was sent."""

    code = 1


class Mismatch(Error):
    """Ranks called different operations, or with different arguments."""

    code = 2


class PeerLost(Error):
    """A rank died or left."""

    code = 3


class Timeout(Error):
    """A rank did not arrive in time."""

    code = 4


class Unavailable(Error):
    """Not built in, not installed or not possible here."""

    code = 5


class SystemFailure(Error):
    """A call of the operating system or of a library failed."""

    code = 6


class DuplicateName(InvalidArgument):
    """A tensor of this name is under way, or twice in a group."""

    code = 7


class DuplicateSet(InvalidArgument):
    """A process set of these ranks exists."""

    code = 8


class NotInSet(InvalidArgument):
    """This rank is not in the process set."""

    code = 9


_ERRORS = {error.code: error for error in (InvalidArgument, Mismatch, PeerLost, Timeout, Unavailable, SystemFailure, DuplicateName,
                                           DuplicateSet, NotInSet)}


class Buffer(c.Structure):
    _fields_ = [("data", c.c_void_p), ("count", c.c_uint64), ("dtype", c.c_int32), ("device", c.c_int32), ("stream", c.c_void_p)]


class NamedTensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("input", Buffer), ("output", Buffer), ("shape", c.POINTER(c.c_uint64)),
                ("dimensions", c.c_uint64), ("splits", c.POINTER(c.c_uint64))]


class Operation(c.Structure):
    _fields_ = [("struct_bytes", c.c_uint64), ("kind", c.c_int32), ("reduce_op", c.c_int32), ("root", c.c_int32), ("set", c.c_int32),
                ("before", c.c_double), ("after", c.c_double), ("callback", c.c_void_p), ("argument", c.c_void_p)]


class RankList(c.Structure):
    _fields_ = [("ranks", c.POINTER(c.c_int32)), ("rank_count", c.c_size_t)]


class QueueOptions(c.Structure):
    _fields_ = [("struct_bytes", c.c_uint64), ("batch_bytes", c.c_uint64), ("cache_capacity", c.c_uint64),
                ("stall_warning_s", c.c_double), ("timeout_s", c.c_double), ("sets", c.POINTER(RankList)), ("set_count", c.c_size_t)]


class Option(c.Structure):
    _fields_ = [("name", c.c_char_p), ("value", c.c_char_p)]


class Topology(c.Structure):
    _fields_ = [(name, c.c_int32) for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")]


def library_path():
    """The libdtrun.so.0 that this process loads: DTRUN_LIBRARY, the one of this package, or the loader's."""
    named = os.environ.get("DTRUN_LIBRARY")
    if named:
        return named
    packaged = os.path.join(os.path.dirname(__file__), "prefix", "lib", "libdtrun.so.0")
    return packaged if os.path.exists(packaged) else "libdtrun.so.0"


# A function that can fail returns the address of its error, or None.
_FUNCTIONS = {
    "dtrun_error_code": (c.c_int32, [c.c_void_p]),
    "dtrun_error_message": (c.c_char_p, [c.c_void_p]),
    "dtrun_error_operation": (c.c_char_p, [c.c_void_p]),
    "dtrun_error_ranks": (None, [c.c_void_p, c.POINTER(c.c_int32), c.POINTER(c.c_size_t)]),
    "dtrun_error_destroy": (None, [c.c_void_p]),
    "dtrun_version": (c.c_char_p, []),
    "dtrun_init": (c.c_void_p, [c.c_void_p, c.c_size_t, c.c_void_p]),
    "dtrun_init_mpi": (c.c_void_p, [c.c_void_p, c.c_size_t, c.c_char_p, c.c_void_p, c.c_size_t, c.c_void_p]),
    "dtrun_shutdown": (c.c_void_p, [c.c_void_p]),
    "dtrun_context_destroy": (None, [c.c_void_p]),
    "dtrun_context_description": (c.c_char_p, [c.c_void_p]),
    "dtrun_context_option": (c.c_char_p, [c.c_void_p, c.c_char_p]),
    "dtrun_context_topology": (Topology, [c.c_void_p]),
    "dtrun_context_host_count": (c.c_int32, [c.c_void_p]),
    "dtrun_context_host_name": (c.c_char_p, [c.c_void_p, c.c_int32]),
    "dtrun_context_host_of_rank": (c.c_int32, [c.c_void_p, c.c_int32]),
    "dtrun_context_host_slots": (c.c_int32, [c.c_void_p, c.c_int32]),
    "dtrun_context_threads": (c.c_int32, [c.c_void_p]),
    "dtrun_context_world": (c.c_void_p, [c.c_void_p]),
    "dtrun_context_epoch": (c.c_uint32, [c.c_void_p]),
    "dtrun_context_launch_size": (c.c_int32, [c.c_void_p]),
    "dtrun_await_recovery": (c.c_void_p, [c.c_void_p, c.c_int32, c.c_void_p]),
    "dtrun_context_keeps_state": (c.c_int32, [c.c_void_p]),
    "dtrun_keep_state": (c.c_void_p, [c.c_void_p, c.c_char_p, c.c_uint64, c.c_char_p, c.c_size_t]),
    "dtrun_load_state": (c.c_void_p, [c.c_void_p, c.c_char_p, c.c_void_p, c.c_void_p, c.c_void_p]),
    "dtrun_report_progress": (c.c_void_p, [c.c_void_p, c.c_uint64, c.c_uint64]),
    "dtrun_timeline_start": (c.c_void_p, [c.c_void_p, c.c_char_p]),
    "dtrun_timeline_stop": (c.c_void_p, [c.c_void_p]),
    "dtrun_named_queue_create": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p]),
    "dtrun_named_queue_destroy": (None, [c.c_void_p]),
    "dtrun_named_queue_add_set": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p]),
    "dtrun_named_queue_remove_set": (c.c_void_p, [c.c_void_p, c.c_int32]),
    "dtrun_named_submit": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p]),
    "dtrun_named_barrier": (c.c_void_p, [c.c_void_p, c.c_int32, c.c_void_p]),
    "dtrun_named_join": (c.c_void_p, [c.c_void_p, c.c_int32, c.c_void_p]),
    "dtrun_named_work_test": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "dtrun_named_work_wait": (c.c_void_p, [c.c_void_p]),
    "dtrun_named_work_result": (c.c_void_p, [c.c_void_p, c.c_size_t, c.c_void_p, c.c_void_p, c.c_void_p]),
    "dtrun_named_work_received_splits": (c.c_void_p, [c.c_void_p, c.c_size_t, c.c_void_p]),
    "dtrun_named_work_last_joined": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "dtrun_named_work_destroy": (None, [c.c_void_p]),
}


def _load():
    try:
        library = c.CDLL(library_path())
    except OSError as error:
        raise ImportError(f"{library_path()} cannot be loaded: {error}. Install dtrun's wheel, or set DTRUN_LIBRARY to the "
                          "libdtrun.so.0 of an installed dtrun.") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


library = _load()


# During init() there is no job yet.
def _hosts_of(ranks):
    from . import _job

    return _job.hosts_of(ranks)


def fail(error):
    """Raises the error at this address."""
    kind = _ERRORS.get(library.dtrun_error_code(error), Error)
    raised = kind(library.dtrun_error_message(error).decode(errors="replace"))
    count = c.c_size_t()
    library.dtrun_error_ranks(error, None, c.byref(count))
    ranks = (c.c_int32 * count.value)()
    library.dtrun_error_ranks(error, ranks, c.byref(count))
    raised.ranks = tuple(ranks)
    raised.hosts = _hosts_of(raised.ranks)
    raised.operation = library.dtrun_error_operation(error).decode()
    library.dtrun_error_destroy(error)
    raise raised


def check(error):
    """Raises the error that a function has returned, if it has."""
    if error is not None:
        fail(error)
