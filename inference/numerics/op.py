"""One operator, several kernels.

An `Op` is a `torch.library` operator. What it computes is said by a plain implementation, in torch alone, which serves
every device; `kernel` registers a faster one for some device, which serves where the tensors lie there. Nothing else in
the package asks for a device. Beside the file of the plain form stands one file a device, `native` for the CPU or
`cuda`, that registers what it has; it is imported when the first kernel for that device is to serve. A derivative has
the form of the value that it belongs to.

The derivative of an operator is that of its plain implementation, run again in the backward pass: so every result can
be differentiated any number of times, whichever kernel computed it. Two things make derivatives faster: a `gradient` in
terms of other operators, and an `adjoint` kernel, which serves where no further derivatives are recorded.

Under `torch.func`'s transforms, which know no operators, one on independent sequences takes more of them at once where
it is mapped, and has its `gradient`; any other one is its plain implementation, and so is every one whose inputs have
tangents of `torch.autograd.forward_ad`.

`torch.library.custom_op` does the like, but its operators import torch's compiler when they are first called, which
every new process would wait for.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..native.library import library
from .arrays import ordinary
from .checks import DTYPES, HALVES, widened
from .forms import mode, same_form
from .interrupts import importing

_NAMESPACE = __name__.partition(".")[0]  # samplehold, but where its files are imported under another name
_DEVICES = "cpu", "cuda"
_is_mapped: Any = torch._C._functorch.is_legacy_batchedtensor  # pyright: ignore[reportAttributeAccessIssue]
"""Whether a tensor stands for several, in a backward pass of `torch.autograd.grad(..., is_grads_batched=True)`."""
_defined: dict[str, "Op"] = {}
_stand_ins: dict[str, str] = {}

Function = Callable[..., Any]
Gradients = tuple[Tensor | None, ...]


class Call(NamedTuple):
    """What a gradient may look at."""

    inputs: tuple[Any, ...]
    outputs: tuple[Tensor, ...]
    wanted: tuple[bool, ...]  # of which inputs the gradient is asked for


def _anything(*arguments: Any) -> bool:
    return True


class Kernels:
    """The kernels of something, by device.

    Arguments:
        plain: the form for all other devices, in torch alone.
    """

    def __init__(self, plain: Function) -> None:
        self.plain, self._package = plain, plain.__module__.rpartition(".")[0]
        self._kernels: dict[str, tuple[Function, Callable[..., bool]]] = {}

    def kernel(self, device: str, takes: Callable[..., bool] = _anything) -> Callable[[Function], Function]:
        """Decorates a function with the same arguments and results, for tensors on a device such as "cpu".

        `takes` says of the arguments, by their shapes, dtypes and options, whether the kernel can work on them; if not,
        the plain form does.
        """

        def register(function: Function) -> Function:
            self._kernels[device] = function, takes
            return function

        return register

    def find(self, device: str, arguments: Sequence[Any]) -> Function | None:
        """The kernel for these arguments on this device, or None."""
        device = _stand_ins.get(device, device)
        if mode() == "plain":
            return None
        load_kernels(self._package, device)
        function, takes = self._kernels.get(device, (None, _anything))
        return function if takes is _anything or takes(*arguments) else None


class Op(Kernels):
    """A torch operator in the namespace `samplehold`, called as a function.

    Arguments:
        schema: name, arguments and results, as in "scan(Tensor a, Tensor? h0, bool reverse) -> (Tensor, Tensor)".
        plain: computes it in torch alone, on any device and in any dtype.
        fake: from the same arguments, empty tensors (see `blank`) with the results' shapes and dtypes.
        gradient: from a `Call` and the gradients of the outputs, None where there is none, the gradients of the inputs.
            It must be made of differentiable operations. If it gives None, the plain implementation is differentiated.
        by_sequence: whether the first axis of every tensor, given or returned, is that of independent sequences.
    """

    schema: str
    fake: Function
    gradient: Callable[..., Gradients | None] | None

    def __init__(
        self,
        schema: str,
        plain: Function,
        fake: Function,
        gradient: Callable[..., Gradients | None] | None = None,
        by_sequence: bool = False,
    ) -> None:
        self.name: str = schema.partition("(")[0]
        super().__init__(plain)
        self.schema, self.fake, self.gradient = schema, fake, gradient
        self.by_sequence = by_sequence
        self._last = threading.local()
        if self.name in _defined:  # its file was loaded again
            _defined[self.name]._library._destroy()
        _defined[self.name] = self
        self._library = torch.library.Library(_NAMESPACE, "FRAGMENT")
        self._adjoints: dict[str, tuple[Function, Callable[..., bool]]] = {}
        self.overload: Any = self._define(schema, fake)
        self._library.impl(self.name, lambda *given: _contiguous(plain(*given)), "CompositeExplicitAutograd")
        for device in _DEVICES:
            self._library.impl(self.name, partial(self._dispatched, device), device.upper())
        name, steps = f"{_NAMESPACE}::{self.name}", {"setup_context": self._save, "lib": self._library}
        torch.library.register_autograd(name, self._differentiate, **steps)
        self._transformed = _as_function(self) if by_sequence and gradient is not None else plain

    def __call__(self, *arguments: Any) -> Any:
        device = self._computed_only(arguments)
        if device in _DEVICES:
            return self._serve(device, arguments)
        if transformed():
            return self._transformed(*arguments)
        if dual(*arguments):
            return self.plain(*arguments)
        recorded = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if recorded and any(isinstance(x, Tensor) and x.is_inference() for x in arguments):
            arguments = tuple(ordinary(x) if isinstance(x, Tensor) else x for x in arguments)
        return self.overload(*arguments)

    def _computed_only(self, arguments: Sequence[Any]) -> str | None:
        """The device of tensors that torch's dispatcher would only pass on: no derivative is recorded, nothing is
        traced.

        Calls of small tables spend a fifth of their time there.
        """
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or transformed() or _has_tangents():
            return None
        recorded, on_cpu = torch.is_grad_enabled(), True
        for x in arguments:
            kind = type(x)
            if kind is Tensor or kind is torch.nn.Parameter:
                if (recorded and x.requires_grad) or _is_mapped(x) or x.is_neg():
                    return None
                on_cpu = on_cpu and x.is_cpu
            elif isinstance(x, Tensor):
                return None
        device = "cpu" if on_cpu else next((x.device.type for x in arguments if isinstance(x, Tensor)), None)
        if device == "cpu" and not on_cpu:
            self._check_device(arguments)
        return device

    def _dispatched(self, device: str, *arguments: Any) -> Any:
        if device == "cpu":
            self._check_device(arguments)
        return self._serve(device, arguments)

    def _check_device(self, arguments: Sequence[Any]) -> None:
        """Raise TypeError if some tensor is not on the CPU: a kernel would read an address of another device."""
        for i, x in enumerate(arguments):
            if isinstance(x, Tensor) and not x.is_cpu:
                name = self.overload._schema.arguments[i].name
                raise TypeError(f"{name}: got a tensor on {x.device}, but others are on cpu.")

    def _serve(self, device: str, arguments: tuple[Any, ...]) -> Any:
        function = self.find(device, arguments)
        self._last.by_kernel = function is not None
        return _contiguous(self.plain(*arguments)) if function is None else function(*arguments)

    def adjoint(self, device: str, takes: Callable[..., bool] = _anything) -> Callable[[Function], Function]:
        """Decorates a kernel of the first derivative on a device, for the inputs that it `takes`.

        It is given a `Call` and the gradients of the outputs, None where there is none, and returns a list of the
        gradients of all floating-point inputs.
        """
        n, m = len(self.overload._schema.arguments), len(self.overload._schema.returns)

        def register(function: Function) -> Function:
            def of_tensors(*given: Any) -> list[Tensor]:
                inputs, outputs, grads = given[:n], given[n : n + m], given[n + m :]
                return function(Call(inputs, outputs, tuple(map(_differentiable, inputs))), *grads)

            others = [f"Tensor output{i}" for i in range(m)] + [f"Tensor? grad{i}" for i in range(m)]
            given = self.schema.partition("(")[2].partition(") ->")[0]
            name = f"{self.name}_adjoint_{device}"
            fake = lambda *given: [blank(x) for x in given[:n] if _differentiable(x)]
            overload = self._define(f"{name}({given}, {', '.join(others)}) -> Tensor[]", fake)
            self._library.impl(name, of_tensors, "CompositeExplicitAutograd")
            self._adjoints[device] = overload, takes
            return function

        return register

    def _define(self, schema: str, fake: Function) -> Any:
        name = self._library.define(schema)
        torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=self._library)
        return getattr(getattr(torch.ops, _NAMESPACE), name).default

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        if _is_traced():
            ctx.by_kernel = mode() == "native"
        else:  # nothing ran on torch's device "meta"
            ctx.by_kernel = not outputs[0].is_meta and self._last.by_kernel
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in outputs if not x.is_floating_point()))
        ctx.others = tuple(None if isinstance(x, Tensor) else x for x in inputs)
        kept = outputs if self.gradient is not None or self._adjoints else ()
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs), *kept)

    def _differentiate(self, ctx: Any, *grads: Tensor | None) -> Gradients:
        n, saved = len(ctx.others), ctx.saved_tensors
        inputs = tuple(other if x is None else x for x, other in zip(saved, ctx.others, strict=False))
        call = Call(inputs, saved[n:], ctx.needs_input_grad)
        if all(grad is None for grad in grads):
            return (None,) * n
        with same_form(ctx.by_kernel):
            further = torch.is_grad_enabled() or transformed()
            result = self._by_adjoint(call, grads) if ctx.by_kernel and not further else None
            if result is None and self.gradient is not None:
                result = self.gradient(call, *grads)
            return replay(self.plain, call, grads) if result is None else result

    def _by_adjoint(self, call: Call, grads: Sequence[Tensor | None]) -> Gradients | None:
        device = next(x.device.type for x in call.inputs if isinstance(x, Tensor))
        adjoint, takes = self._adjoints.get(_stand_ins.get(device, device), (None, _anything))
        # the maps of torch know no operator that returns a list
        if adjoint is None or _batched(grads) or not takes(*call.inputs):
            return None
        parts = iter(adjoint(*call.inputs, *call.outputs, *grads))
        return tuple(next(parts) if _differentiable(x) else None for x in call.inputs)


def in_single_precision(function: Function) -> Function:
    """Decorates a form of an operator, or of its gradient: arguments in half precision are computed in float32.

    Its results are rounded to the dtype of the first tensor.
    """

    @wraps(function)
    def wide(*given: Any) -> Any:
        dtype = next(x.dtype for x in given for x in (x.inputs if isinstance(x, Call) else (x,)) if _differentiable(x))
        found = function(*map(_widened, given)) if dtype in HALVES else function(*given)
        if dtype not in HALVES:
            return found
        if isinstance(found, Tensor):
            return found.to(dtype)
        return type(found)(x.to(dtype) if isinstance(x, Tensor) else x for x in found)

    return wide


def _widened(x: Any) -> Any:
    if isinstance(x, Call):
        return Call(tuple(map(_widened, x.inputs)), tuple(map(_widened, x.outputs)), x.wanted)
    return widened(x) if _differentiable(x) else x


class Variants(Kernels):
    """A function whose first argument is a tensor, with faster forms on some devices: for what cannot be an operator.

    What derivatives the forms have is their own affair.
    """

    def __call__(self, table: Tensor, *others: Any) -> Any:
        function = None if dual(*others) else self.serving(table, *others)
        return self.plain(table, *others) if function is None else function(table, *others)

    def serving(self, table: Tensor, *others: Any) -> Function | None:
        """The kernel that serves these arguments, if one does.

        None while torch traces, maps or transforms what is computed, and in other dtypes than float32 and float64.
        """
        if torch.compiler.is_compiling() or transformed() or dual(table) or table.dtype not in DTYPES:
            return None
        return self.find(table.device.type, (table, *others))


def replay(plain: Function, call: Call, grads: Sequence[Tensor | None]) -> Gradients:
    """The gradients of the inputs by running a plain implementation again, differentiable if gradients are recorded."""
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        # an input that was computed from another one must not count as a way to reach that one
        fresh = [
            (x.view_as(x) if further else x.detach().requires_grad_()) if wanted else x
            for x, wanted in zip(call.inputs, call.wanted, strict=True)
        ]
        output = plain(*fresh)
        outputs = output if isinstance(output, tuple) else (output,)
        terms = [(x * d).sum() for x, d in zip(outputs, grads, strict=True) if d is not None and x.requires_grad]
        if not terms:
            return (None,) * len(fresh)
        sources = [x for x, wanted in zip(fresh, call.wanted, strict=True) if wanted]
        if _batched(grads):  # which no number can be made of
            pairs = [(x, d) for x, d in zip(outputs, grads, strict=True) if d is not None and x.requires_grad]
            roots, weights = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(roots, sources, weights, create_graph=further, allow_unused=True))
            return tuple(next(found) if wanted else None for wanted in call.wanted)
        # the gradient of one number: torch imports much to check the shapes of several
        total: Any = sum(terms[1:], terms[0])
        found = iter(torch.autograd.grad(total, sources, create_graph=further, allow_unused=True))
    return tuple(next(found) if wanted else None for wanted in call.wanted)


def beyond_kernels(*grads: Tensor | None) -> bool:
    """Whether a backward pass is to be differentiated again, or mapped over several gradients at once."""
    return _batched(grads) or torch.is_grad_enabled() or transformed()


def _batched(grads: Sequence[Tensor | None]) -> bool:
    """Whether `torch.autograd.grad` takes several gradients at once, by a map of its own."""
    return any(x is not None and _is_mapped(x) for x in grads)


def differentiated(*inputs: Any) -> bool:
    """Whether autograd follows what is computed from these inputs, backward or forward."""
    if torch.is_grad_enabled():
        for x in inputs:
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return dual(*inputs)


def dual(*inputs: Any) -> bool:
    """Whether some of these inputs have a tangent, of a level of `torch.autograd.forward_ad`."""
    if not _has_tangents():
        return False
    return any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in inputs)


def _has_tangents() -> bool:
    """Whether a level of `torch.autograd.forward_ad` is open, within which tensors may have tangents."""
    return forward_ad._current_level >= 0  # pyright: ignore[reportAttributeAccessIssue]


def blank(like: Tensor, shape: Sequence[Any] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous tensor of no content, of the same shape, dtype and device by default; sizes may be symbolic."""
    return torch.empty(like.shape if shape is None else shape, dtype=dtype or like.dtype, device=like.device)


def tensors(n: int) -> str:
    """The results of an operator that has n of them, in its schema."""
    return f"({', '.join(['Tensor'] * n)})"


@cache
def load_kernels(package: str, device: str) -> None:
    """Have the kernels of a package for a device register themselves, if its library or compiler is there."""
    name = {"cpu": "native"}.get(device, device)
    with importing():
        if package.startswith(_NAMESPACE) and find_spec(f"{package}.{name}") is not None and _works(device):
            import_module(f"{package}.{name}")


def _works(device: str) -> bool:
    return library() is not None if device == "cpu" else find_spec("triton") is not None


@contextmanager
def stand_in(device: str, for_tensors_on: str) -> Iterator[None]:
    """Within, kernels for one device serve the tensors on another one, for tests: "cuda" for those on "cpu" where
    Triton interprets (`TRITON_INTERPRET=1`)."""
    _stand_ins[for_tensors_on] = device
    try:
        yield
    finally:
        del _stand_ins[for_tensors_on]


def _is_traced() -> bool:
    """Whether torch's compiler follows what is computed, on tensors without content."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def transformed() -> bool:
    """Whether one of `torch.func`'s transforms is at work, under which values cannot be looked at."""
    return torch._C._are_functorch_transforms_active()


def _as_function(operator: Op) -> Function:
    """An operator on sequences as a function that `torch.func` differentiates and maps."""

    class Transformed(torch.autograd.Function):
        @staticmethod
        def forward(*given: Any) -> Any:
            return operator.overload(*given)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            operator._save(ctx, inputs, output)
            ctx.save_for_forward(*(x for x in inputs if isinstance(x, Tensor)))

        backward = staticmethod(operator._differentiate)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            """Along a direction, by the plain form."""
            found = iter(ctx.saved_tensors)
            inputs = [next(found) if other is None else other for other in ctx.others]
            moving = [k for k, tangent in enumerate(tangents) if isinstance(tangent, Tensor)]

            def moved(*values: Tensor) -> Any:
                return operator.plain(*(dict(zip(moving, values, strict=True)).get(k, x) for k, x in enumerate(inputs)))

            directions = tuple(tangents[k] for k in moving)
            return torch.func.jvp(moved, tuple(inputs[k] for k in moving), directions)[1]

        @staticmethod
        def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
            size = info.batch_size
            output = operator(*(_joined(x, dim, size) for x, dim in zip(given, dims, strict=True)))
            parted = lambda x: x.reshape(size, x.shape[0] // max(size, 1), *x.shape[1:])
            return (
                (parted(output), 0) if isinstance(output, Tensor) else (tuple(map(parted, output)), (0,) * len(output))
            )

    return Transformed.apply


def _joined(x: Any, dim: int | None, size: int) -> Any:
    """A tensor whose sequences are those of all that it is mapped over."""
    if not isinstance(x, Tensor):
        return x
    return (x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)


def _contiguous(output: Any) -> Any:
    return output.contiguous() if isinstance(output, Tensor) else tuple(x.contiguous() for x in output)


def _differentiable(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
