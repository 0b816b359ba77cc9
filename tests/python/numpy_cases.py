"""dtrun and dtrun.numpy, on any number of ranks."""
import time
import weakref

import numpy as np

import cases
import dtrun
import dtrun.numpy as collectives

dtrun.init()
RANK, SIZE = dtrun.rank(), dtrun.size()
TYPES = [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64, np.float16, np.float32, np.float64]


def test_a_rank_knows_its_place():
    assert 0 <= RANK < SIZE and dtrun.local_rank() == RANK and dtrun.local_size() == SIZE
    assert dtrun.cross_rank() == 0 and dtrun.cross_size() == 1 and dtrun.is_homogeneous()
    assert dtrun.option("backend") == "auto" and dtrun.option("no such option") is None
    assert f"rank {RANK} of {SIZE}" in dtrun.description()
    assert dtrun.threads() >= 1 and dtrun.__version__.count(".") == 2
    dtrun.init()  # a second call does nothing


def test_reductions_of_all_types():
    for kind in TYPES:
        for shape in ((), (17,), (5, 3), (2, 3, 4)):
            values = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7).astype(kind)
            assert np.array_equal(collectives.all_reduce(values, op=collectives.SUM), values * SIZE)
            assert np.array_equal(collectives.all_reduce(values), values)
            mine = (values + RANK).astype(kind)
            assert np.array_equal(collectives.all_reduce(mine, op=collectives.MIN), values)
            assert np.array_equal(collectives.all_reduce(mine, op=collectives.MAX), (values + SIZE - 1).astype(kind))
    two = np.full(3, 2.0)
    assert np.array_equal(collectives.all_reduce(two, op=collectives.PRODUCT), two**SIZE)
    assert collectives.all_reduce(np.array([RANK == 0]), op=collectives.MAX).tolist() == [True]


def test_numbers_of_another_byte_order_are_refused():
    with cases.raises(ValueError, "another byte order than this machine; expected float32"):
        collectives.all_reduce(np.ones(3, np.dtype(np.float32).newbyteorder()))


def test_a_work_ends_with_its_last_reference_and_its_result_stays():
    work = collectives.all_gather(np.full(1000, float(RANK)), asynchronous=True)
    result, memory = work.wait(), weakref.ref(work.owner)
    work = weakref.ref(work)
    assert work() is None and memory() is not None
    assert result.reshape(SIZE, 1000)[:, 0].tolist() == [float(rank) for rank in range(SIZE)]
    del result
    assert memory() is None


def test_factors_before_and_after():
    assert np.allclose(collectives.all_reduce(np.ones(4), op=collectives.SUM, before=0.5, after=3.0), 1.5 * SIZE)


def test_results_go_where_they_are_told():
    values, out = np.arange(6.0).reshape(2, 3), np.zeros((2, 3))
    assert collectives.all_reduce(values, op=collectives.SUM, out=out) is out
    assert np.array_equal(out, values * SIZE) and np.array_equal(values, np.arange(6.0).reshape(2, 3))
    for wrong in (np.zeros(6), np.zeros((2, 3), np.float32), np.zeros((3, 2)).T):
        with cases.raises(ValueError, "expected a writeable array float64[2, 3]"):
            collectives.all_reduce(values, out=wrong)


def test_arrays_in_another_order_of_memory():
    values = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(collectives.all_reduce(values.T, op=collectives.SUM), values.T * SIZE)
    assert np.array_equal(collectives.all_reduce(values[:, ::2]), values[:, ::2])


def test_rows_of_all_ranks():
    rows = collectives.all_gather(np.full((RANK + 1, 2), RANK))
    assert rows.tolist() == [[rank, rank] for rank in range(SIZE) for _ in range(rank + 1)]
    assert collectives.all_gather(np.zeros((0, 3))).shape == (0, 3)


def test_a_result_keeps_its_memory():
    kept = [collectives.all_gather(np.full(1000, float(i + RANK))) for i in range(50)]
    for i, rows in enumerate(kept):
        assert np.array_equal(rows, np.repeat(np.arange(SIZE) + float(i), 1000))


def test_broadcasts_from_each_rank():
    for root in range(SIZE):
        assert np.array_equal(collectives.broadcast(np.full((2, 2), RANK), root=root), np.full((2, 2), root))


def test_rows_to_each_rank():
    rows, splits = collectives.all_to_all(np.arange(2 * SIZE) + 100 * RANK)
    assert rows.tolist() == [100 * rank + 2 * RANK + i for rank in range(SIZE) for i in range(2)]
    assert splits.tolist() == [2] * SIZE
    rows, splits = collectives.all_to_all(np.full(SIZE * (RANK + 1), RANK), splits=[RANK + 1] * SIZE)
    assert splits.tolist() == [rank + 1 for rank in range(SIZE)]
    assert rows.tolist() == [rank for rank in range(SIZE) for _ in range(rank + 1)]


def test_own_rows_of_a_reduction():
    rows = np.arange(4 * SIZE + 1)
    mine = collectives.reduce_scatter(rows, op=collectives.SUM)
    first = 4 * RANK + min(RANK, 1)
    assert mine.tolist() == [SIZE * row for row in range(first, first + 4 + (RANK == 0))]


def test_work_that_runs_meanwhile():
    works = {f"w{i}": collectives.all_reduce(np.full(10, float(i)), op=collectives.SUM, name=f"w{i}", asynchronous=True)
             for i in sorted(range(20), key=lambda i: (i * (RANK + 3)) % 23)}  # another order on each rank
    for name, work in works.items():
        assert np.array_equal(work.wait(), np.full(10, float(name[1:]) * SIZE)) and work.test()


def test_work_that_nobody_waits_for():
    for i in range(20):
        collectives.all_reduce(np.full(100000, 1.0), name=f"dropped{i}", asynchronous=True)
    collectives.barrier()


def test_errors_name_the_tensor_and_the_ranks():
    if SIZE > 1:
        with cases.raises(dtrun.Mismatch, "tensor 'shape'", "f64[3]", "f64[4]"):
            collectives.all_reduce(np.zeros(3 + (RANK == 0)), name="shape")
        try:
            collectives.broadcast(np.zeros(2 + (RANK == 0)), root=0, name="kind")
        except dtrun.Mismatch as error:
            assert error.operation == "broadcast", error.operation
        else:
            raise AssertionError("shapes that differ were not refused")
        with cases.raises(dtrun.Mismatch, "tensor 'type'", "f32", "f64"):
            collectives.all_reduce(np.zeros(3, np.float32 if RANK == 0 else np.float64), name="type")
        with cases.raises(dtrun.Mismatch, "tensor 'root'"):
            collectives.broadcast(np.zeros(3), root=RANK % 2, name="root")
        if RANK > 0:
            collectives.barrier()
        work = collectives.all_reduce(np.zeros(3), name="taken", asynchronous=True)
        if RANK == 0:  # the others have not submitted it
            with cases.raises(dtrun.DuplicateName, "'taken'"):
                collectives.all_reduce(np.zeros(3), name="taken")
            collectives.barrier()
        work.wait()
    with cases.raises(ValueError, "complex128"):
        collectives.all_reduce(np.zeros(3, complex))
    assert collectives.all_reduce(np.ones(1), op=collectives.SUM)[0] == SIZE  # the queue goes on


def test_process_sets():
    if SIZE == 1:
        with cases.raises(dtrun.InvalidArgument, "process set 0"):
            dtrun.add_process_set([0])
        return
    evens = dtrun.add_process_set([rank for rank in range(SIZE) if rank % 2 == 0])
    odds = dtrun.add_process_set(dtrun.ProcessSet([rank for rank in range(SIZE) if rank % 2 == 1]))
    mine, other = (odds, evens) if RANK % 2 else (evens, odds)
    assert mine.included() and mine.rank() == RANK // 2 and mine.size() == len(mine.ranks)
    assert collectives.all_reduce(np.ones(2), op=collectives.SUM, process_set=mine).tolist() == [mine.size()] * 2
    with cases.raises(dtrun.NotInSet, f"rank {RANK}"):
        collectives.all_reduce(np.ones(1), process_set=other)
    with cases.raises(dtrun.DuplicateSet):
        dtrun.add_process_set(evens.ranks)
    assert dtrun.remove_process_set(odds)
    assert dtrun.remove_process_set(evens) and not dtrun.remove_process_set(evens)
    assert not dtrun.remove_process_set(dtrun.global_process_set)
    with cases.raises(ValueError, "not registered"):
        collectives.all_reduce(np.ones(1), process_set=evens)


def test_a_barrier_waits_for_all():
    if RANK == 0:
        time.sleep(0.3)
    arrived = time.monotonic()
    collectives.barrier()
    left = time.monotonic()
    assert left >= collectives.all_reduce(np.array([arrived]), op=collectives.MAX)[0]  # one clock per host


def test_ranks_with_less_data_join():
    for step in range(RANK + 1):
        mean = collectives.all_reduce(np.array([float(RANK)]))
        assert mean[0] == np.mean(range(step, SIZE))
    assert collectives.join() == SIZE - 1


def test_a_timeline_has_the_tensors(path="timeline.json"):
    import json
    import os
    import tempfile

    folder = collectives.broadcast(np.frombuffer(tempfile.mkdtemp().encode().ljust(200), np.uint8)).tobytes().decode().strip()
    path = os.path.join(folder, path)
    dtrun.start_timeline(path)
    collectives.all_reduce(np.ones(3), name="seen")
    dtrun.stop_timeline()
    if RANK == 0:
        with open(path) as file:
            assert json.load(file)["traceEvents"]
        os.remove(path)


def test_the_end_and_another_start():
    dtrun.shutdown()
    assert not dtrun.is_initialized()
    with cases.raises(dtrun.InvalidArgument, "not initialised"):
        dtrun.rank()
    dtrun.init(process_sets=[[0], list(range(SIZE))[1:]] if SIZE > 1 else [], timeout_s=60)
    assert dtrun.option("timeout_s") == "60"
    assert collectives.all_reduce(np.ones(1), op=collectives.SUM)[0] == SIZE


if __name__ == "__main__":
    cases.run(dict(globals()))
