"""Collectives on PyTorch tensors, with the names and defaults of Horovod's API.

Tensors are read where they lie. A function without "async" waits for its result, and passes gradients back where that has a
meaning. The others return a handle: synchronize(handle) returns the result, poll(handle) does not wait. A trailing underscore
means in place. Without a name, a tensor is matched by the order of the calls.
"""
import ctypes as c

import torch

from .. import _abi, _queue
from .._job import global_process_set
from .._queue import View
from .compression import Compression

Average, Sum, Adasum, Min, Max, Product = _abi.AVERAGE, _abi.SUM, _abi.ADASUM, _abi.MIN, _abi.MAX, _abi.PRODUCT

_TYPES = {getattr(torch, name): number
          for name, number in (("uint8", _abi.U8), ("int8", _abi.I8), ("uint16", _abi.U16), ("int16", _abi.I16),
                               ("uint32", _abi.U32), ("int32", _abi.I32), ("uint64", _abi.U64), ("int64", _abi.I64),
                               ("float16", _abi.F16), ("bfloat16", _abi.BF16), ("float32", _abi.F32), ("float64", _abi.F64),
                               ("bool", _abi.BOOL)) if hasattr(torch, name)}


def _view(tensor):
    number = _TYPES.get(tensor.dtype)
    if number is None:
        raise ValueError(f"{tensor.dtype} has no counterpart in dtrun")
    if not tensor.is_contiguous():
        raise ValueError(f"the tensor of shape {list(tensor.shape)} is not contiguous; call contiguous() first")
    if tensor.is_cuda:
        return View(tensor.data_ptr(), tensor.numel(), number, tensor.device.index,
                    torch.cuda.current_stream(tensor.device).cuda_stream, tensor.shape)
    return View(tensor.data_ptr(), tensor.numel(), number, -1, None, tensor.shape)


def _state(tensor):
    if tensor.layout is not torch.strided:
        raise ValueError(f"the tensor has layout {tensor.layout}; expected a dense one, or sparse_allreduce_async")
    if tensor.is_cuda:
        return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), torch.cuda.current_stream(tensor.device).cuda_stream
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.is_contiguous()


_TENSORS = _queue.Arrays(_view, _state)


# The memory of a work as a tensor, which keeps this memory, on the device of the input.
def _received(work, index, like):
    view = work.result(index)
    if view.count == 0:
        return torch.empty(view.shape, dtype=like.dtype, device=like.device)
    memory = (c.c_char * (view.count * like.element_size())).from_address(view.data)
    memory.owner = work.owner
    return torch.frombuffer(memory, dtype=like.dtype).view(view.shape).to(like.device)


def _all_received(tensors, single):
    def finish(work):
        received = [_received(work, i, tensor) for i, tensor in enumerate(tensors)]
        return received[0] if single else received

    return finish


# Horovod's old argument `average` beside `op`.
def _operation(op, average):
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("op and average are both given; expected op alone")
    return Average if average else Sum


def _each_contiguous(tensors):
    return [tensor.contiguous() for tensor in tensors]


def _reduce(tensors, outputs, single, name, op, average, before, after, process_set):
    op = _operation(op, average)
    return _queue.submit(_abi.ALL_REDUCE, name, process_set, _TENSORS, tensors, outputs, op=op, before=before, after=after,
                         results=(outputs or tensors)[0] if single else (outputs or tensors))


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                    process_set=global_process_set):
    """Starts the reduction of a tensor over all ranks, into a new tensor."""
    return _reduce([tensor], [torch.empty_like(tensor)], True, name, op, average, prescale_factor, postscale_factor, process_set)


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                     process_set=global_process_set):
    """Starts the reduction of a tensor over all ranks, in place."""
    return _reduce([tensor], None, True, name, op, average, prescale_factor, postscale_factor, process_set)


def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """Reduces a tensor over all ranks, in place, and returns it."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0, postscale_factor=1.0,
              process_set=global_process_set):
    """The reduction of a tensor over all ranks: by default the mean."""
    return grouped_allreduce([tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set)[0]


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                            process_set=global_process_set):
    """Starts the reductions of several tensors, into new ones: all are done or all fail."""
    return _reduce(list(tensors), [torch.empty_like(tensor) for tensor in tensors], False, name, op, average, prescale_factor,
                   postscale_factor, process_set)


def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                             process_set=global_process_set):
    """Starts the reductions of several tensors, in place."""
    return _reduce(list(tensors), None, False, name, op, average, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                       process_set=global_process_set):
    """Reduces several tensors in place and returns them."""
    return synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0,
                      postscale_factor=1.0, process_set=global_process_set):
    """The reductions of several tensors over all ranks."""
    op = _operation(op, average)
    packed = [compression.compress(tensor) for tensor in tensors]
    reduced = _AllReduce.apply(name, op, prescale_factor, postscale_factor, process_set, *[tensor for tensor, _ in packed])
    return [compression.decompress(tensor, original) for tensor, (_, original) in zip(reduced, packed)]


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, before, after, process_set, *tensors):
        ctx.told = (name, op, before, after, process_set)
        tensors = _each_contiguous(tensors)
        outputs = [torch.empty_like(tensor) for tensor in tensors]
        return tuple(synchronize(_reduce(tensors, outputs, False, name, op, None, before, after, process_set)))

    @staticmethod
    def backward(ctx, *gradients):
        name, op, before, after, process_set = ctx.told
        if op not in (Average, Sum):
            raise RuntimeError("only a sum and a mean of tensors can pass gradients back")
        name = None if name is None else name + ".gradient"
        return (None,) * 5 + tuple(grouped_allreduce(gradients, None, name, Compression.none, op, before, after, process_set))


def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Starts the reduction of a sparse tensor: gathers the rows of all ranks. Call the returned function for the result."""
    tensor = tensor.coalesce()
    indices = allgather_async(tensor.indices().transpose(0, 1).contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor.values().contiguous(), f"{name}.values", process_set)

    def result():
        rows = synchronize(values)
        if op == Average:
            rows = rows / process_set.size()
        return torch.sparse_coo_tensor(synchronize(indices).transpose(0, 1), rows, tensor.size())

    return result


def _gather(tensors, single, name, process_set):
    return _queue.submit(_abi.ALL_GATHER, name, process_set, _TENSORS, tensors, finish=_all_received(tensors, single))


def allgather_async(tensor, name=None, process_set=global_process_set):
    """Starts a gather of the tensors of all ranks in rank order, along the first dimension, which may differ."""
    return _gather([tensor], True, name, process_set)


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    """Starts gathers of several tensors: all are done or all fail."""
    return _gather(list(tensors), False, name, process_set)


def allgather(tensor, name=None, process_set=global_process_set):
    """The tensors of all ranks in rank order, along the first dimension, which may differ between ranks."""
    return _AllGather.apply(name, process_set, tensor)[0]


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """The tensors of all ranks in rank order, for several tensors."""
    return list(_AllGather.apply(name, process_set, *tensors))


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, process_set, *tensors):
        ctx.told = (name, process_set)
        ctx.rows = [tensor.shape[0] if tensor.dim() > 0 else 0 for tensor in tensors]
        return tuple(synchronize(grouped_allgather_async(_each_contiguous(tensors), name, process_set)))

    # The mean over the ranks of the gradient of this rank's rows, as Horovod has it.
    @staticmethod
    def backward(ctx, *gradients):
        name, process_set = ctx.told
        name = None if name is None else name + ".gradient"
        means = grouped_allreduce(gradients, None, name, Compression.none, Average, 1.0, 1.0, process_set)
        all_rows = allgather(torch.tensor([ctx.rows], device="cpu"), None if name is None else name + ".rows", process_set)
        first = all_rows[:process_set.rank()].sum(0).tolist()
        return (None, None) + tuple(mean.narrow(0, begin, rows) for mean, begin, rows in zip(means, first, ctx.rows))


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """Starts the broadcast of the tensor of rank `root_rank`, a rank of the job, into a new tensor."""
    output = torch.empty_like(tensor)
    return _queue.submit(_abi.BROADCAST, name, process_set, _TENSORS, [tensor], [output], root=root_rank, results=output)


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    """Starts the broadcast of the tensor of rank `root_rank`, in place."""
    return _queue.submit(_abi.BROADCAST, name, process_set, _TENSORS, [tensor], root=root_rank, results=tensor)


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    """Makes a tensor that of rank `root_rank`, in place, and returns it."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """The tensor of rank `root_rank`, a rank of the job. All ranks pass the same shape."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.told = (root_rank, name, process_set)
        return synchronize(broadcast_async(tensor.contiguous(), root_rank, name, process_set))

    # The mean of the gradients of all ranks, on the root alone, as Horovod has it.
    @staticmethod
    def backward(ctx, gradient):
        root_rank, name, process_set = ctx.told
        mean = allreduce(gradient, None, None if name is None else name + ".gradient", op=Average, process_set=process_set)
        return mean if process_set.ranks[process_set.rank()] == root_rank else torch.zeros_like(mean), None, None, None


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set):
    """Starts to send splits[r] rows to rank r, or the same number to each. The result is a tensor, with `splits` a pair."""
    _view(tensor)
    told = None
    if splits is not None:
        splits = torch.as_tensor(splits)
        if splits.is_floating_point() or splits.dim() != 1:
            raise ValueError(f"splits are {splits.dtype} of {splits.dim()} dimensions; expected integers of one")
        told = _queue.check_splits(splits.tolist(), process_set)

    def finish(work):
        received = _received(work, 0, tensor)
        if splits is None:
            return received
        return received, torch.tensor(work.received_splits(0, process_set.size()), dtype=splits.dtype, device=splits.device)

    return _queue.submit(_abi.ALL_TO_ALL, name, process_set, _TENSORS, [tensor], splits=told, finish=finish)


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """The rows that all ranks have sent here, in rank order; with `splits` also the number from each rank."""
    received, received_splits = _AllToAll.apply(tensor, splits, name, process_set)
    return received if splits is None else (received, received_splits)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        told = splits
        if told is None:
            ranks = process_set.size()
            if tensor.dim() == 0 or ranks is None or tensor.shape[0] % ranks != 0:
                synchronize(alltoall_async(tensor, None, name, process_set))  # raises
            told = torch.full((ranks,), tensor.shape[0] // ranks, dtype=torch.int32, device="cpu")
        received, received_splits = synchronize(alltoall_async(tensor.contiguous(), told, name, process_set))
        ctx.told = (received_splits, name, process_set)
        ctx.mark_non_differentiable(received_splits)
        return received, received_splits

    @staticmethod
    def backward(ctx, gradient, _):
        received_splits, name, process_set = ctx.told
        name = None if name is None else name + ".gradient"
        return alltoall(gradient.contiguous(), received_splits, name, process_set)[0], None, None, None


def _scatter(tensors, single, name, op, before, after, process_set):
    return _queue.submit(_abi.REDUCE_SCATTER, name, process_set, _TENSORS, tensors, op=op, before=before, after=after,
                         finish=_all_received(tensors, single))


def reducescatter_async(tensor, name=None, op=Average, process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    """Starts a reduction of which this rank gets its rows: the first rows % p of p ranks get one row more."""
    return _scatter([tensor], True, name, op, prescale_factor, postscale_factor, process_set)


def grouped_reducescatter_async(tensors, name=None, op=Average, process_set=global_process_set, prescale_factor=1.0,
                                postscale_factor=1.0):
    """Starts such reductions of several tensors: all are done or all fail."""
    return _scatter(list(tensors), False, name, op, prescale_factor, postscale_factor, process_set)


def reducescatter(tensor, name=None, compression=Compression.none, op=Average, process_set=global_process_set, prescale_factor=1.0,
                  postscale_factor=1.0):
    """This rank's rows of the reduction of a tensor over all ranks."""
    return grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average, process_set=global_process_set,
                          prescale_factor=1.0, postscale_factor=1.0):
    """This rank's rows of the reductions of several tensors."""
    packed = [compression.compress(tensor) for tensor in tensors]
    reduced = _ReduceScatter.apply(name, op, prescale_factor, postscale_factor, process_set, *[tensor for tensor, _ in packed])
    return [compression.decompress(tensor, original) for tensor, (_, original) in zip(reduced, packed)]


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, before, after, process_set, *tensors):
        ctx.told = (name, op, before, after, process_set)
        return tuple(synchronize(_scatter(_each_contiguous(tensors), False, name, op, before, after, process_set)))

    @staticmethod
    def backward(ctx, *gradients):
        name, op, before, after, process_set = ctx.told
        if op not in (Average, Sum):
            raise RuntimeError("only a sum and a mean of tensors can pass gradients back")
        factor = before * after * (process_set.size() if op == Sum else 1)
        name = None if name is None else name + ".gradient"
        return (None,) * 5 + tuple(grouped_allgather([gradient * factor for gradient in gradients], name, process_set))


def poll(handle):
    """Whether the operation of a handle is done. Does not wait."""
    return handle.test()


def synchronize(handle):
    """Waits for the operation of a handle and returns its result. Raises its error."""
    return handle.wait()


def join(device=-1):
    """Says that this rank has no more data. Waits for all ranks; returns the last that joined. `device` has no effect."""
    return _queue.join(global_process_set)


def barrier(process_set=global_process_set):
    """Waits until every rank of the set has called it."""
    _queue.barrier(process_set)
