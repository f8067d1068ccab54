"""Structured inference of switching linear models at known parameters, beside enumeration of all paths of regimes."""

import pytest
import torch
from oracles.regime_paths import enumerate_paths
from oracles.switching_linear import ENUMERABLE, KINDS, values_of
from samplehold.face.chains import LinearGaussianChain
from samplehold.switching.data.series import Series
from samplehold.switching.parameters import Parameters
from samplehold.switching.slds.graph import blank_states, graph_at
from samplehold.switching.slds.inference import STARTS, infer, interpolated
from samplehold.switching.slds.layout import LinearRegimes

EVERY = ("interpolated", "annealed", "random")


def observed(layout: LinearRegimes, values: Parameters, n_steps: int = 6, n: int = 3) -> Series:
    """Draws of the model with missing values and unequal lengths."""
    x = layout.regimes(values).simulate(n_steps, (n,), seed=1).x
    x[1, 2] = torch.nan
    if layout.n_features > 1:
        x[0, 3, 0] = x[1, 1, -1] = torch.nan
    return Series(x, torch.tensor([n_steps, n_steps, n_steps - 2][:n]))


@pytest.mark.parametrize("kind", ENUMERABLE)
def test_the_bound_lies_below_the_evidence_and_states_near_its_moments(kind: str) -> None:
    layout = ENUMERABLE[kind]
    values = values_of(layout)
    series = observed(layout, values)
    found = infer(layout, values, series, EVERY)
    assert found.converged
    for b, length in enumerate(series.lengths.tolist()):
        exact = enumerate_paths(layout.regimes(values), series.observations[b, :length])
        gap = float(exact.log_normalizer - found.elbo[b])
        assert -1e-9 <= gap < 3.0
        apart = (found.state[b, :length] - exact.state).abs().mean()
        assert float(apart) <= (gap / 2) ** 0.5 + 1e-6  # Pinsker: total variation of each step by KL(q || p)
        assert not found.state[b, length:].any()


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS)
def test_no_update_lowers_the_bound(kind: str) -> None:
    layout = KINDS[kind]
    values = values_of(layout)
    series = observed(layout, values, 12)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, 3, 12, layout.n_regimes, generator=generator, dtype=torch.float64)
    graph = graph_at(layout, series, values, blank_states(layout, series, 2), weights)
    engine = graph.engine(graph.start(2), check=False)
    run = engine.run(20, 0.0, record=True)  # raises where one does
    assert bool((run.elbo[1:] >= run.elbo[:-1] - 1e-10 * run.elbo[:-1].abs()).all())


@pytest.mark.parametrize("full", [False, True])
def test_one_regime_is_the_linear_model(full: bool) -> None:
    layout = LinearRegimes(1, 2, 3, full_noise=full)
    values = values_of(layout)
    series = observed(layout, values)
    found = infer(layout, values, series)
    own = {name: table[0] for name, table in layout.separately(values).items()}
    exact = LinearGaussianChain(series.observations, **own, lengths=series.lengths)
    smoothed = exact.smooth()
    torch.testing.assert_close(found.elbo, exact.log_normalizer(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.mean[:, 0], smoothed.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.covariance[:, 0], smoothed.covariance, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.cross_covariance[:, 0], smoothed.cross_covariance, rtol=1e-9, atol=1e-9)
    assert bool((found.state.squeeze(-1) == series.inside).all())


@pytest.mark.parametrize("recurrent", [False, True])
def test_equal_regimes_of_one_chain_are_the_linear_model(recurrent: bool) -> None:
    layout = LinearRegimes(3, 2, 2, one_chain=True, recurrent=recurrent)
    values = values_of(layout)
    for name in ("transition", "transition_offset", "state_noise", "emission", "emission_offset", "observation_noise"):
        values[name] = values[name][:1].expand_as(values[name]).clone()
    if recurrent:  # which then says nothing of the states
        values["recurrence"] = torch.zeros_like(values["recurrence"])
    series = observed(layout, values)
    own = {name: table[0] for name, table in layout.separately(values).items()}
    exact = LinearGaussianChain(series.observations, **own, lengths=series.lengths)
    found = infer(layout, values, series, EVERY)
    torch.testing.assert_close(found.mean[:, 0], exact.smooth().mean, rtol=1e-9, atol=1e-9)
    if not recurrent:
        torch.testing.assert_close(found.elbo, exact.log_normalizer(), rtol=1e-10, atol=1e-10)
    else:  # the bound of a logistic is one
        assert bool((found.elbo <= exact.log_normalizer() + 1e-10).all())


@pytest.mark.parametrize("kind", ["chains", "one chain", "full noise"])
def test_interpolated_densities_leave_one_observation_out(kind: str) -> None:
    layout = KINDS[kind]
    values = values_of(layout)
    series = observed(layout, values)
    found = interpolated(layout, values, series)
    for b, length in enumerate(series.lengths.tolist()):
        x = series.observations[b, :length]
        for k in range(layout.n_regimes):
            own = {name: table[k] for name, table in layout.separately(values).items()}
            whole = LinearGaussianChain(x, **own).log_normalizer()
            for t in range(length):
                rest = x.clone()
                rest[t] = torch.nan
                expected = whole - LinearGaussianChain(rest, **own).log_normalizer()
                torch.testing.assert_close(found[b, t, k], expected, rtol=1e-9, atol=1e-9)


def test_each_sequence_keeps_its_best_start() -> None:
    layout = KINDS["chains"]
    values = values_of(layout)
    series = observed(layout, values, 40)
    both = infer(layout, values, series, STARTS)
    alone = torch.stack([infer(layout, values, series, (kind,)).elbo for kind in ("interpolated", "annealed")])
    assert bool((both.elbo >= alone.amax(0) - 1e-6 * alone.abs().amax(0)).all())


def test_a_certain_switch_leaves_no_infinite_noise() -> None:
    layout = KINDS["chains"]
    values = values_of(layout)
    values["initial_probs"] = torch.tensor([1.0, 0.0], dtype=torch.float64)
    values["transition_probs"] = torch.eye(2, dtype=torch.float64)
    series = observed(layout, values)
    found = infer(layout, values, series)
    assert bool((found.state[..., 1] < 1e-20).all())
    own = {name: table[0] for name, table in layout.separately(values).items()}
    exact = LinearGaussianChain(series.observations, **own, lengths=series.lengths)
    torch.testing.assert_close(found.elbo, exact.log_normalizer(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.mean[:, 0], exact.smooth().mean, rtol=1e-9, atol=1e-9)


def test_nothing_is_read_beyond_the_end_of_a_sequence() -> None:
    layout = KINDS["one chain"]
    values = values_of(layout)
    series = observed(layout, values)
    other = series.observations.clone()
    other[2, 4:] = 1e6
    a, b = (infer(layout, values, Series(x, series.lengths)) for x in (series.observations, other))
    assert torch.equal(a.elbo, b.elbo)
    assert torch.equal(a.mean, b.mean)
