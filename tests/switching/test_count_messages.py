"""Message passing for counts whose rates depend on inputs: against quadrature, enumeration of all paths, and NUTS."""

import itertools
import math

import numpy as np
import pytest
import samplehold as sh
import torch
from oracles.models import numbers
from samplehold.switching.fitting import message_form
from torch import Tensor
from torch.testing import assert_close

K, C = 2, 2
FEW = {"restarts": 1, "progress": False}


def series_of(steps: int, n: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Counts of two states that differ in level and slope, and one input."""
    inputs = numbers(n, steps, 1, seed=seed + 1)
    model = sh.SwitchingSSM(sh.Markov(2), sh.Poisson(1, inputs=1)).with_values(
        rate=[[2.0], [12.0]],
        coefficients=[[[0.6]], [[-0.4]]],
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.9, 0.1], [0.1, 0.9]],
    )
    return model.simulate(steps, (n,), seed=seed, inputs=inputs).x, inputs


def log_evidences(x: Tensor, u: Tensor, prior: dict[str, Tensor], sets: list[tuple[int, ...]]) -> Tensor:
    """log p of the counts `[T]` at sets of steps in one state, by quadrature over its constant and its coefficient."""
    first = torch.linspace(-9, 7, 801, dtype=torch.float64)[:, None, None]
    slope = torch.linspace(-9, 9, 901, dtype=torch.float64)[None, :, None]
    a, b, scale = prior["shape"][0, 0], prior["rate"][0, 0], prior["coefficients_scale"][0, 0, 0]
    log_rate = first + slope * (u - prior["inputs_center"])
    each = x * log_rate - log_rate.exp() - torch.lgamma(x + 1)
    first, slope = first[..., 0], slope[..., 0]
    density = a * b.log() - torch.lgamma(a) + a * first - b * first.exp()
    density = density - (slope / scale).square() / 2 - (scale * math.sqrt(2 * math.pi)).log()
    cell = math.log(16 / 800 * 18 / 900)
    return torch.stack([(density + each[..., list(steps)].sum(-1)).flatten().logsumexp(0) + cell for steps in sets])


def test_the_expected_table_is_exact():
    emission = sh.Poisson(2, inputs=C)
    block, x = message_form(emission), torch.tensor([[1.0, 4.0], [0.0, torch.nan], [7.0, 2.0]]).double()
    rows = torch.cat([x, numbers(3, C, seed=3)], -1)
    size = 1 + C
    loc, root = numbers(K * 2, size, seed=4), 0.4 * numbers(K * 2, size, size, seed=5)
    covariance = root @ root.mT + 0.05 * torch.eye(size)
    eta = block.family.natural(loc, torch.linalg.inv(covariance))
    table = block.expected_table(rows, block.family.mean(eta))
    nodes, weights = (torch.as_tensor(part) for part in np.polynomial.hermite_e.hermegauss(60))
    slow = torch.zeros(3, K, dtype=torch.float64)
    for t, k, f in itertools.product(range(3), range(K), range(2)):
        if not x[t, f].isnan():
            d = torch.cat([torch.ones(1).double(), rows[t, 2:]])
            mean, scale = d @ loc[2 * k + f], (d @ covariance[2 * k + f] @ d).sqrt()
            log_rate = mean + scale * nodes
            values = x[t, f] * log_rate - log_rate.exp() - torch.lgamma(x[t, f] + 1)
            slow[t, k] += (weights * values).sum() / math.sqrt(2 * math.pi)
    assert_close(table, slow, rtol=1e-10, atol=1e-10)


@pytest.mark.few(1)
def test_the_bound_of_one_state_lies_closely_below_the_evidence():
    x, inputs = series_of(30)
    model = sh.SwitchingSSM(sh.Markov(1), sh.Poisson(1, inputs=1))
    fit = model.fit(x, "vmp", inputs=inputs, progress=False)
    prior = model.scaled_to(x, inputs=inputs).prior
    exact = float(log_evidences(x[0, :, 0], inputs[0, :, 0], prior, [tuple(range(30))]))
    assert exact - 0.02 < float(fit.objective[-1]) < exact
    assert float(fit.objective.diff().min()) > -1e-10 * float(fit.objective.abs().max())


@pytest.mark.few(1)
def test_the_bound_lies_below_the_evidence_of_all_paths():
    """Given a path, the states are independent, so the evidence is a sum over paths of products of quadratures."""
    steps = 5
    x, inputs = series_of(steps, seed=3)
    model = sh.SwitchingSSM(sh.Markov(2), sh.Poisson(1, inputs=1))
    moves = torch.tensor([[0.8, 0.2], [0.3, 0.7]]).double()
    known = {"initial_probs": torch.tensor([0.5, 0.5]).double(), "transition_probs": moves}
    fit = model.fit(x, "vmp", inputs=inputs, fixed=known, progress=False)
    prior = model.scaled_to(x, inputs=inputs).prior
    sets = [tuple(t for t in range(steps) if path >> t & 1) for path in range(2**steps)]
    of_set = dict(zip(sets, log_evidences(x[0, :, 0], inputs[0, :, 0], prior, sets), strict=True))
    terms = []
    for ones in sets:
        path = [int(t in ones) for t in range(steps)]
        of_path = math.log(0.5) + sum(float(moves[a, b].log()) for a, b in itertools.pairwise(path))
        zeros = tuple(t for t in range(steps) if t not in ones)
        terms.append(of_set[ones] + of_set[zeros] + of_path)
    exact = float(torch.stack(terms).logsumexp(0))
    assert exact - 3 < float(fit.objective[-1]) < exact


@pytest.mark.few(1)
def test_the_bound_is_at_a_maximum_of_its_naive_form():
    """The whole bound of one state as a function of mean and covariance, whose slopes are 0 where the fit ends."""
    x, inputs = series_of(25, seed=1)
    model = sh.SwitchingSSM(sh.Markov(1), sh.Poisson(1, inputs=1))
    fit = model.fit(x, "vmp", inputs=inputs, tol=1e-13, progress=False)
    prior = model.scaled_to(x, inputs=inputs).prior
    (eta,) = (eta for eta in fit.posterior.blocks.values() if eta.shape[-1] == 6)
    q = message_form(sh.Poisson(1, inputs=1)).family.usual(eta[0])
    mean = q.loc.clone().requires_grad_()
    covariance = torch.linalg.inv(q.precision).requires_grad_()
    frame = fit.posterior.units.frame  # in which inputs have the spread 1
    design = torch.nn.functional.pad((inputs[0] - frame.center) / frame.scale, (1, 0), value=1.0)
    counts = x[0, :, 0]
    variance = ((design @ covariance) * design).sum(-1)
    data = counts * (design @ mean) - (design @ mean + variance / 2).exp() - torch.lgamma(counts + 1)
    a, b, scale = prior["shape"][0, 0], prior["rate"][0, 0], prior["coefficients_scale"][0, 0, 0] * frame.scale[0]
    of_rate = a * b.log() - torch.lgamma(a) + a * mean[0] - b * (mean[0] + covariance[0, 0] / 2).exp()
    of_slope = -(mean[1] ** 2 + covariance[1, 1]) / (2 * scale**2) - (scale * math.sqrt(2 * math.pi)).log()
    bound = data.sum() + of_rate + of_slope + torch.logdet(covariance) / 2 + 1 + math.log(2 * math.pi)
    assert_close(fit.objective[-1], bound.detach(), rtol=1e-10, atol=1e-10)
    for slope in torch.autograd.grad(bound, (mean, covariance)):
        assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("level", [0.02, 1e4])
def test_inputs_and_counts_of_any_size_have_finite_fits_whose_bound_rises(scale, level):
    generator = torch.Generator().manual_seed(1)
    inputs = numbers(120, 1, seed=2)
    mean = level * torch.where(torch.arange(120) % 40 < 20, 1.0, 6.0) * (0.3 * inputs[:, 0]).exp()
    x = torch.poisson(mean, generator)
    model = sh.SwitchingSSM(sh.Copy(2), sh.Poisson(1, inputs=1))
    fit = model.fit(x, "vmp", inputs=inputs * scale, **FEW)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    assert float(fit.objective[-1]) < fit.loglik
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())


@pytest.mark.few(1)
def test_float32_data_have_the_bound_of_float64():
    """Variances are differences of moments, of which float32 would leave no digit where counts are large."""
    x, inputs = series_of(80)
    x = x * 500
    model = sh.SwitchingSSM(sh.Markov(2), sh.Poisson(1, inputs=1))
    wide = model.fit(x, "vmp", inputs=inputs, **FEW)
    narrow = model.fit(x.float(), "vmp", inputs=inputs.float(), **FEW)
    assert_close(narrow.objective[-1].double(), wide.objective[-1], rtol=1e-5, atol=0)
    assert narrow.model.values["rate"].dtype == torch.float32
    smoothed = narrow.posterior.smooth(x.float(), inputs=inputs.float())
    assert smoothed.state.dtype == torch.float32
    assert_close(smoothed.state.double(), wide.posterior.smooth(x, inputs=inputs).state, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.few(1)
def test_both_parts_of_a_gate_may_count():
    x, inputs = series_of(60)
    model = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Poisson(1, inputs=1), sh.Poisson(1, inputs=1)))
    fit = model.fit(x, "vmp", inputs=inputs, **FEW)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    assert float(fit.objective[-1]) < fit.loglik
    assert {"coefficients", "background_coefficients"} <= set(fit.posterior.mean)


@pytest.mark.slow
def test_intervals_are_near_those_of_nuts():
    x, inputs = series_of(150)
    model = sh.SwitchingSSM(sh.Markov(2), sh.Poisson(1, inputs=1))
    fit = model.fit(x, "vmp", inputs=inputs, **FEW)
    draws = model.fit(x, "nuts", inputs=inputs, num_samples=200, warmup_steps=50, seed=0, progress=False)
    for name in ("rate", "coefficients"):
        exact = draws.posterior.interval(0.9)
        for correct in (True, False):  # q itself, and with the dependence between parameters and paths
            near = fit.posterior.interval(0.9, correct=correct)
            width = exact.upper[name] - exact.lower[name]
            for a, b in ((near.lower, exact.lower), (near.upper, exact.upper)):
                assert float(((a[name] - b[name]).abs() / width).max()) < 0.2
