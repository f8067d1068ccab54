"""Kernels of stacks on the CPU against their plain forms."""

from typing import Any

import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from samplehold.inference.stacks.stratification.op import step as stratified
from samplehold.inference.stacks.superposition.op import step as superposed
from samplehold.models.networks.stack_lstm.op import Settings, passes
from torch import Tensor

close = torch.testing.assert_close
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def random(seed: int) -> Any:
    """A function that makes tables in double precision that need gradients."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def agree(
    operator: Any, tables: list[Tensor], others: tuple[Any, ...], seed: int, used: list[int] | None = None
) -> None:
    """The kernel and the plain form have the same values, and the same gradients of a random sum of some results."""
    found, expected = operator(*tables, *others), operator.plain(*tables, *others)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        close(a, b, **TIGHT)
        close(operator(*(x.detach() for x in tables), *others)[0], found[0].detach(), rtol=0, atol=0, equal_nan=True)
    probes = [random(seed + k)(*x.shape).detach() for k, x in enumerate(found)]
    used = list(range(len(found))) if used is None else used
    gradients = [
        torch.autograd.grad(sum((x[k] * probes[k]).sum() for k in used), tables, materialize_grads=True)
        for x in (found, expected)
    ]
    for a, b in zip(*gradients, strict=True):
        close(a, b, **TIGHT)


@given(
    st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 17), st.integers(0, 6), st.integers(3, 6),
    st.integers(0, 8), st.integers(0, 4), st.sampled_from([[0], [1], [0, 1]]), st.sampled_from([0.0, -1.0]),
)  # fmt: skip
@examples(60)
def test_a_step_of_superposed_stacks_equals_its_plain_form(seed, M, width, before, actions, depth, read, used, empty):
    table = random(seed)
    agree(superposed, [table(M, actions + width), table(M, before, width)], (depth, read, empty), seed, used)


@given(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 9), st.integers(1, 3), st.integers(1, 10),
    st.integers(1, 2), st.integers(1, 4), st.integers(0, 4), st.sampled_from([None, 1, 3]), st.booleans(),
    st.sampled_from([[0], [1], [2, 3], [4], [0, 1, 2, 3, 4]]),
)  # fmt: skip
@examples(60)
def test_an_lstm_with_stacks_equals_its_plain_form(seed, T, B, inputs, H, stacks, width, first, capacity, ends, used):
    table, read, actions = random(seed), 2, 3 + seed % 2
    R, raw = stacks * read * width, stacks * (actions + width)
    start = [table(B, H), table(B, H), table(B, R), table(B * stacks, first, width)]
    weights = [table(4 * H, inputs + R + H), table(4 * H), table(raw, H), table(raw)]
    past = torch.rand(T, B, generator=torch.Generator().manual_seed(seed)) < 0.3 if ends else None
    idle = torch.zeros(stacks, actions + width, dtype=torch.float64)
    idle[:, [n for n in range(actions) if n != 2]] = -torch.inf
    settings = Settings(stacks, width, read, -0.5, capacity, past=past, idle=idle.flatten())
    agree(passes, [table(T, B, inputs), *start, *weights], (settings,), seed, used)


@given(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 9), st.integers(1, 10), st.integers(1, 2),
    st.integers(1, 4), st.integers(0, 4), st.booleans(), st.sampled_from([[0], [1], [2, 3], [4], [0, 1, 2, 3, 4]]),
)  # fmt: skip
@examples(60)
def test_an_lstm_with_layers_equals_its_plain_form(seed, T, B, H, stacks, width, first, ends, used):
    table, raw = random(seed), stacks * (2 + width)
    layers = table(B * stacks, first, 1 + width).detach()
    layers[..., 0].sigmoid_()
    start = [table(B, H), table(B, H), table(B, stacks * width), layers.requires_grad_()]
    weights = [table(4 * H, 2 + stacks * width + H), table(4 * H), table(raw, H), table(raw)]
    past = torch.rand(T, B, generator=torch.Generator().manual_seed(seed)) < 0.3 if ends else None
    idle = torch.tensor([-torch.inf, -torch.inf, *[0.0] * width], dtype=torch.float64).repeat(stacks)
    settings = Settings(stacks, width, 1, 0.0, None, layered=True, past=past, idle=idle)
    agree(passes, [table(T, B, 2), *start, *weights], (settings,), seed, used)


@given(
    st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 9), st.integers(0, 7),
    st.sampled_from([[0], [1], [2], [0, 1, 2]]), st.sampled_from([None, 1.0, 0.25]),
)  # fmt: skip
@examples(60)
def test_a_step_of_layers_equals_its_plain_form(seed, M, width, layers, used, multiple):
    table = random(seed)
    strength = table(M, layers).detach().sigmoid() * torch.randint(0, 2, (M, layers))
    if multiple is not None:  # some layers end exactly where others begin
        strength = (strength / multiple).round() * multiple
    agree(stratified, [table(M, 2 + width), strength.requires_grad_(), table(M, layers, width)], (), seed, used)


def test_what_is_no_number_stays_none():
    raw, cells = torch.tensor([[0.0, torch.nan, 0.0, 1.0], [torch.inf, 0.0, 0.0, 1.0]]), torch.ones(2, 2, 1)
    for found, plain in zip(superposed(raw, cells, 3, 1, 0.0), superposed.plain(raw, cells, 3, 1, 0.0), strict=True):
        close(found, plain, equal_nan=True)
    raw = torch.tensor([[-1e30, 0.0, -1e30, 1e30], [-torch.inf, -torch.inf, 0.0, -torch.inf]])
    for found, plain in zip(superposed(raw, cells, 3, 1, 0.0), superposed.plain(raw, cells, 3, 1, 0.0), strict=True):
        close(found, plain)
