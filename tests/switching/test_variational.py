"""Message passing on the library's models: bounds, conjugate cases, messages as gradients, and another library."""

import math
from itertools import product

import numpy as np
import pytest
import samplehold as sh
import torch
from hmmlearn.vhmm import VariationalCategoricalHMM, VariationalGaussianHMM
from oracles.conjugate import log_dirichlet_multinomial, normal_wishart_log_evidence
from oracles.models import CONJUGATE, drive, random_model, trace_log_prob
from samplehold import ConjugateEmission
from samplehold.inference.message_passing.factor_graph import add_message, fit_message
from samplehold.switching.dynamics.contract import PATHS
from samplehold.switching.dynamics.logits import LogitRows
from samplehold.switching.fitting import ChainGraph, engine_from, engine_of, first_guesses
from torch import Tensor
from torch.testing import assert_close

each_kind = pytest.mark.parametrize(("dynamics", "emission"), CONJUGATE)


def ragged(dynamics: str, emission: str, n_steps: int = 12) -> tuple[sh.SwitchingSSM, Tensor, dict]:
    """Three sequences of different lengths, with values missing."""
    model = random_model(dynamics, emission, seed=2)
    keywords = drive(dynamics, (3,), n_steps)
    x = model.simulate(n_steps, (3,), seed=0, **keywords).x
    x[0, 2, 0] = x[1, 3:5] = torch.nan
    return model, x, keywords | {"lengths": torch.tensor([n_steps, 5, 1])}


def graph_of(model: sh.SwitchingSSM, x, factorization: str = "structured", **keywords) -> ChainGraph:
    return ChainGraph.of(model.problem(x, **keywords), factorization == "mean_field")


def at_values(graph: ChainGraph, model: sh.SwitchingSSM):
    """The family of the paths, and their natural parameters where q of the parameters is a point."""
    engine = graph.engine(graph.priors, check=False)
    engine.update(PATHS, under=graph.point(model.values_like(graph.problem.series.observations)))
    return engine.blocks[PATHS].family, engine.blocks[PATHS].eta


def engine_for(model: sh.SwitchingSSM, x, factorization: str = "structured", restarts: int = 2, **keywords):
    return started(graph_of(model, x, factorization, **keywords), restarts)


def started(graph: ChainGraph, restarts: int, seed: int = 0):
    return engine_from(graph, first_guesses(graph.problem, restarts, seed).values)


def prior_of_gate(model: sh.SwitchingSSM) -> Tensor:
    """Log prior of intercept and weights, which is a factor of its own."""
    sites = [
        site
        for site in model.dynamics.sites(model.prior)
        if site.name.startswith("redraw_") and "prob" not in site.name
    ]
    return sum((site.distribution(model.values).log_prob(model.values[site.name]) for site in sites), torch.zeros(()))


# ---- known parameters: q contains the posterior ----------------------------------------------------------------------


@pytest.mark.few(4)
@each_kind
def test_with_known_parameters_the_structured_bound_is_the_evidence_and_the_mean_field_one_lies_below(
    dynamics, emission
):
    model, x, keywords = ragged(dynamics, emission)
    exact = model.log_evidence(x, **keywords)
    family, eta = at_values(graph_of(model, x, **keywords), model)
    assert_close(family.log_normalizer(eta), exact, rtol=1e-10, atol=1e-10)
    smoothed, expected = family.chain(eta).smooth(), model.smooth(x, **keywords)
    assert_close(smoothed.state, expected.state, rtol=1e-10, atol=1e-12)
    loose, eta = at_values(graph_of(model, x, "mean_field", **keywords), model)
    assert bool((loose.log_normalizer(eta) <= exact + 1e-10).all())
    free = graph_of(model, x[:, :1], **{n: k[:, :1] for n, k in keywords.items() if n != "lengths"})
    if "inputs" not in keywords and not emission.startswith("gated"):  # one step alone: nothing to factorise
        alone, eta = at_values(free, model)
        one, same = at_values(graph_of(model, x[:, :1], "mean_field"), model)
        assert_close(one.log_normalizer(same), alone.log_normalizer(eta), rtol=1e-10, atol=1e-10)


@each_kind
def test_the_log_joint_at_a_point_is_that_of_the_program(dynamics, emission):
    model = random_model(dynamics, emission, seed=5)
    keywords = drive(dynamics, (), 6)
    drawn = model.simulate(6, seed=1, **keywords)
    graph = graph_of(model, drawn.x, **keywords)
    family, eta = at_values(graph, model)
    point = graph.point(model.values_like(graph.problem.series.observations))
    joint = log_weight(family.chain(eta), drawn)
    for name, (_, block) in graph.blocks.items():
        if block.prior_is_factor:
            prior = next(f for f in graph.engine(graph.priors, check=False).factors if f.name == f"{name}_prior")
            joint = joint + prior.value(point[name])
            if isinstance(block, LogitRows):  # whose prior is that of logits
                joint = joint - model.values[next(iter(block.parameters))].log().sum()
            continue
        statistics, eta0 = point[name], graph.priors[name]
        density = block.family.dot(eta0, statistics) + block.family.log_base(statistics)
        joint = joint + (density - block.family.log_normalizer(eta0)).sum()
    data = {f"s_{t + 1}": s for t, s in enumerate(drawn.path)} | model.values
    gated = isinstance(model.dynamics, sh.Copy)
    data |= {f"z_{t + 1}": z.double() for t, z in enumerate(drawn.redraw) if t > 0 and gated}
    expected = trace_log_prob(model.without_values(), drawn.x, data=data, **keywords)
    assert_close(joint, expected, rtol=1e-10, atol=1e-10)


def log_weight(chain, drawn) -> Tensor:
    """Log weight of a path in a chain's tables."""
    path, steps = drawn.path, torch.arange(len(drawn.path))
    if isinstance(chain, sh.chains.MarkovChain):
        of_steps = chain.log_transition.expand(len(path) - 1, *chain.log_transition.shape[-2:])
        moves = of_steps[steps[:-1], path[:-1], path[1:]].sum()
        return chain.log_initial[path[0]] + moves + chain.log_likelihood[steps, path].sum()
    held = chain.log_held.expand_as(chain.log_fresh)[steps, path]
    return torch.where(drawn.redraw | (steps == 0), chain.log_fresh[steps, path], held).sum()


# ---- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("dynamics", "emission", "gaps"), [(*kind, False) for kind in CONJUGATE] + [("copy", "normal", True)]
)
def test_counts_are_the_gradient_of_the_log_normalizer(dynamics, emission, gaps):
    model, x, keywords = ragged(dynamics, emission)
    if gaps:
        keywords["dt"] = torch.tensor([1.0, 3.0, 0.4, 2.5]).repeat(3).expand(3, -1).double()
    graph = graph_of(model, x, **keywords)
    engine = started(graph, 3, 1)
    guesses = graph.point(first_guesses(graph.problem, 3, 1).values)
    start = {name: s.clone().requires_grad_() for name, s in guesses.items()}
    paths, total, message = engine.blocks[PATHS], torch.zeros(()), None
    for factor in engine.factors:
        if PATHS not in factor.blocks:
            total = total + factor.value(*(start[name] for name in factor.blocks)).sum()
        else:
            stats = [paths.eta if name == PATHS else start[name] for name in factor.blocks]
            message = add_message(message, factor.message(PATHS, *stats), 1.0)
    total = total + paths.family.log_normalizer(fit_message(message, paths.eta)).sum()
    gradients = torch.autograd.grad(total, list(start.values()))
    fixed = {name: s.detach() for name, s in start.items()}
    engine.update(PATHS, under=fixed)
    for name, expected in zip(start, gradients, strict=True):
        assert_close(engine.message(name, under=fixed), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("dynamics", "emission", "factorization"),
    [(*kind, "structured") for kind in CONJUGATE]
    + [
        (*kind, "mean_field")
        for kind in (("copy", "normal"), ("inputs", "full"), ("markov", "full"), ("copy", "gated_symbols"))
    ],
)
def test_no_block_lowers_the_bound(dynamics, emission, factorization):
    model, x, keywords = ragged(dynamics, emission, 20)
    engine = engine_for(model.scaled_to(x), x, factorization, **keywords)
    run = engine.run(8, tol=0, record=True)  # raises where a block does
    assert bool((run.elbo[-1] > run.elbo[0]).all())
    bounds = torch.stack([sweep.elbo[name] for sweep in run.sweeps for name in engine.blocks])
    assert float(bounds.diff(dim=0).min()) > -1e-9 * float(bounds.abs().max())


@pytest.mark.parametrize(("dynamics", "emission"), [("inputs", "normal"), ("copy", "gated"), ("markov", "normal")])
def test_independent_steps_reach_the_bound_of_their_definition_at_a_stationary_point(dynamics, emission):
    """E log p(x, s, z) + H(q) with q(s_t) of each step and the best q(z_t | s_t-1, s_t), written out over pairs."""
    model, x, keywords = ragged(dynamics, emission, 6)
    x, n_steps = x[0], 6
    keywords = {name: value[0] for name, value in keywords.items() if name != "lengths"}
    if dynamics == "copy":
        keywords["dt"] = torch.tensor([1.0, 0.5, 2.0, 1.0, 3.0, 1.5]).double()
    family, eta = at_values(graph_of(model, x, "mean_field", **keywords), model)
    chain, used = family.chain(eta), None
    for _ in range(60):  # evaluations go on from one another
        found, used = family.evaluate(eta, used)
    drawn, held = used.steps
    q = (drawn if held is None else drawn + held).clone().requires_grad_()
    if dynamics == "markov":
        local, move = chain.log_likelihood.clone(), chain.log_transition.expand(n_steps, 2, 2)
        local[0] += chain.log_initial
    else:
        fresh, held = chain.log_fresh, chain.log_held.expand_as(chain.log_fresh)
        stay = torch.logaddexp(fresh, held).unsqueeze(-2)  # both gates lead from a state to itself
        local, move = torch.zeros_like(fresh), torch.where(torch.eye(2).bool(), stay, fresh.unsqueeze(-2))
        local[0] = fresh[0]

    def bound(q: Tensor) -> Tensor:
        pairs = torch.einsum("ti,tij,tj->", q[:-1], move[1:], q[1:])
        return (q * local).sum() + pairs - (q * q.log()).sum()

    assert_close(found, bound(q).detach(), rtol=1e-9, atol=1e-9)
    (slope,) = torch.autograd.grad(bound(q), q)
    assert_close(slope - slope.mean(-1, keepdim=True), torch.zeros_like(slope), rtol=0, atol=1e-6)


# ---- exact evidence with unknown parameters --------------------------------------------------------------------------


def exact_evidence(model: sh.SwitchingSSM, x: Tensor, log_gates) -> Tensor:
    """log p(x) of symbols x [T] under copy dynamics: every path, the tables integrated out; `log_gates` takes [T-1]."""
    terms = []
    concentration, table = model.prior["state_concentration"], model.prior["concentration"]
    for gates in product((0, 1), repeat=len(x) - 1):
        segment = torch.tensor([0, *np.cumsum(gates)])
        for drawn in product(range(model.n_states), repeat=int(segment[-1]) + 1):
            path = torch.tensor(drawn)[segment]
            fresh = torch.nn.functional.one_hot(torch.tensor(drawn), model.n_states).sum(0).double()
            pairs = torch.zeros_like(table).index_put_((path, x.long()), torch.ones(len(x)).double(), accumulate=True)
            terms.append(
                log_gates(torch.tensor(gates).double())
                + log_dirichlet_multinomial(concentration, fresh)
                + log_dirichlet_multinomial(table, pairs).sum()
            )
    return torch.stack(terms).logsumexp(0)


def grid(n: int) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


SYMBOLS = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)


@pytest.mark.cpu("torch's distributions of numbers lie there")
@pytest.mark.parametrize("dt", [None, [1.0, 2.0, 3.0, 1.0, 1.0], [1.0, 0.3, 2.6, 0.8, 1.7]])
def test_the_bounds_lie_in_order_below_the_exact_evidence(dt):
    model = sh.SwitchingSSM(sh.Copy(2, redraw_prior=(2.0, 3.0), state_prior=0.8), sh.Categorical(2, prior=0.7))
    gaps = torch.ones(4).double() if dt is None else torch.tensor(dt[1:]).double()
    rho = grid(4000)

    def log_gates(z: Tensor) -> Tensor:
        hold = torch.log1p(-rho)[:, None] * gaps
        gate = torch.where(z == 1, torch.log1p(-hold.exp()), hold).sum(-1)
        prior = torch.distributions.Beta(2.0, 3.0).log_prob(rho)
        return (gate + prior).logsumexp(0) - math.log(len(rho))

    keywords = {} if dt is None else {"dt": torch.tensor(dt).double()}
    exact = exact_evidence(model, SYMBOLS, log_gates)
    bounds = {}
    for factorization in ("mean_field", "structured"):
        engine = engine_for(model, SYMBOLS[:, None], factorization, restarts=6, **keywords)
        bounds[factorization] = float(engine.run(40, 1e-8).elbo[-1].max())
    assert bounds["mean_field"] < bounds["structured"] < float(exact)
    assert float(exact) - bounds["structured"] < 2.0


@pytest.mark.cpu("torch's distributions of numbers lie there")
def test_the_bound_with_inputs_lies_below_the_exact_evidence():
    model = sh.SwitchingSSM(sh.Copy(2, redraw_prior=(2.0, 3.0), inputs=1), sh.Categorical(2, prior=0.7))
    inputs = torch.tensor([0.0, 1.0, -1.0, 0.5, 0.3], dtype=torch.float64)
    rho, weight = grid(150), torch.linspace(-14, 14, 200).double()
    psi = torch.logit(rho)[:, None, None] + weight[:, None] * inputs[1:]
    prior = torch.distributions.Beta(2.0, 3.0).log_prob(rho)[:, None] + torch.distributions.Normal(0, 2.5).log_prob(
        weight
    )
    cell = torch.log((weight[1] - weight[0]) / len(rho))

    def log_gates(z: Tensor) -> Tensor:
        gate = torch.nn.functional.logsigmoid(torch.where(z == 1, psi, -psi)).sum(-1)
        return (gate + prior).flatten().logsumexp(0) + cell

    exact = exact_evidence(model, SYMBOLS, log_gates)
    bound = engine_for(model, SYMBOLS[:, None], restarts=6, inputs=inputs[:, None]).run(40, 1e-8).elbo[-1].max()
    assert float(exact) - 3.0 < float(bound) < float(exact)


# ---- one state: conjugate inference ----------------------------------------------------------------------------------


def one_state(emission, x: Tensor):
    model = sh.SwitchingSSM(sh.Markov(1), emission).scaled_to(x)
    engine = engine_for(model, x, restarts=1)
    engine.step()
    return model, engine


def test_one_state_with_full_normals_has_the_conjugate_evidence_and_posterior():
    x = 3 + torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model, engine = one_state(sh.MultivariateNormal(2), x)
    prior = {
        "loc": model.prior["loc"][0],
        "kappa": model.prior["count"][0],
        "df": model.prior["df"][0],
        "scale_matrix": torch.linalg.inv(model.prior["inverse_scale"][0]),
    }
    assert_close(engine.elbo()[0], normal_wishart_log_evidence(prior, x), rtol=1e-12, atol=1e-12)
    posterior = model.fit(x, method="vmp", restarts=1, progress=False, prior=model.prior).posterior
    q = model.emission.family.usual(posterior.blocks["emission"])
    assert_close(
        posterior.mean["loc"][0],
        (prior["kappa"] * prior["loc"] + x.sum(0)) / (prior["kappa"] + 7),
        rtol=1e-12,
        atol=1e-12,
    )
    assert_close(q.df[0], prior["df"] + 7, rtol=1e-12, atol=0)


def test_one_state_with_independent_normals_has_the_conjugate_evidence():
    x = 3 + torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model, engine = one_state(sh.Normal(2), x)
    total = torch.zeros((), dtype=torch.float64)
    for f in range(2):
        prior = {
            "loc": model.prior["loc"][0, f : f + 1],
            "kappa": model.prior["count"][0, f],
            "df": 2 * model.prior["shape"][0, f],
            "scale_matrix": 1 / (2 * model.prior["rate"][0, f]).reshape(1, 1),
        }
        total = total + normal_wishart_log_evidence(prior, x[:, f : f + 1])
    assert_close(engine.elbo()[0], total, rtol=1e-12, atol=1e-12)


def test_one_state_with_integers_has_the_conjugate_evidence():
    symbols = torch.tensor([0.0, 2, 2, 1, 2], dtype=torch.float64)[:, None]
    model, engine = one_state(sh.Categorical(3, prior=0.6), symbols)
    expected = log_dirichlet_multinomial(model.prior["concentration"][0], torch.tensor([1.0, 1, 3]).double())
    assert_close(engine.elbo()[0], expected, rtol=1e-12, atol=1e-12)
    model, engine = one_state(sh.Bernoulli(1), symbols.clamp(max=1))
    beta = torch.stack([model.prior["successes"][0, 0], model.prior["failures"][0, 0]])
    assert_close(
        engine.elbo()[0], log_dirichlet_multinomial(beta, torch.tensor([4.0, 1]).double()), rtol=1e-12, atol=1e-12
    )
    model, engine = one_state(sh.Poisson(1), symbols)
    a, b = model.prior["shape"][0, 0], model.prior["rate"][0, 0]
    joint = torch.lgamma(a + 7) - torch.lgamma(a) + a * b.log() - (a + 7) * (b + 5).log()
    assert_close(engine.elbo()[0], joint - torch.lgamma(symbols + 1).sum(), rtol=1e-12, atol=1e-12)


# ---- what is missing -------------------------------------------------------------------------------------------------


def test_ragged_sequences_equal_the_same_sequences_one_by_one_and_padding_does_not_matter():
    model = random_model("copy", "normal", seed=2)
    x = model.simulate(9, (2,), seed=0).x
    graph = graph_of(model, x, lengths=torch.tensor([9, 4]))
    point = graph.point(model.values_like(graph.problem.series.observations))

    def evaluated(graph: ChainGraph):
        engine = graph.engine(graph.priors, check=False)
        engine.update(PATHS, under=point)
        paths = engine.blocks[PATHS]
        return paths.family.log_normalizer(paths.eta).sum(), {n: engine.message(n, under=point) for n in graph.blocks}

    total, counts = evaluated(graph)
    parts = [evaluated(graph.to(model.read(row))) for row in (x[0], x[1, :4])]
    assert_close(total, parts[0][0] + parts[1][0], rtol=1e-12, atol=1e-12)
    for name, got in counts.items():
        assert_close(got, parts[0][1][name] + parts[1][1][name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("emission", ["normal", "full"])
@pytest.mark.parametrize("missing", [False, True])
def test_a_table_in_one_pass_is_that_of_a_representative_plus_its_constant(emission, missing):
    model = random_model("copy", emission, seed=2)
    x, emission = model.simulate(8, seed=0).x, model.emission
    weights = torch.rand(8, model.n_states, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    eta = emission.natural(emission.default_prior(model.n_states, x)) + emission.message(x, weights)
    if missing:
        x[2, 0] = x[5] = torch.nan
    found = emission.expected_table(x, emission.family.mean(eta))
    generic = ConjugateEmission.expected_table(emission, x, emission.family.mean(eta))
    assert_close(found, generic, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("emission", ["normal", "full", "bernoulli", "poisson", "categorical"])
def test_steps_that_are_missing_count_as_if_they_were_not_there(emission):
    model = random_model("copy", emission, seed=2)
    x = model.simulate(8, seed=0).x
    x[2] = x[6] = torch.nan
    there = torch.tensor([0, 1, 3, 4, 5, 7])
    emission, statistics = model.emission, model.emission.statistics(model.values)
    table = emission.expected_table(x, statistics)
    assert_close(table[there], emission.expected_table(x[there], statistics), rtol=1e-12, atol=1e-12)
    assert float(table[2].abs().max()) == 0
    weights = torch.rand(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = emission.expected_message(x, weights, statistics)
    assert_close(ours, emission.expected_message(x[there], weights[there], statistics), rtol=1e-10, atol=1e-10)


# ---- another library -------------------------------------------------------------------------------------------------


def start_from(model, x, etas: dict[str, Tensor]):
    graph = graph_of(model, x)
    under = {name: block.family.mean(etas[name][None]) for name, (_, block) in graph.blocks.items()}
    return engine_of(graph, {name: prior[None] for name, prior in graph.priors.items()}, under)


def test_the_categorical_bound_is_that_of_hmmlearn():
    rng = np.random.default_rng(0)
    symbols = np.repeat(rng.integers(3, size=20), 4)
    peer = VariationalCategoricalHMM(
        2,
        startprob_prior=0.8,
        transmat_prior=0.9,
        emissionprob_prior=0.7,
        n_iter=15,
        tol=0,
        random_state=1,
        init_params="",
    )
    etas = {
        "initial": rng.gamma(2, size=2),
        "transition": 5 * rng.gamma(2, size=(2, 2)),
        "emission": 5 * rng.gamma(2, size=(2, 3)),
    }
    peer.n_features = 3
    for name, theirs, prior in (
        ("initial", "startprob", 0.8),
        ("transition", "transmat", 0.9),
        ("emission", "emissionprob", 0.7),
    ):
        setattr(peer, f"{theirs}_prior_", np.full(etas[name].shape, prior))
        setattr(peer, f"{theirs}_posterior_", etas[name].copy())
    peer.fit(symbols[:, None])
    model = sh.SwitchingSSM(sh.Markov(2, initial_prior=0.8, transition_prior=0.9), sh.Categorical(3, prior=0.7))
    engine = start_from(
        model, torch.from_numpy(symbols[:, None]).double(), {n: torch.from_numpy(e) for n, e in etas.items()}
    )
    theirs = torch.tensor(list(peer.monitor_.history)).double()[1:]
    assert len(theirs) > 5
    assert_close(engine.run(len(theirs), tol=0).elbo[:, 0], theirs, rtol=1e-8, atol=0)


def test_the_normal_bound_is_that_of_hmmlearn():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.integers(2, size=20), 5)[:, None] * 3.0 + rng.normal(size=(100, 2))
    peer = VariationalGaussianHMM(
        2,
        covariance_type="full",
        startprob_prior=0.8,
        transmat_prior=0.9,
        means_prior=np.zeros((2, 2)),
        beta_prior=np.full(2, 0.5),
        dof_prior=np.full(2, 4.0),
        scale_prior=np.stack([np.eye(2)] * 2),
        n_iter=1,
        tol=0,
        random_state=1,
    )
    peer._init(x, [100])
    scale_matrix = np.linalg.inv(peer.scale_posterior_)
    start = {
        "initial": peer.startprob_posterior_.copy(),
        "transition": peer.transmat_posterior_.copy(),
        "loc": peer.means_posterior_.copy(),
        "kappa": peer.beta_posterior_.astype(float),
        "df": peer.dof_posterior_.astype(float),
        "scale_matrix": scale_matrix,
    }
    peer.init_params, peer.n_iter = "", 15
    peer.monitor_.n_iter = 15
    peer.fit(x)
    model = sh.SwitchingSSM(sh.Markov(2, initial_prior=0.8, transition_prior=0.9), sh.MultivariateNormal(2)).with_prior(
        {
            "loc": torch.zeros(2, 2).double(),
            "count": torch.full((2,), 0.5).double(),
            "df": torch.full((2,), 4.0).double(),
            "inverse_scale": torch.eye(2).double().expand(2, 2, 2),
        }
    )
    own = {n: torch.from_numpy(np.asarray(v, dtype=float)) for n, v in start.items()}
    data = torch.from_numpy(x)
    emission = model.emission.family.natural(own["loc"], own["kappa"], own["df"], own["scale_matrix"])
    engine = start_from(model, data, {"initial": own["initial"], "transition": own["transition"], "emission": emission})
    left_out = 100 * math.log(2 * math.pi)  # a constant
    theirs = torch.tensor(list(peer.monitor_.history)).double()[1:] - left_out
    assert len(theirs) > 5
    trace = engine.run(len(theirs), tol=-1.0).elbo[:, 0]  # not even a bound that repeats itself ends it
    assert_close(trace, theirs, rtol=1e-8, atol=0)


# ---- fits ------------------------------------------------------------------------------------------------------------


def levels(n_steps: int = 200, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    jumps = (torch.rand(n_steps, generator=generator) < 0.1).cumsum(-1) % 2
    return (4.0 * jumps + torch.randn(n_steps, generator=generator, dtype=torch.float64))[:, None]


def test_states_that_are_not_needed_empty_out():
    fit = sh.SwitchingSSM(sh.Copy(6, state_prior=0.1), sh.Normal(1)).fit(
        levels(), method="vmp", max_steps=300, progress=False
    )
    assert int(fit.active_states.sum()) == 2
    assert fit.posterior is not None
    assert_close(fit.model.loc[fit.active_states, 0].sort().values, torch.tensor([0.0, 4.0]).double(), rtol=0, atol=0.4)
    assert fit.converged


def test_restarts_as_a_batch_equal_restarts_one_by_one():
    model, x = sh.SwitchingSSM(sh.Copy(3), sh.Normal(1)).scaled_to(levels()), levels()
    graph = graph_of(model, x)
    start = graph.point(first_guesses(graph.problem, 4, 0).values)

    def run(under: dict[str, Tensor]) -> Tensor:
        n = len(under["state"])
        etas = {name: prior.expand(n, *prior.shape) for name, prior in graph.priors.items()}
        return engine_of(graph, etas, under).run(10, tol=0).elbo

    together = run(start)
    for r in range(4):
        alone = run({name: s[r : r + 1] for name, s in start.items()})
        assert_close(together[:, r], alone[:, 0], rtol=1e-10, atol=0)


def test_the_best_restart_is_kept_and_the_worse_are_left_behind():
    fit = sh.SwitchingSSM(sh.Copy(3), sh.Normal(1)).fit(levels(), method="vmp", restarts=6, progress=False)
    assert float(fit.objective[-1]) >= fit.restarts.objective.max() - 1e-3
    assert fit.converged
    left = fit.restarts[fit.restarts.ended == "left behind"]
    assert len(left) > 0
    assert left.steps.min() < fit.steps
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"factorization": "full"}, "factorization: got 'full'"),
        ({"prior": None}, "prior: got None"),
        ({"method": "hmc"}, "method: got 'hmc'"),
        ({"factorization": "mean_field", "dt": torch.tensor([1.0, 0.0, 1.0])}, "dt: got a gap of 0"),
    ],
)
def test_bad_arguments_are_named(change, said):
    keywords = {"x": [0.0, 1.0, 2.0], "progress": False, "method": "vmp"} | change
    with pytest.raises(ValueError, match=said):
        sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(**keywords)
