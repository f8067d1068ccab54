"""Message passing for chains that start in their stationary distribution: trees, draws and quadrature."""

import itertools

import pytest
import samplehold as sh
import torch
from oracles.models import numbers
from samplehold.inference.families import Dirichlet
from samplehold.switching.dynamics.initial import stationary
from samplehold.switching.dynamics.trees import log_trees, stationary_bound
from samplehold.switching.fitting import chunked
from torch import Tensor
from torch.testing import assert_close

FEW = {"restarts": 1, "progress": False}
KINDS = {
    "two": sh.Markov(2, initial="stationary"),
    "three": sh.Markov(3, initial="stationary"),
    "driven": sh.Markov(3, initial="stationary", inputs=2),
    "banded": sh.Markov.banded(3, initial="stationary"),
    "one closed": sh.Markov(
        3, initial="stationary", mask=[[True, True, False], [False, True, True], [False, True, True]]
    ),
}


def series_of(n_states: int, n: int, steps: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    states = (torch.rand(n, steps, generator=generator).cumsum(1) / 4).long() % n_states
    x = (3.0 * states + numbers(n, steps, seed=2)).unsqueeze(-1)
    x[0, 1] = torch.nan
    return x, numbers(n, steps, 2, seed=3)


@pytest.mark.parametrize("n_states", [1, 2, 3, 4])
def test_trees_are_those_that_one_can_list(n_states):
    table = torch.softmax(numbers(2, n_states, n_states, seed=n_states), -1)
    found = log_trees(table.log()).exp()
    slow = torch.zeros_like(found)
    for root in range(n_states):
        others = [j for j in range(n_states) if j != root]
        for ends in itertools.product(range(n_states), repeat=len(others)):
            edges = dict(zip(others, ends, strict=True))
            if all(root in _path(j, edges, n_states) for j in others):
                slow[:, root] += torch.stack([table[:, j, k] for j, k in edges.items()] or [torch.ones(2)]).prod(0)
    assert_close(found, slow, rtol=1e-12, atol=0)
    assert_close(found / found.sum(-1, keepdim=True), stationary(table), rtol=1e-12, atol=0)


def _path(state: int, edges: dict[int, int], n_states: int) -> list[int]:
    path = [state]
    for _ in range(n_states):
        path.append(edges.get(path[-1], path[-1]))
    return path


@pytest.mark.parametrize("size", [0.5, 5.0, 500.0])
def test_the_bound_is_below_the_mean_of_draws_and_exact_at_a_point(size):
    eta = 0.3 + size * torch.softmax(2 * numbers(3, 3, seed=1) + 2 * torch.eye(3), -1)
    possible = torch.tensor([[True, True, False], [True, True, True], [False, True, True]])
    everywhere = torch.ones_like(possible)
    draws = Dirichlet().sample(eta, 20_000, torch.Generator().manual_seed(0))
    logs = stationary(draws).log()
    bound = stationary_bound(Dirichlet().mean(eta), everywhere)
    assert bool((bound <= logs.mean(0) + 4 * logs.std(0) / 20_000**0.5).all())
    if size > 100:
        assert float((logs.mean(0) - bound).max()) < 0.1
    assert_close(stationary_bound(draws[:9].log(), everywhere), logs[:9], rtol=1e-9, atol=1e-9)
    rows = torch.softmax(numbers(3, 3, seed=2).masked_fill(~possible, -torch.inf), -1)
    logs = torch.where(possible, rows.log(), 0.0)  # entries of impossible moves are ignored
    assert_close(stationary_bound(logs, possible), stationary(rows).log(), rtol=1e-9, atol=1e-9)


def _heights(model: sh.SwitchingSSM, emission: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities of a move from state 0 on a grid `[N]` with those from state 1, and log p(x) there."""
    grid = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    up, down = (table.flatten() for table in torch.meshgrid(grid, grid, indexing="ij"))
    tables = torch.stack([torch.stack([1 - up, up], -1), torch.stack([down, 1 - down], -1)], -2)
    points = model.with_values(emission, transition_probs=[[0.5, 0.5], [0.5, 0.5]])
    values = {"transition_probs": tables, "probs": emission["probs"].expand(len(tables), 2, 2)}
    heights = points.problem(x).evidence(values).reshape(len(tables), -1).sum(-1)
    return up, heights


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [1, 6])
def test_the_bound_lies_below_the_evidence(n):
    """The evidence by quadrature over the two probabilities of a move, whose priors are uniform."""
    emission = {"probs": torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double()}
    x = (numbers(n, 5, 1, seed=4) > 0).double()
    model = sh.SwitchingSSM(sh.Markov(2, initial="stationary"), sh.Categorical(2))
    fit = model.fit(x, "vmp", fixed=emission, **FEW)
    _, heights = _heights(model, emission, x)
    exact = float(heights.logsumexp(0) - torch.tensor(len(heights)).double().log())
    assert exact - 2 < float(fit.objective[-1]) < exact
    assert float(fit.objective.diff().min()) > -1e-10 * float(fit.objective.abs().max())


@pytest.mark.slow
@pytest.mark.few(1)
def test_intervals_are_near_those_of_the_posterior():
    emission = {"probs": torch.tensor([[0.99, 0.01], [0.01, 0.99]]).double()}
    x, _ = series_of(2, 20, 5)
    x = (x > 1.5).double()
    model = sh.SwitchingSSM(sh.Markov(2, initial="stationary"), sh.Categorical(2))
    fit = model.fit(x, "vmp", fixed=emission, **FEW)
    up, heights = _heights(model, emission, x)
    order = up.argsort()
    below = torch.softmax(heights, 0)[order].cumsum(0)
    near = fit.posterior.interval(0.9, correct=False)
    exact = [float(up[order][torch.searchsorted(below, level)]) for level in (0.05, 0.95)]
    found = [float(end["transition_probs"][0, 1]) for end in (near.lower, near.upper)]
    assert max(abs(a - b) for a, b in zip(exact, found, strict=True)) < 0.2 * (exact[1] - exact[0])


@pytest.mark.few(1)
@pytest.mark.parametrize("dynamics", KINDS.values(), ids=KINDS)
def test_fits_raise_the_bound_and_come_near_the_mode(dynamics):
    x, inputs = series_of(dynamics.n_states, 30, 6)
    given = {"inputs": inputs} if dynamics.inputs else {}
    model = sh.SwitchingSSM(dynamics, sh.Normal(1))
    fit = model.fit(x, "vmp", **FEW, **given)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    assert float(fit.objective[-1]) < fit.loglik
    mode = model.fit(x, start=fit.model, **FEW, **given)
    assert mode.loglik - 12 < fit.loglik < mode.loglik + 3
    possible = (
        torch.ones(dynamics.n_states, dynamics.n_states) if dynamics.mask is None else torch.tensor(dynamics.mask)
    )
    assert bool((fit.model.values["transition_probs"][possible == 0] == 0).all())
    smoothed = fit.posterior.smooth(x, **given)
    assert_close(smoothed.state, fit.smooth().state, rtol=0, atol=0.3)
    lower, upper = fit.posterior.interval(0.9, n=500)
    assert bool((lower["transition_probs"] <= upper["transition_probs"]).all())


@pytest.mark.few(1)
def test_starts_count_in_estimates():
    """Sequences of one step tell nothing but the stationary distribution."""
    x = torch.tensor([0.0] * 90 + [1.0] * 10).double().reshape(-1, 1, 1)
    emission = {"probs": torch.tensor([[0.99, 0.01], [0.01, 0.99]]).double()}
    fit = sh.SwitchingSSM(sh.Markov(2, initial="stationary"), sh.Categorical(2)).fit(x, "vmp", fixed=emission, **FEW)
    assert float(stationary(fit.model.values["transition_probs"])[0]) > 0.8


def test_a_mask_without_a_single_stationary_distribution_is_named():
    with pytest.raises(ValueError, match=r"^mask: got several closed classes of states, .*; make some moves"):
        sh.Markov(2, initial="stationary", mask=[[True, False], [False, True]])


@pytest.mark.slow
def test_chunks_and_minibatches_end_near_the_whole(monkeypatch):
    x, _ = series_of(3, 24, 12)
    model = sh.SwitchingSSM(sh.Markov(3, initial="stationary"), sh.Normal(1))
    whole = model.fit(x, "vmp", **FEW)
    batches = model.fit(x, "vmp", start=whole.model, batch_size=8, max_steps=100, **FEW)
    assert abs(float(batches.objective[-1]) - float(whole.objective[-1])) < 1
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 8 * 3 * 12 * 3)
    parts = model.fit(x, "vmp", **FEW)
    assert_close(parts.objective[-1], whole.objective[-1], rtol=0, atol=1e-2)
