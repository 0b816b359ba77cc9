"""Values of any kind from one rank to all, and from all to all."""
import ctypes
import io
import pickle

import torch

from .._job import global_process_set, rank
from . import collectives


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """The object of rank `root_rank`, a rank of the job, by pickle. Unpickling runs code: all ranks trust each other."""
    name = name or "broadcast_object"
    is_root = rank() == root_rank
    payload = _bytes_of(obj) if is_root else _bytes(0)
    size = _on_host([payload.numel()])
    collectives.broadcast_(size, root_rank, name + ".size", process_set)
    if not is_root:
        payload = _bytes(int(size))
    collectives.broadcast_(payload, root_rank, name + ".bytes", process_set)
    return obj if is_root else _object_of(payload)


def allgather_object(obj, name=None, process_set=global_process_set):
    """The objects of all ranks in rank order, by pickle."""
    name = name or "allgather_object"
    payload = _bytes_of(obj)
    sizes = collectives.allgather(_on_host([payload.numel()]), name + ".sizes", process_set).tolist()
    return [_object_of(part) for part in collectives.allgather(payload, name + ".bytes", process_set).split(sizes)]


# Host memory under any torch.set_default_device: pickled bytes are read here.
def _bytes(count):
    return torch.empty(count, dtype=torch.uint8, device="cpu")


def _on_host(numbers):
    return torch.tensor(numbers, device="cpu")


def _bytes_of(obj):
    stream = io.BytesIO()
    pickle.dump(obj, stream)
    return torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)


def _object_of(payload):
    return pickle.loads(ctypes.string_at(payload.data_ptr(), payload.numel()))


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Makes tensors those of rank `root_rank`, in place: model.state_dict(), or pairs of a name and a tensor."""
    pairs = params.items() if isinstance(params, dict) else params
    works = []
    for name, tensor in sorted(((name, tensor) for name, tensor in pairs if torch.is_tensor(tensor)), key=lambda pair: pair[0]):
        data = tensor.detach()
        dense = data.contiguous()
        works.append((data, dense, collectives.broadcast_async_(dense, root_rank, "broadcast_parameters." + name, process_set)))
    for data, dense, work in works:
        collectives.synchronize(work)
        if dense.data_ptr() != data.data_ptr():
            data.copy_(dense)


class _Place:
    """Stands for a tensor in a broadcast structure."""

    def __init__(self, tensor):
        self.dtype, self.shape, self.device = tensor.dtype, tuple(tensor.shape), tensor.device.type


# A list or tuple of the type of `value`.
def _like(value, items):
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def broadcast_optimizer_state(optimizer, root_rank, model=None, process_set=global_process_set):
    """Makes the state and the settings of an optimizer those of rank `root_rank`. Any torch.optim optimizer; `model` is unused."""
    tensors = []

    def lift(value):
        if torch.is_tensor(value):
            tensors.append(value.detach().contiguous())
            return _Place(value)
        if isinstance(value, dict):
            return {key: lift(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return _like(value, [lift(one) for one in value])
        return value

    structure = lift(optimizer.state_dict()) if rank() == root_rank else None
    structure = broadcast_object(structure, root_rank, "broadcast_optimizer_state", process_set)
    if rank() != root_rank:
        tensors = []
    filled = []

    def place(value):
        if isinstance(value, _Place):
            if rank() == root_rank:
                tensor = tensors[len(filled)]
            else:
                tensor = torch.empty(value.shape, dtype=value.dtype, device=value.device)
            filled.append(tensor)
            return tensor
        if isinstance(value, dict):
            return {key: place(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return _like(value, [place(one) for one in value])
        return value

    state = place(structure)
    works = [collectives.broadcast_async_(tensor, root_rank, f"broadcast_optimizer_state.{i}", process_set)
             for i, tensor in enumerate(filled)]
    for work in works:
        collectives.synchronize(work)
    if rank() != root_rank:
        optimizer.load_state_dict(state)
