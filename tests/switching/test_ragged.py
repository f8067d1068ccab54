"""Sequences of very different lengths: stored without padding, and results without padding."""

import re
from dataclasses import fields, is_dataclass
from inspect import signature

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from examples import slow
from oracles import switching_linear
from oracles.coupled import factorial_of, layered_of
from oracles.linear_models import FLOAT, draw, model_of
from oracles.models import drive, random_model
from oracles.operators import unchecked
from oracles.processes import printed
from pandas.testing import assert_frame_equal
from samplehold import kernels
from samplehold.inference.message_passing import VMP
from samplehold.switching.data.packed import Packed
from samplehold.switching.fitting import Options
from samplehold.switching.linear.learning import graph_of
from samplehold.switching.linear.problem import typical
from samplehold.switching.linear.quick import QuickDensity
from samplehold.switching.linear.starts import first_paths
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("as_users_call")


def coupled(kind: str) -> sh.FactorialSSM | sh.LayeredSSM:
    if kind == "factorial":
        loc, probs = (
            [2 * draw(d, k, 2) for d, k in enumerate((2, 3))],
            [draw(5 + d, k).softmax(-1) for d, k in enumerate((2, 3))],
        )
        return factorial_of(torch.tensor([0.3, 0.2]).to(FLOAT), probs, loc, torch.eye(2).to(FLOAT))
    values = {"loc": 2 * draw(1, 3, 2), "scale": draw(2, 3, 2).exp()}
    table, top = draw(5, 2, 3).softmax(-1), torch.tensor([0.3, 0.7]).to(FLOAT)
    return layered_of(sh.Normal(2), values, torch.tensor([0.4, 0.2]).to(FLOAT), [table], top)


STRUCTURE = sh.LinearSSM(sh.LocalLevel() + sh.Regression(1)).with_values({"sigma2.irregular": 0.5, "sigma2.level": 0.3})
MODELS = {
    "copy": random_model("copy", "normal"),
    "inputs": random_model("inputs", "normal"),
    "gated": random_model("inputs", "gated"),
    "markov": random_model("markov", "full"),
    "linear": model_of(),
    "structure": STRUCTURE,
    "chains": switching_linear.model_of(switching_linear.KINDS["chains"]),
    "one chain": switching_linear.model_of(switching_linear.KINDS["one chain"]),
    "recurrent": switching_linear.model_of(switching_linear.KINDS["recurrent"]),
    "factorial": coupled("factorial"),
    "layered": coupled("layered"),
}
VERBS = ("filter", "smooth", "viterbi", "infer", "bottom_up")
EXACT = [(name, verb) for name, model in MODELS.items() for verb in VERBS if hasattr(type(model), verb)]
HEAVY = ("chains", "one chain", "recurrent")
DRAWN = [slow(name) if name in HEAVY else name for name in MODELS]


def sequences(name: str, lengths: list[int]) -> tuple[list[torch.Tensor], dict[str, list[torch.Tensor]]]:
    """Sequences with missing values, and their inputs and gaps."""
    model, x = MODELS[name], []
    for i, n in enumerate(lengths):
        x.append(draw(i, n, model.n_features))
        x[-1][3::5] = torch.nan
        x[-1][4::7, 0] = torch.nan
    if name in ("inputs", "gated"):
        tables = [drive("inputs", (), n, seed=i) for i, n in enumerate(lengths)]
        return x, {key: [table[key] for table in tables] for key in ("inputs", "dt")}
    return x, {"inputs": [draw(50 + i, n, 1) for i, n in enumerate(lengths)]} if name == "structure" else {}


def alone(driven: dict[str, list[torch.Tensor]], i: int) -> dict[str, torch.Tensor]:
    return {key: tables[i] for key, tables in driven.items()}


def assert_like(got: object, expected: object, tol: float = 1e-10) -> None:
    """Equal types, shapes and numbers to rounding."""
    assert type(got) is type(expected)
    if isinstance(got, torch.Tensor):
        assert_close(got, expected, rtol=tol, atol=tol, equal_nan=True)
    elif is_dataclass(got):
        for field in fields(got):
            assert_like(getattr(got, field.name), getattr(expected, field.name), tol)
    elif isinstance(got, tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_like(one, other, tol)
    else:
        assert got == expected


@pytest.mark.few(6)
@pytest.mark.parametrize("lengths", [[4, 60, 9, 3], [1, 9, 1, 2]], ids=str)
@pytest.mark.parametrize(("name", "verb"), EXACT)
def test_each_record_is_that_of_the_sequence_alone(name, verb, lengths):
    lengths = [max(3, n) for n in lengths] if name == "structure" else lengths  # its start needs more than one step
    model, (x, driven) = MODELS[name], sequences(name, lengths)
    records = getattr(model, verb)(x, ragged=True, **driven)
    assert isinstance(records, list)
    assert len(records) == len(x)
    for i, record in enumerate(records):
        assert_like(record, getattr(model, verb)(x[i], **alone(driven, i)))


@pytest.mark.parametrize("options", [{"starts": ("random", "random")}, {"order": 3}, {"max_steps": 1}], ids=str)
def test_options_of_smoothing_mean_the_same_for_each_sequence(options):
    model, (x, _) = MODELS["one chain"], sequences("one chain", [4, 30, 5, 6])
    for i, record in enumerate(model.smooth(x, ragged=True, **options)):
        assert_like(record, model.smooth(x[i], **options))


@pytest.mark.parametrize("name", DRAWN)
def test_draws_have_the_lengths_and_the_moments_of_the_sequences(name):
    model, exact, (x, driven) = (
        MODELS[name],
        name not in (*switching_linear.KINDS, "factorial", "layered"),
        sequences(name, [20, 3, 4, 3]),
    )
    n = 4000 if exact else 4
    few: dict[str, int] = {"warmup": 2} if name in switching_linear.KINDS else {}  # sweeps of a Gibbs sampler
    drawn = model.sample_posterior(x, n, ragged=True, seed=3, **few, **driven)
    again = model.sample_posterior(x, n, ragged=True, seed=3, **few, **driven)
    for i, (one, other) in enumerate(zip(drawn, again, strict=True)):
        paths = one.latent if name in ("linear", "structure") else one.path
        assert paths.shape[:2] == (n, len(x[i]))
        if not exact:
            continue
        assert_like(one, other)
        known = model.smooth(x[i], **alone(driven, i))
        if name in ("linear", "structure"):
            spread = known.covariance.diagonal(dim1=-2, dim2=-1).sqrt()
            assert bool(((one.latent.mean(0) - known.mean).abs() < 0.12 * spread + 1e-9).all())
        else:
            share = torch.nn.functional.one_hot(one.path, model.n_states).to(FLOAT).mean(0)
            assert_close(share, known.state, rtol=0, atol=0.06)


def test_groups_do_not_share_random_numbers():
    x = [torch.full((n,), torch.nan, dtype=FLOAT) for n in (40, 5, 5)]
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal()).with_values(
        initial_probs=[0.5, 0.5], transition_probs=[[0.5, 0.5]] * 2, loc=[[0.0], [1.0]], scale=[[1.0], [1.0]]
    )
    assert len(model.read(x).groups()) == 2
    long, short, _ = model.sample_posterior(x, 400, seed=0, ragged=True)
    agree = (long.path[:, :5] == short.path).to(FLOAT).mean()
    assert abs(float(agree) - 0.5) < 0.1


def test_a_dictionary_gives_a_dictionary_and_other_forms_a_list_in_their_order():
    model = MODELS["markov"]
    x = {7: draw(0, 4, 2), "b": draw(1, 30, 2), 3: draw(2, 2, 2)}
    by_name = model.smooth(x, ragged=True)
    assert list(by_name) == list(x)
    for key, record in by_name.items():
        assert_like(record, model.smooth(x[key]))
    assert list(model.smooth(model.read(x), ragged=True)) == ["7", "b", "3"]
    rows = torch.cat(list(x.values()))
    frame = pd.DataFrame(rows.numpy(), columns=["u", "v"]).assign(who=[0] * 4 + [1] * 30 + [2] * 2)
    batch = torch.nn.utils.rnn.pad_sequence(list(x.values()), True)
    for records in (
        model.smooth(list(x.values()), ragged=True),
        model.smooth(rows, lengths=[4, 30, 2], ragged=True),
        model.smooth(batch, lengths=[4, 30, 2], ragged=True),
        model.smooth(sh.read_panel(frame, "who"), ragged=True),
    ):
        assert isinstance(records, list)
        for record, key in zip(records, x, strict=True):
            assert_like(record, by_name[key])
    assert len(model.smooth(x["b"], ragged=True)) == 1
    assert model.smooth(batch[:0], ragged=True) == []


def test_a_fit_gives_the_records_of_its_sequences():
    x = {"a": draw(0, 30, 1), "b": draw(1, 4, 1), "c": 5 + draw(2, 3, 1)}
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal()).fit(x, restarts=1, max_steps=5, progress=False)
    for name, record in fit.smooth(ragged=True).items():
        assert_like(record, fit.model.smooth(x[name]))


def test_the_argument_is_in_the_signature_and_is_checked():
    for name, verb in EXACT:
        method = getattr(MODELS[name], verb)
        assert signature(method).parameters["ragged"].default is None
        assert "ragged=True" in method.__doc__
    with unchecked(), pytest.raises(TypeError, match="ragged: got 'yes'"):
        MODELS["copy"].smooth([draw(0, 3, 2)], ragged="yes")


def test_an_impossible_sequence_is_named_by_its_number_among_all():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Categorical(3)).with_values(
        redraw_prob=0.2, state_probs=[0.4, 0.6], probs=[[0.5, 0.5, 0.0]] * 2
    )
    x = [torch.zeros(100), torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])]
    with pytest.raises(ValueError, match="step 2 of sequence 2 is impossible"):
        model.smooth(x, ragged=True)


# ---- packed ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def never_packed(monkeypatch):
    def begin() -> None:
        monkeypatch.setattr("samplehold.switching.data.packed.WASTE", 1e9)

    return begin


@pytest.mark.parametrize("model_name", DRAWN)
def test_packed_and_padded_series_are_the_same_numbers(model_name, never_packed):
    model, (x, driven) = MODELS[model_name], sequences(model_name, [4, 50, 3, 7])
    packed = model.read(x, **driven)
    states, evidence = model.states(packed), model.log_evidence(packed)
    parts = [packed.part(torch.tensor(some)) for some in ([0, 2], [1], [1, 2, 3])]
    ones = [packed.one(i) for i in range(4)]
    never_packed()
    padded = model.read(x, **driven)
    assert packed.packed
    assert not padded.packed
    same = {"rtol": 0, "atol": 0, "equal_nan": True}
    for table in ("observations", "design", "gaps", "rows", "inside", "last", "n_seen", "sequence_of_rows"):
        one, other = getattr(packed, table), getattr(padded, table)
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other, **same)
    for name in ("batch_shape", "n_steps", "n_sequences", "n_features", "n_driven", "n_observed", "at_once"):
        assert getattr(packed, name) == getattr(padded, name)
    assert packed.labels.equals(padded.labels)
    assert packed._repr_html_() == padded._repr_html_()
    for part, some in zip(parts, ([0, 2], [1], [1, 2, 3]), strict=True):
        assert_like(part.observations, padded.part(torch.tensor(some)).observations)
    for i, one in enumerate(ones):
        assert_like(one.observations, padded.one(i).observations)
    for changed in ("double", "cpu", "detached"):
        assert_close(getattr(packed, changed)().observations, padded.observations, **same)
    assert_close(packed.shifted(torch.ones(1)).observations, padded.shifted(torch.ones(1)).observations, **same)
    # sequences that are processed together end their iteration together
    tol = 1e-5 if model_name in switching_linear.KINDS else 1e-10
    assert_frame_equal(states, model.states(padded), rtol=tol, atol=tol)
    assert_close(evidence, model.log_evidence(padded), rtol=1e-10, atol=1e-10)


@pytest.mark.few(4)
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize(
    "name", ["copy", "inputs", "markov", "linear", "structure", slow("one chain"), "factorial", "layered"]
)
def test_fits_of_packed_series_are_those_of_padded_ones(name, method, never_packed):
    if (name, method) == ("structure", "vmp"):
        return
    model, (x, driven) = MODELS[name].without_values(), sequences(name, [20, 4, 3])
    if name == "factorial":  # its fits take whole steps only
        x = [part.masked_fill(part.isnan().any(-1, keepdim=True), torch.nan) for part in x]
    options = {"method": method, "restarts": 2, "max_steps": 4, "progress": False}
    packed = model.fit(x, **options, **driven)
    never_packed()
    padded = model.fit(x, **options, **driven)
    assert_close(packed.objective[-1], padded.objective[-1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["linear", "factorial", "layered"])
def test_graphs_of_groups_take_the_steps_of_the_graph_of_all_sequences(name, never_packed):
    model, x = MODELS[name].without_values(), [draw(i, n, MODELS[name].n_features) for i, n in enumerate([4, 40, 6, 3])]

    def fitted() -> sh.Fit:
        return model.fit(x, method="vmp", restarts=2, max_steps=6, progress=False)

    packed = fitted()
    tables = [] if name == "linear" else [*packed.paths.state, packed.paths.redraw]
    assert name == "linear" or len(packed.paths.groups) == 3
    never_packed()
    padded = fitted()
    assert_close(packed.objective, padded.objective, rtol=1e-10, atol=1e-10)
    for parameter, value in packed.values.items():
        assert_close(value, padded.values[parameter], rtol=1e-7, atol=1e-7)
    expected = [] if name == "linear" else [*padded.paths.state, padded.paths.redraw]
    for table, whole in zip(tables, expected, strict=True):
        assert_close(table, whole, rtol=1e-7, atol=1e-7)


def test_blocks_that_no_factor_joins_keep_their_parts_of_the_bound():
    model = MODELS["layered"]  # its paths are at their optima after an update; factors join those of two layers
    graph = model.graph(model.read([draw(i, n, 2) for i, n in enumerate([4, 40, 6, 1])]), Options("vmp", 2))
    engine = graph.engine(graph.start(2))
    paths = [block.name for block in graph.paths]
    assert len(paths) == 6
    assert set(paths) <= engine.linear
    for i in torch.randint(len(engine.blocks), (80,), generator=torch.Generator().manual_seed(0)).tolist():
        engine.update([*engine.blocks][i])
        known, unknown = engine.elbo(), VMP(engine.blocks.values(), engine.factors, 2, check=False).elbo()
        assert_close(known, unknown, rtol=1e-10, atol=1e-10)


def test_sweeps_change_paths_of_one_step_too():
    model = MODELS["linear"]
    problem = model.problem([draw(i, n, 2) for i, n in enumerate([40, 1, 1, 6])])
    start, _ = first_paths(problem.series, model.n_latent, 2, 0)
    graph = graph_of(problem, start)
    one, other = (graph.engine(graph.start(2)) for _ in range(2))
    recorded = one.run(3, 0.0, record=True)
    assert_close(recorded.elbo, other.run(3, 0.0).elbo, rtol=1e-12, atol=0)
    assert all(change > 0 for sweep in recorded.sweeps for change in sweep.change.values())


@pytest.mark.parametrize("mode", ["plain", pytest.param("native", marks=pytest.mark.slow)])
def test_the_density_of_a_packed_structure_is_that_of_the_padded_one(mode, never_packed):
    x, driven = sequences("structure", [40, 5, 6, 5, 4])
    structure = sh.LocalLevel() + sh.Regression(1, varying=True)

    def heights() -> tuple[torch.Tensor, torch.Tensor]:
        problem = sh.LinearSSM(structure).problem(x, **driven)
        units = problem.units
        inner = problem.in_units(units)
        density = QuickDensity(inner, units, typical(inner.dynamics, inner.emission), volume=False)
        points = 0.1 + draw(9, 3, len(density.point)).abs()
        with kernels(mode):
            return density.at(points), density.gradient(points)

    packed = heights()
    never_packed()
    for got, expected in zip(packed, heights(), strict=True):
        assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_panels_and_rows_are_packed_too():
    model, lengths = MODELS["copy"], [60, 3, 2, 4]
    rows = draw(0, sum(lengths), 2)
    frame = pd.DataFrame(rows.numpy(), columns=["u", "v"])
    frame["who"] = [i for i, n in enumerate(lengths) for _ in range(n)]
    mixed = frame.sample(frac=1.0, random_state=1)
    panel = sh.read_panel(mixed, "who")
    assert panel.packed
    assert model.read(rows, lengths=lengths).packed
    states = model.states(panel)
    assert states.index.equals(mixed.index)
    for who, own in mixed.groupby("who"):
        expected = model.states(torch.tensor(own[["u", "v"]].to_numpy()))
        assert_frame_equal(states.loc[own.index].reset_index(drop=True), expected.reset_index(drop=True), rtol=1e-10)
        assert who in mixed.who.to_numpy()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": [torch.zeros(50), torch.zeros(3), torch.tensor([0.0, torch.inf])]}, "sequence 2, step 1, feature 0"),
        ({"x": [torch.zeros(50), torch.zeros(3), torch.tensor([0.0, 0.5])]}, "got 0.5 at sequence 2, step 1"),
        ({"inputs": [torch.zeros(50, 1), torch.zeros(3, 1), torch.full((2, 1), torch.nan)]}, "inputs: got NaN"),
        ({"inputs": [torch.zeros(n, 2) for n in (50, 3, 2)]}, r"got shape \(3, 50, 2\), expected \(3, 50, 1\)"),
        ({"dt": [torch.ones(50), torch.ones(3), torch.tensor([1.0, -1.0])]}, "dt: got gaps that are negative"),
    ],
)  # fmt: skip
def test_bad_input_is_named_as_in_a_padded_batch(change, said):
    model = sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.Bernoulli(1))
    good = {"x": [torch.zeros(n) for n in (50, 3, 2)], "inputs": [torch.zeros(n, 1) for n in (50, 3, 2)]}
    with pytest.raises(ValueError, match=said):
        model.read(**good | change)


MEMORY = """
import resource, sys
import torch, samplehold as sh

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)

model, longest = {model}, {longest}
options = {{"restarts": 1, "max_steps": 3, "progress": False}}
small = model.fit([torch.tensor([0.0, 0.1, 5.0, 5.1, 0.2]).double(), torch.tensor([0.1, 5.2]).double()], **options)
small.states(), small.smooth(ragged=True)
before = peak()
torch.manual_seed(0)
x = [torch.randn(longest).double(), *(5 * torch.randn(5).double() for _ in range(1000))]
x[0][::2] += 5
fit = model.fit(x, **options)
records, states, evidence = fit.smooth(ragged=True), fit.states(), fit.log_evidence()
assert len(records) == len(evidence) == 1001 and len(states) == longest + 5000
if hasattr(model, "infer"):
    assert len(fit.model.infer(x, ragged=True, max_steps=2)) == 1001
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "longest"),
    [
        ("sh.SwitchingSSM(sh.Copy(2), sh.Normal())", 100_000),
        ("sh.LinearSSM(sh.LocalLevel())", 100_000),
        ("sh.LinearSSM(1)", 100_000),
        ("sh.FactorialSSM([2, 2], sh.MultivariateNormal(1))", 20_000),
        ("sh.LayeredSSM([2, 2], sh.Normal())", 20_000),
    ],
)
def test_one_long_sequence_beside_many_short_ones_needs_the_memory_of_its_steps(model, longest):
    program = MEMORY.format(model=model, longest=longest)
    peak = printed(program)
    # MiB; a padded table of one number alone has 764, or 153
    assert float(peak) < 200


@pytest.mark.parametrize("long", [4, 100])
def test_durations_average_over_the_steps_of_sequences_alone(long):
    model = sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.Normal(1)).with_values(
        redraw_intercept=-1.0, redraw_weights=[2.0], state_probs=[0.3, 0.7], loc=[[0.0], [3.0]], scale=[[1.0], [1.0]]
    )
    lengths = [long, 2, 3, 1]
    x = [torch.zeros(n, 1).double() for n in lengths]
    inputs = [torch.linspace(-1, 1, n).double().unsqueeze(-1) for n in lengths]
    redraw = torch.sigmoid(-1.0 + 2.0 * torch.cat(inputs)).mean()
    assert_close(model.durations(x, inputs=inputs), 1 / (redraw * torch.tensor([0.7, 0.3]).double()))


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("inputs", -0.5, "expected [5, 100, C]"),
        ("inputs", torch.zeros(5, 99, 1), "expected [5, 100, C]"),
        ("inputs", torch.zeros(5, 101, 1), "(5, 100, 1)"),
        ("dt", torch.ones(4), "expected [5, 100]"),
    ],
)
def test_shapes_beside_packed_observations_are_checked(name, table, said):
    model = sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.Normal(1))
    x = [torch.zeros(n, 1).double() for n in (100, 2, 3, 1, 1)]
    with unchecked(), pytest.raises(ValueError, match=rf"{name}: got shape .*{re.escape(said)}"):
        model.read(x, **{name: table})


def refuse_padding(monkeypatch):
    """Any padded table of a packed series is an error."""

    def padded(self):
        raise AssertionError("a packed table was padded")

    monkeypatch.setattr(Packed, "padded", padded)


SEVERAL = [
    np.random.default_rng(i).normal(size=n) + 3 * (np.arange(n) // 5 % 2) for i, n in enumerate([40, 2, 3, 2, 4])
]


@pytest.mark.parametrize("dynamics", [sh.Markov(2), sh.Copy(2), slow(sh.SemiMarkov(2))], ids=["markov", "copy", "semi"])
def test_nothing_that_returns_a_list_or_a_row_of_each_sequence_is_padded(monkeypatch, dynamics):
    model = sh.SwitchingSSM(dynamics, sh.Normal(1))
    fit = model.fit(SEVERAL, restarts=1, max_steps=5, progress=False, seed=0)
    assert fit.series.packed
    model, rows, lengths = fit.model, np.concatenate(SEVERAL), [len(part) for part in SEVERAL]
    forecast = model.forecast(rows, 3, lengths=lengths).mean
    states = [model.smooth(part).state for part in SEVERAL]
    with monkeypatch.context() as patch:
        refuse_padding(patch)
        summary, diagnosis, found = fit.summary(), fit.diagnose(), fit.forecast(3).mean
        used = fit.n_states_used(draws=20).probability if not isinstance(dynamics, sh.SemiMarkov) else None
        smoothed, best = fit.smooth(), model.viterbi(SEVERAL)
    assert_close(found, forecast)
    assert [len(one.path) for one in best] == lengths
    for record, state in zip(smoothed, states, strict=True):
        assert_close(record.state, state)
    share = torch.cat(states).mean(0).numpy()
    np.testing.assert_allclose(summary.states["share of steps"], share, rtol=1e-10)
    assert used is None or float(used.sum()) == pytest.approx(1)
    assert "rare states" in str(diagnosis)


@pytest.mark.parametrize("kind", ["best q", pytest.param("draws", marks=pytest.mark.slow)])
def test_a_posterior_smooths_each_sequence_of_a_list(monkeypatch, kind):
    options = {"method": "vmp", "max_steps": 3}
    if kind == "draws":
        options = {"method": "nuts", "num_samples": 5, "warmup_steps": 5}
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).fit(SEVERAL, restarts=1, progress=False, **options)
    table = fit.posterior.smooth(SEVERAL, ragged=False)
    refuse_padding(monkeypatch)
    for i, one in enumerate(fit.posterior.smooth(SEVERAL)):
        assert_close(one.state, table.state[i, : len(SEVERAL[i])])
        assert_close(one.log_normalizer, table.log_normalizer[i])


def test_forecasts_of_autoregressions_are_not_padded(monkeypatch):
    model = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(2, 1)).with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.9, 0.1], [0.2, 0.8]],
        loc=[[0.0], [1.0]],
        coefficients=[[[0.5, 0.2]], [[0.1, -0.3]]],
        scale=[[1.0], [0.5]],
    )
    x = [part.copy() for part in SEVERAL]
    x[0][-2] = np.nan  # so that its forecast begins before
    alone = [model.forecast(part, 3, draws=10) for part in x]
    refuse_padding(monkeypatch)
    found = model.forecast(x, 3, draws=10)
    for name in ("mean", "variance", "state"):
        assert_close(getattr(found, name), torch.stack([getattr(one, name) for one in alone]))


def test_a_list_has_a_list_of_results_and_a_table_has_a_table():
    model, few = MODELS["copy"], [draw(n, n, 2) for n in (3, 5)]
    assert isinstance(model.smooth(few), list)
    assert isinstance(model.smooth(model.read(few)), list)
    assert list(model.smooth({"b": few[0], "a": few[1]})) == ["b", "a"]
    assert model.smooth(few, ragged=False).state.shape[:2] == (2, 5)
    assert model.smooth(model.read(few).as_table()).state.shape[:2] == (2, 5)
    assert model.smooth(torch.stack([few[1], few[1]]), lengths=[5, 3]).state.shape[:2] == (2, 5)
    assert model.smooth(torch.cat(few), lengths=[3, 5]).state.shape[:2] == (2, 5)
    assert model.smooth(few[0]).state.shape[0] == 3


def test_a_table_that_is_nearly_all_padding_is_refused(monkeypatch):
    monkeypatch.setattr("samplehold.switching.data.series.LARGE", 1000)
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).with_values(
        initial_probs=[0.5, 0.5], transition_probs=[[0.9, 0.1], [0.2, 0.8]], loc=[[0.0], [1.0]], scale=[[1.0], [1.0]]
    )
    x = [np.zeros(1000), *[np.zeros(1)] * 150]
    refuse_padding(monkeypatch)
    assert len(model.smooth(x)) == 151
    said = "x: got 151 sequences of 1 to 1000 steps, whose padded table has 151000 steps, 131 times as many as the data"
    for call in (
        lambda: model.smooth(x, ragged=False),
        lambda: model.viterbi(np.concatenate(x), lengths=[len(part) for part in x]),
        lambda: model.to_arviz(x, draws=2),
        lambda: model.chain(x),
        lambda: sh.LinearSSM(sh.LocalLevel()).with_values({"sigma2.irregular": 1, "sigma2.level": 1}).chain(x),
        lambda: sh.SwitchingLinearSSM(2, 1, 1).fit(x, progress=False),
    ):
        with pytest.raises(ValueError, match=said):
            call()


@pytest.mark.parametrize("name", ["linear", "factorial"])
def test_forecasts_and_tables_of_states_of_other_models_are_not_padded_either(monkeypatch, name):
    model, x = MODELS[name], [draw(i, n, 2) for i, n in enumerate([30, 2, 1, 3])]
    alone = [model.forecast(part, 2).mean for part in x]
    series = model.read(x)
    assert series.packed
    refuse_padding(monkeypatch)
    assert_close(model.forecast(series, 2).mean, torch.stack(alone))
    assert len(model.states(series)) == 36


@pytest.mark.parametrize("name", ["markov", "linear", "one chain"])
def test_what_uses_paths_accepts_a_list_of_like_lengths(tmp_path, name):
    model = MODELS[name]
    x = [draw(i, n, model.n_features) for i, n in enumerate([5, 4])]
    result = "states" if name == "linear" else "viterbi"
    model.write(x, tmp_path / "x.csv", result)
    assert len(pd.read_csv(tmp_path / "x.csv")) == 9
    assert model.forecast(x, 2).mean.shape == (2, 2, model.n_features)
