"""Batch normalisation over the batches of all ranks."""
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .._job import global_process_set
from . import collectives
from .collectives import Sum


class SyncBatchNorm(_BatchNorm):
    """BatchNorm1d, 2d and 3d in one, with the mean and the variance of the batches of all ranks. Batches may differ in size.

    The modules of a model must run in the same order on all ranks. In evaluation, it is an ordinary batch norm.
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, process_set=global_process_set):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    @classmethod
    def convert(cls, module, process_set=global_process_set):
        """Returns the model with each of its batch norms replaced by a SyncBatchNorm of the same parameters and statistics."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            new = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_set)
            new.weight, new.bias = module.weight, module.bias
            new.running_mean, new.running_var = module.running_mean, module.running_var
            new.num_batches_tracked = module.num_batches_tracked
            new.training = module.training
            return new
        for name, child in module.named_children():
            setattr(module, name, cls.convert(child, process_set))
        return module

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"the input has {input.dim()} dimensions; expected at least 2")

    def forward(self, input):
        self._check_input_dim(input)
        uses_batch = self.training or not self.track_running_stats
        if not uses_batch or self.process_set.size() == 1:
            return super().forward(input)
        output, mean, variance, count = _Normalize.apply(input, self.weight, self.bias, self.eps, self.process_set)
        if self.training and self.track_running_stats:
            self._update_statistics(mean, variance, count)
        return output

    def _update_statistics(self, mean, variance, count):
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            take = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            unbiased = variance * (count / max(count - 1, 1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), take)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), take)


# Mean and variance are combined from those of each rank, in f32 or wider, without the cancellation of a sum of squares.
class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps, process_set):
        wide = input if input.dtype in (torch.float32, torch.float64) else input.float()
        channels = input.shape[1]
        rows = wide.transpose(0, 1).reshape(channels, -1)
        local = torch.empty(1, 2 * channels + 1, dtype=wide.dtype, device=input.device)
        local[0, :channels] = rows.mean(1) if rows.shape[1] > 0 else 0
        local[0, channels:-1] = rows.var(1, unbiased=False) if rows.shape[1] > 0 else 0
        local[0, -1] = rows.shape[1]
        ranks = collectives.synchronize(collectives.allgather_async(local, process_set=process_set))
        counts = ranks[:, -1:]
        count = counts.sum()
        mean = (ranks[:, :channels] * counts).sum(0) / count
        variance = ((ranks[:, channels:-1] + (ranks[:, :channels] - mean) ** 2) * counts).sum(0) / count
        scale = torch.rsqrt(variance + eps)
        shape = (1, channels) + (1,) * (input.dim() - 2)
        normal = (wide - mean.view(shape)) * scale.view(shape)
        ctx.save_for_backward(normal, scale, weight)
        ctx.told = (shape, float(count), process_set, input.dtype)
        output = normal if weight is None else normal * weight.view(shape)
        output = output if bias is None else output + bias.view(shape)
        ctx.mark_non_differentiable(mean, variance)
        return output.to(input.dtype), mean, variance, float(count)

    @staticmethod
    def backward(ctx, gradient, *_):
        normal, scale, weight = ctx.saved_tensors
        shape, count, process_set, dtype = ctx.told
        gradient = gradient.to(normal.dtype)
        axes = [axis for axis in range(gradient.dim()) if axis != 1]
        by_bias, by_weight = gradient.sum(axes), (gradient * normal).sum(axes)
        sums = torch.stack([by_bias, by_weight])
        collectives.allreduce_(sums, op=Sum, process_set=process_set)
        by_input = gradient - (sums[0].view(shape) + normal * sums[1].view(shape)) / count
        by_input = by_input * (scale if weight is None else scale * weight).view(shape)
        has_parameters = weight is not None
        return (by_input.to(dtype), by_weight.to(weight.dtype) if has_parameters else None,
                by_bias.to(weight.dtype) if has_parameters else None, None, None)
