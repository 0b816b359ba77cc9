"""An optimizer whose gradients are reduced over all ranks.

Every parameter has a hook: when its gradient is complete, the reduction starts, while the backward pass goes on. step() waits for
all reductions and then makes the step of the wrapped optimizer.
"""
import contextlib

import torch

from .._job import global_process_set, job
from . import broadcasts, collectives
from .collectives import Adasum, Average
from .compression import Compression


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none, backward_passes_per_step=1, op=Average,
                         gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False,
                         process_set=global_process_set):
    """Wraps any torch.optim optimizer. The result has the class of the optimizer as a base.

    named_parameters: model.named_parameters(), so that errors and timelines have names. backward_passes_per_step: gradients of so
    many backward passes are summed before they are reduced. op: Average, Sum, or Adasum, which reduces the change of the parameters
    after a local step. gradient_predivide_factor f: gradients are divided by f before the sum, and by size / f after. groups:
    lists of parameters, or their number, whose gradients are reduced together. sparse_as_dense: sparse gradients become dense.

    To change the gradients before the step, for example to clip them:

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=Average")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}; expected 1 or more")
    mixin = _AdasumOptimizer if op == Adasum else _ReducedOptimizer
    wrapped = type(type(optimizer).__name__, (mixin, type(optimizer)), {})
    result = wrapped.__new__(wrapped)
    result.__dict__.update(optimizer.__dict__)
    result.__dict__.pop("step", None)  # a scheduler of learning rates has put its own there
    names = _parameter_names(optimizer, named_parameters)
    if op == Adasum:
        result._prepare(names, compression, backward_passes_per_step, process_set)
    else:
        result._prepare(names, compression, backward_passes_per_step, op, gradient_predivide_factor,
                        _groups(optimizer, num_groups if groups is None else groups), sparse_as_dense, process_set)
    return result


def _all_parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parameter_names(optimizer, named_parameters):
    parameters = _all_parameters(optimizer)
    if named_parameters is None:
        return {parameter: f"parameter.{i}" for i, parameter in enumerate(parameters)}
    named = list(named_parameters)
    if any(not (isinstance(pair, tuple) and len(pair) == 2) for pair in named):
        raise ValueError("named_parameters are not pairs of a name and a parameter; expected model.named_parameters()")
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"named_parameters has {', '.join(twice)} more than once; expected different names")
    found = {parameter: name for name, parameter in named}
    unnamed = sum(parameter not in found for parameter in parameters)
    if unnamed:
        raise ValueError(f"named_parameters lacks {unnamed} of the optimizer's {len(parameters)} parameters; expected all or none")
    return {parameter: found[parameter] for parameter in parameters}


# The groups of parameters, as lists.
def _groups(optimizer, told):
    if not told:
        return []
    trained = [parameter for parameter in _all_parameters(optimizer) if parameter.requires_grad]
    if isinstance(told, int):
        if told < 0:
            raise ValueError(f"the number of groups is {told}; expected 0 or more")
        told = min(told, len(trained))
        return [list(part) for part in _split(trained, told)]
    groups = [list(group) for group in told]
    members = [id(parameter) for group in groups for parameter in group]
    if len(set(members)) != len(members):
        raise ValueError("a parameter is in two groups; expected each in one at most")
    return groups


def _split(items, parts):
    size, more = divmod(len(items), parts)
    begin = 0
    for part in range(parts):
        end = begin + size + (part < more)
        yield items[begin:end]
        begin = end


# Calls `hook(parameter)` when the gradient of a parameter is complete. Returns what must live as long.
def _watch(parameter, hook):
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return parameter.register_post_accumulate_grad_hook(hook)
    accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: hook(parameter))
    return accumulator


class _ReducedOptimizer:
    def _prepare(self, names, compression, passes, op, predivide, groups, sparse_as_dense, process_set):
        self._names = names
        self._compression = compression
        self._op = op
        self._before, self._after = 1.0 / predivide, predivide
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._group_of = {parameter: (number, group) for number, group in enumerate(groups) for parameter in group}
        self._ready = {}  # by group: its parameters with complete gradients
        self._works = []  # functions that wait and write the reduced gradients
        self._job = None  # the job of _works
        self._begun = set()  # parameters of _works
        self._left = {}  # by parameter: backward passes until its gradient is reduced
        self._watched = {}
        self._sparse = {}  # the number of indices of an entry, by parameter that has had a sparse gradient
        self._synchronizes = True
        self._is_synchronized = False
        self.set_backward_passes_per_step(passes)

    def set_backward_passes_per_step(self, passes):
        """Sums the gradients of so many backward passes before they are reduced."""
        self.backward_passes_per_step = passes
        self._left = dict.fromkeys(self._names, passes)
        self._watch_parameters()

    def add_param_group(self, group):
        """Adds parameters; their names are numbers."""
        super().add_param_group(group)
        if "_watched" in self.__dict__:
            for parameter in self.param_groups[-1]["params"]:
                self._names[parameter] = f"parameter.{len(self._names)}"
                self._left[parameter] = self.backward_passes_per_step
            self._watch_parameters()

    # A parameter may begin to need gradients later.
    def _watch_parameters(self):
        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._watched:
                self._watched[parameter] = _watch(parameter, self._gradient_is_complete)

    # What began in a job that has lost ranks never ends.
    def _forget_other_jobs(self):
        if self._job is not job():
            self._forget()
            self._job = job()

    def _forget(self):
        self._works.clear()
        self._begun.clear()
        self._ready.clear()
        self._left = dict.fromkeys(self._names, self.backward_passes_per_step)
        self._is_synchronized = False

    def _gradient_is_complete(self, parameter):
        if not self._takes_part():
            return
        self._forget_other_jobs()
        if self._left[parameter] <= 0 or parameter in self._begun:
            raise AssertionError(
                f"the gradient of {self._names[parameter]} was computed more than backward_passes_per_step times (which is "
                f"{self.backward_passes_per_step}) before step(); increase backward_passes_per_step to sum gradients locally")
        self._left[parameter] -= 1
        if self._left[parameter] == 0:
            self._is_synchronized = False
            self._begin_when_group_is_ready(parameter)

    def _begin_when_group_is_ready(self, parameter):
        number, group = self._group_of.get(parameter, (None, [parameter]))
        if number is None:
            self._begin(group, self._names[parameter])
            return
        self._ready.setdefault(number, set()).add(parameter)
        self._begin_group(number, group)

    # Starts a group if all of it that is trained is ready.
    def _begin_group(self, number, group):
        trained = [parameter for parameter in group if parameter.requires_grad]
        if trained and self._ready[number].issuperset(trained):
            del self._ready[number]
            self._begin(trained, f"group.{number}")

    # Starts the reduction of the gradients of some parameters, under one name.
    def _begin(self, parameters, name):
        self._begun.update(parameters)
        if self._sparse_as_dense:
            for parameter in parameters:
                if parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()
        if len(parameters) == 1 and parameters[0].grad.is_sparse:
            self._begin_sparse(parameters[0], name)
            return
        for parameter in parameters:
            self._sparse.pop(parameter, None)
        gradients = [parameter.grad for parameter in parameters]
        packed = [self._compression.compress(gradient) for gradient in gradients]
        sent = [tensor.contiguous() for tensor, _ in packed]
        work = collectives.grouped_allreduce_async_(sent, None, "gradient." + name, self._op, self._before, self._after,
                                                    self._process_set)

        def finish():
            collectives.synchronize(work)
            for gradient, tensor, (_, original) in zip(gradients, sent, packed):
                if tensor.data_ptr() != gradient.data_ptr():
                    gradient.copy_(self._compression.decompress(tensor, original))

        self._works.append(finish)

    def _begin_sparse(self, parameter, name):
        if self._op not in (Average, collectives.Sum):
            raise ValueError(f"the gradient of {name} is sparse; expected op=Average or Sum, or sparse_as_dense=True")
        self._sparse[parameter] = parameter.grad.sparse_dim()
        result = collectives.sparse_allreduce_async(parameter.grad, "gradient." + name, self._op, self._process_set)

        def finish():
            parameter.grad = result()

        self._works.append(finish)

    def _takes_part(self):
        return self._process_set.included()

    def synchronize(self):
        """Waits until all gradients are reduced. Gradients that this rank has not computed count as zeros."""
        self._forget_other_jobs()
        try:
            if self._takes_part() and not self._is_synchronized:
                self._begin_the_rest()
                for finish in self._works:
                    finish()
        finally:
            self._forget()
        self._is_synchronized = True

    def _begin_the_rest(self):
        self._watch_parameters()
        for parameter in self._names:
            number, _ = self._group_of.get(parameter, (None, None))
            if parameter in self._begun or parameter in self._ready.get(number, ()) or not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = self._zeros(parameter)
            self._begin_when_group_is_ready(parameter)
        for parameter in self._names:  # of a group, the last that was awaited may be frozen now
            number, group = self._group_of.get(parameter, (None, None))
            if number in self._ready:
                self._begin_group(number, group)

    # A gradient without entries if the parameter's gradients have been sparse: ranks must send the same kind.
    def _zeros(self, parameter):
        if parameter not in self._sparse or self._sparse_as_dense:
            return torch.zeros_like(parameter)
        indices = self._sparse[parameter]
        values = parameter.detach().new_empty((0,) + tuple(parameter.shape[indices:]))
        return torch.sparse_coo_tensor(torch.empty((indices, 0), dtype=torch.int64, device=values.device), values, parameter.shape)

    def share_kinds(self, root):
        """All ranks take from rank `root` which parameters have had sparse gradients. All ranks call it together."""
        mine = {self._names[parameter]: indices for parameter, indices in self._sparse.items()}
        known = broadcasts.broadcast_object(mine, root, "optimizer.sparse")
        self._sparse = {parameter: known[name] for parameter, name in self._names.items() if name in known}

    @contextlib.contextmanager
    def skip_synchronize(self):
        """A block in which step() does not wait for gradients: synchronize() was called before."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure=None):
        """Waits for the gradients, then makes a step of the wrapped optimizer. A closure computes gradients first."""
        if not self._synchronizes:
            return self._local_step(closure)
        if closure is None:
            self.synchronize()
            return self._local_step(None)

        def synchronized_closure():
            loss = closure()
            self.synchronize()
            return loss

        return self._local_step(synchronized_closure)

    def _local_step(self, closure):
        result = super().step() if closure is None else super().step(closure)
        self._is_synchronized = False
        return result

    def zero_grad(self, *arguments, **named):
        """Clears the gradients. Not between backward() and step(): reductions are under way."""
        self._forget_other_jobs()
        if self._begun:
            raise AssertionError("zero_grad() was called between backward() and step(); the gradients are being reduced")
        return super().zero_grad(*arguments, **named)


class _AdasumOptimizer:
    """Each rank makes its own step. Adaptive summation then combines the changes of the parameters."""

    def _prepare(self, names, compression, passes, process_set):
        self._names = names
        self._compression = compression
        self._process_set = process_set
        self.set_backward_passes_per_step(passes)

    def add_param_group(self, group):
        """Adds parameters, whose changes are combined, too."""
        super().add_param_group(group)
        for parameter in self.param_groups[-1]["params"]:
            self._names[parameter] = f"parameter.{len(self._names)}"

    def set_backward_passes_per_step(self, passes):
        """Has no effect on the step: gradients are never reduced."""
        self.backward_passes_per_step = passes

    def synchronize(self):
        """Does nothing: gradients are not reduced."""

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Not possible: the changes are reduced in step()."""
        raise AssertionError("skip_synchronize() has no meaning with op=Adasum: step() reduces the change of the parameters")
        yield

    def step(self, closure=None):
        """Makes a local step and combines the changes of all ranks."""
        if not self._process_set.included():
            return super().step() if closure is None else super().step(closure)
        trained = [(parameter, name) for parameter, name in self._names.items() if parameter.requires_grad]
        starts = [parameter.detach().clone(memory_format=torch.contiguous_format) for parameter, _ in trained]
        result = super().step() if closure is None else super().step(closure)
        with torch.no_grad():
            changes = [parameter - start for (parameter, _), start in zip(trained, starts)]
            packed = [self._compression.compress(change) for change in changes]
            sent = [tensor.contiguous() for tensor, _ in packed]
            collectives.grouped_allreduce_(sent, None, "change", Adasum, process_set=self._process_set)
            for (parameter, _), start, tensor, (_, original) in zip(trained, starts, sent, packed):
                parameter.copy_(start + self._compression.decompress(tensor, original))
        return result
