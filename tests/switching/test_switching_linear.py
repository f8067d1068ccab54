"""`SwitchingLinearSSM`: its program, its verbs and its fits."""

import pyro
import pytest
import samplehold as sh
import torch
from oracles.regime_paths import enumerate_paths
from oracles.streams import assert_stream_is_filter
from oracles.switching_linear import ENUMERABLE, KINDS, model_of
from samplehold.switching.progress import Progress
from samplehold.switching.slds import starts
from torch.distributions import MultivariateNormal


@pytest.fixture(autouse=True)
def _cooled_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sweep at each temperature of a fit's starts: these tests are not about how good its ends are."""
    monkeypatch.setattr(starts, "AT_ONCE", 1)


def chains() -> sh.SwitchingLinearSSM:
    return sh.SwitchingLinearSSM(2, 1, shared="chain per regime")


def two_chains() -> sh.SwitchingLinearSSM:
    """One that holds on, and one that jumps about: easy to tell."""
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    none = torch.zeros(2, 1, dtype=torch.float64)
    return chains().with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.97, 0.03], [0.03, 0.97]],
        initial_mean=none,
        initial_covariance=one,
        transition=one * torch.tensor([0.99, 0.3]).double().view(2, 1, 1),
        transition_offset=none + torch.tensor([[0.0], [3.0]]).double(),
        state_noise=one * torch.tensor([0.01, 4.0]).double().view(2, 1, 1),
        emission=one,
        emission_offset=none,
        observation_noise=none + 0.05,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_is_the_density_of_its_draws(kind: str) -> None:
    model = model_of(KINDS[kind])
    drawn, regimes = model.simulate(5, (2,), seed=3), model.regimes()
    path, s, x = drawn.path, drawn.latent, drawn.x
    expected = regimes.log_prob(path, s if KINDS[kind].recurrent else None)
    normal = lambda mean, covariance, at: MultivariateNormal(mean, covariance).log_prob(at)
    expected = expected + normal(regimes.initial_mean[path[:, 0]], regimes.initial_covariance[path[:, 0]], s[:, 0])
    for t in range(5):
        z = path[:, t]
        if t:
            mean = (regimes.transition[z] @ s[:, t - 1, :, None]).squeeze(-1) + regimes.transition_offset[z]
            expected = expected + normal(mean, regimes.state_noise[z], s[:, t])
        mean = (regimes.emission[z] @ s[:, t, :, None]).squeeze(-1) + regimes.emission_offset[z]
        expected = expected + normal(mean, regimes.observation_noise[z], x[:, t])
    sites = {f"z_{t + 1}": path[:, t] for t in range(5)} | {f"s_{t + 1}": s[:, t] for t in range(5)}
    trace = pyro.poutine.trace(pyro.condition(model, sites)).get_trace(x)
    torch.testing.assert_close(trace.log_prob_sum(), expected.sum(), rtol=1e-12, atol=1e-10)


def test_the_program_draws() -> None:
    with pyro.poutine.trace() as trace:
        x = model_of(KINDS["recurrent"])(n_steps=4, batch_shape=(3,))
    assert x.shape == (3, 4, 2)
    assert {"z_4", "s_4", "x_4"} <= set(trace.trace.nodes)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_streams_are_the_filter(kind: str) -> None:
    model = model_of(KINDS[kind])
    x = model.simulate(12, (2,), seed=1).x
    x[0, 4] = torch.nan
    assert_stream_is_filter(model, x, "state", "mean", "log_increment", rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ENUMERABLE)
def test_viterbi_names_a_path_with_its_probability(kind: str) -> None:
    model = model_of(KINDS[kind])
    x = model.simulate(6, (2,), seed=1).x
    found = model.viterbi(x)
    for b in range(2):
        exact = enumerate_paths(model.regimes(), x[b])
        same = (exact.path == found.path[b]).all(-1)
        torch.testing.assert_close(exact.log_weight[same].squeeze(0), found.log_probability[b], rtol=1e-10, atol=1e-10)
        assert float(found.log_probability[b]) >= float(exact.log_weight.amax()) - 3.0


@pytest.mark.parametrize("kind", ENUMERABLE)
def test_forecasts_are_sums_over_all_paths(kind: str) -> None:
    model, horizon = model_of(KINDS[kind]), 3
    x = model.simulate(4, (2,), seed=2).x
    ahead, regimes = model.forecast(x, horizon, order=8), model.regimes()
    for b in range(2):
        blank = torch.full((horizon, model.n_features), torch.nan, dtype=torch.float64)
        exact = enumerate_paths(regimes, torch.cat([x[b], blank]))
        torch.testing.assert_close(ahead.state[b], exact.state[4:], rtol=1e-9, atol=1e-9)
        mean, covariance = exact.moments()
        torch.testing.assert_close(ahead.state_mean[b], mean[4:], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ahead.state_covariance[b], covariance[4:], rtol=1e-9, atol=1e-9)
        z = exact.path[:, 4:]
        shown = (regimes.emission[z] @ exact.mean[:, 4:, :, None]).squeeze(-1) + regimes.emission_offset[z]
        whole = torch.einsum("p,ptf->tf", exact.weight, shown)
        torch.testing.assert_close(ahead.mean[b], whole, rtol=1e-9, atol=1e-9)
        own = regimes.emission[z] @ exact.covariance[:, 4:] @ regimes.emission[z].mT + regimes.observation_noise[z]
        spread = own.diagonal(dim1=-2, dim2=-1) + (shown - whole).square()
        variance = torch.einsum("p,ptf->tf", exact.weight, spread)
        torch.testing.assert_close(ahead.variance[b], variance, rtol=1e-9, atol=1e-9)


def test_intervals_of_a_forecast_hold_their_share() -> None:
    model = two_chains()
    ahead = model.forecast(model.simulate(30, (2,), seed=0).x, 4)
    ends = ahead.interval(0.8)
    torch.testing.assert_close(ahead.cdf(ends.upper) - ahead.cdf(ends.lower), torch.full_like(ends.upper, 0.8))
    assert ahead.one(1).mean.shape == (4, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_files_hold_the_model(kind: str, tmp_path) -> None:
    model = model_of(KINDS[kind])
    model.save(tmp_path / "model")
    again = sh.SwitchingLinearSSM.load(tmp_path / "model")
    assert repr(again) == repr(model)
    assert all(torch.equal(value, again.values[name]) for name, value in model.values.items())


@pytest.mark.slow
def test_a_fit_finds_regimes_that_are_easy_to_tell() -> None:
    model = two_chains()
    drawn = model.simulate(200, (2,), seed=5)
    fit = chains().fit(drawn.x, method="vmp", restarts=1, max_steps=30, progress=False)
    found = fit.smooth().state.argmax(-1)
    right = (found == drawn.path).double().mean()
    assert max(float(right), 1 - float(right)) > 0.9
    assert bool((fit.objective.diff() >= -1e-9 * fit.objective.abs()[1:]).all())
    assert fit.model.log_evidence(drawn.x).sum() > model.log_evidence(drawn.x).sum() - 5


def test_a_posterior_has_the_regimes_in_the_order_of_the_model() -> None:
    x = two_chains().simulate(60, seed=5).x
    fit = chains().fit(x, method="vmp", restarts=1, max_steps=3, progress=False)
    for name, mean in fit.posterior.mean.items():
        assert torch.equal(mean, fit.model.values[name])
    shares = fit.smooth().state.sum(0)
    assert float(shares[0]) >= float(shares[1]) - 5
    assert fit.posterior.sample(3, seed=0)["emission"].shape == (3, 2, 1, 1)


def test_own_starts_keep_their_numbers() -> None:
    drawn = two_chains().simulate(80, seed=5)
    for begin in (1 - drawn.path, two_chains()):
        options = {"start": begin, "restarts": 1, "max_steps": 2, "progress": False}
        found = chains().fit(drawn.x, **options).smooth().state.argmax(-1)
        same = float((found == drawn.path).double().mean())
        assert (1 - same if isinstance(begin, torch.Tensor) else same) > 0.7


def test_options_that_there_are_none_of() -> None:
    model, x = chains(), torch.zeros(9)
    for options, said in (
        ({"method": "nuts"}, "method: got 'nuts'"),
        ({"prior": "own"}, "prior: got"),
        ({"start": torch.full((9,), 2)}, "start: got labels"),
    ):
        with pytest.raises(ValueError, match=said):
            model.fit(x, progress=False, **options)
    for name in ("batch_size", "factorization", "inputs"):
        with pytest.raises(TypeError, match=f"fit: has no option '{name}'"):
            model.fit(x, progress=False, **{name: 1})


@pytest.mark.parametrize(("prior", "max_steps"), [(None, 30), ("weak", 60)])  # without a prior the noise then vanishes
def test_one_regime_learns_as_a_linear_model_does(prior: str | None, max_steps: int) -> None:
    x = two_chains().simulate(100, seed=6).x
    fit = sh.SwitchingLinearSSM(1, 1).fit(x, prior=prior, max_steps=max_steps, progress=False)
    assert fit.loglik == pytest.approx(float(fit.model.smooth(x).elbo), abs=1e-8)
    assert bool((fit.objective.diff() > -1e-9 * fit.objective.abs()[1:]).all())


@pytest.mark.few(1)
@pytest.mark.parametrize("noise", ["diagonal", "full"])
@pytest.mark.parametrize("shared", ["chain per regime", "one chain"])
def test_missing_values_short_and_constant_series_are_learned_from(shared: str, noise: str) -> None:
    generator = torch.Generator().manual_seed(0)
    series = [torch.cat([torch.randn(n, 2, generator=generator), torch.ones(n, 1)], -1) for n in (12, 5)]
    series[0][3:6, 0], series[0][8] = torch.nan, torch.nan
    model = sh.SwitchingLinearSSM(2, 2, 3, shared, observation_noise=noise)
    fit = model.fit(series, method="vmp", restarts=1, max_steps=5, progress=False)
    assert bool((fit.objective.diff() > -1e-9 * fit.objective.abs()[1:]).all())
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())
    assert fit.model.values["emission"].dtype == torch.float32


def test_tables_and_exports() -> None:
    model = model_of(KINDS["vector chains"])
    x = model.simulate(12, (2,), seed=1).x
    x[0, 3] = torch.nan
    found, table, data = model.smooth(x), model.states(x), model.to_arviz(x, draws=3)
    probs = table[[f"state_{k}" for k in range(model.n_states)]].to_numpy()
    torch.testing.assert_close(torch.from_numpy(probs).view(2, 12, -1), found.state, rtol=0, atol=1e-12)
    means = torch.from_numpy(table[[c for c in table if c.startswith("latent_mean")]].to_numpy())
    expected = found.mean.movedim(1, 2).flatten(-2)
    torch.testing.assert_close(means.view(2, 12, -1), expected, rtol=0, atol=1e-12)
    assert data["smoothed"]["state_probability"].shape == (2, 12, model.n_states)
    total = float(data["log_density"]["x"].sum())
    assert total == pytest.approx(float(model.log_evidence(x).sum()))
    assert bool(data["posterior_predictive"]["x"].notnull().all())
    assert bool(data["replicated"]["x"].notnull().all())
    for figure in (model.plot(x, sequence=1), model.plot_forecast(x, 4)):
        assert len(figure.axes) >= 2
    assert model._repr_html_()
    assert model.forecast(x, 3)._repr_html_()


def test_draws_ahead_have_the_moments_of_the_filter() -> None:
    model = two_chains()
    x, n = model.simulate(15, seed=1).x, 20_000
    torch.manual_seed(0)
    drawn = model.problem(x).chain(model.values).ahead(n)
    for t in (0, 7, 14):
        if not t:
            first = model.regimes()
            mean = (first.initial_probs * (first.emission @ first.initial_mean.unsqueeze(-1))[:, 0, 0]).sum()
        else:
            mean = model.forecast(x[:t], 1).mean[0, 0]
        error = drawn[:, t, 0].std() / n**0.5
        assert abs(float(drawn[:, t, 0].mean() - mean)) < 6 * float(error) + 1e-9


def test_the_flow_is_drawn_of_one_chain_of_two_numbers() -> None:
    model = model_of(KINDS["recurrent"])
    assert len(model.plot_flow(model.simulate(30, seed=0).x).axes) == 1
    assert len(model_of(KINDS["one chain"]).plot_flow().axes) == 2
    with pytest.raises(ValueError, match="a flow is drawn of one chain of states of length 2"):
        two_chains().plot_flow()


@pytest.mark.slow
def test_gibbs_draws_agree_with_enumeration() -> None:
    model = two_chains()
    x = model.simulate(6, seed=2).x
    exact, drawn = enumerate_paths(model.regimes(), x), model.sample_posterior(x, 198, seed=0)
    torch.testing.assert_close(drawn.state, exact.state, rtol=0, atol=0.1)
    assert drawn.path.shape == (198, 6)  # of four chains, whose last sweeps are not all needed
    assert drawn.latent.shape == (198, 6, 2)
    assert drawn.share.shape == (500, 4, 2)
    shares = torch.stack([(drawn.path == k).double().mean(0) for k in range(2)], -1)
    torch.testing.assert_close(shares, exact.state, rtol=0, atol=0.15)


@pytest.mark.slow
def test_summaries_say_what_is_approximate() -> None:
    x = two_chains().simulate(60, seed=1).x
    model = chains()
    by_em, by_vmp = (
        model.fit(x, method=method, restarts=1, max_steps=3, progress=False).summary() for method in ("em", "vmp")
    )
    assert bool(by_em.parameters["standard error"].isna().all())
    assert any("merges paths" in note for note in by_em.notes)
    assert bool(by_vmp.parameters["standard error"].notna().all())
    assert float(by_vmp.states["share of steps"].sum()) == pytest.approx(1.0)


def test_an_interrupted_fit_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(starts, "annealed", pressed)
    fit = chains().fit(two_chains().simulate(40, seed=5).x, restarts=2, progress=False)
    assert fit.interrupted
    assert "interrupted" in fit.reason
    assert bool(fit.smooth().elbo.isfinite())


def test_a_single_start_may_stand_without_a_list() -> None:
    model, x = two_chains(), two_chains().simulate(40, seed=2).x
    assert torch.equal(model.smooth(x, starts="annealed").state, model.smooth(x, starts=["annealed"]).state)


def test_progress_names_what_a_fit_does(monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str | None] = []
    monkeypatch.setattr(Progress, "name", lambda self, title: titles.append(title))
    sh.SwitchingLinearSSM(2, 1).fit(torch.randn(30, 1), restarts=2, max_steps=2)
    assert titles == ["annealing 8 starts", None, "evidence of 8 ends", None]


def test_one_chain_that_switches_is_the_default() -> None:
    assert sh.SwitchingLinearSSM(2, 2, 2).layout == sh.SwitchingLinearSSM(2, 2, 2, "one chain").layout
    assert "chain per regime" in repr(sh.SwitchingLinearSSM(2, 2, 2, shared="chain per regime"))
    assert "shared" not in repr(sh.SwitchingLinearSSM(2, 2, 2))
    sh.SwitchingLinearSSM(2, 1, recurrent=True)


def test_bad_input_is_told_by_name() -> None:
    with pytest.raises(ValueError, match="recurrent: got True, but only regimes of"):
        sh.SwitchingLinearSSM(2, 1, shared="chain per regime", recurrent=True)
    with pytest.raises(ValueError, match="shared: got 'one'"):
        sh.SwitchingLinearSSM(2, 1, shared="one")
    with pytest.raises(ValueError, match="recurrent: got True with a single regime"):
        sh.SwitchingLinearSSM(1, 1, shared="one chain", recurrent=True)
    with pytest.raises((TypeError, ValueError), match="n_regimes"):
        sh.SwitchingLinearSSM(0, 1)
    model = two_chains()
    for name, value, said in (
        ("state_noise", -torch.ones(2, 1, 1), "state_noise: got a matrix that is not symmetric positive semidefinite"),
        ("transition", torch.ones(2, 2, 1), "transition: got shape"),
        ("transition_probs", torch.ones(2, 2), "transition_probs: got rows that are not probabilities"),
        ("observation_noise", -torch.ones(2, 1), "observation_noise: got -1"),
        ("emission", torch.full((2, 1, 1), torch.nan), "emission: got values that are not finite"),
        ("gain", torch.ones(2), "values: got unknown parameter"),
    ):
        with pytest.raises(ValueError, match=said):
            model.with_values({**model.values, name: value})
    with pytest.raises(ValueError, match="emission: missing"):
        model.with_values({name: value for name, value in model.values.items() if name != "emission"})
    with pytest.raises(ValueError, match="model: has no parameter values yet"):
        chains().smooth(torch.zeros(5))
    with pytest.raises(ValueError, match=r"x: got 2 feature\(s\)|x: got shape"):
        model.smooth(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="inputs: was given"):
        model.smooth(torch.zeros(5), inputs=torch.zeros(5, 1))
    with pytest.raises(ValueError, match="starts: got 'cold'"):
        model.smooth(torch.zeros(5), starts=("cold",))
    with pytest.raises(ValueError, match="horizon: got 0"):
        model.forecast(torch.zeros(5), 0)
    with pytest.raises(ValueError, match="order: got 30"):
        model.filter(torch.zeros(5), 30)
    with pytest.raises(ValueError, match=r"x_t: got shape"):
        model.update(model.start((2,)), torch.zeros(3))
    with pytest.raises(ValueError, match=r"x: got 1 observed step"):
        model.fit(torch.zeros(1))
