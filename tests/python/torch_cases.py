"""dtrun.torch with the cases that scripts for Horovod rely on, on any number of ranks.

DEVICE=cuda puts the tensors on the GPU (PyTorch 2 or later).
"""
import collections
import copy
import math
import os
import time
import warnings

import torch

import cases
import dtrun
import dtrun.torch as hvd

DEVICE = os.environ.get("DEVICE", "cpu")
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
torch.set_num_threads(1)
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def seeded(seed):
    return torch.Generator(DEVICE).manual_seed(seed)


# The same whole numbers on all ranks, whose sum over a few ranks fits into any type.
def numbers(dimensions, dtype, limit=20):
    values = torch.randint(0 if dtype == torch.uint8 else -limit, limit, [17] * dimensions, generator=seeded(1234 + dimensions))
    return values.to(dtype)


def test_a_sum_and_a_mean_of_every_type():
    for dtype in INTEGERS + FLOATS:
        for dimensions in (1, 2, 3):
            values = numbers(dimensions, dtype)
            before = values.clone()
            assert torch.equal(hvd.allreduce(values, op=hvd.Sum), values * SIZE)
            assert torch.equal(hvd.allreduce(values, average=False), values * SIZE)
            assert torch.equal(hvd.allreduce(values), values) and torch.equal(values, before)
            assert torch.equal(hvd.allreduce_(values, op=hvd.Sum), before * SIZE) and torch.equal(values, before * SIZE)


def test_minimum_maximum_and_product():
    for dtype in INTEGERS + FLOATS:
        all_values = torch.stack([numbers(2, dtype) + rank if dtype != torch.bool else 0 for rank in range(SIZE)])
        mine = all_values[RANK].clone()
        assert torch.equal(hvd.allreduce(mine, op=hvd.Min), all_values.min(0)[0])
        assert torch.equal(hvd.allreduce(mine, op=hvd.Max), all_values.max(0)[0])
    assert torch.equal(hvd.allreduce(torch.full([3], 2.0), op=hvd.Product), torch.full([3], 2.0**SIZE))


def test_many_reductions_at_once():
    works = [(values, hvd.allreduce_async(values, op=hvd.Sum)) for dtype in INTEGERS + FLOATS for dimensions in (1, 2, 3)
             for values in [numbers(dimensions, dtype)]]
    while not all(hvd.poll(work) for _, work in works):
        pass
    for values, work in works:
        assert torch.equal(hvd.synchronize(work), values * SIZE)


def test_factors_before_and_after():
    factor = 0.37454
    for dtype in [torch.int32, torch.int64]:
        values = numbers(2, dtype, 100)
        scaled = (values.double() * factor).trunc().to(dtype)
        assert torch.equal(hvd.allreduce(values, op=hvd.Sum, prescale_factor=factor), scaled * SIZE)
        assert torch.equal(hvd.allreduce(values, op=hvd.Sum, postscale_factor=factor),
                           ((values * SIZE).double() * factor).trunc().to(dtype))
    for dtype in [torch.float32, torch.float64]:
        values = numbers(2, dtype, 100)
        for told in ({"prescale_factor": factor}, {"postscale_factor": factor}):
            assert torch.allclose(hvd.allreduce(values, op=hvd.Sum, **told), values * factor * SIZE)


def test_groups():
    for reduce, copied in ((hvd.grouped_allreduce, True), (hvd.grouped_allreduce_, False)):
        tensors = [numbers(dimensions, dtype) for dtype in (torch.int32, torch.float32) for dimensions in (1, 2, 3)]
        kept = [tensor.clone() for tensor in tensors]
        results = reduce(tensors, op=hvd.Sum, name=f"group.{copied}")
        assert all(torch.equal(result, tensor * SIZE) for result, tensor in zip(results, kept))
        assert all(torch.equal(tensor, one if copied else one * SIZE) for tensor, one in zip(tensors, kept))
    gathered = hvd.grouped_allgather([torch.full([RANK + 1, 2], float(i + RANK)) for i in range(5)])
    assert [one.shape[0] for one in gathered] == [SIZE * (SIZE + 1) // 2] * 5
    own = hvd.grouped_reducescatter([torch.ones(SIZE * 2, 3), torch.ones(SIZE * 4)], op=hvd.Sum)
    assert torch.equal(own[0], torch.full([2, 3], float(SIZE))) and torch.equal(own[1], torch.full([4], float(SIZE)))


def test_mismatches_fail_on_all_ranks_and_the_queue_goes_on():
    if SIZE == 1:
        return
    with cases.raises(hvd.HorovodInternalError, "tensor 'm.shape'", "[17, 17]"):
        hvd.allreduce(torch.zeros([17 + min(RANK, 1)] * 2), name="m.shape")
    kind = torch.int32 if RANK % 2 == 0 else torch.float32
    with cases.raises(hvd.HorovodInternalError, "tensor 'm.type'", "i32", "f32"):
        hvd.allreduce(torch.ones(3, dtype=kind), name="m.type")
    with cases.raises(hvd.HorovodInternalError, "tensor 'm.rows'"):
        hvd.allgather(torch.zeros(3, 10 * (RANK + 1)), name="m.rows")
    with cases.raises(hvd.HorovodInternalError, "tensor 'm.gather'"):
        hvd.allgather(torch.ones(3, dtype=kind), name="m.gather")
    with cases.raises(hvd.HorovodInternalError, "tensor 'm.root'", "root"):
        hvd.broadcast(torch.ones(17), RANK, name="m.root")
    with cases.raises(hvd.HorovodInternalError, "tensor 'm.broadcast'"):
        hvd.broadcast(torch.ones(17, 10 * (RANK + 1)), 0, name="m.broadcast")
    with cases.raises(hvd.HorovodInternalError, "tensor 'm.all'"):
        hvd.alltoall(torch.ones(2 * SIZE, 10 * (RANK + 1)), name="m.all")
    with cases.raises(hvd.HorovodInternalError, "tensor 'm.kind'"):
        hvd.allreduce(torch.ones(3), name="m.kind") if RANK == 0 else hvd.allgather(torch.ones(3), name="m.kind")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == SIZE


def test_a_name_under_way_is_refused():
    if SIZE == 1:
        return
    if RANK > 0:
        hvd.barrier()
    first = hvd.allreduce_async(torch.ones(3), name="taken", op=hvd.Sum)
    if RANK == 0:
        with cases.raises(ValueError, "'taken'"):
            hvd.allreduce_async(torch.ones(3), name="taken")
        hvd.barrier()
    assert torch.equal(hvd.synchronize(first), torch.full([3], float(SIZE)))


def test_rows_of_all_ranks():
    for dtype in INTEGERS + FLOATS + [torch.bool]:
        for dimensions in (1, 2, 3):
            gathered = hvd.allgather(torch.full([17] * dimensions, RANK, dtype=dtype))
            assert list(gathered.shape) == [17 * SIZE] + [17] * (dimensions - 1) and gathered.dtype == dtype
            for rank in range(SIZE):
                assert bool((gathered[17 * rank:17 * (rank + 1)] == torch.tensor(rank, dtype=dtype)).all())
    sizes = [17, 32, 81, 12, 15, 23, 22][:SIZE]
    gathered = hvd.allgather(torch.full([sizes[RANK], 5], RANK))
    assert gathered[:, 0].tolist() == [rank for rank, rows in enumerate(sizes) for _ in range(rows)]
    with cases.raises(ValueError):
        hvd.allgather(torch.tensor(1.0))


def test_broadcasts_from_each_rank():
    for root in range(SIZE):
        for dtype in INTEGERS + FLOATS + [torch.bool]:
            mine, wanted = torch.full([17, 17], RANK, dtype=dtype), torch.full([17, 17], root, dtype=dtype)
            result = hvd.broadcast(mine, root)
            assert torch.equal(result, wanted) and torch.equal(mine, torch.full([17, 17], RANK, dtype=dtype))
            assert torch.equal(hvd.broadcast_(mine, root), wanted) and torch.equal(mine, wanted)


def test_rows_to_each_rank():
    for dtype in INTEGERS + FLOATS:
        for dimensions in (1, 2, 3):
            values = [destination for destination in range(SIZE) for _ in range(RANK + 1)]
            rows = torch.tensor(values, dtype=dtype)
            for _ in range(1, dimensions):
                rows = torch.stack([rows, rows], 1)
            splits = torch.tensor([RANK + 1] * SIZE, dtype=torch.int32)
            received, received_splits = hvd.alltoall(rows, splits)
            assert bool((received == torch.tensor(RANK, dtype=dtype)).all())
            assert received.numel() == SIZE * (SIZE + 1) // 2 * 2**(dimensions - 1)
            assert received_splits.tolist() == list(range(1, SIZE + 1)) and received_splits.dtype == torch.int32
    assert hvd.alltoall(torch.arange(3 * SIZE)).tolist() == [3 * RANK + i for _ in range(SIZE) for i in range(3)]
    assert hvd.alltoall(torch.zeros(0, 4)).shape == (0, 4)
    received, splits = hvd.alltoall(torch.arange(SIZE), torch.tensor([SIZE] + [0] * (SIZE - 1)))
    assert len(received) == (SIZE * SIZE if RANK == 0 else 0) and splits.tolist() == [SIZE if RANK == 0 else 0] * SIZE


def test_wrong_splits_are_refused_before_anything_is_sent():
    if SIZE > 1:
        with cases.raises(ValueError):
            hvd.alltoall(torch.zeros(SIZE + 1))
        with cases.raises(ValueError):
            hvd.alltoall(torch.zeros(SIZE - 1), torch.ones(SIZE, dtype=torch.int32))
    with cases.raises(ValueError, "expected integers"):
        hvd.alltoall(torch.zeros(SIZE), torch.ones(SIZE))
    with cases.raises(ValueError):
        hvd.alltoall(torch.zeros(SIZE), torch.ones(SIZE + 1, dtype=torch.int32))


def test_own_rows_of_a_reduction():
    for dtype in [torch.int32, torch.int64] + FLOATS:
        for dimensions in (1, 2, 3):
            values = torch.arange((SIZE * 4) * 3**(dimensions - 1)).reshape([SIZE * 4] + [3] * (dimensions - 1)).to(dtype)
            assert torch.equal(hvd.reducescatter(values, op=hvd.Sum), values[4 * RANK:4 * RANK + 4] * SIZE)
            assert torch.equal(hvd.reducescatter(values), values[4 * RANK:4 * RANK + 4])
    rows = torch.arange(SIZE * 4 + SIZE // 2)
    first = 4 * RANK + min(RANK, SIZE // 2)
    assert torch.equal(hvd.reducescatter(rows, op=hvd.Sum), rows[first:first + 4 + (RANK < SIZE // 2)] * SIZE)
    assert torch.allclose(hvd.reducescatter(torch.ones(SIZE), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
                          torch.full([1], 1.5 * SIZE))
    with cases.raises(ValueError):
        hvd.reducescatter(torch.tensor(1.0))
    with cases.raises(ValueError):
        hvd.reducescatter(torch.ones(SIZE), op=hvd.Adasum)


def test_gradients_pass_through_collectives():
    x = torch.ones(5, 2, dtype=torch.float64, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, SIZE))
    x.grad = None
    sum(one.sum() for one in hvd.grouped_allreduce([x, x * 2])).backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0))
    x.grad = None
    y = torch.ones(RANK + 1, 2, requires_grad=True)
    (hvd.allgather(y) * (RANK + 1.0)).sum().backward()
    assert torch.allclose(y.grad, torch.full_like(y, (SIZE + 1) / 2))
    (hvd.broadcast(x, 0) * (RANK + 1.0)).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, (SIZE + 1) / 2 if RANK == 0 else 0))
    z = torch.ones(SIZE * 3, requires_grad=True)
    (hvd.alltoall(z) * (RANK + 1.0)).sum().backward()
    assert z.grad.tolist() == [rank + 1.0 for rank in range(SIZE) for _ in range(3)]
    w = torch.ones(SIZE, 2, requires_grad=True)
    (hvd.reducescatter(w, op=hvd.Sum) * (RANK + 1.0)).sum().backward()
    assert torch.equal(w.grad, torch.tensor([[(rank + 1.0) * SIZE] * 2 for rank in range(SIZE)]))


def test_a_rank_without_data_joins():
    for step in range(RANK + 1):
        mean = hvd.allreduce(torch.tensor([float(RANK)]), name=f"joined.{step}")
        assert math.isclose(mean.item(), sum(range(step, SIZE)) / (SIZE - step))
    assert hvd.join() == SIZE - 1


def test_a_barrier_of_a_set():
    if SIZE < 2:
        return
    slow = hvd.add_process_set(range(SIZE - 1))
    last = hvd.add_process_set([SIZE - 1]) if SIZE > 2 else None
    if RANK == 0:
        time.sleep(3)
    arrived = time.monotonic()  # one clock for all ranks of a host
    if RANK < SIZE - 1:
        hvd.barrier(process_set=slow)
    elif last is not None:
        hvd.barrier(process_set=last)
    left = time.monotonic()
    first = hvd.broadcast(torch.tensor([arrived], dtype=torch.float64), root_rank=0).item()
    assert left >= first if RANK < SIZE - 1 else last is None or left < first
    for one in (slow, last):
        assert one is None or hvd.remove_process_set(one)


def test_adaptive_summation():
    if SIZE & (SIZE - 1):
        return
    basis, _ = torch.linalg.qr(torch.randn(40 + SIZE, SIZE, dtype=torch.float64, generator=seeded(1)))
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        columns = basis.to(dtype)
        result = hvd.allreduce(columns[:, RANK].contiguous(), op=hvd.Adasum)
        assert (result - columns.sum(1)).norm() < limit * SIZE
        parallel = hvd.allreduce(columns[:, 0] * (RANK + 1.0), op=hvd.Adasum)
        assert (parallel - columns[:, 0] * (SIZE + 1) / 2).norm() < limit * SIZE


def test_compression_keeps_the_type():
    values = torch.randn(1000, generator=seeded(5))
    for compression, dtype in ((hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16)):
        small, original = compression.compress(values)
        assert small.dtype == dtype and compression.decompress(small, original).dtype == torch.float32
        result = hvd.allreduce(values, op=hvd.Average, compression=compression)
        assert result.dtype == torch.float32 and torch.allclose(result, values.to(dtype).float(), rtol=1e-2)
    whole = torch.arange(5)
    assert torch.equal(hvd.allreduce(whole, op=hvd.Sum, compression=hvd.Compression.fp16), whole * SIZE)


def test_objects():
    for root in range(SIZE):
        assert hvd.broadcast_object({"hello": 123, 0: [1, 2], "rank": RANK}, root) == {"hello": 123, 0: [1, 2], "rank": root}
    assert hvd.allgather_object({"x": "y" * RANK}) == [{"x": "y" * rank} for rank in range(SIZE)]


def test_objects_do_not_depend_on_the_default_device():
    if not hasattr(torch, "set_default_device"):  # PyTorch 1
        return
    torch.set_default_device("meta")
    try:
        assert hvd.broadcast_object([RANK], SIZE - 1) == [SIZE - 1]
        assert hvd.allgather_object(RANK) == list(range(SIZE))
    finally:
        torch.set_default_device(DEVICE)


def test_sparse_tensors_are_gathered():
    mine = torch.sparse_coo_tensor(torch.tensor([[RANK, SIZE]]), torch.tensor([[1.0, 2.0]] * 2), [SIZE + 1, 2])
    total = hvd.sparse_allreduce_async(mine, "sparse", hvd.Sum)().to_dense()
    assert total.tolist() == [[1.0, 2.0]] * SIZE + [[SIZE * 1.0, SIZE * 2.0]]
    mean = hvd.sparse_allreduce_async(mine, "sparse", hvd.Average)().to_dense()
    assert torch.allclose(mean, total / SIZE)


# ---- The optimizer -------------------------------------------------------------------------------------------------


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()


def batch(step, rows=4):
    return torch.randn(rows * SIZE, 6, dtype=torch.float64, generator=seeded(step))


def mine(rows):
    return rows[RANK * (len(rows) // SIZE):(RANK + 1) * (len(rows) // SIZE)]


OPTIMIZERS = [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True), lambda p: torch.optim.Adam(p, 0.01),
              lambda p: torch.optim.AdamW(p, 0.01), lambda p: torch.optim.RMSprop(p, 0.01), lambda p: torch.optim.Adagrad(p, 0.01),
              lambda p: torch.optim.Adadelta(p), lambda p: torch.optim.Adamax(p, 0.01), lambda p: torch.optim.ASGD(p, 0.01)]


def trained(make, steps=5, whole=False, passes=1, **told):
    network = model()
    optimizer = make(network.parameters())
    if not whole:
        optimizer = hvd.DistributedOptimizer(optimizer, network.named_parameters(), backward_passes_per_step=passes, **told)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            rows = batch(step * passes + part)
            network(rows if whole else mine(rows)).pow(2).mean().backward()
        optimizer.step()
    return network


def differ(first, second):
    return max((a - b).abs().max().item() for a, b in zip(first.parameters(), second.parameters()))


def test_every_optimizer_equals_one_process_on_the_whole_batch():
    for make in OPTIMIZERS:
        assert differ(trained(make), trained(make, whole=True)) < 1e-10
        assert isinstance(hvd.DistributedOptimizer(make(model().parameters())), torch.optim.Optimizer)


def test_options_of_the_optimizer_do_not_change_the_result():
    make = OPTIMIZERS[0]
    whole = trained(make, whole=True)
    for told in ({"groups": 2}, {"num_groups": 1}, {"gradient_predivide_factor": 4.0}, {"process_set": hvd.global_process_set}):
        assert differ(trained(make, **told), whole) < 1e-10
    network = model()
    groups = [[network[0].weight, network[2].bias], [network[0].bias]]
    optimizer = hvd.DistributedOptimizer(make(network.parameters()), groups=groups)
    for step in range(5):
        optimizer.zero_grad()
        network(mine(batch(step))).pow(2).mean().backward()
        optimizer.step()
    assert differ(network, whole) < 1e-10
    assert differ(trained(make, passes=3), trained(make, passes=3, whole=True)) < 1e-10
    summed = trained(lambda p: torch.optim.SGD(p, 0.1 / SIZE), op=hvd.Sum)
    assert differ(summed, trained(lambda p: torch.optim.SGD(p, 0.1), whole=True)) < 1e-10
    for compression, limit in ((hvd.Compression.fp16, 1e-2), (hvd.Compression.bf16, 5e-2)):
        assert differ(trained(make, compression=compression), whole) < limit


def test_wrong_options_of_the_optimizer():
    network = model()
    make = lambda: torch.optim.SGD(network.parameters(), 0.1)  # noqa: E731
    names = list(network.named_parameters())
    with cases.raises(ValueError, "more than once"):
        hvd.DistributedOptimizer(make(), [("x", parameter) for _, parameter in names])
    with cases.raises(ValueError, "lacks 1 of"):
        hvd.DistributedOptimizer(make(), names[:-1])
    with cases.raises(ValueError, "pairs"):
        hvd.DistributedOptimizer(make(), network.parameters())
    with cases.raises(ValueError, "op=Average"):
        hvd.DistributedOptimizer(make(), gradient_predivide_factor=2.0, op=hvd.Sum)
    with cases.raises(ValueError, "expected 1 or more"):
        hvd.DistributedOptimizer(make(), backward_passes_per_step=0)


def test_mistakes_in_a_step():
    network = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), 0.1), network.named_parameters())
    network(mine(batch(0))).sum().backward()
    with cases.raises(AssertionError, "between backward() and step()"):
        optimizer.zero_grad()
    with cases.raises(AssertionError, "increase backward_passes_per_step"):
        network(mine(batch(0))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    network(mine(batch(0))).sum().backward()
    optimizer.step()


def test_gradients_are_clipped_between_reduction_and_step():
    network, whole = model(), model()
    inner = torch.optim.SGD(whole.parameters(), 0.5)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), 0.5), network.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        network(mine(batch(step))).pow(2).mean().backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        inner.zero_grad()
        whole(batch(step)).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.1)
        inner.step()
    assert differ(network, whole) < 1e-10


def test_a_gradient_that_this_rank_has_not_counts_as_zeros():
    left, right = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([left, right], 1.0), [("left", left), ("right", right)])
    (left if RANK == 0 else left + right).sum().backward()
    optimizer.step()
    assert torch.allclose(left, torch.zeros(3)) and torch.allclose(right, torch.full([3], 1.0 / SIZE))


def test_parameters_that_are_frozen_now_and_then():
    for told in ({}, {"num_groups": 1}, {"num_groups": 2}):
        network = model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), 0.1, weight_decay=0.1), network.named_parameters(),
                                             **told)
        for step in range(4):
            for parameter in network[0].parameters():
                parameter.requires_grad_(step % 2 == 1)
            frozen = network[0].weight.detach().clone()
            optimizer.zero_grad(set_to_none=True)
            network(mine(batch(step))).pow(2).mean().backward()
            optimizer.step()
            assert torch.equal(frozen, network[0].weight) == (step % 2 == 0)
            assert differ_over_ranks(network) == 0


def test_a_scheduler_that_was_made_before_the_wrapping():
    network, whole = model(), model()
    inner = torch.optim.SGD(network.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(inner, network.named_parameters())
    alone = torch.optim.SGD(whole.parameters(), 0.1)
    for step in range(3):
        for one, opt, rows in ((network, optimizer, mine(batch(step))), (whole, alone, batch(step))):
            opt.zero_grad()
            one(rows).pow(2).mean().backward()
            opt.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it counts the steps of the optimizer that it was made with
            scheduler.step()
        alone.param_groups[0]["lr"] *= 0.5
    assert differ(network, whole) < 1e-10


def test_sparse_gradients():
    for told in ({}, {"sparse_as_dense": True}, {"sparse_as_dense": True, "num_groups": 1}):
        torch.manual_seed(3)
        table = torch.nn.Embedding(10, 4, sparse=True)
        whole = torch.nn.Embedding.from_pretrained(table.weight.detach().clone(), freeze=False)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 1.0), table.named_parameters(), **told)
        words = torch.arange(2 * SIZE) % 7
        for heard in words, words[2:]:  # in the second step, rank 0 of several has no words
            optimizer.zero_grad(set_to_none=True)
            if len(heard) == len(words) or RANK > 0:
                table(mine(words)).pow(2).mean().backward()
            optimizer.step()
            whole.weight.grad = None
            (whole(heard).pow(2).sum() / whole(words).numel()).backward()
            with torch.no_grad():
                whole.weight -= whole.weight.grad
            assert torch.allclose(table.weight, whole.weight, atol=1e-6)


def test_a_new_rank_takes_from_another_which_gradients_are_sparse():
    table = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 1.0), [("table", table.weight)])
    if RANK == 0:
        optimizer._sparse[table.weight] = 1
    optimizer.share_kinds(0)
    optimizer.step()
    assert table.weight.grad.is_sparse and table.weight.grad._nnz() == 0


def test_a_closure_computes_the_gradients():
    network, whole = model(), model()
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(network.parameters(), 0.1, max_iter=3), network.named_parameters())
    inner = torch.optim.LBFGS(whole.parameters(), 0.1, max_iter=3)

    def closure(one, opt, rows):
        opt.zero_grad()
        loss = one(rows).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(lambda: closure(network, optimizer, mine(batch(0))))
    inner.step(lambda: closure(whole, inner, batch(0)))
    assert differ(network, whole) < 1e-8


def test_the_optimizer_with_adaptive_summation():
    if SIZE & (SIZE - 1):
        return
    network = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network[0].parameters(), 0.1), network[0].named_parameters(), op=hvd.Adasum)
    optimizer.add_param_group({"params": list(network[2].parameters())})
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = network(mine(batch(0))).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach()).item())
    assert losses[-1] < losses[0]
    assert differ_over_ranks(network) == 0
    with cases.raises(AssertionError, "Adasum"):
        with optimizer.skip_synchronize():
            pass


def differ_over_ranks(network):
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
    return (hvd.allreduce(flat, op=hvd.Max) - hvd.allreduce(flat, op=hvd.Min)).abs().max().item()


Pair = collections.namedtuple("Pair", "first second")


def test_parameters_and_optimizers_from_one_rank():
    for make in OPTIMIZERS:
        torch.manual_seed(100 + RANK)
        network = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3)).double()
        optimizer = make(network.parameters())
        if RANK == 0:  # the others have no state yet
            network(batch(0)).pow(2).mean().backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.123
            optimizer.param_groups[0]["pair"] = Pair(1, torch.ones(2))
        hvd.broadcast_parameters(network.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
        assert differ_over_ranks(network) == 0 and optimizer.param_groups[0]["lr"] == 0.123
        assert optimizer.param_groups[0]["pair"].second.tolist() == [1.0, 1.0]
        optimizer.zero_grad()
        network(batch(1)).pow(2).mean().backward()
        optimizer.step()
        assert differ_over_ranks(network) == 0
    hvd.broadcast_parameters([("x", torch.ones(2, 3).t()), ("text", "not a tensor")], SIZE - 1)


def test_batch_norm_over_all_ranks():
    for shape, kind in (([4, 5], torch.nn.BatchNorm1d), ([4, 5, 3, 2], torch.nn.BatchNorm2d)):
        torch.manual_seed(11)
        whole = torch.nn.Sequential(kind(5), torch.nn.Tanh(), kind(5, affine=False), kind(5, momentum=None)).double()
        network = hvd.SyncBatchNorm.convert(copy.deepcopy(whole))
        assert isinstance(network[0], hvd.SyncBatchNorm) and not isinstance(network[1], hvd.SyncBatchNorm)
        for step in range(3):
            rows = torch.randn([shape[0] * SIZE + SIZE - 1] + shape[1:], dtype=torch.float64,
                               generator=seeded(step)) * 3 + 100
            first = shape[0] * RANK  # the last rank has more rows
            own = rows[first:first + shape[0] if RANK < SIZE - 1 else None].clone().requires_grad_()
            rows.requires_grad_()
            (network(own) * torch.arange(5.0).view([1, 5] + [1] * (len(shape) - 2))).pow(3).sum().backward()
            (whole(rows) * torch.arange(5.0).view([1, 5] + [1] * (len(shape) - 2))).pow(3).sum().backward()
            assert torch.allclose(own.grad, rows.grad[first:first + len(own)], rtol=1e-8, atol=1e-8)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            assert torch.allclose(getattr(network[0], name), getattr(whole[0], name))
            assert torch.allclose(getattr(network[3], name), getattr(whole[3], name))
        total = hvd.allreduce(network[0].weight.grad, op=hvd.Sum)
        assert torch.allclose(total, whole[0].weight.grad, rtol=1e-8)
        network.eval(), whole.eval()
        assert torch.allclose(network(own), whole(own))


# ---- Elastic state -------------------------------------------------------------------------------------------------


def test_elastic_state_is_kept_restored_and_made_equal():
    network = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(network.weight, 1.0 if RANK == 0 else 2.0)
    optimizer = torch.optim.SGD(network.parameters(), 0.001 * (1 + RANK))
    state = hvd.elastic.TorchState(model=network, optimizer=optimizer, batch=20 + RANK, epoch=10 + RANK)
    state.sync()
    assert state.batch == 20 and state.epoch == 10 and bool((network.weight == 1.0).all())
    assert optimizer.param_groups[0]["lr"] == 0.001
    state.batch, state.epoch = 21, 11
    torch.nn.init.constant_(network.weight, 3.0)
    state.restore()
    assert state.batch == 20 and state.epoch == 10 and bool((network.weight == 1.0).all())
    state.batch, state.epoch = 21, 11
    torch.nn.init.constant_(network.weight, 3.0)
    state.commit()
    state.restore()
    assert state.batch == 21 and state.epoch == 11 and bool((network.weight == 3.0).all())
    if RANK == SIZE - 1:  # the rank with the most commits gives its values
        state.batch = 99
        state.commit()
    state.sync()
    assert state.batch == 99
    called = []
    state.register_reset_callbacks([lambda: called.append(1)])
    state.on_reset()
    assert called == [1]


def test_elastic_sampler_deals_what_is_left():
    sampler = hvd.elastic.ElasticSampler(range(8 * SIZE), shuffle=False)
    assert len(sampler) == 8 and list(sampler) == list(range(RANK, 8 * SIZE, SIZE))
    for number in range(2):
        sampler.record_batch(number, 2)
    assert sampler.processed_num == 4 * SIZE
    state = sampler.state_dict()
    sampler.record_batch(2, 2)
    sampler.load_state_dict(state)
    assert sampler.processed_num == 4 * SIZE and list(sampler) == list(range(4 * SIZE + RANK, 8 * SIZE, SIZE))
    sampler.set_epoch(1)
    assert sampler.processed_num == 0 and len(sampler) == 8
    mixed = hvd.elastic.ElasticSampler(range(3 * SIZE + 1), seed=4)
    seen = [index for part in hvd.allgather_object(list(mixed)) for index in part]
    assert len(seen) == 4 * SIZE and set(seen) == set(range(3 * SIZE + 1))
    mixed.set_epoch(1)
    assert [index for part in hvd.allgather_object(list(mixed)) for index in part] != seen


def test_the_names_of_horovod():
    for name in ("mpi_built", "mpi_enabled", "gloo_built", "gloo_enabled", "nccl_built", "ddl_built", "ccl_built", "cuda_built",
                 "rocm_built", "mpi_threads_supported", "is_homogeneous"):
        getattr(hvd, name)()
    assert hvd.HorovodInternalError is dtrun.Error
    with cases.raises(ValueError, "op alone"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    with cases.raises(ValueError, "contiguous"):
        hvd.allreduce_(torch.ones(3, 2).t())


if __name__ == "__main__":
    cases.run(dict(globals()))
