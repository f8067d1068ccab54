"""Linear Gaussian chains beside a dense normal distribution, statsmodels, and numbers that are known."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from examples import examples, slow
from hypothesis import given
from hypothesis import strategies as st
from oracles import naive_linear_gaussian as naive
from oracles.linear_chains import NAMES, OFFSETS, arguments
from samplehold.inference.chains.linear_gaussian.factors import compress, covariance_of, factor_of
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
NILE = Path(sh.__file__).parent / "notebooks" / "data" / "nile.csv"
COVARIANCES = ("state_noise", "observation_noise", "initial_covariance")
MOVES, SIGHTS = ("transition", "transition_offset", "state_noise"), ("emission", "emission_offset", "observation_noise")


def random_model(seed: int, lengths=(5, 3), varying: bool = False, **options) -> dict[str, Tensor]:
    """Arguments of a chain; `varying`: all parameters depend on the step."""
    size = {"batch": (len(lengths),), "steps": max(lengths), "varying": NAMES + OFFSETS if varying else ()}
    return arguments(seed, **size, **options) | {"lengths": torch.tensor(lengths)}


def sequence_of(model: dict[str, Tensor], b: int) -> naive.Sequence:
    """One sequence of a batch with parameters for every step; diffuse states have no other variance."""
    t = int(model["lengths"][b])

    def steps(name: str) -> Tensor:
        own = 1 if name.endswith("offset") else 2
        table, n = model[name][b], t - (name in MOVES)
        return table[:n] if table.dim() > own else table.expand(n, *table.shape)

    rest = (~model["diffuse"]).double()
    directions = torch.eye(len(rest), dtype=torch.float64)[:, model["diffuse"]]
    return naive.Sequence(
        model["x"][b, :t],
        *(steps(name) for name in ("transition", "transition_offset", "state_noise")),
        *(steps(name) for name in ("emission", "emission_offset", "observation_noise")),
        model["initial_mean"][b],
        model["initial_covariance"][b] * rest * rest.unsqueeze(-1),
        directions,
    )


MODELS = {
    "seed": st.integers(0, 10_000),
    "lengths": st.lists(st.integers(3, 6), min_size=1, max_size=3),
    "states": st.integers(1, 3),
    "features": st.integers(1, 3),
    "missing": st.sampled_from([0.0, 0.2]),
    "varying": st.booleans(),
}


@given(**MODELS, rank=st.integers(0, 3))
def test_filter_smoother_and_evidence_are_those_of_the_dense_normal_distribution(rank, states, **options):
    _compare(random_model(**options, states=states, rank=min(rank, states)))


@given(**(MODELS | {"missing": st.just(0.0)}), diffuse=st.integers(1, 3), rank=st.integers(0, 3))
def test_so_they_are_from_a_diffuse_start(diffuse, rank, states, **options):
    _compare(random_model(**options, states=states, rank=min(rank, states), diffuse=min(diffuse, states)), rtol=1e-8)


def _compare(model: dict[str, Tensor], rtol: float = 1e-10) -> None:
    chain = sh.chains.LinearGaussianChain(**model)
    filtered, smoothed = chain.filter(), chain.smooth()
    assert_close(filtered.log_increment.sum(-1), chain.log_normalizer(), rtol=rtol, atol=rtol)
    for b, t in enumerate(model["lengths"].tolist()):
        sequence = sequence_of(model, b)
        partial = [naive.posterior(sequence, n) for n in range(t + 1)]
        whole, places = partial[-1], torch.arange(t)

        def close(found: Tensor, expected: Tensor) -> None:
            assert_close(found, expected, rtol=rtol, atol=rtol * max(1.0, float(expected.abs().max())))

        close(smoothed.log_normalizer[b], whole.log_normalizer)
        close(filtered.log_increment[b, :t], torch.stack([p.log_normalizer for p in partial]).diff())
        close(smoothed.mean[b, :t], whole.mean)
        close(smoothed.covariance[b, :t], whole.covariance[places, :, places])
        close(smoothed.cross_covariance[b, : t - 1], whole.covariance[places[1:], :, places[:-1]])
        for place in range(t):
            before, after = partial[place], partial[place + 1]
            close(filtered.mean[b, place], after.mean[place])
            close(filtered.covariance[b, place], after.covariance[place, :, place])
            close(filtered.predicted_mean[b, place], before.mean[place])
            close(filtered.predicted_covariance[b, place], before.covariance[place, :, place])
            if filtered.diffuse is not None:
                close(filtered.diffuse[b, place], after.diffuse[place, :, place])
                close(filtered.predicted_diffuse[b, place], before.diffuse[place, :, place])
        assert not smoothed.mean[b, t:].any()
        assert not filtered.covariance[b, t:].any()


@examples(15)
@given(**(MODELS | {"missing": st.just(0.0)}), diffuse=st.integers(0, 1))
def test_gradients_of_the_evidence_are_those_of_the_dense_normal_distribution(**options):
    _compare_gradients(random_model(**options))


def test_gradients_pass_over_missing_features():
    _compare_gradients(random_model(3, lengths=(6, 4), features=3, missing=0.4))


def _compare_gradients(model: dict[str, Tensor]) -> None:
    names = [name for name, table in model.items() if table.is_floating_point()]
    wanted = model | {name: model[name].clone().requires_grad_() for name in names}
    tables = [wanted[name] for name in names]
    weights = torch.linspace(1.0, 2.0, len(model["lengths"]), dtype=torch.float64)
    found = torch.autograd.grad((sh.chains.LinearGaussianChain(**wanted).log_normalizer() * weights).sum(), tables)
    dense = [naive.posterior(sequence_of(wanted, b), 9).log_normalizer for b in range(len(weights))]
    expected = torch.autograd.grad((torch.stack(dense) * weights).sum(), tables)
    for name, one, other in zip(names, found, expected, strict=True):
        symmetric = (other + other.mT) / 2 if name in COVARIANCES else other
        assert_close(one, symmetric, rtol=1e-8, atol=1e-9 * max(1.0, float(symmetric.abs().max())), msg=name)


def test_moments_are_no_part_of_the_graph():
    model = random_model(5)
    model["state_noise"].requires_grad_()
    smoothed, filtered = (
        sh.chains.LinearGaussianChain(**model).smooth(),
        sh.chains.LinearGaussianChain(**model).filter(),
    )
    assert smoothed.log_normalizer.requires_grad
    assert not smoothed.mean.requires_grad
    assert not filtered.covariance.requires_grad


def test_a_singular_covariance_has_the_gradient_of_moves_that_keep_its_rank():
    """An AR(2) in companion form, seen without noise: the variance of its one innovation, by finite differences."""
    companion = torch.tensor([[0.5, 1.0], [0.3, 0.0]], dtype=torch.float64)
    first, x = torch.eye(1, 2, dtype=torch.float64), random_model(0, lengths=(8,), features=1)["x"][0]

    def evidence(variance: Tensor) -> Tensor:
        noise = variance * torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
        none, start = torch.zeros(1, 1, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
        return sh.chains.LinearGaussianChain(
            x, companion, noise, first, none, initial_covariance=start
        ).log_normalizer()

    variance = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(evidence(variance), variance)
    with torch.no_grad():
        difference = (evidence(variance + 1e-6) - evidence(variance - 1e-6)) / 2e-6
    assert_close(found, difference, rtol=1e-7, atol=0)


def test_second_derivatives_are_refused_and_not_wrong():
    covariance = torch.eye(2, dtype=torch.float64, requires_grad=True)
    one = torch.eye(2, dtype=torch.float64)
    total = sh.chains.LinearGaussianChain(
        torch.ones(3, 2, dtype=torch.float64), one, covariance, one, one
    ).log_normalizer()
    (grad,) = torch.autograd.grad(total, covariance, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def nile() -> Tensor:
    return torch.tensor(pd.read_csv(NILE).volume.to_numpy(), dtype=torch.float64).unsqueeze(-1)


def local_level(x: Tensor, **options: Tensor) -> sh.chains.LinearGaussianChain:
    one = torch.ones(1, 1, dtype=x.dtype)
    return sh.chains.LinearGaussianChain(x, one, 1469.1764 * one, one, 15098.518 * one, diffuse=[True], **options)


def test_the_nile_has_the_evidence_of_durbin_and_koopman():
    total = float(local_level(nile()).log_normalizer())
    assert abs(total - -633.4645636) < 1e-6
    assert abs(total + math.log(2 * math.pi) / 2 - -632.5456251) < 1e-6


def test_the_nile_with_gaps_is_that_of_statsmodels():
    structural = pytest.importorskip("statsmodels.tsa.statespace.structural")
    x = nile()
    x[20:40] = x[60:80] = torch.nan
    peer = structural.UnobservedComponents(x.numpy()[:, 0], "local level", use_exact_diffuse=True)
    expected = peer.smooth([15098.518, 1469.1764])
    chain = local_level(x)
    filtered, smoothed = chain.filter(), chain.smooth()
    assert_close(float(chain.log_normalizer()), float(expected.llf), rtol=1e-8, atol=0)
    for found, theirs in (
        (filtered.log_increment, expected.llf_obs),
        (filtered.mean.mT, expected.filtered_state),
        (filtered.covariance.permute(1, 2, 0), expected.filtered_state_cov),
        (smoothed.mean.mT, expected.smoothed_state),
        (smoothed.covariance.permute(1, 2, 0), expected.smoothed_state_cov),
    ):
        assert_close(found, torch.from_numpy(np.ascontiguousarray(theirs)), rtol=1e-8, atol=1e-8)
    ahead = peer.smooth([15098.518, 1469.1764]).get_forecast(5)
    forecast = chain.forecast(5)
    assert_close(forecast.mean[:, 0], torch.from_numpy(ahead.predicted_mean), rtol=1e-8, atol=0)
    assert_close(forecast.covariance[:, 0, 0], torch.from_numpy(ahead.var_pred_mean), rtol=1e-8, atol=0)


def test_trend_and_season_with_missing_features_are_those_of_statsmodels():
    """Five diffuse states, two features of which single ones are missing, also while the start is still open."""
    smoother = pytest.importorskip("statsmodels.tsa.statespace.kalman_smoother")
    model = random_model(1, lengths=(30,), states=5, features=2, missing=0.3, rank=3, diffuse=5)
    transition = torch.zeros(5, 5, dtype=torch.float64)
    transition[:2, :2] = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    transition[2, 2:], transition[3, 2], transition[4, 3] = -1.0, 1.0, 1.0
    emission = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.0], [0.5, 0.0, -1.0, 0.0, 0.0]], dtype=torch.float64)
    noise = torch.diag(torch.tensor([0.5, 0.1, 0.3, 0.0, 0.0], dtype=torch.float64))
    x, observation_noise = model["x"][0], model["observation_noise"][0]
    peer = smoother.KalmanSmoother(k_endog=2, k_states=5)
    peer.bind(x.numpy().copy())
    for name, table in (
        ("design", emission),
        ("transition", transition),
        ("selection", torch.eye(5)),
        ("state_cov", noise),
        ("obs_cov", observation_noise),
    ):
        peer[name] = table.double().numpy()
    peer.initialize_diffuse()
    expected = peer.smooth()
    chain = sh.chains.LinearGaussianChain(x, transition, noise, emission, observation_noise, diffuse=[True] * 5)
    smoothed = chain.smooth()
    assert_close(float(chain.log_normalizer()), float(expected.llf_obs.sum()), rtol=1e-8, atol=0)
    assert_close(
        smoothed.mean.mT, torch.from_numpy(np.ascontiguousarray(expected.smoothed_state)), rtol=1e-7, atol=1e-7
    )
    theirs = torch.from_numpy(np.ascontiguousarray(expected.smoothed_state_cov))
    assert_close(smoothed.covariance.permute(1, 2, 0), theirs, rtol=1e-7, atol=1e-7)


@pytest.mark.few(2)
@pytest.mark.parametrize("diffuse", [0, 1])
@pytest.mark.parametrize("rank", [1, 2])
def test_draws_have_the_moments_of_the_posterior(diffuse, rank):
    model = random_model(7, lengths=(5, 3), rank=rank, diffuse=diffuse)
    chain, n = sh.chains.LinearGaussianChain(**model), 100_000
    path = chain.sample(n, seed=0).latent
    for b, t in enumerate((5, 3)):
        expected = naive.posterior(sequence_of(model, b), t)
        covariance = expected.covariance.reshape(2 * t, 2 * t)
        error = (covariance.diagonal().outer(covariance.diagonal()) * 2 / n).sqrt()
        found = path[:, b, :t].flatten(1)
        mean_error = (covariance.diagonal() / n).sqrt()
        assert ((found.mean(0) - expected.mean.flatten()).abs() <= 6 * mean_error + 1e-9).all()
        assert ((found.T.cov() - covariance).abs() <= 6 * error + 1e-9).all()
        assert not path[:, b, t:].any()


def test_draws_are_those_of_their_seed():
    chain = sh.chains.LinearGaussianChain(**random_model(2))
    assert torch.equal(chain.sample(3, seed=1).latent, chain.sample(3, seed=torch.Generator().manual_seed(1)).latent)
    assert not torch.equal(chain.sample(3, seed=1).latent, chain.sample(3, seed=2).latent)


@pytest.mark.parametrize("diffuse", [0, 1, 2])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_entropy_is_that_of_the_dense_normal_distribution(diffuse, missing):
    model = random_model(11, lengths=(6, 4), features=3, missing=missing, diffuse=diffuse)
    found = sh.chains.LinearGaussianChain(**model).entropy()
    for b, t in enumerate((6, 4)):
        covariance = naive.posterior(sequence_of(model, b), t).covariance.reshape(2 * t, 2 * t)
        expected = (torch.linalg.slogdet(covariance)[1] + 2 * t * math.log(2 * math.pi * math.e)) / 2
        assert_close(found[b], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["state_noise", "observation_noise", "initial_covariance"])
def test_a_path_without_noise_in_some_direction_has_no_entropy(name):
    model = random_model(11, lengths=(6, 4))
    model[name] = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert (sh.chains.LinearGaussianChain(**model).entropy() == -torch.inf).all()


def test_a_forecast_is_the_smoothed_belief_of_missing_steps():
    model = random_model(4, lengths=(5, 5), missing=0.2)
    longer = torch.cat([model["x"], torch.full((2, 3, 2), torch.nan, dtype=torch.float64)], 1)
    smoothed = sh.chains.LinearGaussianChain(**(model | {"x": longer, "lengths": None})).smooth()
    forecast = sh.chains.LinearGaussianChain(**model).forecast(3)
    assert_close(forecast.state_mean, smoothed.mean[:, 5:], **TIGHT)
    assert_close(forecast.state_covariance, smoothed.covariance[:, 5:], **TIGHT)
    emission = model["emission"]
    seen = emission.unsqueeze(1) @ forecast.state_covariance @ emission.unsqueeze(1).mT
    assert_close(forecast.covariance, seen + model["observation_noise"].unsqueeze(1), **TIGHT)


def test_a_forecast_goes_on_from_each_sequences_own_end():
    model = random_model(4, lengths=(5, 3))
    short = {name: table[1:] if name != "diffuse" else table for name, table in model.items()}
    alone = sh.chains.LinearGaussianChain(**(short | {"x": short["x"][:, :3]})).forecast(2)
    both = sh.chains.LinearGaussianChain(**model).forecast(2)
    assert_close(both.mean[1], alone.mean[0], **TIGHT)
    assert_close(both.covariance[1], alone.covariance[0], **TIGHT)


def test_nothing_is_read_beyond_the_end():
    model = random_model(6, lengths=(5, 3), varying=True)
    spoilt = {name: table.clone() for name, table in model.items()}
    spoilt["x"][1, 3:] = 1e9
    spoilt["transition"][1, 2:], spoilt["emission_offset"][1, 3:] = 1e200, -1e9
    for found, expected in zip(
        vars(sh.chains.LinearGaussianChain(**spoilt).smooth()).values(),
        vars(sh.chains.LinearGaussianChain(**model).smooth()).values(),
        strict=True,
    ):
        assert_close(found, expected, **TIGHT)


def test_restarts_are_one_more_batch_axis_beside_one_sequence():
    model = random_model(8, lengths=(5, 5, 5))
    x = model["x"][:1]
    together = sh.chains.LinearGaussianChain(**(model | {"x": x, "lengths": None}))
    assert together.batch_shape == (3,)
    for b in range(3):
        own = {name: table if name in ("diffuse", "lengths") else table[b] for name, table in model.items()}
        alone = sh.chains.LinearGaussianChain(**(own | {"x": x[0], "lengths": None}))
        assert_close(together.log_normalizer()[b], alone.log_normalizer(), **TIGHT)
        assert_close(together.smooth().covariance[b], alone.smooth().covariance, **TIGHT)


@pytest.mark.parametrize("diffuse", [0, 1])
def test_sequences_share_parameters_without_batch_axes(diffuse):
    model = random_model(9, lengths=(6, 4, 5), missing=0.2, diffuse=diffuse)
    shared = {name: table[0] for name, table in model.items() if name not in ("x", "lengths", "diffuse")}
    together = sh.chains.LinearGaussianChain(**(model | shared))
    smoothed, filtered, draws = together.smooth(), together.filter(), together.sample(2, seed=0)
    assert draws.latent.shape == (2, 3, 6, 2)
    assert together.forecast(2).covariance.shape == (3, 2, 2, 2)
    assert together.entropy().shape == (3,)
    for b, t in enumerate((6, 4, 5)):
        alone = sh.chains.LinearGaussianChain(model["x"][b, :t], diffuse=model["diffuse"], **shared)
        assert_close(smoothed.log_normalizer[b], alone.log_normalizer(), **TIGHT)
        assert_close(smoothed.mean[b, :t], alone.smooth().mean, **TIGHT)
        assert_close(smoothed.cross_covariance[b, : t - 1], alone.smooth().cross_covariance, **TIGHT)
        assert_close(filtered.log_increment[b, :t], alone.filter().log_increment, **TIGHT)
        assert_close(together.entropy()[b], alone.entropy(), **TIGHT)


@pytest.mark.slow
def test_float32_is_float64_to_its_rounding_and_never_indefinite():
    """A smooth trend over 200 steps, whose slope hardly moves: P - K F K' loses its positive eigenvalues here."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 1, generator=generator, dtype=torch.float64).cumsum(0)
    tables = (
        torch.tensor([[1.0, 1.0], [0.0, 1.0]]),
        torch.diag(torch.tensor([0.0, 1e-8])),
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([[1e-4]]),
    )
    fine = sh.chains.LinearGaussianChain(x, *(table.double() for table in tables), diffuse=[True, True])
    coarse = sh.chains.LinearGaussianChain(x.float(), *tables, diffuse=[True, True])
    assert_close(coarse.log_normalizer().double(), fine.log_normalizer(), rtol=1e-3, atol=0)
    assert_close(coarse.smooth().mean.double(), fine.smooth().mean, rtol=1e-2, atol=2e-2)
    for found in (coarse.smooth().covariance, coarse.filter().covariance):
        assert found.dtype == torch.float32
        scale = found.diagonal(dim1=-2, dim2=-1).sqrt()
        values = torch.linalg.eigvalsh(found.double())
        assert (values >= -1e-6 * scale.amax(-1, keepdim=True) ** 2).all()
        assert (found.diagonal(dim1=-2, dim2=-1) >= 0).all()


def test_smoothing_does_not_run_a_move_without_noise_backward():
    """A state that decays by half each step: 2^100 times the rounding, where it is had from the one after it."""
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64)
    transition = turn @ torch.diag(torch.tensor([0.99, 0.5], dtype=torch.float64)) @ turn.mT
    one = torch.eye(2, dtype=torch.float64)
    x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chain = sh.chains.LinearGaussianChain(x, transition, 0 * one, one[:1], one[:1, :1], initial_covariance=one)
    design = torch.stack([torch.linalg.matrix_power(transition, t)[0] for t in range(100)])
    covariance = torch.linalg.inv(one + design.mT @ design)  # a regression on the first state
    smoothed = chain.smooth()
    assert_close(smoothed.covariance[0], covariance, **TIGHT)
    assert_close(smoothed.mean[0], covariance @ design.mT @ x[:, 0], **TIGHT)


def test_factors_keep_products_and_scales():
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(4, 3, 7, generator=generator, dtype=torch.float64)
    assert_close(covariance_of(compress(wide)), covariance_of(wide), **TIGHT)
    variances = torch.diag(torch.tensor([1e12, 1e-12, 0.0], dtype=torch.float64))
    assert_close(covariance_of(factor_of(variances)[0]), variances, rtol=1e-14, atol=0)


ONE, TWO = torch.ones(1, 1), torch.eye(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.full((3, 1), torch.inf)}, "x: got shape"),
        ({"x": torch.zeros(0, 1)}, "x: got shape"),
        ({"transition": torch.ones(2, 1)}, "transition: got shape"),
        (
            {"transition": torch.ones(4, 1, 1)},
            r"expected \[\*batch, 1, 1\], the same at all steps, or \[\*batch, 2, 1, 1\]",
        ),
        ({"transition": torch.ones(0, 0)}, "transition: got shape"),
        (
            {"transition": 1e30 * ONE, "x": torch.full((9, 1), torch.nan)},
            "transition, state_noise: the variance at step ",
        ),
        ({"x": 1e30 * torch.ones(3, 1)}, "overflows float32"),
        ({"emission": torch.ones(2, 1)}, "emission: got shape"),
        ({"state_noise": -ONE}, "state_noise: got a matrix with a negative eigenvalue, -1"),
        ({"observation_noise": torch.tensor([[torch.nan]])}, "observation_noise: got numbers that are not finite"),
        ({"observation_noise": 0 * ONE, "state_noise": 0 * ONE}, "observation_noise: the observation at step 0"),
        ({"initial_mean": torch.ones(2)}, "initial_mean: got shape"),
        ({"diffuse": [True, True]}, "diffuse: got shape"),
        ({"diffuse": [True], "x": torch.full((3, 1), torch.nan)}, "the 3 steps of x do not determine the 1 diffuse"),
        ({"lengths": 4}, "lengths: got 4"),
    ],
)
@pytest.mark.parametrize("mode", ["plain", slow("native")])
def test_bad_arguments_are_named_with_their_cure(arguments, message, mode):
    good = {"x": torch.zeros(3, 1), "transition": ONE, "state_noise": ONE, "emission": ONE, "observation_noise": ONE}
    with sh.kernels(mode), pytest.raises(ValueError, match=message):
        sh.chains.LinearGaussianChain(**(good | arguments)).log_normalizer()


@pytest.mark.parametrize(("dtype", "growth"), [(torch.float64, 1e50), (torch.float32, 1e6)])
def test_means_beyond_numbers_are_named(dtype, growth):
    x, one = torch.full((9, 1), torch.nan, dtype=dtype), torch.ones(1, 1, dtype=dtype)
    growing = sh.chains.LinearGaussianChain(x, growth * one, 0 * one, one, one, initial_mean=one[0])
    for method in (growing.filter, growing.smooth, growing.entropy):
        with pytest.raises(ValueError, match=f"transition, initial_mean: a mean overflows {str(dtype)[6:]};"):
            method()


def test_forecasts_beyond_numbers_are_named():
    unstable = sh.chains.LinearGaussianChain(torch.zeros(3, 1), 1e3 * ONE, ONE, ONE, ONE)
    with pytest.raises(ValueError, match="horizon: got 20, but means or variances overflow"):
        unstable.forecast(20)


def test_covariances_are_symmetric_and_positive():
    x, bent = torch.zeros(3, 2), torch.tensor([[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(ValueError, match="state_noise: got a matrix that is not symmetric"):
        sh.chains.LinearGaussianChain(x, TWO, bent, TWO, TWO)
    with pytest.raises(ValueError, match="observation_noise: got a matrix with a negative eigenvalue, -1"):
        sh.chains.LinearGaussianChain(x, TWO, TWO, TWO, torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


def test_a_series_too_short_for_its_diffuse_start_is_named_by_its_sequence():
    x, trend = torch.zeros(2, 3, 1).double(), torch.tensor([[1.0, 1.0], [0.0, 1.0]]).double()
    two, one = TWO.double(), ONE.double()
    chain = sh.chains.LinearGaussianChain(x, trend, two, two[:1], one, diffuse=[True, True], lengths=[3, 1])
    with pytest.raises(ValueError, match="diffuse: the 1 steps of x of sequence 1 do not determine the 2 diffuse"):
        chain.smooth()


def test_kinds_are_named():
    with pytest.raises(TypeError, match=r"diffuse: got torch\.int64, expected a boolean for each state"):
        sh.chains.LinearGaussianChain(torch.zeros(3, 1), ONE, ONE, ONE, ONE, diffuse=[1])
    with pytest.raises(TypeError, match=r"state_noise: got torch\.float64"):
        sh.chains.LinearGaussianChain(torch.zeros(3, 1), ONE, ONE.double(), ONE, ONE)
    with pytest.raises(ValueError, match="transition: varies by step"):
        sh.chains.LinearGaussianChain(torch.zeros(3, 1), torch.ones(2, 1, 1), ONE, ONE, ONE).forecast(2)


@pytest.mark.parametrize("mode", ["native", "plain"])
def test_a_diffuse_walk_without_noise_of_observations_is_its_steps(mode):
    """Evidence, its gradient and bridges over gaps, of a batch in which one sequence has noise and one has none."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, 1, generator=generator, dtype=torch.float64).cumsum(-2)
    gap = x.clone()
    gap[:, 3:5] = torch.nan
    one = torch.eye(1, dtype=torch.float64)
    noise = torch.tensor([0.0, 0.3], dtype=torch.float64).reshape(2, 1, 1)
    q = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    with sh.kernels(mode):
        options = {"diffuse": torch.tensor([True])}
        chain = sh.chains.LinearGaussianChain(x, one, q * one, one, noise, **options)
        total = chain.log_normalizer()
        (slope,) = torch.autograd.grad(total[0], q)
        smoothed = sh.chains.LinearGaussianChain(gap, one, q.detach() * one, one, noise, **options).smooth()
        alone = sh.chains.LinearGaussianChain(x[1], one, q.detach() * one, one, noise[1], **options)
        assert_close(total[1].detach(), alone.log_normalizer(), rtol=1e-12, atol=1e-12)
    steps = x[0].diff(dim=0)
    expected = torch.distributions.Normal(0.0, q.sqrt()).log_prob(steps).sum() - math.log(2 * math.pi) / 2
    assert_close(total[0], expected, rtol=1e-12, atol=1e-12)
    assert_close(slope, torch.autograd.grad(expected, q)[0], rtol=1e-9, atol=1e-9)
    low, high = float(x[0, 2]), float(x[0, 5])
    assert_close(smoothed.mean[0, 2:6, 0], torch.linspace(low, high, 4, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    bridge = 0.7 * torch.tensor([0.0, 2 / 3, 2 / 3, 0.0], dtype=torch.float64)
    assert_close(smoothed.covariance[0, 2:6, 0, 0], bridge, rtol=1e-9, atol=1e-9)
    with sh.kernels(mode), pytest.raises(ValueError, match=r"^observation_noise: the observation at step 1"):
        sh.chains.LinearGaussianChain(x[0], one, 0 * one, one, 0 * one, **options).log_normalizer()
