"""Known states beside observations: in every form, in every algorithm, in every fit."""

import numpy as np
import pandas as pd
import pyro
import pytest
import samplehold as sh
import torch
from matplotlib.text import Text
from oracles.models import (
    DYNAMICS,
    EMISSIONS,
    KINDS,
    drive,
    enumerated_by_pyro,
    every_path,
    random_model,
    trace_log_prob,
)
from samplehold.switching.fitting.chain_graph import ChainGraph
from samplehold.switching.fitting.chunked import ChunkedVMP
from samplehold.switching.fitting.density import Density
from torch.testing import assert_close

N = 4
KNOWN = torch.tensor([1, -1, -1, 0])
SOFT = torch.tensor([[0.5, 2.0], [1.0, 0.0], [1.0, 1.0], [0.2, 0.1]], dtype=torch.float64)
NAMES = ("rest", "run", "walk")


def log_weights(states):
    """[N, 2] from labels or weights."""
    if states.ndim == 2:
        return states.log()
    possible = (states[:, None] == torch.arange(2)) | (states[:, None] < 0)
    return torch.where(possible, 0.0, -torch.inf).double()


def three_states(seed=0, n=40, share=0.5):
    """A model of three states, a sequence from it, its states, and these with a share known."""
    table = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]
    model = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)).with_values(
        initial_probs=[0.2, 0.3, 0.5], transition_probs=table, loc=[[0.0], [-1.0], [1.0]], scale=[[1.0], [0.5], [0.7]]
    )
    drawn = model.simulate(n, seed=seed)
    seen = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < share
    path = drawn.path.to(seen.device)
    return model, drawn.x.to(seen.device), path, torch.where(seen, path, -1)


# ---- exact inference -------------------------------------------------------------------------------------------------


@pytest.mark.few(6)
@pytest.mark.parametrize("states", [KNOWN, SOFT], ids=["known", "weights"])
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_inference_is_that_of_all_paths_with_the_known_states(dynamics, emission, states):
    model, given = random_model(dynamics, emission), drive(dynamics, (), N)
    x = model.simulate(N, seed=1, **given).x
    paths, joint = every_path(model, x, **given)
    joint = joint + log_weights(states)[torch.arange(N), paths].sum(-1)
    posterior = (joint - joint.logsumexp(0)).exp()
    smoothed = (torch.nn.functional.one_hot(paths, 2).double() * posterior[:, None, None]).sum(0)
    given["states"] = states
    assert_close(model.log_evidence(x, **given), joint.logsumexp(0), rtol=1e-10, atol=1e-10)
    assert_close(model.smooth(x, **given).state, smoothed, rtol=1e-9, atol=1e-10)
    filtered = model.filter(x, **given)
    assert_close(filtered.log_normalizer, joint.logsumexp(0), rtol=1e-10, atol=1e-10)
    assert_close(filtered.state[-1], smoothed[-1], rtol=1e-9, atol=1e-10)
    best = model.viterbi(x, **given)
    assert_close(best.log_probability, joint.max(), rtol=1e-10, atol=1e-10)
    drawn = model.sample_posterior(x, 4000, seed=0, **given).path
    share = torch.nn.functional.one_hot(drawn, 2).double().mean(0)
    assert_close(share, smoothed, rtol=0, atol=5 * 0.5 / 4000**0.5)
    assert bool((share[smoothed == 0] == 0).all())


@pytest.mark.parametrize("states", [KNOWN, SOFT], ids=["known", "weights"])
@pytest.mark.parametrize(("dynamics", "emission"), [("copy", "normal"), ("inputs", "gated"), ("markov", "poisson")])
def test_both_programs_have_the_density_of_the_chain(dynamics, emission, states):
    model, batch = random_model(dynamics, emission), (3,)
    given = drive(dynamics, batch, N) | {"lengths": torch.tensor([N, 2, 3])}
    x = model.simulate(N, batch, seed=1, **drive(dynamics, batch, N)).x
    given["states"] = states.expand(3, *states.shape).clone()
    given["states"][1:, 0] = -1 if states.ndim == 1 else 0.3
    expected = model.log_evidence(x, **given)
    assert_close(trace_log_prob(model.collapsed, x, **given), expected.sum(), rtol=1e-12, atol=0)
    assert_close(enumerated_by_pyro(model, x, **given), expected.sum(), rtol=1e-10, atol=0)


def test_a_step_whose_state_is_known_in_all_sequences_has_an_observed_site():
    model, x, path, _ = three_states(n=3)
    trace = pyro.poutine.trace(model).get_trace(x, states=path)
    assert [bool(trace.nodes[f"s_{t}"]["is_observed"]) for t in (1, 2, 3)] == [True] * 3
    assert [int(trace.nodes[f"s_{t}"]["value"]) for t in (1, 2, 3)] == path.tolist()


@pytest.mark.parametrize("dynamics", ["copy", "markov"])
def test_a_stream_is_the_filter(dynamics):
    model = random_model(dynamics, "normal")
    x = model.simulate(N, (2,), seed=1).x
    states = torch.stack([KNOWN, KNOWN.flip(0)])
    whole, state = model.filter(x, states=states), model.start((2,))
    for t in range(N):
        state, out = model.update(state, x[:, t], states=states[:, t])
        assert_close(out.state, whole.state[:, t], rtol=1e-10, atol=1e-12)
        assert_close(out.log_increment, whole.log_increment[:, t], rtol=1e-10, atol=1e-10)
    _soft, out = model.update(model.start(), x[0, 0], states=SOFT[0])
    assert_close(out.log_increment, model.log_evidence(x[0, :1], states=SOFT[:1]), rtol=1e-10, atol=1e-10)


def test_a_draw_of_new_data_and_a_forecast_keep_to_the_known_states():
    model, x, path, _ = three_states(n=6)
    drawn = model.simulate(6, (50,), seed=0, states=path.expand(50, -1))
    assert bool((drawn.path == path).all())
    ahead = model.forecast(x, 1, states=torch.cat([torch.full((5,), -1), torch.tensor([2])]))
    assert_close(ahead.state[0], model.values["transition_probs"][2], rtol=0, atol=1e-12)


def test_an_impossible_sequence_is_named_with_its_step():
    model, x, _, _ = three_states(n=6)
    table = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    model = model.with_values(model.values | {"transition_probs": table})
    states = torch.full((2, 6), -1)
    states[1, 2:4] = torch.tensor([1, 2])
    for verb in (model.log_evidence, model.smooth, model.viterbi):
        with pytest.raises(ValueError, match=r"x: .*sequence 1.*step 3|x: .*step 3.*sequence 1"):
            verb(x.expand(2, -1, -1), states=states)


# ---- forms -----------------------------------------------------------------------------------------------------------


def same(a, b):
    assert a.states.equal(b.states)
    assert a.state_names == b.state_names


def test_one_sequence_has_states_in_every_form():
    model = three_states()[0]
    x, states = [0.1, 0.2, 0.3, 0.4], [2, None, 0, 1]
    expected = model.read(x, states=torch.tensor([2, -1, 0, 1]))
    assert expected.states.dtype == torch.int64
    for form in (
        states,
        np.array(states, dtype=object),
        [2.0, float("nan"), 0.0, 1.0],
        pd.Series([2, pd.NA, 0, 1], dtype="Int64"),
        pd.Series([2, None, 0, 1]),
        torch.tensor([2.0, torch.nan, 0.0, 1.0]),
    ):
        same(model.read(x, states=form), expected)
    assert model.read(x, states=[-1] * 4).states is None
    assert model.read(x, states=np.full((4, 3), 0.5)).states is None


def test_labels_are_sorted_or_in_the_order_of_their_categories():
    model, x, text = three_states()[0], [0.1, 0.2, 0.3, 0.4], ["walk", None, "rest", "run"]
    expected = torch.tensor([2, -1, 0, 1])
    for form in (text, np.array(text, dtype=object), pd.Series(text), pd.Series(text, dtype="string"), tuple(text)):
        read = model.read(x, states=form)
        assert read.states.equal(expected)
        assert read.state_names == NAMES
    order = pd.Series(text, dtype=pd.CategoricalDtype(["walk", "rest", "run"]))
    read = model.read(x, states=order)
    assert read.states.tolist() == [0, -1, 1, 2]
    assert read.state_names == ("walk", "rest", "run")
    assert model.read(x, states=pd.Categorical(text)).states.equal(expected)
    assert model.read(x, states=["b", None, "b", "a"]).state_names == ("a", "b", "2")


def test_several_sequences_have_states_in_the_form_of_x():
    model = three_states()[0]
    a, b = [0.0, 0.1, 0.2], [1.0, 1.1]
    table = torch.tensor([[2, -1, 0], [1, 1, -1]])
    labels = [["walk", None, "rest"], ["run", "run"]]
    expected = model.read([a, b], states=table)
    same(model.read([a, b], states=[[2, None, 0], [1, 1]]), expected)
    same(model.read([a, b], states=[torch.tensor([2, -1, 0]), torch.tensor([1, 1])]), expected)
    same(model.read({"a": a, "b": b}, states={"b": [1, 1], "a": [2, -1, 0]}), expected)
    same(model.read(a + b, lengths=[3, 2], states=[2, -1, 0, 1, 1]), expected)
    named = model.read([a, b], states=labels)
    assert named.states.equal(table)
    assert named.state_names == NAMES
    same(model.read({"a": a, "b": b}, states=dict(zip("ab", labels, strict=True))), named)
    index = pd.MultiIndex.from_tuples([(s, t) for s, n in (("a", 3), ("b", 2)) for t in range(n)], names=["who", "t"])
    frame = pd.DataFrame({"x": a + b, "label": labels[0] + labels[1]}, index=index)
    same(model.read(frame[["x"]], states=frame["label"]), named)
    same(model.read(frame[["x"]], states=frame["label"].tolist()), named)
    soft = torch.rand(2, 3, 3, dtype=torch.float64)
    rows = torch.cat([soft[0], soft[1, :2]])
    for form in (soft, [soft[0], soft[1, :2]], rows.numpy()):
        x = frame[["x"]] if form is not soft and not isinstance(form, list) else [a, b]
        assert_close(model.log_evidence(x, states=form), model.log_evidence([a, b], states=soft), rtol=0, atol=0)


@pytest.mark.parametrize("soft", [False, True])
def test_packed_sequences_have_the_results_of_padded_ones(soft):
    model, x, _, known = three_states(n=60)
    lengths = [60, 3, 2, 5, 2]
    parts = [x[:n] for n in lengths]
    states = [known[:n] for n in lengths]
    if soft:
        states = [torch.rand(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in lengths]
    series = model.read(parts, states=states)
    assert series.packed
    alone = [model.log_evidence(part, states=state) for part, state in zip(parts, states, strict=True)]
    assert_close(model.log_evidence(series), torch.stack(alone), rtol=1e-12, atol=0)
    wide = torch.nn.utils.rnn.pad_sequence(states, batch_first=True, padding_value=1)
    assert_close(model.log_evidence(parts, states=wide), torch.stack(alone), rtol=1e-12, atol=0)
    for one, part, state in zip(model.smooth(series, ragged=True), parts, states, strict=True):
        assert_close(one.state, model.smooth(part, states=state).state, rtol=1e-10, atol=1e-12)
    single = series.one(3)
    assert_close(model.log_evidence(single), alone[3], rtol=1e-12, atol=0)


def test_a_series_keeps_its_states_through_changes():
    model, x, _, known = three_states(n=20)
    series = model.read(torch.stack([x, x]), states=torch.stack([known, known.flip(0)]), lengths=[20, 15])
    assert series.one(1).states.equal(known.flip(0)[:15])
    assert series.part(torch.tensor([1])).states.equal(known.flip(0)[None, :15])
    assert series.stretch(4, 8).states.equal(torch.stack([known, known.flip(0)])[:, 4:12])
    for changed in (series.double(), series.cpu(), series.detached(), series.to(x.float())):
        assert changed.states.equal(series.states)
    assert series.states[1, 15:].tolist() == [-1] * 5


# ---- fits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamics", ["copy", "markov"])
def test_em_with_all_states_known_is_counts_and_moments(dynamics):
    _, x, path, _ = three_states(n=60)
    moves = {"copy": sh.Copy(3), "markov": sh.Markov(3)}[dynamics]
    fit = sh.SwitchingSSM(moves, sh.Normal(1)).fit(x, states=path, prior=None, progress=False)
    values = fit.model.describe()
    for state in range(3):
        some = x[path == state]
        assert_close(values["loc"][state], some.mean(0), rtol=1e-9, atol=1e-9)
        assert_close(values["scale"][state], some.std(0, correction=0), rtol=1e-9, atol=1e-9)
    if dynamics == "markov":
        pairs = torch.zeros(3, 3, dtype=torch.float64)
        pairs.index_put_((path[:-1], path[1:]), torch.ones(59, dtype=torch.float64), accumulate=True)
        assert_close(values["transition_probs"], pairs / pairs.sum(-1, keepdim=True), rtol=1e-9, atol=1e-9)
        assert_close(values["initial_probs"], torch.eye(3, dtype=torch.float64)[path[0]], rtol=0, atol=1e-9)


@pytest.mark.few(3)
@pytest.mark.parametrize(("dynamics", "emission"), [("copy", "gated"), ("inputs", "normal"), ("markov", "full")])
@pytest.mark.parametrize("prior", ["weak", None])
def test_em_never_lowers_the_objective_which_is_the_log_joint(dynamics, emission, prior):
    model = random_model(dynamics, emission)
    given = drive(dynamics, (3,), 30)
    drawn = model.simulate(30, (3,), seed=2, **given)
    seen = torch.rand(3, 30, generator=torch.Generator().manual_seed(0)) < 0.3
    given |= {"states": torch.where(seen, drawn.path, -1), "lengths": [30, 20, 7]}
    blank = sh.SwitchingSSM(DYNAMICS[dynamics], EMISSIONS[emission])
    fit = blank.fit(drawn.x, prior=prior, restarts=1, max_steps=30, progress=False, **given)
    assert bool((fit.objective.diff() >= -1e-9).all())
    height = fit.model.log_evidence(drawn.x, **given).sum()
    if prior is not None:
        scaled = blank.scaled_to(drawn.x, **given)
        height = height + scaled.log_prior(fit.model.values)
    assert_close(fit.objective[-1], height, rtol=1e-9, atol=1e-8)
    known = given["states"]
    inside = torch.arange(30) < torch.tensor(given["lengths"])[:, None]
    best = fit.smooth().state.argmax(-1)
    assert bool((best == known)[(known >= 0) & inside].all())


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_states_keep_the_numbers_of_the_known_ones(method):
    _, x, _path, known = three_states(n=120)
    model, order = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)), torch.tensor([2, 0, 1])
    renamed = torch.where(known >= 0, order[known.clamp_min(0)], -1)
    a = model.fit(x, method, states=known, restarts=2, progress=False)
    b = model.fit(x, method, states=renamed, restarts=2, progress=False)
    assert_close(b.objective[-1], a.objective[-1], rtol=1e-7, atol=1e-5)
    assert_close(b.model.values["loc"][order], a.model.values["loc"], rtol=1e-2, atol=1e-2)
    only = torch.where(known == 2, 2, -1)
    c = model.fit(x, method, states=only, restarts=2, progress=False)
    assert int(c.smooth().state[known == 2].mean(0).argmax()) == 2
    assert float(c.model.values["loc"][0, 0]) <= float(c.model.values["loc"][1, 0])


@pytest.mark.slow
def test_known_states_tell_apart_what_the_data_do_not():
    """Two states of one distribution: only labels divide the steps between them."""
    x = torch.randn(80, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    path = (torch.arange(80) // 10) % 2
    states = torch.where(torch.arange(80) % 2 == 0, path, -1)
    smoothed = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(x, states=states, progress=False).smooth().state
    assert float((smoothed.argmax(-1) == path).double().mean()) > 0.9


@pytest.mark.few(3)
@pytest.mark.parametrize("factorization", ["structured", "mean_field"])
@pytest.mark.parametrize(("dynamics", "emission"), [("copy", "normal"), ("copy", "gated"), ("markov", "normal")])
def test_message_passing_keeps_to_the_known_states_and_raises_its_bound(dynamics, emission, factorization):
    drawn = random_model(dynamics, emission).simulate(25, (2,), seed=2)
    states = torch.where(torch.arange(25) % 3 == 0, drawn.path, -1)
    model = sh.SwitchingSSM(DYNAMICS[dynamics], EMISSIONS[emission])
    fit = model.fit(
        drawn.x, "vmp", restarts=1, max_steps=20, factorization=factorization, states=states, progress=False
    )
    assert bool((fit.objective.diff() >= -1e-8).all())
    problem = model.scaled_to(drawn.x).problem(drawn.x, states=states)
    graph = ChainGraph.of(problem, factorization == "mean_field")
    engine = graph.engine(graph.start(2))
    for _ in range(3):
        engine.sweep()  # raises an error if an update lowers the bound
    steps = engine.stats("paths").steps
    mass = steps[0] if steps[1] is None else steps[0] + steps[1]
    expected = torch.nn.functional.one_hot(states.clamp_min(0), 2).double()
    assert_close(mass[:, states >= 0], expected[states >= 0].expand(2, -1, -1), rtol=0, atol=1e-9)
    if factorization == "structured":
        assert float(fit.objective[-1]) < float(fit.model.log_evidence(drawn.x, states=states).sum())


def test_the_bound_of_a_point_is_the_evidence():
    """Under point parameters, message passing is the chain itself."""
    model, x, _, known = three_states(n=30)
    problem = model.scaled_to(x).problem(x, states=known)
    graph = ChainGraph.of(problem)
    values = {name: value.unsqueeze(0) for name, value in model.values.items()}
    engine = graph.engine(graph.start(1), check=False)
    engine.update("paths", graph.point(values))
    assert_close(engine.normalizer("paths")[0], model.log_evidence(x, states=known), rtol=1e-10, atol=1e-9)


def test_chunks_and_stretches_give_the_bound_of_the_whole(monkeypatch):
    from samplehold.switching.fitting import chunked

    model, x, _, known = three_states(n=50)
    problem = model.scaled_to(x).problem(x, states=known)
    graph = ChainGraph.of(problem)
    etas = graph.start(2)
    whole = chunked.engine_of(graph, etas)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 60)
    monkeypatch.setattr(chunked, "LONG", 60)
    parts = ChunkedVMP(graph, etas, graph.linear(etas))
    assert_close(parts.elbo(), whole.elbo(), rtol=1e-9, atol=1e-8)
    for name in etas:
        assert_close(parts._now.messages[name], whole.message(name), rtol=1e-8, atol=1e-8)


def test_ragged_sequences_are_fitted_as_padded_ones():
    """Buckets of an E-step and batches of message passing see the states of their sequences."""
    _model, x, path, _ = three_states(n=60)
    lengths = [60, 3, 2, 5, 2, 4]
    parts, states = [x[:n] for n in lengths], [path[:n] for n in lengths]
    fit = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)).fit(parts, states=states, prior=None, progress=False)
    rows, labels = torch.cat(parts), torch.cat(states)
    for state in range(3):
        assert_close(fit.model.values["loc"][state], rows[labels == state].mean(0), rtol=1e-9, atol=1e-9)
    blank = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1))
    batches = blank.fit(parts, "vmp", batch_size=2, max_steps=5, states=states, progress=False)
    for part, state in zip(batches.smooth(ragged=True), states, strict=True):
        assert bool((part.state.argmax(-1) == state).all())


def test_samplers_fit_the_same_density():
    """A density in free coordinates is the log joint and a volume that does not depend on what is known."""
    truth, x, _, known = three_states(n=30)
    model = truth.scaled_to(x)
    some, none = (Density(model.problem(x, states=states), truth.values) for states in (known, None))
    moved = some.point + 0.1 * torch.randn(3, *some.point.shape, generator=torch.Generator().manual_seed(0)).double()
    for free in moved:
        values = some.values(some.by_name(free))
        at = model.with_values(values)
        expected = at.log_evidence(x, states=known) - at.log_evidence(x)
        rise = some.log_prob(some.by_name(free)) - none.log_prob(none.by_name(free))
        assert_close(rise, expected, rtol=1e-9, atol=1e-9)
    (gradient,) = some.gradient(moved[:1])
    step = 1e-6 * torch.randn(moved[0].shape, generator=torch.Generator().manual_seed(1)).double()
    above, below = some.at(torch.stack([moved[0] + step, moved[0] - step]))
    assert_close((above - below) / 2, gradient @ step, rtol=1e-5, atol=1e-11)


@pytest.mark.few(1)
@pytest.mark.parametrize(("method", "steps"), [("svi", 30), ("nuts", 4)])
def test_sampled_fits_keep_the_numbers(method, steps):
    from oracles.effort import effort

    _, x, path, known = three_states(n=60)
    model, order = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)), torch.tensor([2, 1, 0])
    renamed = torch.where(known >= 0, order[known.clamp_min(0)], -1)
    fit = model.fit(x, method, restarts=2, states=renamed, progress=False, **effort(method, steps))
    best = fit.smooth().state.argmax(-1)
    assert bool((best == renamed)[renamed >= 0].all())
    assert float((best == order[path]).double().mean()) > 0.7


# ---- labels in results -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_results_have_the_labels():
    _, x, _path, known = three_states(n=60)
    labels = pd.Series([None if k < 0 else NAMES[k] for k in known.tolist()])
    fit = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)).fit(x, states=labels, progress=False)
    assert fit.state_names == NAMES == fit.series.state_names
    table = fit.states()
    assert list(table.columns[:4]) == ["state", "state_rest", "state_run", "state_walk"]
    seen = (known >= 0).numpy()
    assert (table["state"][seen] == labels[seen]).all()
    assert list(fit.states(x).columns) == list(table.columns)
    assert list(fit.summary().states.index) == ["state rest", "state run", "state walk"]
    assert set(fit.summary().parameters["state"]) >= {"state rest", "state run", "state walk"}
    assert "state rest" in str(fit.summary())
    assert list(fit.to_arviz(draws=2).posterior["state"].values) == list(NAMES)
    texts = [text.get_text() for figure in (fit.plot(), fit.forecast(2).plot()) for text in figure.findobj(Text)]
    assert sum(text.startswith("state walk: ") for text in texts) == 2
    assert fit._repr_html_().count("state walk")


def test_a_fit_knows_the_numbers_of_its_labels():
    _, x, path, _ = three_states(n=60)
    labels = [NAMES[k] for k in path.tolist()]
    fit = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)).fit(x, states=labels, progress=False)
    some = [None, "walk", None, "run"]  # without "rest", sorted labels would have other numbers
    assert_close(fit.smooth(x[:4], states=some).state, fit.smooth(x[:4], states=[-1, 2, -1, 1]).state)
    assert fit.states(x[:4], states=some)["state"].tolist()[1::2] == ["walk", "run"]
    with pytest.raises(ValueError, match="states: got label 'sit', expected one of rest, run, walk"):
        fit.smooth(x[:1], states=["sit"])


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([0, 3, 1, 1], "states: got 3 at step 1; expected states 0 to 2"),
        ([0, 1.5, 1, 1], "states: got 1.5 at step 1; expected whole numbers"),
        ([0, -2, 1, 1], "states: got -2 at step 1; expected whole numbers from 0, or -1 where unknown"),
        ([0, 1, 1], r"states: got shape \(3,\), expected \(4,\)"),
        (list("abcd"), r"states: got 4 labels \(a, b, c, d\) for 3 states"),
        (["a", 1, "b", "b"], "states: got text and int together"),
        (["0", "1", None, "1"], "states: got text '0', expected numbers or labels; convert text of numbers"),
        (np.zeros((4, 3)), r"states: got \[0, 0, 0\] at step 0; expected a state of positive weight"),
        (np.ones((4, 2)), None),
        ([[0.5, 1.0]] * 4, "states: got weights of 2 states, but the model has 3"),
        ([[0.5, -1.0, 1.0]] * 4, "states: got -1 at step 0, state 1; expected weights of at least 0"),
        ([[0.5, float("nan"), 1.0]] * 4, "states: got nan at step 0, state 1"),
        (0, r"states: got shape \(\)"),
        ({"a": [0, 1, 1, 1]}, "states: got entries for a, but the sequences of x have no names"),
        (object(), "states: got object"),
    ],
)
def test_bad_states_are_named(states, message):
    model, x = three_states()[0], [0.1, 0.2, 0.3, 0.4]
    if message is None:
        assert model.read(x, states=states).states is None
        return
    with pytest.raises((ValueError, TypeError), match=message):
        model.read(x, states=states)


def test_a_bad_state_of_several_sequences_has_its_place():
    model = three_states()[0]
    x = [[0.0] * 3, [0.0] * 2, [0.0] * 50]
    with pytest.raises(ValueError, match="states: got 7 at sequence 1, step 1"):
        model.read(x, states=[[0] * 3, [0, 7], [0] * 50])
    with pytest.raises(ValueError, match="states: got 7 at sequence 1, step 1"):
        model.read(x[:2], states=[[0] * 3, [0, 7]])
    with pytest.raises(ValueError, match=r"states\[1\]: got shape"):
        model.read(x, states=[[0] * 3, [0], [0] * 50])
    same(model.read(torch.zeros(2, 3, 1), lengths=[3, 1], states=[[0, 1, 2], [1, 9, 9]]),
         model.read(torch.zeros(2, 3, 1), lengths=[3, 1], states=[[0, 1, 2], [1, -1, -1]]))  # fmt: skip
    index = pd.MultiIndex.from_product([["a", "b"], range(2)])
    panel = pd.DataFrame({"x": np.zeros(4)}, index=index)
    with pytest.raises(ValueError, match="states: sequence b: has no row for 1, a step of x"):
        model.read(panel, states=pd.Series([0, 1, 0], index=index[[2, 0, 1]]))
    with pytest.raises(ValueError, match="states: got sequences of unequal categories"):
        model.read([[0.0], [1.0, 2.0]], states=[pd.Categorical(["a"]), pd.Categorical(["b", "a"])])


@pytest.mark.parametrize(
    "model",
    [sh.LinearSSM(1, 1), sh.SwitchingLinearSSM(2, 1, 1), sh.FactorialSSM([2, 2], sh.Poisson(1))],
    ids=["linear", "switching linear", "factorial"],
)
def test_other_models_take_no_states(model):
    with pytest.raises(
        ValueError, match=f"states: was given, but a {type(model).__name__} does not support it; leave it out"
    ):
        model.read([1.0, 2.0, 3.0], states=[0, 1, 0])


def test_a_series_has_its_own_states():
    model = three_states()[0]
    series = model.read([0.1, 0.2])
    with pytest.raises(ValueError, match="states: the Series has its own; leave states out"):
        model.read(series, states=[0, 1])


def test_a_filter_that_does_not_use_states_refuses_them():
    model = random_model("copy", "normal")
    x = model.simulate(N, seed=0).x
    with pytest.raises(ValueError, match="states: was given, but this filter does not support it"):
        sh.filter_vmp(model, x, states=KNOWN)
