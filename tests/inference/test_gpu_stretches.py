"""Few long chains on a GPU: cut into stretches where they forget, walked where they do not, with the same answers."""

from typing import Any

import pytest
import torch
from oracles.gpu import gpu_kernels
from oracles.placement import tolerances
from samplehold.inference.chains.copy import op as copy
from samplehold.inference.chains.factored_copy import op as factored
from samplehold.inference.chains.markov import op as markov
from torch import Tensor
from torch.testing import assert_close

pytestmark = pytest.mark.hardware("Triton interprets or compiles")

STEPS, STATES = (5000 if torch.cuda.is_available() else 35), 3  # the interpreter cuts shorter ones
FORGETS, REMEMBERS = 40.0, -40.0  # how much more often a state is drawn than held, in nats
OPERATORS = {
    "markov": (markov.filter, markov.posterior),
    "copy": (copy.evidence, copy.filter, copy.smooth, copy.marginals),
    "factored": (factored.filter, factored.posterior),
}


@pytest.fixture
def agreed(monkeypatch) -> list[list[bool]]:
    """Of every call that was cut into stretches, which sequences agreed."""
    stretches = pytest.importorskip("samplehold.inference.chains.cuda_stretches", reason="there is no Triton")
    seen, usual = [], stretches.Stretches.agree

    def agree(*given: Any) -> Tensor:
        found = usual(*given)
        seen.append(found.tolist())
        return found

    monkeypatch.setattr(stretches.Stretches, "agree", agree)
    return seen


def tables(kind: str, forgets: list[bool], dtype: torch.dtype, by_step: bool = False) -> list[Tensor | None]:
    """Of ragged sequences, some of which forget at once, and some of which hardly do."""
    n, generator = len(forgets), torch.Generator().manual_seed(0)

    def table(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    lengths = torch.tensor([STEPS, STEPS - 3][:n])
    odds = torch.tensor([FORGETS if one else REMEMBERS for one in forgets]).double()
    likelihood = 0.1 * table(n, STEPS, STATES)
    if kind == "markov":
        stays = torch.where(odds > 0, 0.0, 40.0).view(n, 1, 1, 1)
        favoured = 10 / STEPS * table(n, 1, 1, STATES)  # in all steps so little that a state stays in doubt
        given = [table(n, STATES), stays * torch.eye(STATES).double() + favoured, likelihood]
    else:
        gate = 0.1 * table(n, STEPS if by_step else 1)
        redraw, hold, state = odds[:, None] + gate, -gate, table(n, STATES)
        given = [redraw, hold, state, likelihood]
        if kind == "copy":
            fresh = redraw.unsqueeze(-1) + state.unsqueeze(1) + likelihood
            given = [table(n, STATES) if by_step else None, fresh, hold.unsqueeze(-1) + likelihood]
    return [None if x is None else x.to(dtype) for x in given] + [lengths]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("forgets", [[True], [True, False]])
def test_stretches_are_the_whole(kind, forgets, dtype, agreed):
    given = tables(kind, forgets, dtype, by_step=len(forgets) > 1)
    wide = [x.double() if x is not None and x.is_floating_point() else x for x in given]
    for operator in OPERATORS[kind]:
        with gpu_kernels():
            found = operator(*given)
        pairs = list(zip(found, operator.plain(*wide), strict=True))
        if operator is copy.marginals and given[0] is None:
            del pairs[3]  # the table that there is none of
        for ours, theirs in pairs:
            if theirs.is_floating_point():
                size = max(1.0, float(theirs.abs().amax()))
                assert_close(ours.double(), theirs.double(), **tolerances(dtype, size))
            else:
                assert torch.equal(ours, theirs)
    assert agreed == [forgets] * len(OPERATORS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["markov", "factored"])
def test_a_sequence_without_batch_axes_is_cut_like_a_batch_of_one(kind, agreed):
    given = tables(kind, [True], torch.float64)
    for operator in OPERATORS[kind]:
        with gpu_kernels():
            alone, batch = operator(*(x[0] for x in given)), operator(*given)
        assert all(torch.equal(x, y[0]) for x, y in zip(alone, batch, strict=True))
    assert agreed == [[True]] * 2 * len(OPERATORS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPERATORS)
def test_what_is_impossible_is_found_in_a_stretch(kind):
    given = tables(kind, [True], torch.float64)
    likelihood = given[1] if kind == "copy" else given[-2]
    likelihood[0, STEPS - 10] = -torch.inf
    if kind == "copy":
        given[2][0, STEPS - 10] = -torch.inf
    with gpu_kernels():
        assert OPERATORS[kind][-1](*given)[-1].tolist() == [STEPS - 10]
