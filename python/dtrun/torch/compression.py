"""Types in which tensors travel."""
import torch


class _Compressor:
    dtype = None

    @classmethod
    def compress(cls, tensor):
        """The tensor to send, and what decompress needs."""
        if cls.dtype is None or not tensor.is_floating_point() or tensor.element_size() <= 2:
            return tensor, tensor.dtype
        return tensor.to(cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor, dtype):
        """The received tensor in its own type."""
        return tensor if tensor.dtype == dtype else tensor.to(dtype)


class NoneCompressor(_Compressor):
    """Sends tensors as they are."""


class FP16Compressor(_Compressor):
    """Sends floats as f16. Sums are in f32, values beyond 65504 become infinite."""

    dtype = torch.float16


class BF16Compressor(_Compressor):
    """Sends floats as bf16: the range of f32 with 8 bits of precision."""

    dtype = torch.bfloat16


class Compression:
    """The choices of `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
