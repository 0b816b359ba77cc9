"""Training that survives lost ranks and uses ranks that come, with the names of Horovod's elastic API.

    @dtrun.torch.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 10):
            ...
            state.commit()

    train(dtrun.torch.elastic.TorchState(model, optimizer, epoch=0))

Start it with `dtrun --restarts N` (docs/guides/elastic.md). When a rank is lost, the other processes stay: they go back to their last
commit, wait for the new ranks, give them the state of the rank with the most commits, and call the function again. mpirun ends all
processes: the first of each host then takes the last commit from the host's memory.
"""
import copy
import functools
import inspect
import io
import random

import torch

from .. import _job
from .._abi import Error
from . import broadcasts, collectives


_NAME = "elastic.state"


class State:
    """Values that all ranks have in common. commit() keeps them; after a loss restore() returns to the last commit."""

    def __init__(self):
        self._commits = 0
        self._callbacks = []

    def register_reset_callbacks(self, callbacks):
        """Functions to call after ranks were lost or have come, before the values are made equal."""
        self._callbacks.extend(callbacks)

    def on_reset(self):
        """Calls reset() and the registered functions."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self):
        """Keeps the present values in memory, for the next loss."""
        self.save()
        self._commits += 1
        if _job.keeps_state():
            _job.keep_state(_NAME, self._commits, self._bytes())

    # If a loss has ended all processes (mpirun), the values that an earlier process of this host has kept.
    def _load_kept(self):
        if not _job.keeps_state():
            return
        commits, state = _job.load_state(_NAME)
        if commits > self._commits:
            self._take_bytes(state)
            self._commits = commits
            self.restore()

    def _bytes(self):
        raise NotImplementedError

    def _take_bytes(self, state):
        raise NotImplementedError

    def check_host_updates(self):
        """Does nothing: when ranks come, the collective that runs at that moment ends with an error, and run() goes on with them."""

    # The rank whose values become those of all, and its commits: the most.
    def _root(self):
        commits = collectives.allgather(torch.tensor([self._commits], device="cpu"), "elastic.commits").tolist()
        return commits.index(max(commits)), max(commits)

    def save(self):
        """Keeps the values."""
        raise NotImplementedError

    def restore(self):
        """Takes the kept values."""
        raise NotImplementedError

    def sync(self):
        """Makes the values of all ranks equal to those of the rank with the most commits. All ranks call it."""
        raise NotImplementedError

    def reset(self):
        """What follows a change of the ranks, before sync."""


class ObjectState(State):
    """Values that can be pickled, as attributes."""

    def __init__(self, **values):
        super().__init__()
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)
        ObjectState.save(self)

    def save(self):
        self._kept = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def restore(self):
        for name, value in self._kept.items():
            setattr(self, name, copy.deepcopy(value))

    # If a rank is lost meanwhile, the last values and commits of this rank still belong together.
    def sync(self):
        root, commits = self._root()
        self._sync(root)
        self.save()
        self._commits = commits

    # What restore() needs.
    def _kept_values(self):
        return {"values": self._kept}

    def _bytes(self):
        stream = io.BytesIO()
        torch.save(self._kept_values(), stream)
        return stream.getvalue()

    def _take_bytes(self, state):
        told = {} if "weights_only" not in inspect.signature(torch.load).parameters else {"weights_only": False}
        self._take_values(torch.load(io.BytesIO(state), **told))

    def _take_values(self, values):
        self._kept = values["values"]

    def _sync(self, root):
        if self._names:
            values = broadcasts.broadcast_object({name: getattr(self, name) for name in self._names}, root, "elastic.values")
            for name, value in values.items():
                setattr(self, name, value)


class TorchState(ObjectState):
    """Models, optimizers, samplers and other values.

    Every argument with state_dict() and load_state_dict() is kept by them. The others are kept by pickle.
    """

    def __init__(self, model=None, optimizer=None, **values):
        parts = {"model": model, "optimizer": optimizer, **values}
        self._parts = {name: part for name, part in parts.items() if hasattr(part, "load_state_dict")}
        for name, part in self._parts.items():
            setattr(self, name, part)
        super().__init__(**{name: value for name, value in values.items() if name not in self._parts})
        self._keep_parts()

    def _keep_parts(self):
        self._kept_parts = {name: copy.deepcopy(part.state_dict()) for name, part in self._parts.items()}

    def save(self):
        super().save()
        self._keep_parts()

    def restore(self):
        super().restore()
        for name, part in self._parts.items():
            part.load_state_dict(copy.deepcopy(self._kept_parts[name]))

    def _kept_values(self):
        return {**super()._kept_values(), "parts": self._kept_parts}

    def _take_values(self, values):
        super()._take_values(values)
        self._kept_parts = values["parts"]

    def reset(self):
        for part in self._parts.values():
            if isinstance(part, ElasticSampler):
                part.reset()

    def _sync(self, root):
        super()._sync(root)
        for name, part in self._parts.items():
            if isinstance(part, torch.nn.Module):
                broadcasts.broadcast_parameters({f"{name}.{key}": value for key, value in part.state_dict().items()}, root)
            elif isinstance(part, torch.optim.Optimizer):
                broadcasts.broadcast_optimizer_state(part, root)
                if hasattr(part, "share_kinds"):
                    part.share_kinds(root)
            else:
                part.load_state_dict(broadcasts.broadcast_object(part.state_dict(), root, f"elastic.{name}"))


class ElasticSampler(torch.utils.data.Sampler):
    """Deals the examples of an epoch that are not yet processed to the ranks, again after each change of the ranks.

    Call record_batch after each batch and set_epoch at the end of an epoch. All ranks get the same number of examples: the first of
    those that are left are dealt twice if need be.
    """

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch):
        """Begins an epoch, with another order."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx, batch_size):
        """Says that every rank has processed a batch of `batch_size` examples."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self):
        """The epoch and the number of processed examples, of all ranks together."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state):
        """Goes on from there, with the present ranks. After a loss, reset() deals again when the new ranks are there."""
        self.epoch, self.processed_num = state["epoch"], state["processed_num"]
        if _job.is_initialized():
            self.reset()

    def reset(self):
        """Deals the examples that are left to the present ranks."""
        self.rank, self.num_replicas = _job.rank(), _job.size()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        left = order[self.processed_num:]
        self.num_samples = -(-len(left) // self.num_replicas)
        while 0 < len(left) < self.num_samples * self.num_replicas:
            left += left[:self.num_samples * self.num_replicas - len(left)]
        self.indices = left[self.rank::self.num_replicas]

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return self.num_samples


def run(function):
    """Decorates a training function whose first argument is a State. Calls it again when ranks were lost or have come."""

    @functools.wraps(function)
    def wrapper(state, *arguments, **named):
        while True:
            try:
                if not _job.is_initialized():
                    _job.restart()
                    state.on_reset()
                state._load_kept()
                state.sync()
                return function(state, *arguments, **named)
            except Error as error:
                if not _job.recover(error):
                    raise
                state.restore()

    return wrapper
