"""Blocked Gibbs sampling: conditionals against prior and enumeration, kept draws, interrupts, and refusals."""

import itertools
import math

import pytest
import samplehold as sh
import torch
from pyro.ops.stats import effective_sample_size
from samplehold.switching.dynamics.hierarchical_rows import concentrations
from samplehold.switching.dynamics.table_counts import draw_concentrations, draw_normalizer, draw_tables
from samplehold.switching.fitting import Options, gibbs
from torch import Tensor
from torch.distributions import Beta, Dirichlet, Gamma, Multinomial
from torch.testing import assert_close

QUICK = {"restarts": 1, "progress": False, "tol": 1e-4}


def within(draws: Tensor, expected: float, errors: float = 5.0) -> bool:
    """Whether the mean of chains `[C, n]` of draws is near a number, in its standard errors."""
    size = effective_sample_size(draws.double(), chain_dim=0, sample_dim=1).clamp_min(4.0)
    return bool((draws.double().mean() - expected).abs() < errors * draws.double().std() / size.sqrt() + 1e-9)


def runs(model: sh.SwitchingSSM, x: Tensor, values: dict, n: int, **given) -> gibbs._Run:
    """Draws of four chains from these values, states as they were drawn."""
    problem = model.problem(x, **given)
    start = {name: torch.as_tensor(table, dtype=torch.float64) for name, table in values.items()}
    run = gibbs._Run.of(problem, start)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        run.draw(problem, Options("gibbs", progress=False, num_samples=n, warmup_steps=50))
    return run


def kept(run: gibbs._Run, name: str) -> Tensor:
    return torch.stack([draw[name] for draw in run.draws], 1)


# ---- auxiliary variables ---------------------------------------------------------------------------------------------


def test_numbers_of_tables_have_their_probabilities():
    """P(m) of n = 3 customers: c^m s(3, m) / (c (c + 1) (c + 2)), with Stirling numbers 2, 3, 1."""
    torch.manual_seed(0)
    c, n = 0.7, 40_000
    drawn = draw_tables(torch.full((n,), 3), torch.full((n,), c, dtype=torch.float64))
    weights = torch.tensor([2.0, 3.0, 1.0]) * c ** torch.tensor([1.0, 2.0, 3.0])
    expected = weights / weights.sum()
    shares = torch.bincount(drawn, minlength=4)[1:] / n
    assert_close(shares, expected, rtol=0, atol=5 * 0.5 / math.sqrt(n))
    assert draw_tables(torch.tensor([0, 5]), torch.tensor([1.0, 1e-30])).tolist() == [0, 1]


def test_auxiliary_variables_leave_the_normaliser():
    """E over (t, u) of c'^-t u^c' / (c^-t u^c) is the ratio of Gamma(c) / Gamma(c + n) at c' and at c."""
    torch.manual_seed(0)
    c, other, n = torch.tensor(1.3).double(), torch.tensor(1.6).double(), 4
    t, log_u = draw_normalizer(c.expand(200_000), torch.tensor(n).expand(200_000))
    ratio = ((c.log() - other.log()) * t + (other - c) * log_u).exp()
    expected = (torch.lgamma(other) - torch.lgamma(other + n) - torch.lgamma(c) + torch.lgamma(c + n)).exp()
    assert abs(float(ratio.mean() - expected)) < 5 * float(ratio.std()) / math.sqrt(200_000)


def test_draws_of_concentrations_leave_prior_and_counts_invariant():
    """If concentrations, rows and counts are drawn from the model, concentrations redrawn given the counts have the
    prior again, together with the counts (Geweke 2004)."""
    torch.manual_seed(1)
    n, k = 20_000, 3
    pairs = [torch.tensor(pair).double() for pair in ((2.0, 1.0), (3.0, 0.5), (3.0, 2.0))]
    law = Gamma(*pairs[0]), Gamma(*pairs[1]), Beta(*pairs[2])
    gamma, total, share = (one.sample((n,)) for one in law)
    base = Dirichlet((gamma / k).unsqueeze(-1).expand(n, k)).sample().clamp_min(1e-30)
    moved, first = concentrations(base, total, share)
    rows = Dirichlet(torch.cat([moved, first.unsqueeze(-2)], -2)).sample()
    sizes = 12, 1, 0, 4
    counts = torch.zeros(n, 4, k, dtype=torch.float64)
    for j in (0, 1, 3):
        counts[:, j] = Multinomial(sizes[j], rows[:, j]).sample()
    values = {
        "base_concentration": gamma,
        "row_concentration": total,
        "stickiness": share,
        "base_probs": base,
        "initial_probs": rows[:, -1],
        "transition_probs": rows[:, :-1],
    }
    hyper = torch.cat([pairs[0] * torch.tensor([1, -1]), pairs[1] * torch.tensor([1, -1]), pairs[2]])
    eta = torch.cat([counts.flatten(1), hyper.expand(n, 6)], -1)
    drawn = draw_concentrations(eta, values, {})

    def quantities(of: dict) -> Tensor:
        kept, begun = counts[:, 0, 0] / 12, (counts[:, 3] > 0).sum(-1)
        columns = [of[name].log() for name in ("base_concentration", "row_concentration")]
        columns += [of["stickiness"], of["base_probs"].square().sum(-1), of["transition_probs"][:, 0, 0]]
        columns += [column * kept for column in columns] + [column * begun for column in columns]
        columns += [of["transition_probs"][:, 1].square().sum(-1), of["initial_probs"].square().sum(-1)]
        return torch.stack(columns, -1)

    gap = quantities(drawn) - quantities(values)
    assert bool((gap.mean(0).abs() < 4.5 * gap.std(0) / math.sqrt(n)).all())
    assert all(bool((drawn[name] != values[name]).any()) for name in values)


# ---- the posterior, by enumeration of paths --------------------------------------------------------------------------

X = torch.tensor([[0.0], [1.0], [6.0], [torch.nan], [5.0], [1.0]], dtype=torch.float64)


def log_gamma_poisson(x: Tensor, shape: float, rate: float) -> Tensor:
    """log p(x) of counts, with the rate integrated out; the part that depends on the split of x."""
    total, n = x.sum(), len(x)
    return (
        torch.lgamma(shape + total) - (shape + total) * math.log(rate + n) - math.lgamma(shape) + shape * math.log(rate)
    )


def test_a_markov_chain_has_the_means_of_all_paths():
    model = sh.SwitchingSSM(sh.Markov(2, initial=[1.0, 0.0], transition_prior=1.5, sticky=1.0), sh.Poisson())
    prior = {"shape": [[2.0], [2.0]], "rate": [[1.0], [1.0]]}
    model = model.with_prior({name: torch.tensor(table) for name, table in prior.items()})
    weights, stay, rate = [], [], []
    for path in itertools.product((0, 1), repeat=5):
        states = torch.tensor((0, *path))
        moves = torch.tensor([[2.5, 1.5], [1.5, 2.5]]).double()
        before = torch.lgamma(moves).sum() - torch.lgamma(moves.sum(-1)).sum()
        moves.index_put_((states[:-1], states[1:]), torch.ones(5).double(), accumulate=True)
        weight = torch.lgamma(moves).sum() - torch.lgamma(moves.sum(-1)).sum() - before
        seen = ~X[:, 0].isnan()
        parts = [X[(states == k) & seen, 0] for k in (0, 1)]
        weights.append(weight + sum(log_gamma_poisson(part, 2.0, 1.0) for part in parts))
        stay.append(moves[0, 0] / moves[0].sum())
        rate.append((2.0 + parts[1].sum()) / (1.0 + len(parts[1])))
    shares = torch.stack(weights).softmax(0)
    start = {"transition_probs": [[0.6, 0.4], [0.4, 0.6]], "rate": [[1.0], [5.0]]}
    run = runs(model, X, start, 400)
    assert within(kept(run, "transition_probs")[..., 0, 0], float(shares @ torch.stack(stay)))
    assert within(kept(run, "rate")[..., 1, 0], float(shares @ torch.stack(rate)))


def test_a_copy_chain_has_the_means_of_all_paths():
    model = sh.SwitchingSSM(sh.Copy(2, redraw_prior=(2.0, 3.0)), sh.Poisson())
    model = model.with_prior({name: torch.full((2, 1), n) for name, n in (("shape", 2.0), ("rate", 1.0))})
    x, weights, redraws = X[:4], [], []
    for states in itertools.product((0, 1), repeat=4):
        for gates in itertools.product((0, 1), repeat=3):
            if any(not z and a != b for z, a, b in zip(gates, states, states[1:], strict=False)):
                continue
            path, fresh = torch.tensor(states), torch.tensor((1, *gates)).bool()
            drawn = torch.bincount(path[fresh], minlength=2).double() + 1.0
            weight = torch.lgamma(drawn).sum() - torch.lgamma(drawn.sum())
            a, b = 2.0 + sum(gates), 3.0 + 3 - sum(gates)
            weight = weight + math.lgamma(a) + math.lgamma(b)
            seen = ~x[:, 0].isnan()
            weight = weight + sum(log_gamma_poisson(x[(path == k) & seen, 0], 2.0, 1.0) for k in (0, 1))
            weights.append(weight)
            redraws.append(a / (a + b))
    expected = float(torch.stack(weights).softmax(0) @ torch.tensor(redraws).double())
    run = runs(model, x, {"redraw_prob": 0.4, "state_probs": [0.5, 0.5], "rate": [[1.0], [5.0]]}, 400)
    assert within(kept(run, "redraw_prob"), expected)


@pytest.mark.slow
def test_a_sticky_hdp_has_the_means_of_all_paths_and_concentrations():
    """The exact means weigh concentrations that are drawn from the prior by the sum over all paths."""
    model = sh.SwitchingSSM(sh.StickyHDP(2, (2.0, 1.0), (3.0, 0.5), (3.0, 2.0)), sh.Poisson())
    model = model.with_prior({name: torch.full((2, 1), n) for name, n in (("shape", 2.0), ("rate", 1.0))})
    torch.manual_seed(0)
    n, x = 20_000, X[:5]
    gamma, total = Gamma(2.0, 1.0).sample((n,)).double(), Gamma(3.0, 0.5).sample((n,)).double()
    share = Beta(3.0, 2.0).sample((n,)).double()
    base = Dirichlet((gamma / 2).unsqueeze(-1).expand(n, 2)).sample().clamp_min(1e-30)
    moved, first = concentrations(base, total, share)
    weights, used = [], []
    for path in itertools.product((0, 1), repeat=5):
        states = torch.tensor(path)
        counts = torch.zeros(2, 2).double()
        counts.index_put_((states[:-1], states[1:]), torch.ones(4).double(), accumulate=True)

        def gain(c: Tensor, m: Tensor) -> Tensor:
            parts = torch.lgamma(c + m) - torch.lgamma(c)
            return parts.sum(-1) - torch.lgamma((c + m).sum(-1)) + torch.lgamma(c.sum(-1))

        begun = torch.nn.functional.one_hot(states[0], 2).double()
        seen = ~x[:, 0].isnan()
        emitted = sum(log_gamma_poisson(x[(states == k) & seen, 0], 2.0, 1.0) for k in (0, 1))
        weights.append(gain(moved, counts).sum(-1) + gain(first, begun) + emitted)
        used.append(len(set(path)))
    table = torch.stack(weights, -1)
    shares = table.flatten().softmax(0).reshape(table.shape)
    by_draw = shares.sum(-1)
    start = {
        "base_concentration": 1.0,
        "row_concentration": 5.0,
        "stickiness": 0.6,
        "base_probs": [0.5, 0.5],
        "initial_probs": [0.5, 0.5],
        "transition_probs": [[0.6, 0.4], [0.4, 0.6]],
        "rate": [[1.0], [5.0]],
    }
    run = runs(model, x, start, 250)
    assert within(kept(run, "base_concentration"), float(by_draw @ gamma))
    assert within(kept(run, "row_concentration"), float(by_draw @ total))
    assert within(kept(run, "stickiness"), float(by_draw @ share))
    visited = (torch.stack(run.shared, 1).sum(-2).round() > 0).sum(-1)
    assert within(visited, float(shares.sum(0) @ torch.tensor(used).double()))


# ---- fits ------------------------------------------------------------------------------------------------------------


def steps(n: int = 60) -> Tensor:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0)) * 0.4
    x[n // 2 :] += 4.0
    return x


@pytest.fixture(scope="module")
def drawn():
    model = sh.SwitchingSSM(sh.StickyHDP(5), sh.Normal(2))
    return model.fit(steps(), "gibbs", num_samples=60, warmup_steps=30, seed=0, **QUICK)


def test_a_fit_has_chains_like_those_of_nuts(drawn):
    draws = drawn.posterior.draws
    assert draws["loc"].shape == (4, 60, 5, 2)
    assert draws["loc"].dtype == torch.float32
    assert drawn.method == "gibbs"
    assert len(drawn.restarts) == 4
    assert len(drawn.objective) == 240
    assert bool(torch.isfinite(drawn.objective).all())
    assert_close(drawn.posterior.visits.sum(-1), torch.full((4, 60), 60))
    used = drawn.n_states_used()
    assert used.mode == 2
    assert len(used.numbers) == 240
    assert len(drawn.n_states_used(draws=10).numbers) == 10
    assert len(drawn.n_states_used(steps(), draws=15, seed=0).numbers) == 15
    low, high = drawn.posterior.interval()
    assert bool((low["row_concentration"] < high["row_concentration"]).all())
    group = drawn.to_arviz()
    assert group.posterior["stickiness"].shape == (4, 60)
    assert drawn.forecast(2).state.shape == (2, 5)


def test_seeds_repeat_draws(drawn):
    model = drawn.model.without_values()
    again = [model.fit(steps(), "gibbs", num_samples=6, warmup_steps=3, seed=seed, **QUICK) for seed in (0, 0, 1)]
    first, same, other = (fit.posterior.draws["loc"] for fit in again)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_lists_and_lengths_have_the_same_draws():
    x = steps(40)
    padded = torch.full((2, 40, 2), torch.nan)
    padded[0], padded[1, :30] = x, x[:30]
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2))
    options = {"method": "gibbs", "num_samples": 5, "warmup_steps": 2, "seed": 0, **QUICK}
    ragged, lengths = model.fit([x, x[:30]], **options), model.fit(padded, lengths=[40, 30], **options)
    assert_close(ragged.posterior.visits.sum(-1), torch.full((4, 5), 70))
    assert_close(ragged.posterior.draws["loc"], lengths.posterior.draws["loc"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("dynamics", "emission", "of"),
    [
        (sh.Copy(2), sh.Gated(sh.Normal(2), sh.Normal(2)), steps),
        (sh.Copy(2), sh.Gated(sh.Normal(2), sh.Normal(2), by_state=True), steps),
        (sh.Markov(2), sh.MultivariateNormal(2), steps),
        (sh.Markov.left_right(2), sh.Bernoulli(2), lambda: (steps() > 2).float()),
        (sh.Markov(2), sh.Categorical(3), lambda: (steps()[:, :1] > 2).long() + 1),
        (sh.Markov(2), sh.AutoRegressive(1, 2), steps),
    ],
)
def test_conjugate_models_of_all_kinds_are_drawn(dynamics, emission, of):
    fit = sh.SwitchingSSM(dynamics, emission).fit(of(), "gibbs", num_samples=4, warmup_steps=2, **QUICK)
    assert all(bool(table.isfinite().all()) for table in fit.posterior.draws.values())
    assert bool(torch.isfinite(fit.objective).all())


def test_fixed_parameters_and_known_states_are_kept():
    x, states = steps(), torch.full((60,), -1)
    states[0], states[-1] = 1, 0
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2))
    loc = [[4.0, 4.0], [float("nan"), 0.0]]
    fit = model.fit(x, "gibbs", states=states, fixed={"loc": loc, "scale": [[0.4, 0.4]] * 2}, num_samples=5, **QUICK)
    draws = fit.posterior.draws["loc"]
    assert_close(draws[..., 0, :], torch.full((4, 5, 2), 4.0))
    assert bool((draws[..., 1, 0].std() > 0) & (draws[..., 1, 0].abs() < 1.0).all())
    assert int(fit.posterior.visits[..., 1].min()) >= 1
    hdp = sh.SwitchingSSM(sh.StickyHDP(2), sh.Normal(2))
    known = {"base_probs": [0.5, 0.5], "base_concentration": 1.0, "row_concentration": 4.0, "stickiness": 0.5}
    fit = hdp.fit(x, "gibbs", fixed=known, num_samples=5, **QUICK)
    assert bool((fit.posterior.draws["row_concentration"] == 4.0).all())
    assert fit.posterior.draws["transition_probs"].std(1).max() > 0
    rows = {"initial_probs": [0.5, 0.5], "transition_probs": [[0.9, 0.1], [0.1, 0.9]]}
    fit = hdp.fit(x, "gibbs", fixed=known | rows, num_samples=5, **QUICK)
    assert_close(fit.posterior.draws["transition_probs"][0, 0], torch.tensor(rows["transition_probs"]))


def test_an_interrupt_keeps_the_draws_so_far(monkeypatch):
    whole = gibbs._Run._keep

    def keep(self, *arguments):
        if len(self.draws) == 4:
            raise KeyboardInterrupt
        whole(self, *arguments)

    monkeypatch.setattr(gibbs._Run, "_keep", keep)
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2))
    fit = model.fit(steps(), "gibbs", num_samples=50, warmup_steps=1, **QUICK)
    assert fit.interrupted
    assert fit.posterior.draws["loc"].shape[:2] == (4, 4)
    assert not fit.converged


def test_an_interrupted_checkpoint_goes_on_with_the_same_draws(monkeypatch, tmp_path):
    model = sh.SwitchingSSM(sh.StickyHDP(3), sh.Normal(2))
    options = {"method": "gibbs", "num_samples": 6, "warmup_steps": 2, **QUICK}
    without = model.fit(steps(), **options)
    whole, options = gibbs._Run._sweep, options | {"checkpoint": tmp_path / "fit", "every": 0.0}
    calls = []

    def sweep(self):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return whole(self)

    monkeypatch.setattr(gibbs._Run, "_sweep", sweep)
    assert model.fit(steps(), **options).interrupted
    again = model.fit(steps(), **options)
    assert len(calls) < 12
    assert torch.equal(again.posterior.draws["loc"], without.posterior.draws["loc"])
    assert torch.equal(again.posterior.visits, without.posterior.visits)
    assert torch.equal(model.fit(steps(), **options).posterior.draws["loc"], without.posterior.draws["loc"])


def partly_missing() -> Tensor:
    x = steps()
    x[3, 0] = torch.nan
    return x


@pytest.mark.parametrize(
    ("model", "given", "error", "said"),
    [
        (sh.SwitchingSSM(sh.Markov(2), sh.StudentT(2)), {}, TypeError, "emission: StudentT has no conjugate prior"),
        (sh.SwitchingSSM(sh.Markov(2), sh.VonMises(2)), {"x": steps() / 3}, TypeError, 'use method="nuts"'),
        (
            sh.SwitchingSSM(sh.Copy(2, inputs=["u"]), sh.Normal(2)),
            {"inputs": torch.randn(60, 1)},
            TypeError,
            "dynamics",
        ),
        (sh.SwitchingSSM(sh.Markov(2, initial="stationary"), sh.Normal(2)), {}, TypeError, "stationary"),
        (sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)), {"noise": torch.ones(60, 2)}, ValueError, "noise: was given"),
        (
            sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(2)),
            {"x": partly_missing()},
            ValueError,
            "x: some steps miss only some features",
        ),
        (sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)), {"prior": None}, ValueError, "prior: got None"),
        (sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)), {"max_steps": 9}, ValueError, 'method="gibbs" uses num_samples'),
        (sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)), {"num_samples": 0}, ValueError, "num_samples: got 0"),
        (sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)), {"dt": torch.ones(60)}, ValueError, "dt: Markov"),
        (sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)), {"dt": 1 + torch.rand(60)}, TypeError, 'use method="nuts"'),
        (
            sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)),
            {"x": steps().reshape(2, 30, 2), "weights": torch.tensor([1.0, 2.0])},
            ValueError,
            "weights: was given",
        ),
        (
            sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)),
            {"x": steps().reshape(2, 30, 2), "pooled": "none"},
            ValueError,
            "pooled: got parameters by subject",
        ),
    ],
)
def test_models_that_are_not_conjugate_are_refused(model, given, error, said):
    with pytest.raises(error, match=said):
        model.fit(**{"x": steps(), "method": "gibbs", **QUICK} | given)


def test_other_models_have_no_gibbs_fit():
    with pytest.raises(ValueError, match="method: got 'gibbs'"):
        sh.LinearSSM(sh.LocalLevel()).fit(steps()[:, :1], "gibbs", progress=False)
