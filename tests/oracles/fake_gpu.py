"""A device that is not there: tensors that lie in the memory of the CPU, and behave as if they did not.

Torch's name for it is "fake". Its operators are those of the CPU, kernels among them. What would fail on a GPU fails
here too: a tensor of the host among those of the device, `numpy()`, a generator of the host. What would wait for a GPU
is counted: a number that the host looks at, a size that depends on values, a copy in either direction. So a test on
this device says of code that it runs on a GPU, and how often it waits there; of a GPU's kernels it says nothing.

See Also: `oracles.gpu`, which interprets those kernels.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from linecache import getline
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "fake"
LOOKS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
LOOKS |= {"_linalg_check_errors", "equal", "is_nonzero", "repeat_interleave"}
LOOKS |= {"_linalg_eigh", "_linalg_svd", "linalg_eig", "_linalg_eigvals"}  # whether LAPACK got there
INDEXED = {"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"}
INDEXING = Tensor.__getitem__, Tensor.__setitem__
MADE = torch.tensor, torch.as_tensor, torch.asarray
ELSEWHERE = "/oracles/", "site-packages", "<frozen"
COPIES = {"_to_copy", "copy_", "copy", "to"}  # `to` comes whole where gradients are not recorded at all
PACKED = {
    "_pack_padded_sequence",
    "_pack_padded_sequence_backward",
    "_pad_packed_sequence",
}  # their sizes are the host's

Waits = list[str]
_counting: list[Waits] = []
_taking: list[list[int]] = []


class FakeTensor(Tensor):
    """A tensor on the device, around one of the CPU."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "FakeTensor":
        shape: dict[str, Any] = {"layout": inner.layout}
        if inner.layout == torch.strided:
            shape = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made = Tensor._make_wrapper_subclass(cls, inner.shape, **shape, dtype=inner.dtype, device=torch.device(NAME, 0))
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return _run(function, arguments, options or {})

    def __repr__(self) -> str:
        return f"fake({self.inner})"

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if not self.ndim else repr(self)

    def new_tensor(self, given: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
        made = torch.tensor(given, dtype=dtype or self.dtype).to(self.device)
        return made.requires_grad_(requires_grad)

    def tolist(self) -> Any:
        _wait("tolist")
        _take(self)
        return self.inner.tolist()

    def numpy(self, *given: Any, **options: Any) -> Any:
        raise TypeError("can't convert a tensor of the device fake to numpy; use Tensor.cpu() first")

    __array__ = numpy

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return FakeTensor(self.inner)

    @data.setter
    def data(self, given: "FakeTensor") -> None:
        Tensor.data.__set__(self, given)  # type: ignore[attr-defined]
        self.inner = given.inner


FakeTensor.__name__ = "Tensor"  # as messages call it


class _AnyGenerator(type(torch.Generator)):
    """A type checker that met the class in the place of torch's takes torch's for its own."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class _Generator(torch.Generator, metaclass=_AnyGenerator):
    """A generator of the CPU that says that it is the device's."""

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        made = super().__new__(cls, "cpu")
        made.place = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place


class _Calls(TorchFunctionMode):
    """What torch's operators do not show: in what numbers come, and whose generators are."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        if function in INDEXING and isinstance(arguments[0], FakeTensor):
            arguments = arguments[0], _copied(arguments[1], arguments[0].device), *arguments[2:]
            places = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
            single = len(places) == arguments[0].ndim and all(isinstance(place, int) for place in places)
            if single and arguments[2:] and not isinstance(arguments[2], Tensor):
                _wait("copy of a number")  # `x[0] = 1`; `x[:2] = 1` is a fill, which the device does alone
        if function is Tensor.prod and len(arguments) + len(options) > 1 and arguments[0].requires_grad:
            _wait("whether a factor is 0, for the gradient of a product")
        if function is torch.unravel_index and isinstance(arguments[0], FakeTensor):  # it makes a table of its own
            return tuple(FakeTensor(x) for x in function(arguments[0].inner, *arguments[1:], **options))
        made = function in MADE and not isinstance(arguments[0], FakeTensor)
        if made and torch.device(options.get("device") or "cpu").type == NAME:
            return function(*arguments, **(options | {"device": "cpu"})).to(options["device"])
        generator, device = options.get("generator"), options.get("device")
        device = next((x.device for x in _leaves(arguments) if isinstance(x, FakeTensor)), device)
        if generator is not None and device is not None and generator.device.type != torch.device(device).type:
            raise RuntimeError(f"Expected a '{device}' device type for generator but found '{generator.device}'")
        return function(*arguments, **options)


def _lstm_cell(into: Tensor, back: Tensor, cell: Tensor, b_into: Any = None, b_back: Any = None) -> Any:
    gates = _sum(into, b_into) + _sum(back, b_back)
    pushed, forgotten, new, shown = gates.chunk(4, -1)
    cell = forgotten.sigmoid() * cell + pushed.sigmoid() * new.tanh()
    return shown.sigmoid() * cell.tanh(), cell, gates


def _lstm_cell_backward(of_h: Any, of_cell: Any, before: Tensor, cell: Tensor, gates: Tensor, biased: bool) -> Any:
    zero = torch.zeros_like(gates)
    found = aten._thnn_differentiable_lstm_cell_backward(of_h, of_cell, gates, zero, None, None, before, cell)
    return found[0], found[2], found[0].sum(0) if biased else None


def _gru_cell(into: Tensor, back: Tensor, h: Tensor, b_into: Any = None, b_back: Any = None) -> Any:
    into, back = _sum(into, b_into), _sum(back, b_back)
    (reset, update, new), (reset_back, update_back, before) = into.chunk(3, -1), back.chunk(3, -1)
    update = (update + update_back).sigmoid()
    seen = (1 - update) * (new + (reset + reset_back).sigmoid() * before).tanh() + update * h
    return seen, torch.cat([into, back, h], -1)


def _gru_cell_backward(of_h: Tensor, kept: Tensor, biased: bool) -> Any:
    into, back, h = kept.split([3 * of_h.shape[-1], 3 * of_h.shape[-1], of_h.shape[-1]], -1)
    *gates, of_start, _, _ = aten._thnn_differentiable_gru_cell_backward(of_h, into, back, h, None, None)
    return *gates, of_start, *(part.sum(0) if biased else None for part in gates)


def _sum(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


aten = torch.ops.aten
CELLS = {  # of which torch expects a backend to have fused ones
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}


def _copied(index: Any, device: torch.device) -> Any:
    """An index whose lists are tensors of the device: those that torch makes itself it would look for in a backend."""
    if isinstance(index, tuple):
        return tuple(_copied(part, device) for part in index)
    return torch.tensor(index, dtype=None if index else torch.long).to(device) if isinstance(index, list) else index


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return _run(function, arguments, options or {})


def _run(function: Any, arguments: Any, options: dict[str, Any]) -> Any:
    given = [x for x in _leaves((*arguments, *options.values())) if isinstance(x, Tensor)]
    here = [x for x in given if isinstance(x, FakeTensor)]
    name, device = function.name().partition("::")[2].partition(".")[0], options.get("device")
    there = bool(here) if device is None else torch.device(device).type == NAME
    if not (here or there):
        return function(*arguments, **options)
    _count(name, given, there, options)
    if there and device is not None:
        options = options | {"device": torch.device("cpu")}
    inside = {id(x.inner): x for x in here}
    work = CELLS.get(name, function)
    found = work(*_inner(arguments), **{key: _inner(value) for key, value in options.items()})
    if torch.Tag.inplace_view in function.tags and name != "set_":  # of which the tensor around has to know
        with no_dispatch():
            function(*arguments, **options)
    if not there:
        return found
    if name == "_pack_padded_sequence":
        return FakeTensor(found[0]), found[1]
    return _around(found, inside)


def _leaves(given: Iterable[Any]) -> Iterator[Any]:
    """What stands in nested tuples and lists. Torch's own walks take most of the time of small operators."""
    for x in given:
        if isinstance(x, tuple | list):
            yield from _leaves(x)
        else:
            yield x


def _inner(given: Any) -> Any:
    """The tensors of the CPU in the places of those around them."""
    if isinstance(given, FakeTensor):
        return given.inner
    return type(given)(map(_inner, given)) if type(given) in (tuple, list) else given


def _around(found: Any, inside: dict[int, FakeTensor]) -> Any:
    """The tensors around these: those that are there already, by the one inside, or new ones."""
    if isinstance(found, Tensor):
        return inside[id(found)] if id(found) in inside else FakeTensor(found.resolve_conj())
    return type(found)(_around(x, inside) for x in found) if type(found) in (tuple, list) else found


def _count(name: str, given: list[Tensor], there: bool, options: dict[str, Any]) -> None:
    """Count what waits for the device; raise RuntimeError where tensors lie on two."""
    of_host = [x for x in given if x.ndim and not isinstance(x, FakeTensor) and not x.is_meta]
    if name in COPIES:
        if not there or not all(isinstance(x, FakeTensor) or x.is_meta for x in given):
            _wait(name)
        if not there or not isinstance(given[0], FakeTensor):
            _take(given[-1])
    elif name in INDEXED and isinstance(given[0], FakeTensor):
        if of_host or any(x.dtype in (torch.bool, torch.uint8) and x.ndim for x in given[1:]):
            _wait(name)
    elif of_host and name not in PACKED:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found {NAME} and cpu")
    elif name in LOOKS and not (name == "repeat_interleave" and options.get("output_size") is not None):
        _wait(name)


def _wait(name: str) -> None:
    """Note what waits, and the line of the library that asked for it."""
    if _counting:
        frame = sys._getframe(1)
        while frame and any(part in frame.f_code.co_filename for part in ELSEWHERE):
            frame = frame.f_back
        where = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
        _counting[-1].append(f"{name} at {where[0]}:{where[1]}: {getline(*where).strip()}")


def _take(x: Tensor) -> None:
    """Note how many numbers come to the host."""
    if _taking and isinstance(x, FakeTensor):
        _taking[-1].append(x.numel())


class _Backend:
    """What torch asks of every backend; of this one it finds none but within `fake_gpu`."""

    there = registered = False

    def is_available(self) -> bool:
        return self.there

    is_initialized = is_available

    def device_count(self) -> int:
        return int(self.there)

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """It draws from the CPU's generator."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


_backend = _Backend()


@contextmanager
def fake_gpu() -> Iterator[torch.device]:
    """Within, the device "fake" is there."""
    if not _backend.registered:
        backend_registration._setup_privateuseone_for_python_backend(NAME, _backend)
        _backend.registered = True
    usual = torch.Generator
    with ExitStack() as stack:
        torch.Generator = _Generator  # type: ignore[misc]
        stack.callback(setattr, torch, "Generator", usual)
        _backend.there = True
        stack.callback(setattr, _backend, "there", False)
        # torch's engine knows the devices of the first backward pass of a process; on one thread it asks for none
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(_Calls())
        stack.enter_context(_Mode())
        yield torch.device(NAME, 0)


@contextmanager
def a_gpu() -> Iterator[torch.device]:
    """A GPU if there is one, else the device that is not there."""
    if torch.cuda.is_available():
        yield torch.device("cuda")
        return
    with fake_gpu() as device:
        yield device


@contextmanager
def waits() -> Iterator[Waits]:
    """Counts how often the host waits for the device."""
    _counting.append([])
    try:
        yield _counting[-1]
    finally:
        _counting.pop()


@contextmanager
def taken() -> Iterator[list[int]]:
    """How many numbers come from the device to the host in each copy."""
    _taking.append([])
    try:
        yield _taking[-1]
    finally:
        _taking.pop()
