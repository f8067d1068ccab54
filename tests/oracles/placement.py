"""Where the tests' tensors lie, and in what dtype: the options `--device` and `--dtype` of pytest.

A test makes tensors and generators as ever. On another device than the CPU they lie there; what the library makes is
left where the library puts it, but for the parameters of networks, which a user would move. What a test reads as numpy
arrays is copied back, and it may compare with numbers that lie elsewhere. Tolerances go by dtype. What only the CPU can
do is marked `@pytest.mark.cpu("why")`, and skipped elsewhere; what the device that is not there cannot is marked
`@pytest.mark.hardware("why")`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from .fake_gpu import NAME, FakeTensor, fake_gpu

TESTS = str(Path(__file__).parents[1])
THROUGH = "/numpy/", "/sklearn/", "/contextlib.py"  # what reads for its caller
COMPARED = {torch.equal, torch.allclose, Tensor.equal, Tensor.allclose}
READ = {Tensor.numpy, Tensor.__array__}


def tolerances(dtype: torch.dtype, size: float = 1.0) -> dict[str, float]:
    """`rtol` and `atol` of a result of a well-conditioned recursion, whose terms are of a size."""
    rtol, atol = (1e-11, 1e-12) if dtype == torch.float64 else (1e-4, 1e-5)
    return {"rtol": rtol, "atol": atol * size}


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype, size: float = 1.0, **tight: float) -> None:
    """Compare what a kernel makes of tables of a dtype with a twin in float64: to `tight`, or as that dtype can."""
    limits = tight if dtype == torch.float64 else tolerances(dtype, size)
    torch.testing.assert_close(actual, expected.to(actual.dtype), **limits)


def _in_a_test() -> bool:
    """Whether the caller of the caller is a test or an oracle."""
    frame: Any = sys._getframe(2)
    while any(part in frame.f_code.co_filename for part in THROUGH):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(TESTS)


class _Placed(TorchFunctionMode):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.place, self.makers = device, _device_constructors()

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        if function not in self.makers and function not in READ and function not in COMPARED:
            return function(*arguments, **options)
        if not _in_a_test():
            return function(*arguments, **options)
        if function in COMPARED:
            return function(arguments[0], arguments[1].to(arguments[0].device), *arguments[2:], **options)
        if function in READ:
            return function(arguments[0].cpu(), *arguments[1:], **options)
        if options.get("device") is not None:
            return function(*arguments, **options)
        if options.get("generator") is not None:
            return function(*arguments, **options, device=options["generator"].device)
        wanted = options.pop("requires_grad", False)
        return function(*arguments, **options).to(self.place).requires_grad_(wanted)


def _read_by_tests(usual: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *given, **options: x.cpu().numpy() if _in_a_test() else usual(x, *given, **options)


@contextmanager
def placed(name: str) -> Iterator[torch.device]:
    """Within, the tensors of tests lie on the device of this name."""
    with ExitStack() as stack:
        if name == "cpu":
            yield torch.device(name)
            return
        there = stack.enter_context(fake_gpu()) if name == NAME else torch.device(name)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        parameter, buffer = torch.nn.Parameter.__new__, torch.nn.Module.register_buffer
        close, from_numpy = torch.testing.assert_close, torch.from_numpy

        def parameter_there(cls: Any, data: Tensor | None = None, requires_grad: bool = True) -> Tensor:
            data = torch.empty(0, device=there) if data is None else data
            return parameter(cls, data if data.is_meta else data.to(there), requires_grad)

        def buffer_there(self: Any, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
            buffer(self, name, tensor if tensor is None or tensor.is_meta else tensor.to(there), persistent)

        def from_numpy_there(table: Any) -> Tensor:
            return from_numpy(table).to(there) if _in_a_test() else from_numpy(table)

        def close_anywhere(actual: Any, expected: Any, **options: Any) -> None:
            close(actual, expected, **({"check_device": False} | options))

        class Generator(torch.Generator):
            def __new__(cls, device: Any = None) -> "Generator":
                return super().__new__(cls, there if device is None and _in_a_test() else device or "cpu")

        patch.setattr(torch, "Generator", Generator)
        patch.setattr(torch.nn.Parameter, "__new__", parameter_there)
        patch.setattr(torch.nn.Module, "register_buffer", buffer_there)
        patch.setattr(torch, "from_numpy", from_numpy_there)
        patch.setattr(torch.testing, "assert_close", close_anywhere)
        for name in ("numpy", "__array__") if there.type == NAME else ():
            patch.setattr(FakeTensor, name, _read_by_tests(getattr(FakeTensor, name)))
        stack.enter_context(_Placed(there))
        yield there
