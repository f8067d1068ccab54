"""Starts of Markov chains: stationary, given, and dependent on inputs."""

import numpy as np
import pytest
import torch
from oracles.markov_paths import enumerate_paths
from oracles.models import enumerate_evidence, numbers
from samplehold import Categorical, Markov, Normal, Poisson, SwitchingSSM, automata, load
from samplehold.switching.data.series import Drive
from samplehold.switching.dynamics.initial import has_one_class, stationary
from samplehold.switching.responses import Frame
from scipy.optimize import minimize
from scipy.stats import poisson
from torch.testing import assert_close

K = 3
STARTS = {
    "stationary": Markov(K, initial="stationary", transition_prior=1.5),
    "given": Markov(K, initial=[0.2, 0.5, 0.3]),
    "driven start": Markov(K, initial_inputs=["age", "dose"], initial_prior=2.0),
    "stationary, driven": Markov(K, inputs=["dose", "rain"], initial="stationary"),
    "both driven": Markov(K, inputs=["dose", "rain"], initial_inputs=["age", "dose"]),
}


def valued(dynamics: Markov, seed: int = 0) -> SwitchingSSM:
    """A model with random values."""
    model, k, n = SwitchingSSM(dynamics, Normal(1)), dynamics.n_states, dynamics.n_initial
    weights = numbers(k, k, dynamics.n_inputs, seed=seed) * (1 - torch.eye(k, dtype=torch.float64)).unsqueeze(-1)
    values = {
        "initial_probs": numbers(k, seed=seed).softmax(-1),
        "initial_weights": torch.cat([torch.zeros(1, n), numbers(k - 1, n, seed=seed + 5)]),
        "transition_probs": (numbers(k, k, seed=seed + 1) + torch.eye(k)).softmax(-1),
        "transition_weights": weights,
        "loc": 2 * torch.arange(float(k), dtype=torch.float64).unsqueeze(-1),
        "scale": torch.ones(k, 1, dtype=torch.float64),
    }
    return model.with_values({name: values[name] for name in [*dynamics.parameters, "loc", "scale"]})


def inputs_of(model: SwitchingSSM, *shape: int, seed: int = 7) -> dict:
    return {"inputs": numbers(*shape, model.n_inputs, seed=seed)} if model.n_inputs else {}


def by_hand(model: SwitchingSSM, inputs: torch.Tensor | None) -> torch.Tensor:
    """P(s_1) of one sequence."""
    dynamics, values = model.dynamics, model.values
    if dynamics.n_initial:
        names = model.inputs
        read = torch.stack([inputs[0, names.index(name)] for name in dynamics.initial_inputs])
        weight = torch.stack(
            [
                p * torch.exp(w @ read)
                for p, w in zip(*(values[n] for n in ("initial_probs", "initial_weights")), strict=True)
            ]
        )
        return weight / weight.sum()
    if dynamics.initial == "stationary":
        table = values["transition_probs"]
        if dynamics.n_inputs:
            table = table * torch.exp(values["transition_weights"] @ inputs[0, : dynamics.n_inputs])
            table = table / table.sum(-1, keepdim=True)
        return torch.linalg.matrix_power(table, 2000)[0]
    return torch.tensor(dynamics.initial, dtype=torch.float64)


each = pytest.mark.parametrize("dynamics", STARTS.values(), ids=STARTS)


@each
def test_the_first_state_has_its_distribution_in_every_method(dynamics):
    model, n = valued(dynamics), 4
    given, x = inputs_of(model, 2, n), numbers(2, n, 1, seed=3)
    inputs = given.get("inputs", [None, None])
    first = torch.stack([by_hand(model, table) for table in inputs])
    chain = model.chain(x, **given)
    moves = chain.log_transition.expand(2, 3, K, K) if dynamics.n_inputs else chain.log_transition
    exact = enumerate_paths(first.log(), moves, chain.log_likelihood, torch.tensor([n, n]))
    assert_close(model.log_evidence(x, **given), exact.log_normalizer, rtol=1e-10, atol=0)
    assert_close(model.smooth(x, **given).state, exact.smoothed, rtol=1e-9, atol=1e-12)
    empty = torch.full_like(x, torch.nan)
    assert_close(model.filter(empty, **given).state[:, 0], first, rtol=1e-10, atol=1e-12)
    state, step = model.start((2,)), {name: table[:, 0] for name, table in given.items()}
    _, out = model.update(state, empty[:, 0], **step)
    assert_close(out.state, first, rtol=1e-10, atol=1e-12)
    path = model.simulate(
        1, (4000, 2), seed=0, **{k: v[None, :, :1].expand(4000, -1, -1, -1) for k, v in given.items()}
    ).path
    share = torch.stack([(path[..., 0] == k).double().mean(0) for k in range(K)], -1)
    assert_close(share, first, rtol=0, atol=0.04)


@each
def test_the_program_has_the_density_of_the_chain(dynamics):
    model = valued(dynamics)
    given, x = inputs_of(model, 3), numbers(3, 1, seed=3)
    assert_close(model.log_evidence(x, **given), enumerate_evidence(model, x, **given), rtol=1e-10, atol=0)


@each
def test_gradients_are_those_of_differences(dynamics):
    model = valued(dynamics)
    given, x = inputs_of(model, 2, 4), numbers(2, 4, 1, seed=3)
    problem, names = model.problem(x, **given), list(dynamics.parameters)

    def evidence(*tables: torch.Tensor) -> torch.Tensor:
        return problem.evidence(model.values | dict(zip(names, tables, strict=True)))

    leaves = [model.values[name].clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(evidence, leaves, eps=1e-6, atol=1e-7)


def test_stationary_distributions_do_not_move():
    table = numbers(5, 4, 4).softmax(-1)
    probs = stationary(table)
    assert_close((probs.unsqueeze(-2) @ table).squeeze(-2), probs, rtol=1e-12, atol=0)
    absorbing = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert_close(stationary(absorbing), torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), rtol=0, atol=1e-15)
    assert has_one_class(absorbing)
    assert not has_one_class(torch.eye(2))


# ---- fits ------------------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("prior", ["weak", None])
@each
def test_em_never_falls_and_ends_where_the_slope_is_0(dynamics, prior):
    model = valued(dynamics, seed=1)
    given = inputs_of(model, 100, 15)
    x = model.simulate(15, (100,), seed=1, **given).x
    fit = model.fit(x, restarts=1, start=model, max_steps=1000, tol=1e-12, prior=prior, progress=False, **given)
    assert fit.converged
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    problem, values = model.scaled_to(x, **given).problem(x, **given), fit.model.values
    if prior and "inputs_center" in problem.prior:  # the mode is that of constants at the inputs of their prior
        center = problem.prior["inputs_center"]
        values = Frame(problem.responses, problem.inputs, center, torch.ones_like(center)).into(values)
        problem = problem.about_inputs(center)
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    height = problem.evidence(leaves).sum() + (problem.log_prior(leaves) if prior else 0)
    for name, slope in zip(leaves, torch.autograd.grad(height, list(leaves.values())), strict=True):
        value = values[name]
        if name.endswith("probs"):
            slope = slope * value - value * (slope * value).sum(-1, keepdim=True)  # in the logits
        elif name.endswith("weights"):
            slope = slope * model.known[name].support.free
        assert float(slope.abs().max()) < 2e-3, name


def test_an_m_step_of_a_stationary_chain_does_not_lower_its_objective_and_keeps_impossible_moves():
    model = valued(STARTS["stationary"], seed=1)
    table = torch.tensor([[0.6, 0.4, 0.0], [0.3, 0.3, 0.4], [0.0, 0.5, 0.5]], dtype=torch.float64)
    model = model.with_values(model.values | {"transition_probs": table})
    x = model.simulate(6, (10,), seed=0).x
    marginals = model.chain(x).marginals()
    stacked = type(marginals)(*(None if f is None else f.unsqueeze(0) for f in vars(marginals).values()))

    def height(probs: torch.Tensor) -> torch.Tensor:
        used = marginals.transition.sum(0) * torch.where(table > 0, probs, 1.0).log()
        return used.sum() + (marginals.initial.sum(0) * stationary(probs).log()).sum()

    old = {name: value.unsqueeze(0) for name, value in model.values.items()}
    new = model.dynamics.maximize(stacked, None, old, Drive())["transition_probs"][0]
    assert bool((new[table == 0] == 0).all())
    assert float(height(new)) > float(height(table))
    for _ in range(20):
        new = model.dynamics.maximize(stacked, None, old | {"transition_probs": new[None]}, Drive())[
            "transition_probs"
        ][0]
    free = new.clone().requires_grad_()
    (slope,) = torch.autograd.grad(height(free), free)
    along = new * (slope - (new * slope).sum(-1, keepdim=True))  # in the logits
    assert float(along.abs().max()) < 1e-5


@pytest.mark.few(1)
@pytest.mark.parametrize("start", ["free", "stationary"])
def test_fits_of_counts_are_the_optima_of_another_optimiser(start):
    truth = SwitchingSSM(Markov(2, initial="stationary"), Poisson(1)).with_values(
        transition_probs=[[0.9, 0.1], [0.3, 0.7]], rate=[[0.7], [3.0]]
    )
    x = truth.simulate(120, seed=4).x
    counts = x[:, 0].numpy()

    def fall(y: np.ndarray) -> float:
        """Minus the log likelihood by a forward recursion of numbers."""
        leave = 1 / (1 + np.exp(-y[2:4]))
        table = np.array([[1 - leave[0], leave[0]], [leave[1], 1 - leave[1]]])
        first = 1 / (1 + np.exp(-y[4])) if start == "free" else leave[0] / leave.sum()
        emitted = poisson.pmf(counts[:, None], np.exp(y[:2]))
        belief, total = np.array([1 - first, first]), 0.0
        for t in range(len(counts)):
            belief = (belief if t == 0 else belief @ table) * emitted[t]
            total += np.log(belief.sum())
            belief = belief / belief.sum()
        return -total

    begin = [np.array([-1.0, 1.0, -2.0, -1.0, first]) for first in (-3.0, 3.0)]
    best = min(minimize(fall, y, method="BFGS").fun for y in begin)
    fit = SwitchingSSM(Markov(2, initial=start), Poisson(1)).fit(x, prior=None, tol=1e-9, progress=False)
    assert abs(fit.loglik + best) < 0.01
    assert fit.n_parameters == (5 if start == "free" else 4)


def test_a_driven_start_recovers_its_weights():
    model = valued(Markov(2, initial_inputs=["age"]), seed=3)
    model = model.with_values(model.values | {"loc": torch.tensor([[0.0], [8.0]]).double()})
    given = inputs_of(model, 800, 2)
    x = model.simulate(2, (800,), seed=0, **given).x
    fit = SwitchingSSM(model.dynamics, Normal(1)).fit(x, restarts=1, start=model, progress=False, **given)
    row = fit.summary().parameters.loc["initial_weights[1, age]"]
    assert abs(row["estimate"] - float(model.initial_weights[1, 0])) < 4 * row["standard error"]
    assert row["standard error"] < 0.5


@pytest.mark.slow
@pytest.mark.few(1)
@each
def test_every_method_fits_or_names_its_cure(dynamics):
    model = valued(dynamics)
    given = inputs_of(model, 4, 12)
    x = model.simulate(12, (4,), seed=0, **given).x
    some = {"restarts": 1, "progress": False} | given
    empty = SwitchingSSM(dynamics, Normal(1))
    if dynamics.no_messages:
        with pytest.raises(TypeError, match=r'^dynamics: its .* use method="em", "svi" or "nuts"\.'):
            empty.fit(x, "vmp", **some)
    else:
        assert float(empty.fit(x, "vmp", max_steps=20, **some).objective.diff().min()) > -1e-8
    for fit in (empty.fit(x, "svi", max_steps=10, **some), empty.fit(x, "nuts", num_samples=3, warmup_steps=1, **some)):
        assert bool(fit.objective.isfinite().all())
        assert str(fit.summary())
        assert fit.to_arviz(draws=4).posterior is not None


@each
def test_models_survive_files(dynamics, tmp_path):
    model = valued(dynamics)
    model.save(tmp_path)
    again = load(tmp_path)
    given, x = inputs_of(model, 5), numbers(5, 1)
    assert again.dynamics == model.dynamics
    assert_close(again.log_evidence(x, **given), model.log_evidence(x, **given), rtol=0, atol=0)


def test_inputs_of_both_parts_are_read_once_and_by_name():
    model = valued(STARTS["both driven"])
    assert model.inputs == ("dose", "rain", "age")
    assert model.sizes["initial_input"] == 2


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Markov(2, initial="fixed"), "^initial: got 'fixed', expected"),
        (lambda: Markov(2, initial=[0.5, 0.2]), "^initial: got rows that are not probabilities"),
        (lambda: Markov(2, initial=[1.0]), r"^initial: got shape \(1,\), expected 2 probabilities"),
        (
            lambda: Markov(2, initial="stationary", initial_inputs=1),
            "^initial_inputs: got 1 together with initial='stationary'",
        ),
        (lambda: Markov(2, inputs=1, initial_inputs=["age"]), "^inputs: got 1 in one part and names in another"),
        (
            lambda: valued(Markov(2, initial="stationary")).with_values(
                transition_probs=torch.eye(2), loc=[[0.0], [1.0]], scale=[[1.0], [1.0]]
            ),
            "^transition_probs: got several closed classes of states",
        ),
    ],
)
def test_starts_that_do_not_fit_are_refused(build, said):
    with pytest.raises(ValueError, match=said):
        build()


# ---- impossible moves ------------------------------------------------------------------------------------------------

MASKS = {
    "forward": Markov.left_right(K, transition_prior=1.5),
    "banded": Markov.banded(K, initial="stationary"),
    "no stay": Markov(K, mask=[[False, True, True], [True, False, True], [True, True, False]], inputs=["dose"]),
    "driven forward": Markov.left_right(K, skips=1, inputs=["dose", "rain"], initial=[1.0, 0.0, 0.0]),
}
each_mask = pytest.mark.parametrize("dynamics", MASKS.values(), ids=MASKS)


def masked(dynamics: Markov, seed: int = 0) -> SwitchingSSM:
    """A model with random values of the possible moves."""
    possible = torch.tensor(dynamics.mask)
    model = SwitchingSSM(dynamics, Normal(1))
    support = model.known["transition_weights"].support.free if dynamics.n_inputs else torch.zeros(K, K, 0)
    values = {
        "initial_probs": numbers(K, seed=seed).softmax(-1),
        "transition_probs": (numbers(K, K, seed=seed) + torch.eye(K)).masked_fill(~possible, -torch.inf).softmax(-1),
        "transition_weights": numbers(K, K, dynamics.n_inputs, seed=seed) * support,
        "loc": 2 * torch.arange(float(K), dtype=torch.float64).unsqueeze(-1),
        "scale": torch.ones(K, 1, dtype=torch.float64),
    }
    return model.with_values({name: values[name] for name in [*dynamics.parameters, "loc", "scale"]})


def test_constructors_make_the_masks_of_their_names():
    assert Markov.left_right(4, skips=1).mask[0] == (True, True, True, False)
    assert Markov.left_right(4).mask[3] == (False, False, False, True)
    assert Markov.banded(4, width=2).mask[0] == (True, True, True, False)
    assert Markov.banded(3, sticky=2.0).sticky == 2.0


@pytest.mark.slow
@pytest.mark.few(1)
@each_mask
def test_impossible_moves_stay_impossible_in_every_method(dynamics):
    model = masked(dynamics)
    given = inputs_of(model, 4, 12)
    x = model.simulate(12, (4,), seed=0, **given).x
    some = {"restarts": 1, "progress": False} | given
    empty = SwitchingSSM(dynamics, Normal(1))
    impossible = ~torch.tensor(dynamics.mask)
    fits = [empty.fit(x, prior=prior, max_steps=20, **some) for prior in ("weak", None)]
    fits.append(empty.fit(x, fixed={"transition_probs": model.transition_probs}, max_steps=20, **some))
    fits += [empty.fit(x, "svi", max_steps=10, **some), empty.fit(x, "nuts", num_samples=3, warmup_steps=1, **some)]
    fits += [] if dynamics.no_messages else [empty.fit(x, "vmp", max_steps=20, **some)]
    for fit in fits:
        assert float(fit.objective.diff().min()) > -1e-8 * float(fit.objective.abs().max()) or fit.method in (
            "svi",
            "nuts",
        )
        assert bool((fit.model.transition_probs[impossible] == 0).all())
        path, real = fit.viterbi().path, fit.model.transition_probs > 0
        assert bool(real[path[:, :-1], path[:, 1:]].all())
        moves = fit.smooth().transition
        assert moves is None or bool((moves[..., impossible] == 0).all())
        if fit.posterior is not None:
            drawn = fit.posterior.sample(20)["transition_probs"]
            assert bool((drawn[:, impossible] == 0).all())
            assert_close(drawn.sum(-1), torch.ones(20, K, dtype=torch.float64))
        named = fit.summary().parameters.index
        assert "transition_probs[0, 1]" in named or bool(impossible[0, 1])
        assert not any(f"transition_probs[{i}, {j}]" in named for i, j in impossible.nonzero().tolist())


@each_mask
def test_priors_of_possible_moves_are_dirichlet(dynamics):
    model = masked(dynamics)
    site = next(s for s in dynamics.sites(model.prior) if s.name == "transition_probs")
    exact = 0.0
    for row, alpha, possible in zip(
        model.transition_probs, model.prior["transition_concentration"], torch.tensor(dynamics.mask), strict=True
    ):
        exact += (
            float(torch.distributions.Dirichlet(alpha[possible]).log_prob(row[possible])) if possible.sum() > 1 else 0.0
        )
    for inside in (True, False):
        assert float(site.log_prob(model.values, inside)) == pytest.approx(exact, abs=1e-12)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = site.distribution({}).sample(torch.Size([20_000]))
    free = torch.where(torch.tensor(dynamics.mask), model.prior["transition_concentration"], 0.0)
    assert_close(drawn.mean(0), free / free.sum(-1, keepdim=True), rtol=0, atol=0.01)


def test_free_coordinates_of_possible_rows_are_one_to_one():
    support = SwitchingSSM(Markov.left_right(4, skips=1), Normal(1)).known["transition_probs"].support
    to = torch.distributions.biject_to(support)
    y = numbers(2, 5)
    table = to(y)
    assert bool(support.check(table).all())
    assert_close(to.inv(table), y, rtol=1e-12, atol=1e-12)
    jacobian = torch.autograd.functional.jacobian(lambda y: to(y)[support.free], y[0])
    rows = support.free.nonzero()[:, 0]
    keep = torch.tensor(
        [i for i in range(len(rows)) if i + 1 < len(rows) and rows[i] == rows[i + 1]]
    )  # without the last of a row
    volume = torch.linalg.slogdet(jacobian[keep]).logabsdet
    assert_close(to.log_abs_det_jacobian(y[0], table[0]), volume, rtol=1e-10, atol=0)
    drawn = [float(to.log_abs_det_jacobian(y[i], table[i])) for i in range(2)]
    assert_close(to.log_abs_det_jacobian(y, table), torch.tensor(drawn, dtype=torch.float64))


@pytest.mark.slow
def test_a_chain_that_moves_forward_is_recovered_with_its_states_in_order():
    truth = SwitchingSSM(Markov.left_right(4, initial=[1.0, 0.0, 0.0, 0.0]), Normal(1)).with_values(
        transition_probs=[[0.9, 0.1, 0, 0], [0, 0.9, 0.1, 0], [0, 0, 0.9, 0.1], [0, 0, 0, 1]],
        loc=[[3.0], [0.0], [6.0], [1.5]],
        scale=[[0.5]] * 4,
    )
    x = truth.simulate(60, (20,), seed=0).x
    for method in ("em", "vmp"):
        fit = SwitchingSSM(truth.dynamics, Normal(1)).fit(x, method, progress=False)
        assert_close(fit.model.loc, truth.loc, rtol=0, atol=0.2)
        assert fit.n_parameters == 3 + 8


def test_the_number_of_free_parameters_counts_possible_moves():
    model = masked(MASKS["no stay"])
    assert model.n_parameters == 2 + 3 + 3 + 6


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Markov(2, mask=[[True, True], [False, False]]), "^mask: row 1 has no possible move"),
        (lambda: Markov(2, mask=[[True, True]]), r"^mask: got shape \(1, 2\), expected \(2, 2\)"),
        (
            lambda: masked(MASKS["forward"]).with_values(
                masked(MASKS["forward"]).values | {"transition_probs": torch.full((K, K), 1 / K)}
            ),
            r"^transition_probs: got 0\.333333 at \[0, 2\], expected 0: the mask excludes this move",
        ),
        (
            lambda: SwitchingSSM(MASKS["forward"], Normal(1)).fit(
                numbers(20), fixed={"transition_probs": torch.full((K, K), 1 / K)}, progress=False
            ),
            r"^fixed: transition_probs: got 0\.333333 at \[0, 2\], expected 0",
        ),
        (
            lambda: SwitchingSSM(MASKS["forward"], Normal(1)).fit(
                numbers(20), "vmp", factorization="mean_field", progress=False
            ),
            "^dynamics: some paths are impossible",
        ),
    ],
)
def test_masks_and_tables_that_do_not_fit_are_refused(build, said):
    with pytest.raises(ValueError, match=said):
        build()


def test_a_mask_of_numbers_is_refused():
    with pytest.raises(TypeError, match=r"^mask: got torch\.float64, expected True where a move is possible"):
        Markov(2, mask=[[1.0, 0.0], [0.0, 1.0]])


@each_mask
def test_masks_survive_files(dynamics, tmp_path):
    model = masked(dynamics)
    model.save(tmp_path)
    assert load(tmp_path).dynamics == model.dynamics


def test_a_stationary_start_is_that_of_its_automaton():
    model = SwitchingSSM(Markov(2, initial="stationary"), Categorical(2)).with_values(
        transition_probs=[[0.9, 0.1], [0.3, 0.7]], probs=[[0.1, 0.9], [0.8, 0.2]]
    )
    automaton = automata.as_weighted_automaton(model)
    assert_close(automaton.initial, torch.tensor([0.75, 0.25], dtype=torch.float64), rtol=1e-12, atol=0)
    driven = SwitchingSSM(Markov(2, initial_inputs=1), Categorical(2)).with_values(
        model.values | {"initial_probs": [0.5, 0.5], "initial_weights": [[0.0], [1.0]]}
    )
    with pytest.raises(ValueError, match=r"^network: its moves depend on inputs"):
        automata.as_weighted_automaton(driven)
