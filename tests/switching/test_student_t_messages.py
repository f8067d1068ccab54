"""Student's t distribution as a scale mixture: against quadrature, enumeration of all paths, naive forms, and NUTS."""

import itertools
import math

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.effort import effort
from oracles.models import numbers
from samplehold.inference.families import Tailed
from samplehold.switching.emissions.scale_mixture import TailStep
from samplehold.switching.fitting import ChainGraph
from scipy import integrate, stats
from torch import Tensor
from torch.testing import assert_close

FEW = {"restarts": 1, "progress": False}
FAMILY = Tailed()
HYPERPARAMETERS = "loc", "count", "shape", "rate", "df_shape", "df_rate"


def heavy(n: int, seed: int = 0) -> Tensor:
    """Numbers of two states that last for ten steps, with outliers."""
    rng = np.random.default_rng(seed)
    state = np.arange(n) // 10 % 2
    return torch.from_numpy(np.where(state == 0, 0.5 * rng.standard_t(3, n), 4 + rng.standard_t(5, n)))


def some_eta(*plates: int, seed: int = 0) -> Tensor:
    draws = numbers(7, *plates, seed=seed).exp()
    loc, kappa, shape, rate, df_shape, df_rate, weight = draws
    return FAMILY.natural(loc, kappa, 1 + shape, rate, 1 + df_shape, 0.3 * df_rate + weight, weight)


def log_evidences(
    x: Tensor, prior: dict[str, Tensor], sets: list[tuple[int, ...]], n: tuple[int, int, int] = (141, 91, 61)
) -> Tensor:
    """log p of numbers `[T]` at sets of steps in one state, by quadrature over location, log precision and log df, with
    n nodes each."""
    ranges = (-12.0, 16.0), (-9.0, 9.0), (-5.0, 7.0)
    axes = [torch.linspace(*ends, size, dtype=torch.float64) for ends, size in zip(ranges, n, strict=True)]
    loc, log_precision, log_df = torch.meshgrid(*axes, indexing="ij")
    m, count, shape, rate, df_shape, df_rate = (prior[name][0, 0] for name in HYPERPARAMETERS)
    precision, df = log_precision.exp(), log_df.exp()
    density = shape * rate.log() - torch.lgamma(shape) + shape * log_precision - rate * precision
    density = density + (count * precision / (2 * math.pi)).log() / 2 - count * precision * (loc - m).square() / 2
    density = density + df_shape * df_rate.log() - torch.lgamma(df_shape) + df_shape * log_df - df_rate * df
    law = torch.distributions.StudentT(df, loc, precision.rsqrt(), validate_args=False)
    each = torch.stack([law.log_prob(value) for value in x])
    cell = sum(math.log((high - low) / (size - 1)) for (low, high), size in zip(ranges, n, strict=True))
    return torch.stack([(density + each[list(steps)].sum(0)).flatten().logsumexp(0) + cell for steps in sets])


# ---- the M-step ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prior", "pairs"), [(None, 6), ("weak", 80)])
def test_no_step_lowers_the_weighted_likelihood_and_the_last_is_its_maximum(prior, pairs):
    emission, x = sh.StudentT(2), torch.stack([heavy(20), 3 * heavy(20, 1)], -1)
    x[3, 0] = torch.nan
    weights = torch.rand(2, 20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = None if prior is None else emission.default_prior(2, x)
    step = TailStep.of(x, weights, known, torch.full((2,), 1e-10).double())
    values = {name: (0.3 * numbers(2, 2, 2, seed=i)).exp() for i, name in enumerate(emission.parameters)}
    for _ in range(pairs):
        before, normal = step.height(values), step.of_normal(values)
        between, values = step.height(normal), step.of_df(normal)
        after = step.height(values)
        assert bool(((between >= before - 1e-10) & (after >= between - 1e-10)).all())
    if prior is None:
        wide = {name: value.unsqueeze(-3) for name, value in values.items()}
        each = stats.t(wide["df"], wide["loc"], wide["precision"] ** -0.5).logpdf(x.unsqueeze(-2))
        naive = (weights.unsqueeze(-1) * torch.from_numpy(each).nan_to_num(0.0)).sum(-3)
        assert_close(step.height(values), naive, rtol=1e-10, atol=1e-10)
        return
    leaves = {name: value.requires_grad_() for name, value in values.items()}
    slopes = torch.autograd.grad(step.height(leaves).sum(), list(leaves.values()))
    for leaf, slope in zip(leaves.values(), slopes, strict=True):
        assert float((leaf * slope).abs().max()) < 1e-4


def test_a_state_on_one_number_ends_at_once_and_is_named():
    fit = sh.SwitchingSSM(sh.Markov(1), sh.StudentT()).fit([2.0] * 20, prior=None, progress=False)
    assert fit.collapsed_states.tolist() == [True]
    assert fit.steps < 30
    assert "prior" in str(fit.summary())


# ---- the bound -------------------------------------------------------------------------------------------------------


def test_the_expected_table_is_the_integral_over_the_mixing_variable():
    emission, x = sh.StudentT(1), torch.tensor([[0.3], [-4.0], [50.0]]).double()
    statistics = FAMILY.mean(some_eta(2, 1))
    table = emission.expected_table(x, statistics)
    for t, k in itertools.product(range(3), range(2)):
        first, second, log_precision, precision, log_df, df, rest = statistics[k, 0].tolist()
        square = precision * float(x[t]) ** 2 - 2 * float(x[t]) * first + second
        of_df = df / 2 + (log_df - math.log(4 * math.pi)) / 2 + rest

        def density(y, square=square, log_precision=log_precision, df=df, of_df=of_df):
            u = math.exp(y)
            of_x = (log_precision + y - math.log(2 * math.pi) - u * square) / 2
            return math.exp(of_x + of_df + df / 2 * y - df / 2 * u)

        top = math.log((df + 1) / (df + square))
        exact = sum(integrate.quad(density, *ends, epsrel=1e-12)[0] for ends in ((top - 60, top), (top, top + 8)))
        assert float(table[t, k]) == pytest.approx(math.log(exact), abs=1e-9)


def test_messages_are_gradients_and_a_point_gives_the_density():
    emission, x = sh.StudentT(2), torch.stack([heavy(12), heavy(12, 1)], -1)
    x[3, 0] = x[5] = torch.nan
    weights = torch.rand(3, 12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    statistics = FAMILY.mean(some_eta(3, 2, 2)).requires_grad_()
    total = (weights * emission.expected_table(x, statistics)).sum()
    (slope,) = torch.autograd.grad(total, statistics)
    message = emission.expected_message(x, weights, statistics.detach())
    assert_close(message, slope, rtol=1e-10, atol=1e-10)
    values = {"loc": numbers(2, 2), "precision": numbers(2, 2, seed=1).exp(), "df": 3 * numbers(2, 2, seed=2).exp()}
    at_point = emission.expected_table(x, emission.statistics(values))
    assert_close(at_point, emission.table(x, values), rtol=1e-12, atol=1e-12)
    near = emission.family.moved(emission.message(x, weights[0], values), values["loc"])
    assert_close(near, emission.expected_message(x, weights[0], emission.statistics(values)), rtol=1e-10, atol=1e-10)
    with pytest.raises(TypeError, match="give `near`"):
        emission.message(x, weights[0])


def test_the_bound_is_convex_in_the_expected_statistics():
    emission, x = sh.StudentT(1), heavy(8).unsqueeze(-1)
    a, b = (FAMILY.mean(some_eta(500, 1, seed=seed)) for seed in (3, 4))
    table = [emission.expected_table(x, statistics) for statistics in (a, b, (a + b) / 2)]
    assert bool((table[2] <= (table[0] + table[1]) / 2 + 1e-12).all())


@pytest.mark.few(1)
def test_the_bound_of_one_state_lies_below_the_evidence():
    x = heavy(10)
    model = sh.SwitchingSSM(sh.Markov(1), sh.StudentT())
    fit = model.fit(x, "vmp", max_steps=60, **FEW)
    exact = float(log_evidences(x, model.scaled_to(x).prior, [tuple(range(10))], (71, 61, 31)))
    assert exact - 1 < float(fit.objective[-1]) < exact
    assert float(fit.objective.diff().min()) > -1e-10 * float(fit.objective.abs().max())


@pytest.mark.slow
def test_the_bound_lies_below_the_evidence_of_all_paths():
    """Given a path, the states are independent, so the evidence is a sum over paths of products of quadratures."""
    steps, x = 5, torch.tensor([0.1, -0.4, 4.0, 5.5, 0.3]).double()
    model = sh.SwitchingSSM(sh.Markov(2), sh.StudentT())
    moves = torch.tensor([[0.8, 0.2], [0.3, 0.7]]).double()
    known = {"initial_probs": torch.tensor([0.5, 0.5]).double(), "transition_probs": moves}
    fit = model.fit(x, "vmp", fixed=known, progress=False)
    prior = model.scaled_to(x).prior
    sets = [tuple(t for t in range(steps) if path >> t & 1) for path in range(2**steps)]
    of_set = dict(zip(sets, log_evidences(x, prior, sets), strict=True))
    terms = []
    for ones in sets:
        path = [int(t in ones) for t in range(steps)]
        of_path = math.log(0.5) + sum(float(moves[a, b].log()) for a, b in itertools.pairwise(path))
        zeros = tuple(t for t in range(steps) if t not in ones)
        terms.append(of_set[ones] + of_set[zeros] + of_path)
    exact = float(torch.stack(terms).logsumexp(0))
    assert exact - 3 < float(fit.objective[-1]) < exact


@pytest.mark.parametrize("dynamics", [sh.Copy(2), sh.Markov(2)])
def test_no_block_lowers_the_bound(dynamics):
    x = heavy(40).unsqueeze(-1)
    x[5] = torch.nan
    model = sh.SwitchingSSM(dynamics, sh.StudentT())
    graph = ChainGraph.of(model.scaled_to(x).problem(x))
    run = graph.engine(graph.start(2)).run(12, record=True)
    for sweep in run.sweeps:
        assert all(bool(value.isfinite().all()) for value in sweep.elbo.values())
    bounds = torch.stack([value for sweep in run.sweeps for value in sweep.elbo.values()])
    assert float(bounds.diff(dim=0).min()) > -1e-9


def test_known_degrees_of_freedom_and_locations_are_held():
    x, model = heavy(40), sh.SwitchingSSM(sh.Markov(2), sh.StudentT())
    for known in ({"df": [[4.0], [5.0]]}, {"loc": [[0.0], [4.0]]}, {"df": [[4.0], [math.nan]]}):
        fit = model.fit(x, "vmp", fixed=known, max_steps=8, **FEW)
        ((name, table),) = known.items()
        table = torch.tensor(table).double()
        assert_close(torch.where(table.isnan(), table, fit.model.values[name]), table, rtol=0, atol=0, equal_nan=True)
        assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
        assert bool(fit.posterior.sample(5)["df"].isfinite().all())


def test_gamma_priors_of_the_degrees_of_freedom_reach_message_passing():
    x, model = heavy(40), sh.SwitchingSSM(sh.Markov(2), sh.StudentT())
    fit = model.fit(x, "vmp", prior={"df": dist.Gamma(4e4, 1e4)}, max_steps=8, **FEW)
    assert_close(fit.model.values["df"], torch.full((2, 1), 4.0).double(), rtol=0.05, atol=0)
    with pytest.raises(TypeError, match=r"has priors of loc"):
        model.fit(x, "vmp", prior={"loc": dist.Normal(0.0, 1.0)}, progress=False)


def test_subjects_layers_and_held_steps_have_their_messages():
    x, fast = heavy(40), {"max_steps": 4, **FEW}
    rows = pd.MultiIndex.from_product([["a", "b"], range(20)], names=["subject", "time"])
    panel = pd.DataFrame({"x": x.numpy()}, index=rows)
    fits = {
        "subjects": sh.SwitchingSSM(sh.Markov(2), sh.StudentT()).fit(panel, "vmp", pooled="none", **fast),
        "layers": sh.LayeredSSM([2, 2], sh.StudentT()).fit(x, "vmp", **fast),
        "held steps": sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.StudentT(), sh.StudentT())).fit(x, "vmp", **fast),
        "independent steps": sh.SwitchingSSM(sh.Markov(2), sh.StudentT()).fit(
            x, "vmp", factorization="mean_field", **fast
        ),
    }
    for fit in fits.values():
        assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    assert fits["subjects"].model.values["df"].shape == (2, 2, 1)


@pytest.mark.slow
def test_the_posterior_is_near_that_of_nuts():
    x, model = heavy(60), sh.SwitchingSSM(sh.Markov(2), sh.StudentT())
    fit = model.fit(x, "vmp", progress=False)
    drawn = model.fit(x, "nuts", progress=False, **effort("nuts", 100))
    for name in ("loc", "precision"):
        draws = drawn.posterior.draws[name].reshape(-1, 2, 1)
        gap = (fit.posterior.mean[name] - draws.mean(0)).abs()
        assert bool((gap < 0.5 * draws.std(0)).all())
        spread = fit.posterior.sample(2000)[name].std(0) / draws.std(0)
        assert bool(((spread > 0.3) & (spread < 1.3)).all())  # mixing variables are independent of the scale under q


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_priors_of_degrees_of_freedom_may_have_small_shapes(method):
    x = np.random.default_rng(0).standard_t(3.0, 60)
    model = sh.SwitchingSSM(sh.Markov(2), sh.StudentT(prior={"df": dist.Gamma(0.01, 0.01)}))
    fit = model.fit(x, method, restarts=1, progress=False)
    assert np.isfinite(float(fit.objective[-1]))
    assert bool(fit.model.values["df"].isfinite().all())
