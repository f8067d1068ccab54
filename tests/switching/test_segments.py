"""Segments: exact inference over all segmentations, for every conjugate emission."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.every_segmentation import evidences, segmentations
from oracles.streams import assert_stream_is_filter
from samplehold.inference.families import Beta, Gamma, NormalGamma, NormalWishart
from samplehold.inference.numerics.gammas import inverse_moments
from samplehold.switching.segments.beliefs import moments
from samplehold.switching.segments.durations import log_hazards, settled
from samplehold.switching.segments.rows import ordinary_row
from scipy import stats
from torch import Tensor

NILE = Path(sh.__file__).parent / "notebooks" / "data" / "nile.csv"

FLOAT, NAN = torch.float64, float("nan")


def table(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=FLOAT)


INPUTS = table([0.3], [-1.0], [0.5], [1.2], [-0.4], [0.9])
COUNTS = table([0.0, 3.0], [1.0, 2.0], [NAN, 4.0], [7.0, NAN], [9.0, 0.0], [NAN, NAN])
NUMBERS = table([0.1, 2.0], [-0.4, 2.5], [NAN, 1.5], [3.0, NAN], [3.4, -1.0], [NAN, NAN])
VECTORS = table([0.1, 2.0], [-0.4, 2.5], [NAN, NAN], [3.0, 1.0], [3.4, -1.0], [2.0, 0.0])
NORMAL = {"loc": [0.5, 1.0], "count": [0.3, 0.5], "shape": [2.0, 1.5], "rate": [0.7, 1.1]}
WISHART = {"loc": [0.5, 1.0], "count": 0.3, "df": 6.0, "inverse_scale": [[1.5, 0.3], [0.3, 1.2]]}
GAMMA = {"shape": [1.0, 2.5], "rate": [1.0, 0.4]}

CASES: dict[str, tuple[Any, dict[str, Any], Tensor]] = {
    "Normal": (sh.Normal(2), NORMAL, NUMBERS),
    "MultivariateNormal": (sh.MultivariateNormal(2), WISHART, VECTORS),
    "Poisson": (sh.Poisson(2), GAMMA, COUNTS),
    "Exponential": (sh.Exponential(2), GAMMA, COUNTS + 0.5),
    "Bernoulli": (
        sh.Bernoulli(2),
        {"successes": [1.0, 2.0], "failures": [1.5, 0.5]},
        (COUNTS > 2).double() + 0 * COUNTS,
    ),
    "Categorical": (sh.Categorical(3), {"concentration": [1.0, 0.5, 2.0]}, (COUNTS % 3)[:, :1]),
    "LinearRegression": (sh.LinearRegression(2, 1), NORMAL, NUMBERS),
}
HAZARD = 0.15


def case(name: str, **options: Any) -> tuple[sh.Segments, Tensor, dict[str, Tensor]]:
    emission, prior, x = CASES[name]
    given = {"inputs": INPUTS} if name == "LinearRegression" else {}
    return sh.Segments(emission, HAZARD, **options).with_prior(prior), x, given


def enumerated(name: str, hazards: list[float] | None = None, n: int | None = None) -> list[Any]:
    """All segmentations of the first n steps of a case."""
    emission, prior, x = CASES[name]
    rows = torch.cat([x, INPUTS], -1) if name == "LinearRegression" else x
    tables = {key: torch.tensor(value, dtype=FLOAT).unsqueeze(0) for key, value in prior.items()}
    return list(segmentations(evidences(emission, tables, rows[:n]), hazards or [HAZARD] * len(x)))


@pytest.fixture(scope="module")
def all_segmentations() -> dict[str, list[Any]]:
    return {name: enumerated(name) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_inference_equals_enumeration(name, all_segmentations):
    model, x, given = case(name)
    every = all_segmentations[name]
    joint = torch.stack([one.log_joint for one in every])
    evidence, weights = joint.logsumexp(0), joint.softmax(0)
    change = sum(
        w * table(*[float(t in one.begins) for t in range(len(x))]) for w, one in zip(weights, every, strict=True)
    )
    smoothed, best = model.smooth(x, **given), model.viterbi(x, **given)
    torch.testing.assert_close(model.log_evidence(x, **given), evidence, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(smoothed.change, change, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(smoothed.n_changes, change[1:].sum(), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(best.log_probability, joint.max(), rtol=1e-10, atol=1e-10)
    begins = tuple(best.redraw.nonzero().flatten().tolist())
    torch.testing.assert_close(next(one.log_joint for one in every if one.begins == begins), joint.max())


@pytest.mark.parametrize("name", CASES)
def test_the_filter_is_the_smoother_of_the_beginning(name):
    model, x, given = case(name)
    filtered, n = model.filter(x, **given), 4
    part = model.smooth(x[:n], **{key: value[:n] for key, value in given.items()})
    torch.testing.assert_close(filtered.log_increment[:n].sum(), part.log_normalizer, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(filtered.change[n - 1], part.change[-1], rtol=1e-9, atol=1e-10)
    for key, mean in part.mean.items():
        torch.testing.assert_close(filtered.mean[key][n - 1], mean[-1], rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(filtered.sd[key][n - 1], part.sd[key][-1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_a_forecast_is_the_ratio_of_evidences(name):
    model, x, given = case(name)
    ahead = {key: torch.cat([value, value[:2]]) for key, value in given.items()}
    after = torch.cat([x, torch.full_like(x[:1], NAN), x[4:5]])  # one step unseen, then one seen
    gained = model.log_evidence(after, **ahead) - model.log_evidence(x, **given)
    forecast = model.forecast(x, 2, **ahead)
    torch.testing.assert_close(forecast.observation.log_prob(x[4])[1], gained, rtol=1e-9, atol=1e-10)
    changed = torch.tensor([HAZARD, 1 - (1 - HAZARD) ** 2], dtype=FLOAT)
    torch.testing.assert_close(forecast.redraw, changed)


def test_the_nile():
    """Numbers computed apart from this project."""
    nile = pd.read_csv(NILE, index_col="year")
    model = sh.Segments(sh.Normal(1), hazard=0.02).with_prior(
        {"loc": 900.0, "count": 0.1, "shape": 2.0, "rate": 2 * 120.0**2}
    )
    assert float(model.log_evidence(nile)) == pytest.approx(-639.8011245600, abs=1e-9)
    assert float(model.smooth(nile).n_changes) == pytest.approx(1.4503573389, abs=1e-9)
    best = model.viterbi(nile)
    assert float(best.log_probability) == pytest.approx(-640.4844246584, abs=1e-9)
    assert nile.index[best.redraw.numpy()].tolist() == [1871, 1899]
    segments = model.segments(nile)
    assert segments[["begin", "end", "steps"]].to_numpy().tolist() == [[1871, 1898, 28], [1899, 1970, 72]]
    states = model.states(nile)
    assert states.index.equals(nile.index)
    assert states.change.idxmax() == 1899


def test_results_are_written_as_they_are_returned(tmp_path):
    model, x, _ = case("Normal")
    frame = pd.DataFrame(x.numpy(), columns=["a", "b"], index=pd.Index(range(1990, 1996), name="year"))
    states = model.states(frame)
    assert [*states][:5] == ["change", "loc_a", "loc_a_sd", "loc_b", "loc_b_sd"]
    model.write(frame, tmp_path / "states.parquet")
    written = pd.read_parquet(tmp_path / "states.parquet").set_index("year")
    pd.testing.assert_frame_equal(written, states, check_index_type=False)
    model.write(frame, tmp_path / "ahead.parquet", "forecast", horizon=2)
    assert [*pd.read_parquet(tmp_path / "ahead.parquet")] == ["horizon", "a", "a_sd", "b", "b_sd", "change"]


def test_moments_are_those_of_scipy():
    a, b, kappa = 2.7, 1.3, 0.4
    eta = NormalGamma().natural(*(torch.tensor([[v]], dtype=FLOAT) for v in (0.3, kappa, a, b)))
    found = moments(NormalGamma(), eta)
    t = stats.t(2 * a, 0.3, (b / (a * kappa)) ** 0.5)
    precision = stats.invgamma(a, scale=b)
    scale = precision.expect(np.sqrt)
    expected = {"loc": (0.3, t.var() + 0.3**2), "scale": (scale, precision.mean())}
    for name, pair in expected.items():
        assert [float(number) for number in found[name]] == pytest.approx(pair, rel=1e-8)
    root, inverse = inverse_moments(table(1e6))
    assert float(inverse - root.square()) == pytest.approx(1e-12 / 4, rel=1e-5)  # 1 / (4 a^2) and less
    matrix = [[1.5, 0.3], [0.3, 1.2]]
    wishart = NormalWishart.of_inverse(*(torch.tensor(v, dtype=FLOAT) for v in ([[0.3, 1.0]], [0.5], [7.5], [matrix])))
    mean, square = moments(NormalWishart(), wishart)["covariance"]
    law = stats.invwishart(7.5, matrix)
    np.testing.assert_allclose(mean[0], law.mean().flatten())
    np.testing.assert_allclose(square[0] - mean[0] ** 2, law.var().flatten())
    for family, law, name in (
        (Gamma(), stats.gamma(2.5, scale=1 / 0.8), "rate"),
        (Beta(), stats.beta(2.5, 0.8), "probs"),
    ):
        eta = family.natural(torch.tensor([2.5], dtype=FLOAT), torch.tensor([0.8], dtype=FLOAT))
        assert [float(number) for number in moments(family, eta)[name]] == pytest.approx(
            (law.mean(), law.var() + law.mean() ** 2)
        )


def test_a_moment_that_does_not_exist_is_infinite():
    model = sh.Segments(sh.Normal(), 0.1).with_prior({"loc": 0.0, "count": 1.0, "shape": 0.7, "rate": 1.0})
    smoothed = model.smooth([NAN, 1.0, 2.0])
    assert smoothed.sd["loc"][0] == torch.inf
    assert bool(model.smooth([1.0, 2.0]).sd["loc"].isfinite().all())


@pytest.mark.parametrize("name", ["Normal", "MultivariateNormal", "Categorical", "LinearRegression"])
def test_draws_have_the_posterior_means(name):
    model, x, given = case(name)
    drawn, smoothed = model.sample_posterior(x, 4000, seed=1, **given), model.smooth(x, **given)
    assert drawn.path.shape == (4000, len(x))
    torch.testing.assert_close(drawn.redraw.double().mean(0), smoothed.change, rtol=0, atol=0.03)
    for key, mean in smoothed.mean.items():
        if not bool(smoothed.sd[key].isfinite().all()):
            continue
        error = (drawn.parameters[key].mean(0) - mean).abs() / smoothed.sd[key]
        assert float(error.max()) < 0.12, key


def test_sequences_have_changes_of_their_own_and_their_lengths():
    model, x, _ = case("Normal")
    both = torch.stack([x, x.flip(0)])
    together, alone = model.smooth(both, lengths=[6, 4]), model.smooth(x.flip(0)[:4])
    torch.testing.assert_close(together.change[1, :4], alone.change)
    assert bool((together.change[1, 4:] == 0).all())
    torch.testing.assert_close(together.mean["loc"][1, :4], alone.mean["loc"])
    ragged = model.smooth([x, x.flip(0)[:4]], ragged=True)
    torch.testing.assert_close(ragged[1].sd["scale"], alone.sd["scale"])
    assert ragged[1].mean["loc"].shape == (4, 2)
    segments = model.segments([x, x.flip(0)[:4]])
    assert segments.sequence.unique().tolist() == [0, 1]
    assert segments.groupby("sequence").steps.sum().tolist() == [6, 4]
    drawn = model.sample_posterior([x, x.flip(0)[:4]], 2, seed=0, ragged=True)
    assert drawn[1].parameters["scale"].shape == (2, 4, 2)


@pytest.mark.parametrize("name", ["Normal", "MultivariateNormal", "Categorical"])
def test_shared_changes_are_those_of_one_longer_observation(name):
    model, x, _ = case(name, shared=True)
    both = torch.stack([x, x.flip(0)])
    every, other = enumerated(name), case(name)[0]
    rows = {one.begins: one.log_joint for one in every}
    flipped = {tuple(sorted({0, *(6 - t for t in one.begins if t)})): one.log_joint for one in every}
    changes = {
        begins: (len(begins) - 1) * math.log(HAZARD) + (6 - len(begins)) * math.log1p(-HAZARD) for begins in rows
    }
    total = torch.stack([rows[begins] + flipped[begins] - changes[begins] for begins in rows]).logsumexp(0)
    torch.testing.assert_close(model.log_evidence(both), total, rtol=1e-10, atol=1e-10)
    smoothed = model.smooth(both)
    assert smoothed.change.shape == (2, 6)
    torch.testing.assert_close(smoothed.change[0], smoothed.change[1])
    certain = case(name, shared=True)[0].with_values(hazard=1 - 1e-12)
    for key, mean in other.with_values(hazard=1 - 1e-12).smooth(both).mean.items():
        torch.testing.assert_close(certain.smooth(both).mean[key], mean, rtol=1e-8, atol=1e-8)
    assert model.sample_posterior(both, 3, seed=0).path.shape == (3, 2, 6)
    assert model.segments(both).groupby("sequence").steps.sum().tolist() == [6, 6]
    later = torch.cat([both, both[:, :1]], 1)
    gained = model.log_evidence(later) - model.log_evidence(both)
    if name == "Categorical":  # sequences are independent given a change or none, but not together
        assert model.forecast(both, 1).probs.shape == (2, 1, 3)
    assert bool(gained.isfinite())


def test_shared_changes_end_with_each_sequence():
    model, x, _ = case("Normal", shared=True)
    short = [x, x[:4]]
    padded = torch.stack([x, torch.cat([x[:4], x.new_full((2, 2), NAN)])])
    torch.testing.assert_close(model.log_evidence(short), model.log_evidence(padded))
    best, smoothed, drawn = model.viterbi(short), model.smooth(short), model.sample_posterior(short, 3, seed=0)
    assert best.path[1, 4:].tolist() == [-1, -1]
    assert bool((best.path[0] >= 0).all())
    assert bool((drawn.path[:, 1, 4:] == -1).all())
    assert not bool(drawn.redraw[:, 1, 4:].any())
    assert not bool(smoothed.change[1, 4:].any())
    assert not bool(model.filter(short).run[1, 4:].any())
    assert model.segments(short).groupby("sequence").steps.sum().tolist() == [6, 4]
    with pytest.raises(ValueError, match="lengths: got sequences that end at different steps"):
        model.forecast(short, 1)


@pytest.mark.parametrize("chance", [1e-3, 1e-6, 1e-8])
def test_the_hazard_of_geometric_durations_is_constant(chance):
    law = dist.Geometric(torch.tensor(chance, dtype=FLOAT))
    expected = torch.full((5,), chance, dtype=FLOAT)
    torch.testing.assert_close(log_hazards(law, 5).exp(), expected, rtol=1e-8, atol=0)


@pytest.mark.parametrize("law", [dist.Geometric(1.0), dist.Poisson(0.0)])
def test_segments_may_all_have_one_step(law):
    emission, prior, x = CASES["Normal"]
    model, other = (sh.Segments(emission, hazard).with_prior(prior) for hazard in (law, 1 - 1e-15))
    torch.testing.assert_close(model.log_evidence(x), other.log_evidence(x), rtol=1e-10, atol=1e-10)
    assert model.forecast(x, 2).redraw.tolist() == pytest.approx([1.0, 1.0], abs=1e-12)


def test_a_stream_knows_the_hazard_of_long_segments():
    steps = settled(dist.Poisson(15_000.0), 10_000)
    assert steps > 16_000
    assert settled(dist.Poisson(3.0), 10_000) == 10_000
    assert float(log_hazards(dist.Poisson(15_000.0), steps)[-1].exp()) > 0.1


@pytest.mark.parametrize("law", [dist.NegativeBinomial(2.0, 0.6), dist.Geometric(logits=torch.tensor(-2.0))])
def test_a_model_of_durations_is_the_same_after_use(law, tmp_path):
    emission, prior, x = CASES["Normal"]
    model = sh.Segments(emission, law).with_prior(prior)
    first, shown = model.log_evidence(x), repr(model)
    torch.testing.assert_close(model.log_evidence(x), first, rtol=0, atol=0)
    assert repr(model) == shown
    model.save(tmp_path / "model")
    torch.testing.assert_close(sh.load(tmp_path / "model").log_evidence(x), first, rtol=0, atol=0)


def test_gaps_count_as_their_steps():
    model, x, _ = case("Normal")
    seen, gaps = x[[0, 1, 3]], [1.0, 1.0, 2.0]
    filled = torch.stack([x[0], x[1], torch.full_like(x[0], NAN), x[3]])
    torch.testing.assert_close(model.log_evidence(seen, dt=gaps), model.log_evidence(filled))
    ahead = model.forecast(seen, 1, dt=[*gaps, 3.0])
    torch.testing.assert_close(ahead.mean, model.forecast(filled, 3).mean[2:])
    zero = model.smooth(seen, dt=[1.0, 0.0, 2.0])
    assert float(zero.change[1]) == 0


def test_durations_equal_enumeration():
    law = dist.Poisson(1.5)
    emission, prior, x = CASES["Normal"]
    model = sh.Segments(emission, law).with_prior(prior)
    p = stats.poisson(1.5)
    joint = torch.stack([one.log_joint for one in enumerated("Normal", [p.pmf(r) / p.sf(r - 1) for r in range(6)])])
    torch.testing.assert_close(model.log_evidence(x), joint.logsumexp(0), rtol=1e-10, atol=1e-10)
    after = torch.cat([x, torch.full_like(x[:1], NAN), x[4:5]])
    gained = model.log_evidence(after) - model.log_evidence(x)
    torch.testing.assert_close(model.forecast(x, 2).observation.log_prob(x[4])[1], gained, rtol=1e-9, atol=1e-10)
    same = sh.Segments(emission, dist.Geometric(torch.tensor(HAZARD, dtype=FLOAT))).with_prior(prior)
    torch.testing.assert_close(same.log_evidence(x), case("Normal")[0].log_evidence(x), rtol=1e-10, atol=1e-10)
    assert "Poisson" in repr(model)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shared", [False, True])
def test_a_stream_is_the_filter(name, shared):
    model, x, given = case(name, shared=shared)
    both = torch.stack([x, x.flip(0)])
    inputs = {key: torch.stack([value, value.flip(0)]) for key, value in given.items()}
    assert_stream_is_filter(model, both, "log_increment", "change", "run", "mean", rtol=1e-8, atol=1e-9, **inputs)
    assert_stream_is_filter(model, both, "sd", rtol=1e-5, atol=1e-7, **inputs)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shared", [False, True])
def test_a_stream_takes_many_observations_at_once(name, shared):
    model, x, given = case(name, shared=shared)
    both = torch.stack([x, x.flip(0)])
    inputs = {key: torch.stack([value, value.flip(0)]) for key, value in given.items()}
    part = lambda first, end: {key: value[:, first:end] for key, value in inputs.items()}
    expected = model.filter(both, **inputs)
    state, _ = model.extend(model.start((2,)), both[:, :2], **part(0, 2))
    state, found = model.extend(state, both[:, 2:], **part(2, len(x)))
    for key in ("log_increment", "change", "run"):
        torch.testing.assert_close(getattr(found, key), getattr(expected, key)[:, 2:], rtol=1e-8, atol=1e-9)
    for key, mean in found.mean.items():
        torch.testing.assert_close(mean, expected.mean[key][:, 2:], rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(found.sd[key], expected.sd[key][:, 2:], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.log_normalizer, state.log_evidence.expand(2), rtol=0, atol=0)
    assert state.steps == len(x)
    with pytest.raises(ValueError, match="S steps of each stream"):
        model.extend(state, x, **given)


def test_many_observations_have_gaps():
    model, x, _ = case("Normal")
    gaps = torch.tensor([NAN, 2.0, 0.0, 1.5], dtype=FLOAT)
    state, _ = model.extend(model.start(), x[:2], dt=gaps[:2])
    state, _ = model.extend(state, x[2:4], dt=gaps[2:])
    torch.testing.assert_close(state.log_evidence, model.log_evidence(x[:4], dt=gaps), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["Normal", "Poisson", "Exponential", "Bernoulli", "Categorical"])
def test_rows_of_a_stream_are_read_without_torch_as_with_it(name):
    model, x, _ = case(name)
    state = other = model.start()
    for row in x.nan_to_num(1.0):
        plain = ordinary_row(model.emission, row, state.problem.about)
        assert plain is not None
        values = row.tolist()
        assert plain == ordinary_row(model.emission, values, state.problem.about)
        state, output = model.update(state, row)
        other, expected = model.update(other, pd.Series(values))
        for key in ("log_increment", "change", "run"):
            torch.testing.assert_close(getattr(output, key), getattr(expected, key), rtol=1e-12, atol=1e-12)
        for key, mean in output.mean.items():
            torch.testing.assert_close(mean, expected.mean[key], rtol=1e-12, atol=1e-12)
    assert "log_increment" in repr(pickle.loads(pickle.dumps(output)))
    for row in ([NAN] * model.n_features, [-1.5] * (model.n_features + 1), [True] * model.n_features, "x"):
        assert ordinary_row(model.emission, row, state.problem.about) is None
    assert model.update(state, x.nan_to_num(1.0)[0].float())[1].run.dtype == torch.float32


def test_a_stream_has_bounded_memory():
    model, x, _ = case("Normal")
    long = torch.cat([x[:2], x[3:5]]).nan_to_num(0.0).repeat(15, 1)
    state = model.start(most=12)
    for row in long:
        state, _ = model.update(state, row)
    assert state.runs.length.shape[-1] <= 13
    bound = float(state.runs.left_out)
    assert abs(float(state.log_evidence - model.log_evidence(long))) <= -math.log1p(-min(bound, 0.999)) + 1e-9
    assert_stream_is_filter(model, long[:4], dt=torch.tensor([1.0, 2.0, 0.0, 1.5]))
    assert_stream_is_filter(sh.Segments(sh.Normal(2), dist.Poisson(2.0)).with_prior(NORMAL), long[:6])


def test_a_tolerance_leaves_little_out():
    model, x, _ = case("Normal", tol=1e-3)
    long, exact = x.repeat(8, 1), case("Normal")[0]
    assert float(exact.log_evidence(long) - model.log_evidence(long)) == pytest.approx(0, abs=2e-3)
    assert 0 <= float(model.smooth(long).left_out) <= 1e-3


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_the_same_after_files(name, tmp_path):
    model, x, given = case(name, tol=1e-9, shared=True)
    model.save(tmp_path)
    again = sh.load(tmp_path)
    assert repr(again) == repr(model)
    torch.testing.assert_close(again.log_evidence(x, **given), model.log_evidence(x, **given), rtol=0, atol=0)
    assert len(model.forecast(x, 1, **{key: torch.cat([v, v[:1]]) for key, v in given.items()}).beliefs) == 1


def test_files_keep_what_is_open(tmp_path):
    for hazard in (None, dist.Beta(1.0, 9.0), dist.NegativeBinomial(2.0, 0.5), 0.25):
        model = sh.Segments(sh.Normal(), hazard)
        model.save(tmp_path / "model")
        again = sh.load(tmp_path / "model")
        assert (again.values, again._chosen, type(again.hazard)) == ({}, model._chosen, type(model.hazard))
        assert repr(again)[:50] == repr(model)[:50]


def test_a_model_without_values_says_what_is_missing():
    x = [0.0, 1.0, 5.0, 6.0]
    with pytest.raises(
        ValueError, match=r"model: has no values of hazard, loc, count, shape, rate yet; use model\.fit"
    ):
        sh.Segments(sh.Normal()).smooth(x)
    model = sh.Segments(sh.Normal(), 0.1)
    with pytest.raises(ValueError, match="has no values of loc, count, shape, rate yet"):
        model.log_evidence(x)
    scaled = model.scaled_to(x)
    assert float(scaled.loc) == pytest.approx(3.0)
    assert float(scaled.log_evidence(x)) < 0
    assert sh.Segments(sh.Poisson(prior={"rate": dist.Gamma(1.0, 1.0)})).with_values(hazard=0.1).values["hazard"] == 0.1
    beta = sh.Segments(sh.Poisson()).with_prior({"rate": dist.Gamma(2.0, 1.0), "hazard": dist.Beta(1.0, 9.0)})
    assert beta.prior["hazard_concentration"].tolist() == [1.0, 9.0]
    assert float(beta.with_values(hazard=0.1).shape) == 2.0


REFUSED = {
    "emission: got Gamma.n_features=1., but exact segments need a conjugate prior, as these emissions have: Normal": (
        lambda: sh.Segments(sh.Gamma()),
        TypeError,
    ),
    "emission: got str": (lambda: sh.Segments("normal"), TypeError),
    "emission: got Normal.n_features=2, covariance='spherical'., but": (
        lambda: sh.Segments(sh.Normal(2, covariance="spherical")),
        TypeError,
    ),
    "emission: got Poisson.*dose.*but exact": (lambda: sh.Segments(sh.Poisson(1, inputs=["dose"])), TypeError),
    "emission: got Normal(.*)tied.*parameters of their own": (
        lambda: sh.Segments(sh.Normal(tied={"scale": "all states"})),
        ValueError,
    ),
    "emission: got priors of loc that are not of the conjugate form; give the hyperparameters loc, count": (
        lambda: sh.Segments(sh.Normal(prior={"loc": dist.Normal(0.0, 1.0)})),
        ValueError,
    ),
    "hazard: got 1.5, expected a probability between 0 and 1": (lambda: sh.Segments(sh.Normal(), 1.5), ValueError),
    "hazard: got 0, expected a probability between": (lambda: sh.Segments(sh.Normal(), 0), ValueError),
    "hazard: got Normal, expected a probability": (lambda: sh.Segments(sh.Normal(), dist.Normal(0.0, 1.0)), TypeError),
    "tol: got 1.0, expected a share": (lambda: sh.Segments(sh.Normal(), tol=1.0), ValueError),
    "rate: got -1.0, expected a number greater than 0": (
        lambda: sh.Segments(sh.Normal()).with_prior({"rate": -1.0}),
        ValueError,
    ),
    "prior: got 'mean', expected hyperparameters of a Segments": (
        lambda: sh.Segments(sh.Normal()).with_prior({"mean": 1.0}),
        ValueError,
    ),
    "x: got -1 at step 1, feature 0; expected counts": (
        lambda: case("Poisson")[0].smooth([[1, 1], [-1, 1]]),
        ValueError,
    ),
    "x: a feature is missing at step 0, feature 1, but": (
        lambda: case("MultivariateNormal")[0].smooth([[1.0, NAN]]),
        ValueError,
    ),
    "dt: got a gap that is negative": (lambda: case("Normal")[0].smooth(NUMBERS[:2], dt=[1.0, -1.0]), ValueError),
    "dt: was given, but a distribution of durations does not use gaps": (
        lambda: sh.Segments(sh.Normal(2), dist.Poisson(3.0)).with_prior(NORMAL).smooth(NUMBERS[:2], dt=[1.0, 1.0]),
        ValueError,
    ),
    "ragged: got True, but with shared=True": (
        lambda: case("Normal", shared=True)[0].smooth([NUMBERS.repeat(50, 1), *[NUMBERS[:1]] * 30], ragged=True),
        ValueError,
    ),
    "prior: at the observations rounding leaves no prior of a segment": (
        lambda: case("Normal")[0].smooth(NUMBERS + 1e10),
        ValueError,
    ),
    "state: got int, expected the state from start": (lambda: case("Normal")[0].update(3, [1.0, 2.0]), TypeError),
    "x_t: got shape .3,., expected": (
        lambda: case("Normal")[0].update(case("Normal")[0].start(), [1.0, 2.0, 3.0]),
        ValueError,
    ),
    "inputs: feature 0 reaches 1e.300": (
        lambda: case("LinearRegression")[0].smooth(NUMBERS, inputs=1e300 * torch.ones(6, 1, dtype=FLOAT)),
        ValueError,
    ),
    "states: was given, but a Segments does not support it": (
        lambda: case("Normal")[0].smooth(NUMBERS, states=[0] * 6),
        ValueError,
    ),
}


@pytest.mark.parametrize("message", REFUSED)
@pytest.mark.usefixtures("as_users_call")
def test_bad_input_is_refused(message):
    call, kind = REFUSED[message]
    with pytest.raises(kind, match=message):
        call()
