"""Semi-Markov dynamics: tables of durations, Markov chains as their special case, Pyro, every method of a fit."""

import itertools

import numpy as np
import pytest
import samplehold as sh
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.models import enumerated_by_pyro
from oracles.streams import assert_stream_is_filter, streamed
from samplehold.switching.data.series import Drive
from samplehold.switching.dynamics.durations import Durations, _thinned
from samplehold.switching.judging.residuals import residuals
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

MOVES = torch.tensor([[0.0, 0.5, 0.5], [0.7, 0.0, 0.3], [0.4, 0.6, 0.0]], dtype=torch.float64)
START = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
LAWS = {
    "poisson": (sh.Poisson(), {"rate": [[0.5], [4.0], [11.0]]}),
    "geometric": (sh.Geometric(), {"probs": [[0.6], [0.2], [0.05]]}),
    "negative binomial": (sh.NegativeBinomial(), {"mean": [[0.5], [4.0], [11.0]], "dispersion": [[2.0], [0.5], [0.1]]}),
    "categorical": (sh.Categorical(4), {"probs": [[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 0.5, 0.5]]}),
}
QUICK = {"progress": False, "restarts": 1}


def own(name: str) -> dict[str, Tensor]:
    return {key: torch.tensor(table, dtype=torch.float64) for key, table in LAWS[name][1].items()}


def counts_of(name: str, state: int):
    """The distribution of d - 1 of scipy."""
    values = {key: np.array(table)[state] for key, table in LAWS[name][1].items()}
    if name == "poisson":
        return stats.poisson(values["rate"][0])
    if name == "geometric":
        return stats.geom(values["probs"][0], loc=-1)
    if name == "categorical":
        return stats.rv_discrete(values=(np.arange(4), values["probs"]))
    size = 1 / values["dispersion"][0]
    return stats.nbinom(size, size / (size + values["mean"][0]))


def model_of(name: str, **options) -> sh.SwitchingSSM:
    law, parameters = LAWS[name]
    durations = {f"duration_{key}": table for key, table in parameters.items()}
    return sh.SwitchingSSM(sh.SemiMarkov(3, law, **options), sh.Normal()).with_values(
        initial_probs=START,
        transition_probs=MOVES,
        loc=[[-1.0], [0.5], [2.0]],
        scale=[[1.0], [0.7], [1.2]],
        **durations,
    )


@pytest.fixture(scope="module")
def x() -> Tensor:
    return 2 * torch.randn(2, 6, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# ---- durations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("n", [1, 2, 3, 40, 200])
def test_tables_of_durations_are_those_of_scipy(name, n):
    """The last entry is that of all longer ones, however few they are."""
    durations = Durations(LAWS[name][0])
    n = durations.n_entries(n - 1)
    table = durations.log_table(own(name), n)
    assert_close(table.logsumexp(-1), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-13)
    for state, row in enumerate(table):
        expected = counts_of(name, state)
        assert_close(row[:-1].exp(), torch.tensor(expected.pmf(np.arange(n - 1))), rtol=1e-9, atol=0)
        rest = expected.sf(n - 2) if name != "categorical" else expected.pmf(np.arange(n - 1, 4)).sum()
        if rest > 1e-290:
            np.testing.assert_allclose(row[-1], np.log(rest), rtol=1e-10, atol=1e-12)
        assert row[-1] > -torch.inf or name == "categorical"


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("n", [1, 5, 60])
def test_what_is_left_of_a_segment_that_is_cut(name, n):
    durations = Durations(LAWS[name][0])
    n = durations.n_entries(n - 1)
    table = durations.log_first(own(name), n)
    for state, row in enumerate(table):
        expected = counts_of(name, state)
        left = expected.sf(np.arange(-1, 2000)) / (expected.mean() + 1)
        assert_close(row[:-1].exp(), torch.tensor(left[: n - 1]), rtol=1e-10, atol=0)
        np.testing.assert_allclose(row[-1], np.log(left[n - 1 :].sum()), rtol=1e-9, atol=1e-14)
    assert_close(durations.mean(own(name)), torch.tensor([counts_of(name, k).mean() + 1 for k in range(3)]))


@pytest.mark.parametrize("name", ["poisson", "geometric", "negative binomial"])
def test_a_longest_duration_has_the_rest(name):
    durations, steps = Durations(LAWS[name][0], 5), np.arange(1, 6)
    table = durations.log_table(own(name), 5).exp()
    assert_close(durations.mean(own(name)), (table * torch.tensor(steps)).sum(-1))
    left = durations.log_first(own(name), 5).exp()
    assert_close(left, table.flip(-1).cumsum(-1).flip(-1) / durations.mean(own(name)).unsqueeze(-1))
    shorter = durations.log_first(own(name), 3).exp()
    assert_close(shorter, torch.cat([left[:, :2], left[:, 2:].sum(-1, keepdim=True)], -1))


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("cut", [False, True])
def test_counts_are_divided_among_the_durations_that_they_stand_for(name, cut):
    """By Bayes' rule, duration by duration."""
    durations = Durations(LAWS[name][0])
    generator, n = torch.Generator().manual_seed(0), durations.n_entries(5)
    counts, first = torch.rand(2, 3, n, generator=generator, dtype=torch.float64)
    rows, weights = durations.spread(counts, own(name), first if cut else None)
    for state in range(3):
        law, d = counts_of(name, state), np.arange(1, 3000)
        p = law.pmf(d - 1)
        expected = np.where(d < n, np.pad(counts[state], (0, 2999))[d - 1], 0.0)
        expected = expected + float(counts[state, -1]) * np.where(d >= n, p, 0.0) / p[n - 1 :].sum()
        if cut:
            for r in range(1, n + 1):
                share = np.where(d >= r, p, 0.0) * (1.0 if r < n else np.maximum(d - n + 1, 0))
                expected += float(first[state, r - 1]) * share / share.sum()
        found = np.zeros(len(d))
        np.add.at(found, rows.flatten().long(), weights[:, state])
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_an_m_step_reads_no_durations_that_no_segment_has():
    counts = torch.full((2, 3, 501), 1e-20, dtype=torch.float64)
    counts[..., :30] = torch.rand(2, 3, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, weights = Durations(sh.NegativeBinomial()).spread(counts, own("negative binomial"))
    assert_close(x.flatten(), torch.arange(30, dtype=torch.float64))
    assert_close(weights.mT, counts[..., :30])


def test_many_shares_are_thinned_to_the_same_total_and_mean():
    shares = torch.rand(4, 3, 9000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    places, thin = _thinned(shares)
    assert len(places) < 1000
    assert places[-1] == 8999
    assert_close(thin.sum(-1), shares.sum(-1))
    assert_close((thin * places).sum(-1), (shares * torch.arange(9000)).sum(-1))


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAWS)
def test_the_evidence_is_that_of_all_segmentations(name, x):
    for first, last in itertools.product(("whole", "cut"), ("cut", "whole")):
        model = model_of(name, first_segment=first, last_segment=last)
        for row in x:
            expected = np.logaddexp.reduce([*segmentations(model, name, row[:, 0].numpy(), first, last)])
            np.testing.assert_allclose(model.log_evidence(row), expected, rtol=1e-11)


def segmentations(model: sh.SwitchingSSM, name: str, x: np.ndarray, first: str, last: str):
    """The log joint of each segmentation, with tables of scipy."""
    n, start, table = len(x), START.numpy(), MOVES.numpy()
    both = itertools.product((False, True), repeat=2)
    lasting = {place: [lasts(counts_of(name, k), n, *place) for k in range(3)] for place in both}
    seen = stats.norm(model.values["loc"].numpy().T, model.values["precision"].numpy().T ** -0.5).logpdf(x[:, None])
    for n_segments in range(1, n + 1):
        for cuts in itertools.combinations(range(1, n), n_segments - 1):
            ends = [0, *cuts, n]
            for states in itertools.product(range(3), repeat=n_segments):
                moves = np.prod([table[i, j] for i, j in itertools.pairwise(states)])
                if moves == 0:
                    continue
                total = np.log(start[states[0]] * moves)
                for i, (state, begin, end) in enumerate(zip(states, ends, ends[1:], strict=False)):
                    d = end - begin
                    place = (first == "cut" and i == 0, last == "cut" and end == n)
                    total += lasting[place][state][d - 1] + seen[begin:end, state].sum()
                yield total


def lasts(law, n: int, is_first: bool, is_last: bool) -> np.ndarray:
    """The logarithm of P(d = 1), ..., P(d = n), of what is left of a segment, of at least so many steps, or of both."""
    p = law.pmf(np.arange(2000))
    for add_up in (is_first, is_last):
        p = p[::-1].cumsum()[::-1] if add_up else p
    with np.errstate(divide="ignore"):
        return np.log(p[:n] / (law.mean() + 1 if is_first else 1.0))


@pytest.mark.parametrize("name", ["poisson", "categorical"])
@pytest.mark.parametrize(("first", "last"), [("whole", "cut"), ("cut", "cut"), ("whole", "whole")])
def test_the_program_is_the_same_density(name, first, last, x):
    model = model_of(name, first_segment=first, last_segment=last)
    given = {"lengths": [4, 3]}
    expected = model.log_evidence(x[:, :4], **given).sum()
    assert_close(enumerated_by_pyro(model, x[:, :4], **given), expected, rtol=1e-10, atol=0)


def final(name: str, **options) -> sh.SwitchingSSM:
    """The same model with a final state 2."""
    moves = torch.tensor([[0.0, 0.4, 0.6], [0.7, 0.0, 0.3], [0.0, 0.0, 1.0]], dtype=torch.float64)
    model = sh.SwitchingSSM(sh.SemiMarkov(3, LAWS[name][0], absorbing=[2], **options), sh.Normal())
    return model.with_values(**(model_of(name).values | {"transition_probs": moves}))


@pytest.mark.few(3)
@pytest.mark.parametrize("first", ["whole", "cut"])
@pytest.mark.parametrize("name", LAWS)
def test_a_final_state_lasts_to_the_end(name, first, x):
    """Its segments have no end, so a path through it counts with the probability of reaching it."""
    model = final(name, first_segment=first)
    start, moves = START.numpy(), model.values["transition_probs"].numpy()
    both = itertools.product((first == "cut", False), (False, True))
    lasting = {place: [lasts(counts_of(name, k), 6, *place) for k in range(2)] for place in both}
    for row in x:
        seen = stats.norm(model.values["loc"].numpy().T, model.values["precision"].numpy().T ** -0.5).logpdf(row)
        n, total, states = len(row), -np.inf, np.full((len(row), 3), -np.inf)
        for path in itertools.product(range(3), repeat=n):
            runs = [(k, len([*run])) for k, run in itertools.groupby(path)]
            weight = np.log(start[path[0]]) + seen[range(n), path].sum()
            with np.errstate(divide="ignore"):
                for i, (state, d) in enumerate(runs):
                    weight += np.log(moves[runs[i - 1][0], state]) if i else 0.0
                    if state == 2:
                        weight += 0.0 if i == len(runs) - 1 else -np.inf
                    else:
                        place = first == "cut" and i == 0, i == len(runs) - 1
                        weight += lasting[place][state][d - 1]
            total = np.logaddexp(total, weight)
            for t, state in enumerate(path):
                states[t, state] = np.logaddexp(states[t, state], weight)
        np.testing.assert_allclose(model.log_evidence(row), total, rtol=1e-10)
        np.testing.assert_allclose(model.smooth(row).state, np.exp(states - total), rtol=0, atol=1e-10)
    assert model.durations(x)[2] == torch.inf


@pytest.mark.parametrize("name", ["poisson", "categorical"])
def test_a_final_state_has_the_same_density_as_a_program(name, x):
    model = final(name)
    expected = model.log_evidence(x[:, :4], lengths=[4, 3]).sum()
    assert_close(enumerated_by_pyro(model, x[:, :4], lengths=[4, 3]), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("options", [{}, {"first_segment": "cut"}])
def test_a_stream_with_a_final_state_is_the_filter(options):
    """However short the longest segment of other states may be."""
    model = final("poisson", max_duration=4, **options)
    x = model.simulate(25, (3,), seed=0).x
    state = assert_stream_is_filter(model, x, "state")
    ahead = model.dynamics.propagate(model.values, state.belief, model.read(x).drive, 5).redrawn
    assert_close(model.forecast(x, 5).state, ahead)


def test_geometric_durations_with_a_final_state_are_a_markov_chain():
    stay = torch.tensor([0.5, 0.8, 1.0], dtype=torch.float64)
    ours = final("geometric")
    ours = ours.with_values(**(ours.values | {"duration_probs": torch.tensor([[0.5], [0.2], [0.7]])}))
    moves = stay.diag() + (1 - stay).unsqueeze(-1) * ours.values["transition_probs"]
    same = {name: ours.values[name] for name in ("initial_probs", "loc", "precision")}
    theirs = sh.SwitchingSSM(sh.Markov(3), sh.Normal()).with_values(transition_probs=moves, **same)
    x = torch.randn(3, 40, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for some in ({}, {"lengths": [40, 9, 1]}):
        assert_close(ours.log_evidence(x, **some), theirs.log_evidence(x, **some))
        assert_close(ours.filter(x, **some).state, theirs.filter(x, **some).state)
        assert_close(ours.forecast(x, 6, **some).state, theirs.forecast(x, 6, **some).state)


@pytest.mark.parametrize("law", [sh.Poisson(), sh.Categorical(30)])
@pytest.mark.parametrize("prior", ["weak", None])
def test_phases_of_a_trial_are_found_with_their_durations(law, prior):
    """Two phases of 20 and 25 steps, and a last one to the end."""
    generator = torch.Generator().manual_seed(0)
    means = torch.repeat_interleave(torch.tensor([0.0, 3.0, 6.0]), torch.tensor([20, 25, 15])).double()
    x = [means + torch.randn(60, generator=generator).double(), means[5:] + torch.randn(55, generator=generator)]
    mask = [[False, True, False], [False, False, True], [False, False, False]]
    dynamics = sh.SemiMarkov(3, law, mask=mask, absorbing=[2], initial=[1.0, 0.0, 0.0])
    fit = sh.SwitchingSSM(dynamics, sh.Normal()).fit(x, prior=prior, **QUICK)
    lasting = fit.model.durations(x)
    assert (lasting[:2] - torch.tensor([17.5, 25.0])).abs().max() < 2.5
    assert lasting[2] == torch.inf
    assert fit.model.values["transition_probs"].equal(
        torch.tensor(mask).double() + torch.diag(lasting.isinf().double())
    )
    assert all(bool(table.isfinite().all()) for table in fit.model.values.values())
    assert fit.n_parameters == 6 + 2 * (1 if isinstance(law, sh.Poisson) else 29)


def markov_beside(stay: Tensor) -> tuple[sh.SwitchingSSM, sh.SwitchingSSM]:
    """A Markov chain, and the semi-Markov chain with geometric durations that is the same."""
    ours = model_of("geometric").with_values(**(model_of("geometric").values | {"duration_probs": 1 - stay[:, None]}))
    moves = stay.diag() + (1 - stay).unsqueeze(-1) * MOVES
    theirs = sh.SwitchingSSM(sh.Markov(3), sh.Normal())
    same = {name: ours.values[name] for name in ("initial_probs", "loc", "precision")}
    return ours, theirs.with_values(transition_probs=moves, **same)


def test_geometric_durations_are_a_markov_chain():
    ours, theirs = markov_beside(torch.tensor([0.5, 0.8, 0.9], dtype=torch.float64))
    x = torch.randn(3, 40, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = {"lengths": [40, 1, 17]}
    for method in ("filter", "smooth"):
        assert_close(getattr(ours, method)(x, **given).state, getattr(theirs, method)(x, **given).state)
    assert_close(ours.log_evidence(x, **given), theirs.log_evidence(x, **given))
    assert_close(ours.forecast(x, 6, **given).mean, theirs.forecast(x, 6, **given).mean)
    assert torch.equal(ours.viterbi(x, **given).path, theirs.viterbi(x, **given).path)
    cut = sh.SwitchingSSM(sh.SemiMarkov(3, sh.Geometric(), first_segment="cut"), sh.Normal())
    assert_close(cut.with_values(**ours.values).log_evidence(x, **given), theirs.log_evidence(x, **given))
    assert_close(ours.durations(x), theirs.durations(x))


def test_negative_binomial_durations_are_stages_of_a_markov_chain():
    """A count of failures before the second success is two geometric stages; the states of a stage emit alike."""
    stay = torch.tensor([0.4, 0.7, 0.9], dtype=torch.float64)
    law = {"duration_mean": 2 * (stay / (1 - stay)).unsqueeze(-1), "duration_dispersion": torch.full((3, 1), 0.5)}
    emission = {"loc": torch.tensor([[-1.0], [0.5], [2.0]]), "scale": torch.tensor([[1.0], [0.7], [1.2]])}
    ours = sh.SwitchingSSM(sh.SemiMarkov(3, sh.NegativeBinomial()), sh.Normal())
    ours = ours.with_values(initial_probs=START, transition_probs=MOVES, **law, **emission)
    # a segment of 1 + X1 + X2 steps: leave the second stage at the last step, perhaps without a step in one of them
    leave = 1 - stay
    table = torch.zeros(6, 6, dtype=torch.float64)
    for k in range(3):
        table[2 * k, 2 * k], table[2 * k, 2 * k + 1] = stay[k], leave[k] * stay[k]
        table[2 * k + 1, 2 * k + 1] = stay[k]
        for new in range(3):
            table[2 * k, 2 * new] += leave[k] ** 2 * MOVES[k, new]
            table[2 * k + 1, 2 * new] = leave[k] * MOVES[k, new]
    start = torch.stack([START, torch.zeros(3)], -1).flatten()
    theirs = sh.SwitchingSSM(sh.Markov(6), sh.Normal()).with_values(
        initial_probs=start,
        transition_probs=table,
        **{name: value.repeat_interleave(2, 0) for name, value in emission.items()},
    )
    x = torch.randn(2, 30, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_close(ours.log_evidence(x), theirs.log_evidence(x))
    assert_close(ours.smooth(x).state, theirs.smooth(x).state.unflatten(-1, (3, 2)).sum(-1))


@pytest.mark.parametrize("options", [{}, {"first_segment": "cut"}, {"last_segment": "whole"}])
def test_a_stream_is_the_filter_and_knows_what_comes(options):
    """A belief about the steps left has all that forecasts need."""
    model = model_of("poisson", max_duration=20, **options)
    x = model.simulate(25, (2,), seed=0).x
    if "last_segment" in options:  # the filter uses that the series ends, a stream does not
        outputs = streamed(model, x)[1]
        gap = (torch.stack([output.state for output in outputs], 1) - model.filter(x).state).abs().amax((0, 2))
        assert float(gap[:-1].max()) < 1e-9
        assert float(gap[-1]) > 1e-3
        return
    state = assert_stream_is_filter(model, x, "state")
    ahead = model.dynamics.propagate(model.values, state.belief, model.read(x).drive, 5).redrawn
    assert_close(model.forecast(x, 5).state, ahead)
    with pytest.raises(ValueError, match="max_duration: got None, but a stream of SemiMarkov"):
        model_of("poisson").update(model.start((2,)), x[:, 0])


def test_forecasts_after_an_end_begin_another_segment():
    model = model_of("categorical", last_segment="whole")
    x = model.simulate(12, (2,), seed=0).x
    forecast, last = model.forecast(x, 3).state, model.filter(x).state[:, -1]
    assert_close(forecast[:, 0], last @ MOVES)
    longest = torch.tensor([1 - 0.1, 1 - 0.7, 1.0], dtype=torch.float64)  # P(d >= 2)
    begun = last @ MOVES
    assert_close(forecast[:, 1], begun * longest + (begun * (1 - longest)) @ MOVES)


def test_predictions_follow_from_the_filter(x):
    """The evidence of each step is the predicted mixture's density, in residuals too."""
    model = model_of("negative binomial")
    series, filtered = model.read(x), model.filter(x)
    density = model.emission.log_likelihood(series.observations, model.values).redrawn
    assert_close((filtered.predicted.log() + density).logsumexp(-1), filtered.log_increment)
    scores = residuals(model, x).sequences
    normal = torch.distributions.Normal(model.values["loc"].T, model.values["precision"].T.rsqrt())
    below = (filtered.predicted * normal.cdf(x)).sum(-1)
    np.testing.assert_allclose(stats.norm.cdf(np.stack(scores))[..., 0], below, rtol=1e-9)


def test_simulated_durations_have_their_distribution():
    model = model_of("poisson")
    path = model.simulate(1000, (20,), seed=0).path
    cut = (path.diff(dim=-1) != 0).nonzero()
    lasted = (cut[1:, 1] - cut[:-1, 1])[cut[1:, 0] == cut[:-1, 0]]
    state = path[:, 1:][(path.diff(dim=-1) != 0)][:-1][cut[1:, 0] == cut[:-1, 0]]
    for k, rate in enumerate((0.5, 4.0, 11.0)):
        some = lasted[state == k].double()
        assert abs(float(some.mean()) - rate - 1) < 5 * (rate / len(some)) ** 0.5


# ---- inputs ----------------------------------------------------------------------------------------------------------


WEIGHTS = torch.zeros(3, 3, 1, dtype=torch.float64)
WEIGHTS[0, 2], WEIGHTS[1, 2], WEIGHTS[2, 1] = 0.8, -1.2, 0.4


def driven(**options) -> sh.SwitchingSSM:
    law = sh.Poisson()
    model = sh.SwitchingSSM(sh.SemiMarkov(3, law, inputs=["dose"], **options), sh.Normal())
    return model.with_values(**model_of("poisson").values, transition_weights=WEIGHTS)


@pytest.mark.parametrize("last", ["cut", "whole"])
def test_moves_depend_on_inputs(last, x):
    """Each move has the table of the step at which a segment begins, in the evidence and in Pyro's program."""
    model = driven(last_segment=last)
    dose = torch.randn(2, 6, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chain = model.chain(x, inputs=dose)
    logits = (WEIGHTS * dose.unsqueeze(-2)[..., 1:, :, :].unsqueeze(-2)).sum(-1)
    table = MOVES * logits.exp()
    assert_close(chain.log_transition.exp(), table / table.sum(-1, keepdim=True))
    given = {"inputs": dose[:, :4], "lengths": [4, 3]}
    expected = model.log_evidence(x[:, :4], **given).sum()
    assert_close(enumerated_by_pyro(model, x[:, :4], **given), expected, rtol=1e-10, atol=0)
    constant = driven(last_segment=last).with_values(**(model.values | {"transition_weights": 0 * WEIGHTS}))
    plain = model_of("poisson", last_segment=last)
    assert_close(constant.log_evidence(x, inputs=dose), plain.log_evidence(x))
    assert_close(constant.forecast(x[:, :4], 2, inputs=dose).state, plain.forecast(x[:, :4], 2).state)


def test_forecasts_and_streams_have_inputs():
    model = driven(max_duration=20)
    dose = torch.randn(2, 30, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = model.simulate(25, (2,), inputs=dose[:, :25], seed=0).x
    state = assert_stream_is_filter(model, x, "state", inputs=dose[:, :25])
    ahead = model.dynamics.propagate(model.values, state.belief, model.read(x, inputs=dose, horizon=5).ahead, 5)
    assert_close(model.forecast(x, 5, inputs=dose).state, ahead.redrawn)


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_weights_of_inputs_are_found(method):
    truth = driven().with_values(**(driven().values | {"loc": torch.tensor([[-6.0], [0.0], [6.0]])}))
    dose = torch.randn(8, 250, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = truth.simulate(250, (8,), inputs=dose, seed=0).x
    model = sh.SwitchingSSM(sh.SemiMarkov(3, sh.Poisson(), inputs=["dose"], max_duration=40), sh.Normal())
    begin = {name: value for name, value in truth.values.items() if name != "transition_weights"}
    fit = model.fit(x, method, **QUICK, inputs=dose, start=begin, max_steps=60)
    assert_close(fit.values["transition_weights"], WEIGHTS, rtol=0, atol=0.3)
    assert bool((fit.objective.diff() > -1e-6).all())


def test_effects_of_inputs_are_those_on_the_next_state(long):
    dose = torch.randn(3, 80, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fit = driven().fit(long, "vmp", **QUICK, inputs=dose, max_steps=5)
    assert len(fit.plot_effect("dose").axes) == 3
    model, belief = driven(), torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    at = Drive(torch.full((1, 1), 2.0, dtype=torch.float64))
    row = MOVES[1] * (2.0 * WEIGHTS[1, :, 0]).exp()
    assert_close(model.dynamics.propagate(model.values, belief, at, 1).redrawn[0], row / row.sum())


# ---- fits ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long() -> Tensor:
    truth = model_of("poisson").with_values(
        **(model_of("poisson").values | {"loc": torch.tensor([[-4.0], [0.0], [4.0]])})
    )
    return truth.simulate(80, (3,), seed=2).x


@pytest.mark.parametrize(
    "name", ["geometric", *(pytest.param(n, marks=pytest.mark.slow) for n in LAWS if n != "geometric")]
)
@pytest.mark.parametrize("first", ["whole", pytest.param("cut", marks=pytest.mark.slow)])
def test_em_climbs_to_a_stationary_point(name, first, long):
    model = sh.SwitchingSSM(sh.SemiMarkov(3, LAWS[name][0], first_segment=first), sh.Normal())
    fit = model.fit(long, **QUICK, max_steps=200, tol=1e-9)
    assert bool((fit.objective.diff() > -1e-8).all())
    free = {n: v.clone().requires_grad_() for n, v in fit.values.items() if n.startswith("duration_")}
    height = fit.model.problem(long).objective(fit.values | free)
    for table, slope in zip(free.values(), torch.autograd.grad(height, list(free.values())), strict=True):
        if name == "categorical":  # along the simplex, where a probability is not 0
            slope = torch.where(table > 1e-6, slope - (table * slope).sum(-1, keepdim=True), 0.0)
        assert float((slope * table).abs().max()) < 2e-2


def test_ragged_sequences_fit_as_padded_ones(long):
    model = sh.SwitchingSSM(sh.SemiMarkov(3, sh.NegativeBinomial()), sh.Normal())
    lengths = [80, 9, 30]
    begin = model_of("negative binomial").with_values(
        **(model_of("negative binomial").values | {"loc": [[-4.0], [0.0], [4.0]]})
    )
    options = QUICK | {"max_steps": 4, "start": begin}
    padded = model.fit(long, lengths=lengths, **options)
    ragged = model.fit([row[:n] for row, n in zip(long, lengths, strict=True)], **options)
    for name, value in padded.values.items():
        assert_close(ragged.values[name], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["poisson", *(pytest.param(name, marks=pytest.mark.slow) for name in ("geometric", "categorical"))]
)
@pytest.mark.parametrize("last", ["cut", pytest.param("whole", marks=pytest.mark.slow)])
def test_message_passing_climbs_a_bound_on_the_evidence(name, last, long):
    """The bound at q near a point is the evidence there: a strong prior leaves no more to gain."""
    model = sh.SwitchingSSM(sh.SemiMarkov(3, LAWS[name][0], last_segment=last), sh.Normal())
    fit = model.fit(long, "vmp", **QUICK, max_steps=60)
    assert fit.converged
    assert bool((fit.objective.diff() > -1e-7).all())
    assert set(fit.posterior.sample(3, seed=0)) == set(model.known)
    again = fit.posterior.smooth(long).state
    assert_close(again.sum(-1), torch.ones_like(again[..., 0]))
    by_em = model.fit(long, **QUICK, start=fit, max_steps=40)
    if name != "categorical":  # durations of up to 4 steps are not those of these data
        spread = fit.posterior.sample(200, seed=0)["loc"].std(0)
        assert bool(((fit.values["loc"] - by_em.values["loc"]).abs() < spread).all())
    assert bool(fit.forecast(3).mean.isfinite().all())


def test_the_bound_of_sharp_priors_is_the_evidence(long):
    """With every parameter all but known, q of the paths is the posterior, and durations of any length count."""
    truth = model_of("poisson")
    sharp = 1e9
    prior = {
        "initial_concentration": sharp * START,
        "transition_concentration": sharp * MOVES + (MOVES == 0),
        "duration_shape": sharp * truth.values["duration_rate"],
        "duration_rate": torch.full((3, 1), sharp, dtype=torch.float64),
    }
    model = sh.SwitchingSSM(truth.dynamics, sh.Normal())
    values = {name: truth.values[name] for name in ("loc", "precision")}
    fit = model.fit(long, "vmp", **QUICK, prior=prior, fixed=values, max_steps=20)
    assert_close(fit.objective[-1], truth.log_evidence(long).sum(), rtol=0, atol=1e-4)


def test_known_entries_keep_their_values(long):
    fixed = {"duration_rate": [[0.5], [np.nan], [11.0]], "transition_probs": MOVES}
    model = sh.SwitchingSSM(sh.SemiMarkov(3, sh.Poisson()), sh.Normal())
    for method in ("em", "vmp"):
        fit = model.fit(long, method, **QUICK, fixed=fixed, max_steps=5)
        assert fit.values["duration_rate"][::2].flatten().tolist() == [0.5, 11.0]
        assert fit.values["duration_rate"][1] not in (0.5, 11.0)
        assert_close(fit.values["transition_probs"], MOVES)
    cut = sh.SwitchingSSM(sh.SemiMarkov(3, sh.Poisson(), first_segment="cut"), sh.Normal())
    fit = cut.fit(long, **QUICK, fixed={"duration_rate": [[0.5], [4.0], [11.0]]}, max_steps=5)
    assert fit.values["duration_rate"].flatten().tolist() == [0.5, 4.0, 11.0]


@pytest.mark.parametrize("method", ["svi", pytest.param("nuts", marks=pytest.mark.slow)])
def test_samplers_take_any_duration(method, long):
    model = sh.SwitchingSSM(sh.SemiMarkov(3, sh.NegativeBinomial(), first_segment="cut"), sh.Normal())
    steps = {"max_steps": 10} if method == "svi" else {"num_samples": 4, "warmup_steps": 4}
    fit = model.fit(long[:1, :30], method, **QUICK, **steps)
    assert bool(fit.posterior.draws["duration_dispersion"].isfinite().all())
    assert fit.posterior.forecast(long[:1, :30], 2, draws=4).mean.shape == (1, 2, 1)


def test_subjects_have_durations_of_their_own(long):
    model = sh.SwitchingSSM(sh.SemiMarkov(3, sh.Poisson()), sh.Normal())
    fit = model.fit(long, **QUICK, pooled={"duration": "none"}, max_steps=5)
    assert fit.values["duration_rate"].shape == (3, 3, 1)
    one = fit.model.of("1").log_evidence(long[1])
    assert_close(fit.model.log_evidence(long)[1], one)


def test_models_are_stored_and_described(tmp_path):
    for name in LAWS:
        model = model_of(name, first_segment="cut")
        model.save(tmp_path / "model.safetensors")
        loaded = sh.load(tmp_path / "model.safetensors")
        assert repr(loaded.dynamics) == repr(model.dynamics)
        assert_close(dict(loaded.values), dict(model.values))
        assert "duration_" in str(model)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1, sh.Poisson()), ValueError, "n_states: got 1"),
        ((2, sh.Normal()), ValueError, "duration: got Normal"),
        ((2, sh.Poisson(2)), ValueError, "duration: got Poisson"),
        ((2, sh.Bernoulli()), ValueError, "duration: got Bernoulli"),
        ((2, 4), TypeError, "duration: got 4"),
        ((2, sh.Gated(sh.Poisson(), sh.Poisson())), TypeError, "duration: got Gated"),
        ((2, sh.Poisson(inputs=1)), ValueError, "duration"),
        ((2, sh.Poisson(), "half"), ValueError, "first_segment"),
        ((2, sh.Poisson(), "whole", "half"), ValueError, "last_segment"),
        ((2, sh.Poisson(), "whole", "cut", 0), ValueError, "max_duration: got 0"),
        ((2, sh.Categorical(4), "whole", "cut", 3), ValueError, "max_duration: got 3, but Categorical"),
    ],
)
def test_bad_dynamics_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        sh.SemiMarkov(*arguments)


def test_what_semi_markov_dynamics_cannot_do_is_said(long):
    no_exit = {"mask": [[True, False], [True, True]]}
    with pytest.raises(ValueError, match=r"mask: no move leaves state 0; make one possible, or give absorbing=\[0\]"):
        sh.SemiMarkov(2, sh.Poisson(), **no_exit)
    with pytest.raises(ValueError, match="absorbing: got state 1, but mask allows moves out of it"):
        sh.SemiMarkov(2, sh.Poisson(), **no_exit, absorbing=[0, 1])
    with pytest.raises(ValueError, match=r'absorbing: got \[0\], whose .* last_segment is "whole"'):
        sh.SemiMarkov(2, sh.Poisson(), absorbing=[0], last_segment="whole")
    with pytest.raises(ValueError, match="absorbing: got state 2, expected states from 0 to 1"):
        sh.SemiMarkov(2, sh.Poisson(), absorbing=[2])
    with pytest.raises(TypeError, match="segments of its absorbing states have no end"):
        final("poisson").fit(long, "vmp", **QUICK)
    model = model_of("negative binomial")
    with pytest.raises(TypeError, match="its durations are NegativeBinomial without a conjugate prior"):
        model.fit(long, "vmp", **QUICK)
    with pytest.raises(TypeError, match="Gibbs sampling does not support SemiMarkov"):
        model_of("poisson").fit(long, "gibbs", **QUICK)
    with pytest.raises(TypeError, match="its first segment is cut"):
        model_of("poisson", first_segment="cut").fit(long, "vmp", **QUICK)
    with pytest.raises(ValueError, match="Or no row of segments of 4 steps at most"):
        model_of("categorical").log_evidence(long, states=torch.zeros(3, 80, dtype=torch.long))
    with pytest.raises(ValueError, match="states: got 1 at step 0"):
        model.with_values(**(model.values | {"initial_probs": torch.tensor([1.0, 0.0, 0.0])})).fit(
            long, states=torch.ones(3, 80, dtype=torch.long), fixed={"initial_probs": [1.0, 0.0, 0.0]}, **QUICK
        )
    lagged = sh.SwitchingSSM(sh.SemiMarkov(2, sh.Poisson()), sh.AutoRegressive(1))
    fit = lagged.fit(long, **QUICK, max_steps=2)
    with pytest.raises(TypeError, match="SemiMarkov remembers how long it lasts"):
        fit.forecast(2)
    chain = model.chain(long)
    for call in (lambda: chain.between(None, None), lambda: chain.predictive(chain.filter().state), chain.mean_field):
        with pytest.raises(TypeError, match="chain:"):
            call()


@pytest.mark.parametrize(
    ("law", "values"),
    [
        (sh.Poisson(), {"rate": [[0.0], [1e-300]]}),
        (sh.NegativeBinomial(), {"mean": [[1e-300], [2.0]], "dispersion": [[0.5], [1e-9]]}),
    ],
)
def test_segments_of_one_step_leave_no_nan(law, values):
    """The tail of durations that are impossible has the weight 0."""
    table = Durations(law).log_table({key: torch.tensor(one).double() for key, one in values.items()}, 60)
    assert not bool(table.isnan().any())
    assert_close(table.exp().sum(-1), torch.ones(2).double(), rtol=1e-6, atol=0)


@settings(max_examples=40, deadline=None)
@given(first=st.integers(0, 200), n=st.integers(0, 60), seed=st.integers(0, 2**16))
def test_probabilities_of_counts_in_a_row_are_those_of_each_count(first, n, seed):
    generator = torch.Generator().manual_seed(seed)
    logs = torch.rand(2, 2, 3, 1, generator=generator, dtype=torch.float64) * 8 - 4
    values = {"mean": logs[0].exp(), "dispersion": logs[1].exp()}
    x = torch.arange(first, first + n, dtype=torch.float64).unsqueeze(-1)
    law = sh.NegativeBinomial()
    assert_close(law.in_a_row(first, first + n, values), law.table(x, values).mT, rtol=1e-11, atol=1e-11)
