"""Which implementation a call takes.

Each algorithm exists as several implementations with the same function names:

- `naive`: loops as in a textbook, any dtype, differentiable; the oracle of the tests, never chosen here;
- `cpu`: fused numba kernels behind `torch.library.custom_op`, for float32 and float64 on the CPU;
- `vectorized`: plain torch, a step at a time over all sequences; any device, differentiable any number of times;
- `cuda`: the place of the Triton kernels; until they are here, `vectorized` serves CUDA tensors.
"""

from types import ModuleType
from typing import Literal

from torch import Tensor

try:
    import numba  # noqa: F401

    HAS_NUMBA = True
except ImportError:  # no wheel for this machine
    HAS_NUMBA = False


def choose(*tables: Tensor | None) -> Literal["cpu", "vectorized"]:
    """Name the fastest implementation that can take these tables."""
    if HAS_NUMBA and all(t is None or (t.device.type == "cpu" and t.dtype.is_floating_point) for t in tables):
        return "cpu"
    return "vectorized"


def implementation(algorithm: Literal["markov"], *tables: Tensor | None) -> ModuleType:
    """The module of `algorithm` that these tables should take, e.g. `samplehold.inference.chains.copy.cpu`."""
    from importlib import import_module

    rooms = {"markov": "chains.markov"}
    kind = {"cpu": "cpu", "vectorized": "plain"}[choose(*tables)]
    return import_module(f"...{rooms[algorithm]}.{kind}", __name__)
