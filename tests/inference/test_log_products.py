"""All steps of a discrete chain multiplied at once, against its loop over steps."""

import pytest
import torch
from samplehold.inference.chains import log_products
from samplehold.inference.chains.copy import plain as copy
from samplehold.inference.chains.markov import plain as markov
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def weights(*shape: int, seed: int = 0, impossible: float = 0.1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    table = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return table.masked_fill(torch.rand(shape, generator=generator) < impossible, -torch.inf)


def check(function, tables, monkeypatch) -> None:
    at_once = function(*tables)
    monkeypatch.setattr(log_products, "_LEAST_STEPS", 1 << 60)
    by_steps = function(*tables)
    monkeypatch.undo()
    assert torch.equal(at_once[-1], by_steps[-1])
    possible = by_steps[-1] < 0
    assert possible.any()
    for ours, theirs in zip(at_once[:-1], by_steps[:-1], strict=True):
        assert ours.shape == theirs.shape
        assert_close(ours[possible], theirs[possible], **TIGHT)


@pytest.mark.parametrize("impossible", [0, 0.1])
@pytest.mark.parametrize("name", ["log_normalizer", "filter", "posterior"])
@pytest.mark.parametrize(
    ("batch", "n_steps", "n_states", "n_tables"),
    [((), 40, 3, 1), ((4,), 50, 3, 49), ((2, 3), 33, 2, 1), ((), 300, 4, 1)],
)
def test_markov_chains_at_once_equal_those_by_steps(batch, n_steps, n_states, n_tables, name, impossible, monkeypatch):
    moves = weights(*batch[1:], n_tables, n_states, n_states, seed=1, impossible=impossible)
    likelihood = weights(*batch, n_steps, n_states, seed=2, impossible=impossible)
    lengths = torch.randint(1, n_steps + 1, batch, generator=torch.Generator().manual_seed(3))
    if batch == (4,) and impossible:
        likelihood[2, 7], lengths[2] = -torch.inf, n_steps  # no state can be there
    check(getattr(markov, name), (weights(*batch, n_states, impossible=0), moves, likelihood, lengths), monkeypatch)


@pytest.mark.parametrize("impossible", [0, 0.1])
@pytest.mark.parametrize("name", ["log_normalizer", "filter", "smooth", "marginals"])
@pytest.mark.parametrize(("n", "n_steps", "n_states", "width"), [(1, 40, 3, 3), (4, 50, 3, 1), (1, 300, 4, 4)])
def test_copy_chains_at_once_equal_those_by_steps(n, n_steps, n_states, width, name, impossible, monkeypatch):
    fresh = weights(n, n_steps, n_states, seed=1, impossible=impossible)
    held = weights(n, n_steps, width, seed=2, impossible=impossible)
    lengths = torch.randint(1, n_steps + 1, (n,), generator=torch.Generator().manual_seed(3))
    if n == 4 and impossible:
        fresh[2, 7], held[2, 7], lengths[2] = -torch.inf, -torch.inf, n_steps  # no state can be there
    check(getattr(copy, name), (weights(n, n_states, impossible=0), fresh, held, lengths), monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1, 30, 160])
def test_products_in_probabilities_equal_those_in_logarithms(spread, dtype, monkeypatch):
    """Entries of a step span up to exp(160), a little less than the largest span that is taken in probabilities."""
    moves = -spread * torch.rand(200, 5, 3, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
    start = -10 * moves[0, ..., 0]
    assert log_products._probabilities(moves) is not None
    quick = log_products.beliefs(start, moves), log_products.futures(moves)
    monkeypatch.setattr(log_products, "_MIXING", 1.0)
    assert log_products._probabilities(moves) is None
    exact = log_products.beliefs(start.double(), moves.double()), log_products.futures(moves.double())
    for ours, theirs in zip(quick, exact, strict=True):
        assert ours.dtype == dtype
        assert_close(ours, theirs.to(dtype), **(TIGHT if dtype == torch.float64 else {}))


@pytest.mark.parametrize(
    ("shape", "scanned"), [((100, 2), True), ((11, 2), False), ((30, 100, 4), True), ((30, 100, 16), False)]
)
def test_steps_of_few_small_sequences_are_multiplied_at_once(shape, scanned):
    assert log_products.is_small(torch.zeros(shape)) == scanned
