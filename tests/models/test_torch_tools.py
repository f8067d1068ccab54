"""Every layer under every tool of torch, with torch's own GRU as the control: values and gradients, not mere silence.

What a tool must give is computed plainly beside it: the weight that a parametrisation makes is written into a copy of
the layer, samples of one batch are passed one by one, and so on.
"""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracles.operators import unchecked
from pyro.nn import PyroSample
from pyro.nn.module import to_pyro_module_
from samplehold import (
    GRU,
    LSTM,
    QRNN,
    DoublingLSTM,
    Elman,
    MinGRU,
    MinLSTM,
    PeepholeLSTM,
    RotatingGRU,
    StateRegularized,
    truncate,
)
from samplehold.face.stacks import NondeterministicStackRNN, StratificationStackRNN, SuperpositionStackRNN
from samplehold.inference.stacks.automaton.op import Tape
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

FEATURES, UNITS = 3, 4


class ControlGRU(nn.GRU):
    """torch's own, batch first as the others are, without `lengths`."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, batch_first=True, **options)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "MinGRU": lambda: MinGRU(FEATURES, UNITS, num_layers=2, candidate="tanh"),
    "MinLSTM": lambda: MinLSTM(FEATURES, UNITS, candidate="simplex", block=2),
    "RotatingGRU": lambda: RotatingGRU(FEATURES, UNITS, num_layers=2),
    "QRNN": lambda: QRNN(FEATURES, UNITS, num_layers=2, window=2),
    "DoublingLSTM": lambda: DoublingLSTM(FEATURES, UNITS, num_layers=2),
    "GRU": lambda: GRU(FEATURES, UNITS, num_layers=2),
    "LSTM": lambda: LSTM(FEATURES, UNITS),
    "Elman": lambda: Elman(FEATURES, UNITS),
    "PeepholeLSTM": lambda: PeepholeLSTM(FEATURES, UNITS),
    "StateRegularized GRU": lambda: StateRegularized(GRU(FEATURES, UNITS), 5, 0.5),
    "StateRegularized LSTM": lambda: StateRegularized(LSTM(FEATURES, UNITS), 5, 0.5, "l2"),
    "StateRegularized Elman": lambda: StateRegularized(Elman(FEATURES, UNITS), 5, 0.5, "cosine", "soft", True),
    "SuperpositionStackRNN": lambda: SuperpositionStackRNN(FEATURES, UNITS, value_size=2),
    "StratificationStackRNN": lambda: StratificationStackRNN(FEATURES, UNITS, value_size=2, stacks=2),
    "NondeterministicStackRNN": lambda: NondeterministicStackRNN(FEATURES, UNITS, symbols=2),
    "nn.GRU": lambda: ControlGRU(FEATURES, UNITS),
}
STACKS = ("SuperpositionStackRNN", "StratificationStackRNN", "NondeterministicStackRNN")
OVER_TORCHS = ("StateRegularized GRU", "StateRegularized LSTM", "StateRegularized Elman")
RUNS_TORCHS_LOOPS = ("GRU", "LSTM", "Elman", "nn.GRU", *OVER_TORCHS)

STACK_NETWORK_GAPS: dict[str, str] = {}
"""What the stack networks do not do yet."""

TORCH_GAPS: dict[str, str] = {"nn.GRU": "ensemble per_sample"}
"""What torch's own layer does not do."""


def made(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LAYERS[name]().to(dtype)


def inputs(seed: int = 0, batch: int = 3, steps: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, steps, FEATURES, generator=generator, dtype=torch.float64).to(dtype)


def tensors(result: Any) -> Iterator[Tensor]:
    """All tensors of outputs and states, but those of a `Tape`: its form depends on the kernels."""
    if isinstance(result, Tape):
        return
    if isinstance(result, Tensor):
        yield result
    elif is_dataclass(result):
        for field in fields(result):
            yield from tensors(getattr(result, field.name))
    elif isinstance(result, tuple | list):
        for part in result:
            yield from tensors(part)


def flat(result: Any) -> tuple[Tensor, ...]:
    return tuple(tensors(result))


def loss(result: Any) -> Tensor:
    """A number to which all outputs and states count, each differently."""
    return sum((k + 1) * x.square().sum() for k, x in enumerate(tensors(result)) if x.numel())  # pyright: ignore


def weights(layer: nn.Module) -> list[tuple[nn.Module, str]]:
    """All matrices of a layer, as (module, name): what one parametrises."""
    return [
        (module, name)
        for module in layer.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() > 1
    ]


def gradients(layer: nn.Module, result: Any) -> dict[str, Tensor]:
    named = dict(layer.named_parameters())
    found = torch.autograd.grad(loss(result), list(named.values()), materialize_grads=True)
    return dict(zip(named, found, strict=True))


def stepped(layer: Any, x: Tensor) -> Tensor:
    """The outputs by `step`, one input after the other."""
    state, outputs = None, []
    for x_t in x.unbind(-2):
        output, state = layer.step(x_t, state)
        outputs.append(output)
    return torch.stack(outputs, -2)


# --- the tools -------------------------------------------------------------------------------------------------------


def check_functional_call(name: str) -> None:
    layer, other, x = made(name), made(name, 1), inputs()
    given = {key: value.detach() for key, value in other.named_parameters()}
    expected = other(x)
    assert_close(flat(functional_call(layer, given, (x,))), flat(expected), rtol=1e-12, atol=1e-12)
    found = grad(lambda p: loss(functional_call(layer, p, (x,))))(given)
    assert_close(found, gradients(other, expected), rtol=1e-10, atol=1e-12)
    assert_close(flat(layer(x)), flat(made(name)(x)), rtol=0, atol=0)  # and is as it was


def check_ensemble(name: str) -> None:
    members, x = [made(name, seed) for seed in range(3)], inputs()
    stacked, buffers = stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")  # as torch's documentation of ensembles does
    outputs = vmap(lambda p, b: flat(functional_call(base, (p, b), (x,))))(stacked, buffers)
    slopes = vmap(grad(lambda p, b: loss(functional_call(base, (p, b), (x,)))))(stacked, buffers)
    own = vmap(lambda p, b, x: flat(functional_call(base, (p, b), (x,))))(stacked, buffers, torch.stack([x, -x, 2 * x]))
    for k, (member, scale) in enumerate(zip(members, (1, -1, 2), strict=True)):
        expected = member(x)
        assert_close([z[k] for z in outputs], list(flat(expected)), rtol=1e-12, atol=1e-12)
        assert_close({key: g[k] for key, g in slopes.items()}, gradients(member, expected), rtol=1e-10, atol=1e-12)
        assert_close([z[k] for z in own], list(flat(member(scale * x))), rtol=1e-12, atol=1e-12)


def check_per_sample(name: str) -> None:
    layer, x = made(name), inputs()
    given = {key: value.detach() for key, value in layer.named_parameters()}
    for batch in (x, x[:, None]):  # each sample [T, F] without a batch axis, and [1, T, F] with one
        found = vmap(grad(lambda p, x: loss(functional_call(layer, p, (x,)))), (None, 0))(given, batch)
        for k, sample in enumerate(batch):
            expected = gradients(layer, layer(sample))
            assert_close({key: g[k] for key, g in found.items()}, expected, rtol=1e-10, atol=1e-12)


def check_parametrization(name: str, apply: Callable[[nn.Module, str], nn.Module]) -> None:
    x = inputs()
    for k, (_, weight_name) in enumerate(weights(made(name))):
        layer, plain = made(name), made(name)
        module, written = weights(layer)[k][0], weights(plain)[k][0]
        with torch.random.fork_rng():
            torch.manual_seed(0)  # spectral norms start from random vectors
            apply(module, weight_name)
        layer.eval()  # in training each reading of a spectral norm is another
        originals = list(module.parametrizations[weight_name].parameters())
        with torch.no_grad():
            for original in originals:
                original.mul_(1.5)  # so that the weight is no longer what it was
            getattr(written, weight_name).copy_(getattr(module, weight_name))
        expected = plain(x)
        got = layer(x)
        assert_close(flat(got), flat(expected), rtol=1e-12, atol=1e-12)
        if hasattr(layer, "step"):
            assert_close(stepped(layer, x), expected[0], rtol=1e-12, atol=1e-12)
        (at_weight,) = torch.autograd.grad(loss(expected), getattr(written, weight_name))
        wanted = torch.autograd.grad(getattr(module, weight_name), originals, at_weight)
        assert_close(torch.autograd.grad(loss(got), originals), wanted, rtol=1e-10, atol=1e-12)
        parametrize.remove_parametrizations(module, weight_name)
        assert_close(flat(layer(x)), flat(expected), rtol=1e-12, atol=1e-12)


def check_weight_norm(name: str) -> None:
    check_parametrization(name, parametrizations.weight_norm)


def check_spectral_norm(name: str) -> None:
    check_parametrization(name, parametrizations.spectral_norm)


def check_orthogonal(name: str) -> None:
    check_parametrization(name, parametrizations.orthogonal)


def check_pruning(name: str) -> None:
    x = inputs()
    for k, (_, weight_name) in enumerate(weights(made(name))):
        layer, plain = made(name), made(name)
        module, written = weights(layer)[k][0], weights(plain)[k][0]
        prune.l1_unstructured(module, weight_name, amount=0.5)
        mask = getattr(module, f"{weight_name}_mask")
        for scale in (1.0, 3.0):  # the mask stays in place when the weights move
            with torch.no_grad():
                getattr(module, f"{weight_name}_orig").mul_(scale)
                getattr(written, weight_name).copy_(mask * getattr(module, f"{weight_name}_orig"))
            expected = plain(x)
            if hasattr(layer, "step"):
                assert_close(stepped(layer, x), expected[0], rtol=1e-12, atol=1e-12)
            got = layer(x)
            assert_close(flat(got), flat(expected), rtol=1e-12, atol=1e-12)
            (found,) = torch.autograd.grad(loss(got), getattr(module, f"{weight_name}_orig"))
            (at_weight,) = torch.autograd.grad(loss(expected), getattr(written, weight_name))
            assert_close(found, mask * at_weight, rtol=1e-10, atol=1e-12)
        prune.remove(module, weight_name)
        assert_close(flat(layer(x)), flat(expected), rtol=1e-12, atol=1e-12)


def check_forward_hooks(name: str) -> None:
    layer, plain, x = made(name), made(name), inputs()
    before = layer.register_forward_pre_hook(lambda module, given: (2 * given[0], *given[1:]))
    after = layer.register_forward_hook(lambda module, given, result: (3 * result[0], *result[1:]))
    whole, *state = flat(layer(x))
    expected, *expected_state = flat(plain(2 * x))
    assert_close(whole, 3 * expected, rtol=1e-12, atol=1e-12)
    assert_close(state, expected_state, rtol=1e-12, atol=1e-12)
    if hasattr(layer, "step"):
        assert_close(stepped(layer, x), whole, rtol=1e-12, atol=1e-12)
    before.remove()
    after.remove()
    assert_close(flat(layer(x)), flat(plain(x)), rtol=0, atol=0)
    for k, (child, module) in enumerate(plain.named_children()):
        if not isinstance(module, nn.Linear):
            continue
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(3)
        handle = list(layer.children())[k].register_forward_hook(lambda module, given, result: 3 * result)
        assert_close(flat(layer(x)), flat(plain(x)), rtol=1e-12, atol=1e-12, msg=child)
        assert_close(stepped(layer, x), plain(x)[0], rtol=1e-12, atol=1e-12, msg=child)
        handle.remove()


def check_backward_hooks(name: str) -> None:
    layer, plain, x = made(name), made(name), inputs().requires_grad_()
    (expected,) = torch.autograd.grad(plain(x)[0].square().sum(), x)
    seen = []
    layer.register_full_backward_pre_hook(lambda module, grads: tuple(None if g is None else 2 * g for g in grads))
    layer.register_full_backward_hook(lambda module, given, grads: seen.append(given) or (3 * given[0], *given[1:]))
    (found,) = torch.autograd.grad(layer(x)[0].square().sum(), x)
    assert_close(found, 6 * expected, rtol=1e-12, atol=1e-12)
    assert_close(seen[0][0], 2 * expected, rtol=1e-12, atol=1e-12)
    called = []
    for child in layer.children():
        child.register_full_backward_hook(lambda module, *grads: called.append(module) or None)
    torch.autograd.grad(layer(x)[0].square().sum(), x)
    assert set(called) == set(layer.children())


def check_pyro_sample(name: str) -> None:
    x = inputs()
    for k, (_, weight_name) in enumerate(weights(made(name))):
        layer, plain = made(name), made(name)
        to_pyro_module_(layer)
        module, written = weights(layer)[k][0], weights(plain)[k][0]
        weight = getattr(written, weight_name)
        prior = dist.Normal(torch.zeros_like(weight), 1.0).to_event(weight.dim())
        setattr(module, weight_name, PyroSample(prior))
        with torch.random.fork_rng(), pyro.poutine.trace() as trace:
            got = layer(x)
        (site,) = [site for site in trace.trace.nodes.values() if site["type"] == "sample"]
        with torch.no_grad():
            weight.copy_(site["value"])
        assert_close(flat(got), flat(plain(x)), rtol=1e-12, atol=1e-12)
        given = site["value"].detach().requires_grad_()
        (found,) = torch.autograd.grad(loss(pyro.condition(layer, {site["name"]: given})(x)), given)
        assert_close(found, torch.autograd.grad(loss(plain(x)), weight)[0], rtol=1e-10, atol=1e-12)
    pyro.clear_param_store()


def check_compile(name: str) -> None:
    """Of torch's own recurrent layers, and those derived from them, the compiler asks for a word of consent."""
    layer, x = made(name), inputs(steps=3)
    torch._dynamo.reset()
    with unchecked(), torch._dynamo.config.patch(allow_rnn=name in RUNS_TORCHS_LOOPS):
        got = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    expected = layer(x)
    assert_close(flat(got), flat(expected), rtol=1e-12, atol=1e-12)
    assert_close(gradients(layer, got), gradients(layer, expected), rtol=1e-10, atol=1e-12)


class Flat(nn.Module):
    """Records of states are no trees that the exporter knows."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return flat(self.layer(x))


def check_export(name: str) -> None:
    module = Flat(made(name))
    with unchecked():
        exported = torch.export.export(module, (inputs(steps=3),)).module()
    assert_close(exported(inputs(1, steps=3)), module(inputs(1, steps=3)), rtol=1e-12, atol=1e-12)


def torch_casts_lstms() -> bool:
    """Whether torch's own LSTM runs in bfloat16 on this processor."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(2, 2)(torch.zeros(3, 1, 2))
    except RuntimeError:
        return False
    return True


def check_autocast(name: str) -> None:
    if name == "LSTM" and not torch_casts_lstms():
        pytest.skip("torch's own LSTM does not run in bfloat16 on this processor")
    layer, x = made(name, dtype=torch.float32), inputs(dtype=torch.float32)
    expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = layer(x)
        step = stepped(layer, x) if hasattr(layer, "step") else None
    assert_close(got[0].float(), expected[0], rtol=0, atol=0.02)
    assert step is None or (step.float() - expected[0]).abs().max() < 0.02
    slopes, wanted = gradients(layer, got), gradients(layer, expected)
    for key, slope in slopes.items():
        assert slope.dtype == torch.float32
        assert (slope - wanted[key]).norm() <= 0.05 * wanted[key].norm() + 1e-3, key


def check_bfloat16(name: str) -> None:
    layer, x = made(name, dtype=torch.bfloat16), inputs(dtype=torch.bfloat16)
    exact = made(name)
    with torch.no_grad():
        for own, given in zip(exact.parameters(), layer.parameters(), strict=True):
            own.copy_(given)
    got, expected = layer(x), exact(x.double())
    assert all(z.dtype == torch.bfloat16 for z in tensors(got))
    assert_close(got[0].double(), expected[0], rtol=0, atol=0.02)
    if hasattr(layer, "step"):
        assert_close(stepped(layer, x).double(), expected[0], rtol=0, atol=0.02)
    slopes, wanted = gradients(layer, got), gradients(exact, expected)
    for key, slope in slopes.items():
        assert slope.dtype == torch.bfloat16
        assert (slope.double() - wanted[key]).norm() <= 0.05 * wanted[key].norm() + 1e-3, key


def check_double_backward(name: str) -> None:
    layer, x = made(name), inputs(batch=1, steps=3).requires_grad_()
    names, given = zip(*layer.named_parameters(), strict=True)

    def outputs(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        result = functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        return tuple(z for z in tensors(result) if z.requires_grad)

    leaves = [x, *(value.detach().requires_grad_() for value in given)]
    assert torch.autograd.gradcheck(outputs, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(outputs, leaves, fast_mode=True)


def check_hessian(name: str) -> None:
    """Forward over reverse against reverse over reverse."""
    layer = made(name)
    curved = lambda x: loss(layer(x))
    x = inputs(batch=1, steps=3)
    found = torch.func.hessian(curved)(x)
    assert_close(found, torch.autograd.functional.hessian(curved, x), rtol=1e-10, atol=1e-12)


def check_batched_gradients(name: str) -> None:
    layer, x = made(name), inputs().requires_grad_()
    out = layer(x)[0]
    directions = torch.stack([torch.ones_like(out), out.detach()])
    (found,) = torch.autograd.grad(out, x, directions, retain_graph=True, is_grads_batched=True)
    for k, direction in enumerate(directions):
        (expected,) = torch.autograd.grad(out, x, direction, retain_graph=True)
        assert_close(found[k], expected, rtol=1e-12, atol=1e-12)


def check_packed_sequence(name: str) -> None:
    layer, x = made(name), inputs(batch=4, steps=6)
    for lengths, in_order in (([6, 4, 4, 1], True), ([2, 6, 1, 5], False)):
        packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=in_order)
        out, state = layer(packed)
        assert isinstance(out, PackedSequence)
        assert_close(flat(out[1:]), flat(packed[1:]), rtol=0, atol=0)  # sizes and both orders
        padded, read = pad_packed_sequence(out, batch_first=True)
        assert read.tolist() == lengths
        for b, n in enumerate(lengths):
            alone, end = layer(x[b, :n])
            assert_close(padded[b, :n], alone, rtol=1e-12, atol=1e-12)
            assert not padded[b, n:].any()
            for part, one in zip(tensors(state), tensors(end), strict=True):
                if name not in STACKS:  # whose stacks have the depth of the longest
                    assert_close(part.select(part.shape.index(4), b).squeeze(), one.squeeze(), rtol=1e-12, atol=1e-12)


def check_copies(name: str) -> None:
    layer, x = made(name), inputs()
    expected = layer(x)  # so that there is something to leave behind
    with io.BytesIO() as file:
        torch.save(layer.state_dict(), file)
        file.seek(0)
        loaded = made(name, 1)
        loaded.load_state_dict(torch.load(file))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        assert_close(flat(other(x)), flat(expected), rtol=0, atol=0)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert_close(flat(layer(x)), flat(expected), rtol=0, atol=0)


def check_data_parallel(name: str) -> None:
    layer, x = made(name), inputs()
    parallel = nn.DataParallel(layer)
    assert_close(flat(parallel(x)), flat(layer(x)), rtol=0, atol=0)
    assert list(parallel.state_dict()) == [f"module.{key}" for key in layer.state_dict()]


def check_meta(name: str) -> None:
    """As in `nn.GRU`: a layer without values gives shapes and dtypes of all outputs, states and gradients."""
    with torch.device("meta"):
        layer = LAYERS[name]()
    real, x = made(name, dtype=torch.float32), inputs(dtype=torch.float32)
    calls: list[Callable[[Any, Tensor], Any]] = [
        lambda layer, x: layer(x),
        lambda layer, x: layer(x[0]),
        lambda layer, x: layer(x, layer(x)[1]),
    ]
    if name != "nn.GRU":
        calls += [lambda layer, x: layer(x, lengths=[5, 2, 3]), lambda layer, x: stepped(layer, x)]
    for call in calls:
        got, expected = flat(call(layer, x.to("meta"))), flat(call(real, x))
        assert all(result.is_meta for result in got)
        assert [(y.shape, y.dtype) for y in got] == [(y.shape, y.dtype) for y in expected]
    loss(layer(x.to("meta"))).backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in layer.parameters())


TOOLS = {
    "functional_call": check_functional_call,
    "ensemble": check_ensemble,
    "per_sample": check_per_sample,
    "weight_norm": check_weight_norm,
    "spectral_norm": check_spectral_norm,
    "orthogonal": check_orthogonal,
    "pruning": check_pruning,
    "forward_hooks": check_forward_hooks,
    "backward_hooks": check_backward_hooks,
    "pyro_sample": check_pyro_sample,
    "compile": check_compile,
    "export": check_export,
    "autocast": check_autocast,
    "bfloat16": check_bfloat16,
    "double_backward": check_double_backward,
    "hessian": check_hessian,
    "batched_gradients": check_batched_gradients,
    "packed_sequence": check_packed_sequence,
    "copies": check_copies,
    "data_parallel": check_data_parallel,
    "meta": check_meta,
}


PLACES = {
    "compile": pytest.mark.hardware("torch's compiler knows few devices"),
    "export": pytest.mark.hardware("torch's compiler knows few devices"),
    "autocast": pytest.mark.cpu("it casts there"),
    "meta": pytest.mark.cpu("values are there"),
    "double_backward": pytest.mark.hardware("torch's checks know few devices"),
    "hessian": pytest.mark.hardware("derivatives forward look at the memory of a tensor"),
    "copies": pytest.mark.hardware("files hold tensors of few devices"),
    "data_parallel": pytest.mark.hardware("torch scatters over GPUs alone"),
}
"""Which tools not every device has."""


def pairs() -> Iterator[Any]:
    gaps = STACK_NETWORK_GAPS | TORCH_GAPS
    for name in LAYERS:
        for tool in TOOLS:
            known = tool in gaps.get(name, "").split()
            marks = [pytest.mark.xfail(strict=True), pytest.mark.cpu("its gaps are known there")] if known else []
            marks += [PLACES[tool]] if tool in PLACES else []
            marks += [pytest.mark.slow] if tool in ("compile", "export") else []
            yield pytest.param(name, tool, marks=marks, id=f"{name}-{tool}")


@pytest.mark.slow
@pytest.mark.hardware("torch's compiler knows few devices")
def test_an_exported_nondeterministic_stack_returns_a_state_that_goes_on():
    torch.manual_seed(0)
    layer = NondeterministicStackRNN(2, 3).double()
    x, later = torch.randn(2, 2, 3, 2, dtype=torch.float64)
    with unchecked():
        out, state = torch.export.export(layer, (x,)).module()(x)
    expected, same = layer(x)
    assert_close(out, expected)
    assert_close(layer(later, state)[0], layer(later, same)[0])


@pytest.mark.few(30)
@pytest.mark.parametrize(("name", "tool"), pairs())
def test_a_layer_under_a_tool_is_the_plain_computation(name, tool):
    TOOLS[tool](name)


ANY_LENGTH = ("MinGRU", "MinLSTM", "RotatingGRU", "QRNN", "truncated MinGRU", "truncated GRU")
"""Layers that run without a loop over steps. Others keep the number of steps of the example of an export."""
TRUNCATED = {
    "truncated MinGRU": lambda: truncate(MinGRU(FEATURES, UNITS), 2),
    "truncated GRU": lambda: truncate(GRU(FEATURES, UNITS), 2),
}


@pytest.mark.slow
@pytest.mark.hardware("torch's compiler knows few devices")
@pytest.mark.parametrize("name", [*LAYERS, *TRUNCATED])
def test_an_exported_layer_takes_any_number_of_steps_or_says_that_it_does_not(name):
    module = Flat((LAYERS | TRUNCATED)[name]().double())
    n_steps = 4 if name in ANY_LENGTH else 3  # of a loop few
    sizes = {axis: torch.export.Dim(f"n{axis}", min=n_steps, max=64) for axis in (0, 1)}
    export = lambda axes: torch.export.export(
        module, (inputs(batch=5, steps=n_steps),), dynamic_shapes=({axis: sizes[axis] for axis in axes},)
    ).module()
    with unchecked():
        if name in ANY_LENGTH:
            exported, x = export((0, 1)), inputs(1, batch=7, steps=9)
        else:
            with pytest.raises(torch._dynamo.exc.UserError, match="n1 as dynamic but your code specialized it"):
                export((0, 1))
            exported, x = export((0,)), inputs(1, batch=7, steps=n_steps)
    assert_close(exported(x), module(x), rtol=1e-12, atol=1e-12)


@pytest.mark.cpu("values are there")
def test_a_truncated_layer_without_values_gives_shapes():
    for layer in (MinGRU, GRU, nn.GRU):
        with torch.device("meta"):
            out = truncate(layer(FEATURES, UNITS, batch_first=True), 2)(torch.zeros(3, 5, FEATURES))
        assert out.is_meta
        assert out.shape == (3, 5, UNITS)
