"""Simulation-based calibration (Talts et al. 2018) of what is exact: conjugate posteriors, and paths of known models.

Parameters or a path are drawn, then data given them, then draws from the posterior given the data. The rank of the
first among the last is uniform if, and up to the power of the test only if, the posterior is right.
"""

import pyro
import pytest
import samplehold as sh
import torch
from oracles.models import KINDS, drive, random_model
from samplehold.switching.priors import sample_sites
from scipy.stats import chisquare
from torch import Tensor

DRAWS = 99  # so that ranks are 0 to 99
BINS = 20
LEAST = 1e-3 / 40  # the p-value below which a test fails, shared among about forty statistics


def p_value(truth: Tensor, draws: Tensor, generator: torch.Generator) -> float:
    """Of the ranks of truth [S] among draws [DRAWS, S] being uniform; ties are broken at random."""
    less, equal = (draws < truth).sum(0), (draws == truth).sum(0)
    rank = less + (torch.rand(len(truth), generator=generator) * (equal + 1)).long()
    counts = torch.bincount(rank * BINS // (DRAWS + 1), minlength=BINS)
    return float(chisquare(counts.numpy()).pvalue)


# ---- parameters of one state -----------------------------------------------------------------------------------------

N_POSTERIORS, N_STEPS = 1500, 6
ONE_STATE = {
    "normal": (sh.Normal(2), {"count": 0.5, "shape": 2.5, "rate": 1.5}),
    "spherical": (sh.Normal(2, covariance="spherical"), {"count": 0.5, "shape": 2.5, "rate": 1.5}),
    "full": (sh.MultivariateNormal(2), {"count": 0.5, "df": 5.0}),
    "bernoulli": (sh.Bernoulli(2), {"successes": 1.5, "failures": 0.7}),
    "poisson": (sh.Poisson(2), {"shape": 1.5, "rate": 0.4}),
    "categorical": (sh.Categorical(3, prior=0.8), {}),
}


def numbers(*parts: Tensor) -> Tensor:
    """Each number of each data set's parameters `[*n, data sets, ...]`, side by side."""
    lead = parts[0].shape[: parts[0].shape.index(N_POSTERIORS) + 1]
    return torch.cat([part.reshape(*lead, -1) for part in parts], -1)


@pytest.mark.few(3)
@pytest.mark.cpu("priors without data lie there")
@pytest.mark.parametrize("name", ONE_STATE)
def test_conjugate_posteriors_are_calibrated(name):
    emission, hyperparameters = ONE_STATE[name]
    generator = torch.Generator().manual_seed(0)
    prior = emission.default_prior(N_POSTERIORS, None)  # a state for each data set
    prior |= {n: torch.full_like(prior[n], value) for n, value in hyperparameters.items()}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        with pyro.poutine.block():
            values = sample_sites(emission.sites(prior))
        x = torch.stack([emission.distribution(values).sample() for _ in range(N_STEPS)])  # [n, data sets, F]
    x = x.to(torch.float64).reshape(N_STEPS * N_POSTERIORS, emission.n_features)
    of = torch.nn.functional.one_hot(torch.arange(N_POSTERIORS), N_POSTERIORS).double().repeat(N_STEPS, 1)
    eta = emission.natural(prior) + emission.message(x, of)
    draws = emission.values(emission.family.sample(eta, DRAWS, generator))
    own, drawn = (numbers(*(found[n] for n in values)) for found in (values, draws))
    for i in range(own.shape[-1]):
        assert p_value(own[:, i], drawn[..., i], generator) > LEAST


# ---- paths given the parameters --------------------------------------------------------------------------------------


def summaries(model: sh.SwitchingSSM, x: Tensor, path: Tensor, redraw: Tensor) -> dict[str, Tensor]:
    """Numbers `[*n, S]` that say something of paths `[*n, S, T]` and, the last, of how the data fit them."""
    redraw = redraw.clone()
    redraw[..., 0] = True
    values = {name: value.to(x) for name, value in model.values.items()}
    log_prob = model.emission.log_prob_at(x.expand(*path.shape, -1), values, path, redraw.to(x.dtype))
    return {
        "steps in state 0": (path == 0).sum(-1).double(),
        "moves": (path[..., 1:] != path[..., :-1]).sum(-1).double(),
        "redraws": redraw.sum(-1).double(),
        "last redraw": (redraw * torch.arange(path.shape[-1])).amax(-1).double(),
        "log likelihood": log_prob.sum(-1),
    }


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("dynamics", "emission"), [kind for kind in KINDS if kind[1] in ("normal", "gated", "poisson")]
)
def test_paths_drawn_from_the_posterior_are_calibrated(dynamics, emission):
    n_sequences, n_steps = 1000, 12
    model, generator = random_model(dynamics, emission, seed=3), torch.Generator().manual_seed(1)
    keywords = drive(dynamics, (n_sequences,), n_steps)
    drawn = model.simulate(n_steps, (n_sequences,), seed=5, **keywords)
    found = model.sample_posterior(drawn.x, DRAWS, seed=generator, **keywords)
    gates = torch.ones_like(found.path, dtype=torch.bool) if found.redraw is None else found.redraw
    truth = summaries(model, drawn.x, drawn.path, gates[0] if found.redraw is None else drawn.redraw.bool())
    draws = summaries(model, drawn.x, found.path, gates)
    for name, value in truth.items():
        if model.dynamics.holds or "redraw" not in name:
            assert p_value(value, draws[name], generator) > LEAST, name


def test_a_posterior_that_is_too_narrow_is_caught():
    def model(n_features: int) -> sh.SwitchingSSM:
        table = torch.ones(2, n_features, dtype=torch.float64)
        probs = torch.tensor([0.4, 0.6], dtype=torch.float64)
        loc = table * torch.tensor([[0.0], [1.5]])
        return sh.SwitchingSSM(sh.Copy(2), sh.Normal(n_features)).with_values(
            redraw_prob=torch.tensor(0.3).double(), state_probs=probs, loc=loc, scale=table
        )

    generator, truth_model = torch.Generator().manual_seed(1), model(1)
    drawn = truth_model.simulate(12, (1000,), seed=5)
    truth = summaries(truth_model, drawn.x, drawn.path, drawn.redraw.bool())
    for repeated in (1, 2):  # the same observations, taken for as many others
        x = drawn.x.expand(-1, -1, repeated)
        found = model(repeated).sample_posterior(x, DRAWS, seed=generator)
        draws = summaries(truth_model, drawn.x, found.path, found.redraw)
        worst = min(p_value(value, draws[name], generator) for name, value in truth.items())
        assert (worst > LEAST) == (repeated == 1)
