"""State-regularised networks: each step against its equations, and their draws against the chain that they are."""

import copy
import itertools
import math

import pytest
import samplehold as sh
import torch
from oracles.networks import with_normal_weights
from samplehold import GRU, LSTM, Elman, MinGRU, MinLSTM, PeepholeLSTM, StateRegularized, as_ssm, compare
from torch import nn
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close

CELLS = (Elman, GRU, LSTM, PeepholeLSTM, MinGRU, MinLSTM)
MEMORYLESS = (Elman, GRU, MinGRU, MinLSTM)
SIMILARITIES = ("dot", "cosine", "l2")


def build(cell=GRU, states=3, temperature=0.7, similarity="dot", mode="soft", scale=1.0, seed=0, **options):
    """A network whose centroids are far apart, so that they matter, and inputs."""
    network = StateRegularized(cell(2, 4, dtype=torch.float64, **options), states, temperature, similarity, mode)
    network, random = with_normal_weights(network, seed, scale)
    return network, torch.randn(3, 5, 2, generator=random, dtype=torch.float64)


def parts(state):
    return state if isinstance(state, tuple) else (state,)


def similarity_of(name, u, s):
    if name == "cosine":
        return cosine_similarity(u, s, dim=0)
    return u @ s if name == "dot" else -((u - s) ** 2).sum() / 2


def naive(network, x):
    """Outputs, alpha and last state of one series [T, I], by the cell's own step and the equations."""
    state, outputs, chances = None, [], []
    for x_t in x:
        u, state = network.cell.step(x_t, state)
        scores = torch.stack([similarity_of(network.similarity, u, s) for s in network.centroids])
        alpha = (scores / network.temperature).softmax(0)
        h = network.centroids[alpha.argmax()] if network.mode == "hard" else alpha @ network.centroids
        state = (h[None], state[1]) if isinstance(state, tuple) else h[None]
        outputs.append(h)
        chances.append(alpha)
    return torch.stack(outputs), torch.stack(chances), state


# --- LSTM with peepholes ---------------------------------------------------------------------------------------------


def test_peepholes_are_as_in_the_equations():
    layer = PeepholeLSTM(2, 3, dtype=torch.float64)
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight, bias, peephole = (p.detach() for p in (layer.weight_l0, layer.bias_l0, layer.peephole_l0))
    h, c, sigmoid = [0.0] * 3, [0.0] * 3, lambda a: 1 / (1 + math.exp(-a))
    for t, row in enumerate(x):
        seen = [*row.tolist(), *h]
        pre = [bias[k].item() + sum(w * v for w, v in zip(weight[k].tolist(), seen, strict=True)) for k in range(12)]
        for d in range(3):
            p = peephole[:, d].tolist()
            i, f = sigmoid(pre[d] + p[0] * c[d]), sigmoid(pre[3 + d] + p[1] * c[d])
            c[d] = f * c[d] + i * math.tanh(pre[6 + d])
            h[d] = sigmoid(pre[9 + d] + p[2] * c[d]) * math.tanh(c[d])
        assert_close(layer(x)[0][t], torch.tensor(h, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert_close(layer(x)[1][1][0], torch.tensor(c, dtype=torch.float64), rtol=1e-12, atol=1e-12)


# --- the network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("cell", CELLS)
def test_every_step_is_as_in_the_equations(cell, similarity, mode):
    network, x = build(cell, similarity=similarity, mode=mode)
    run = network.run(x)
    out, last = network(x)
    assert_close(run.output, out, rtol=0, atol=0)
    assert_close(parts(run.last), parts(last), rtol=0, atol=0)
    for b, series in enumerate(x):
        expected, chances, end = naive(network, series)
        assert_close(out[b], expected, rtol=1e-12, atol=1e-12)
        assert_close(run.state_probs[b], chances, rtol=1e-12, atol=1e-12)
        assert_close([part[:, b] for part in parts(last)], list(parts(end)), rtol=1e-12, atol=1e-12)
        if mode == "hard":
            assert (run.path[b] == chances.argmax(-1)).all()


@pytest.mark.parametrize("cell", CELLS)
def test_batch_axes_lengths_states_and_steps(cell):
    network, x = build(cell)
    nested = torch.stack([x, -x])
    assert_close(network(nested)[0], torch.stack([network(x)[0], network(-x)[0]]), rtol=1e-12, atol=1e-12)
    padded, lengths = x.clone(), [5, 2, 3]
    for b, n in enumerate(lengths):
        padded[b, n:] = torch.nan
    run = network.run(padded, lengths=lengths, mode="hard")
    for b, n in enumerate(lengths):
        alone = network.run(x[b, :n], mode="hard")
        assert_close(run.output[b, :n], alone.output, rtol=1e-12, atol=1e-12)
        assert not run.output[b, n:].any()
        assert not run.state_probs[b, n:].any()
        assert run.path[b].tolist() == [*alone.path.tolist(), *[-1] * (5 - n)]
        assert_close([z[:, b] for z in parts(run.last)], list(parts(alone.last)), rtol=1e-12, atol=1e-12)
    half, state = network(x[:, :3])
    rows = []
    for x_t in x[:, 3:].unbind(1):
        row, state = network.step(x_t, state)
        rows.append(row)
    assert_close(torch.cat([half, torch.stack(rows, 1)], 1), network(x)[0], rtol=1e-12, atol=1e-12)
    time_first, _ = build(cell, batch_first=False)
    assert_close(time_first(x.movedim(0, 1))[0].movedim(0, 1), network(x)[0], rtol=1e-12, atol=1e-12)
    assert_close(time_first.run(x.movedim(0, 1), mode="hard").path.T, network.run(x, mode="hard").path)


def test_a_series_in_parts_is_drawn_as_in_one_and_seeds_repeat():
    network, x = build(LSTM, mode="sample")
    whole = network.run(x, seed=3)
    assert torch.equal(whole.path, network.run(x, seed=3).path)
    random, state, paths = torch.Generator().manual_seed(3), None, []
    for x_t in x.split(1, dim=1):
        run = network.run(x_t, state, seed=random)
        state = run.last
        paths.append(run.path)
    assert torch.equal(torch.cat(paths, 1), whole.path)
    assert torch.equal(whole.output, network.centroids[whole.path])
    with torch.random.fork_rng():
        torch.manual_seed(3)
        drawn, _ = network(x)
        torch.manual_seed(3)
        assert torch.equal(network(x)[0], drawn)


def test_hard_and_drawn_steps_have_the_gradient_of_the_soft_step():
    network, x = build(Elman, mode="hard")
    loss = lambda out: (out * torch.arange(4.0)).sum()
    x, centroids = x[:, :1], network.centroids.detach().clone()
    soft = network.run(x, mode="soft")
    for mode in ("hard", "sample"):
        run = network.run(x, mode=mode, seed=0)
        slopes = [
            torch.autograd.grad(loss(r.output), network.cell.weight_ih_l0, retain_graph=True) for r in (run, soft)
        ]
        assert_close(*slopes, rtol=1e-12, atol=1e-12)
        assert_close(run.output, centroids[run.path], rtol=0, atol=0)


def test_a_temperature_is_set_learned_saved_and_copied():
    network, x = build()
    network.temperature = 0.05
    assert_close(network.temperature, 0.05, rtol=1e-15, atol=0)
    sharp = network(x)[0]
    other, _ = build(seed=1)
    other.load_state_dict(network.state_dict())
    assert_close(other(x)[0], sharp, rtol=0, atol=0)
    assert_close(copy.deepcopy(network)(x)[0], sharp, rtol=0, atol=0)
    assert "log_temperature" not in dict(network.named_parameters())
    learned = StateRegularized(GRU(2, 4), 3, 0.5, learn_temperature=True)
    learned(x.float())[0].square().sum().backward()
    assert learned.log_temperature.grad.abs() > 0
    learned.temperature = 2.0
    assert_close(learned.temperature, 2.0)
    assert "temperature=2" in repr(learned)


def test_the_default_start_is_the_cells_own():
    network = StateRegularized(MinGRU(2, 4, candidate="simplex"), 3)
    assert_close(network.initial_state(2), torch.full((1, 2, 4), 0.25))
    assert all(not part.any() for part in StateRegularized(LSTM(2, 4), 3).initial_state())


def test_wrong_input_is_refused_with_the_cure():
    cell = GRU(2, 4)
    for temperature in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"temperature: got .* expected a finite number greater than 0"):
            StateRegularized(cell, 3, temperature)
    network = StateRegularized(cell, 3)
    with pytest.raises(ValueError, match="temperature: got 0"):
        network.temperature = 0
    with pytest.raises(ValueError, match="similarity: got 'l1', expected one of 'dot', 'cosine', 'l2'"):
        StateRegularized(cell, 3, similarity="l1")
    with pytest.raises(ValueError, match="mode: got 'mean', expected one of 'soft', 'sample', 'hard'"):
        StateRegularized(cell, 3, mode="mean")
    with pytest.raises(ValueError, match="mode: got 'mean'"):
        network.run(torch.zeros(3, 2), mode="mean")
    with pytest.raises(ValueError, match="cell: got 2 layers, expected one"):
        StateRegularized(GRU(2, 4, num_layers=2), 3)
    with pytest.raises(ValueError, match="cell: reads in both directions"):
        StateRegularized(MinGRU(2, 4, bidirectional=True), 3)
    with pytest.raises(TypeError, match="cell: got GRU, expected a layer of the package"):
        StateRegularized(nn.GRU(2, 4), 3)
    with pytest.raises(ValueError, match="n_states: got 0"):
        StateRegularized(cell, 0)
    with pytest.raises(ValueError, match=r"x: got shape \[4, 3\], expected"):
        network(torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"hx: got shape \[1, 3\], expected \[1, 4\]"):
        network(torch.zeros(5, 2), torch.zeros(1, 3))
    with pytest.raises(TypeError, match="hx: got Tensor, expected a pair"):
        StateRegularized(LSTM(2, 4), 3)(torch.zeros(5, 2), torch.zeros(1, 4))


# --- the chain -------------------------------------------------------------------------------------------------------


def every_path(network, x):
    """Probability of each path of centroids of one series, by steps of the cell from the centroid before."""
    found = {}
    for path in itertools.product(range(network.n_states), repeat=len(x)):
        probability, state = 1.0, None
        for x_t, s in zip(x, path, strict=True):
            u, _ = network.cell.step(x_t, state)
            scores = torch.stack([similarity_of(network.similarity, u, c) for c in network.centroids])
            probability = probability * (scores / network.temperature).softmax(0)[s]
            state = network.centroids[s][None]
        found[path] = probability
    return found


@pytest.mark.few(4)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("cell", MEMORYLESS)
def test_the_chain_is_the_distribution_over_all_paths(cell, similarity):
    network, x = build(cell, similarity=similarity)
    network, x = network.requires_grad_(False), x[0, :4]
    paths = every_path(network, x)
    random = torch.Generator().manual_seed(1)
    evidence = torch.randn(4, 3, generator=random, dtype=torch.float64)
    labels = torch.tensor([torch.nan, torch.nan, torch.nan, 2.0])
    weight = lambda path: sum(float(evidence[t, s]) for t, s in enumerate(path))
    for given in ({}, {"labels": labels}, {"log_likelihood": evidence}, {"labels": labels, "log_likelihood": evidence}):
        joint = {
            path: p * math.exp(weight(path) if "log_likelihood" in given else 0.0)
            for path, p in paths.items()
            if "labels" not in given or path[3] == 2
        }
        total = sum(joint.values())
        chain = as_ssm(network).chain(x, **given)
        assert_close(chain.log_normalizer(), total.log(), rtol=1e-10, atol=1e-12)
        expected = torch.stack(
            [torch.stack([sum(p for q, p in joint.items() if q[t] == s) / total for s in range(3)]) for t in range(4)]
        )
        assert_close(chain.smooth().state, expected, rtol=1e-10, atol=1e-12)
        best = max(joint, key=joint.get)
        assert chain.viterbi().path.tolist() == list(best)
        assert_close(chain.viterbi().log_probability, joint[best].log(), rtol=1e-10, atol=1e-12)
    exact = as_ssm(network).chain(x).filter().state
    frequencies = sum(paths.values())
    assert_close(frequencies, torch.ones_like(frequencies), rtol=1e-12, atol=0)
    assert_close(exact.sum(-1), torch.ones(4, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("cell", MEMORYLESS)
def test_tables_are_what_the_cell_makes_of_each_centroid(cell):
    network, x = build(cell)
    tables = as_ssm(network).transition(x)
    chain = as_ssm(network).chain(x)
    assert tables.shape == (3, 5, 3, 3)
    assert_close(chain.log_transition, tables[:, 1:].log(), rtol=1e-12, atol=1e-12)
    for i, centroid in enumerate(network.centroids):
        run = network.run(x.reshape(15, 1, 2), centroid.expand(1, 15, 4))
        assert_close(run.state_probs.reshape(3, 5, 3), tables[..., i, :], rtol=1e-12, atol=1e-12)


def test_tables_of_inputs_that_come_again_are_the_same():
    network, x = build(GRU)
    again = x[:, :2].repeat(1, 6, 1)
    model = as_ssm(network)
    expected = torch.stack([model.transition(series[None])[0] for series in again.flatten(0, 1)])
    assert_close(model.transition(again).flatten(0, 1), expected, rtol=1e-12, atol=1e-14)
    slopes = [
        torch.autograd.grad(model.chain(given, labels=[[0] * 12] * 3).log_normalizer().sum(), network.centroids)
        for given in (again, again.clone().requires_grad_())  # tables of which input have a gradient are all computed
    ]
    assert_close(*slopes, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cell", [Elman, GRU, MinGRU])
def test_frequencies_of_drawn_runs_tend_to_the_chain(cell):
    network, x = build(cell)
    n = 20000
    path = network.requires_grad_(False).run(x[0].expand(n, 5, 2), mode="sample", seed=0).path
    chain = as_ssm(network).chain(x[0])
    exact = chain.filter().state
    pairs = torch.stack([torch.bincount(3 * a + b, minlength=9) for a, b in itertools.pairwise(path.T)]) / n
    expected = (exact[:-1, :, None] * chain.log_transition.exp()).flatten(-2)
    assert ((pairs - expected) / (expected * (1 - expected) / n).sqrt().clamp_min(1e-12)).abs().max() < 5
    drawn = chain.sample(n, seed=0).path
    shares = torch.stack([torch.bincount(s, minlength=3) for s in drawn.T]) / n
    assert ((shares - exact) / (exact * (1 - exact) / n).sqrt().clamp_min(1e-12)).abs().max() < 5


def test_the_chain_takes_what_the_network_takes():
    network, x = build(GRU, batch_first=False)
    front = nn.Linear(2, 2, dtype=torch.float64)
    whole = nn.Sequential(front, network)
    state = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lengths = [5, 1, 3]
    chain = as_ssm(whole).chain(x.movedim(0, 1), state, lengths)
    exact = chain.filter().state
    for b, n in enumerate(lengths):
        alone = as_ssm(network).chain(front(x[b, :n]), state[:, b])
        assert_close(exact[b, :n], alone.filter().state, rtol=1e-12, atol=1e-12)
        assert not exact[b, n:].any()
        first = network.run(front(x[b, :1]), state[:, b]).state_probs[0]
        assert_close(exact[b, 0], first, rtol=1e-12, atol=1e-12)


def test_labels_have_a_gradient_that_is_that_of_enumeration():
    network, x = build(GRU)
    labels = torch.tensor([torch.nan, 1.0, torch.nan])
    chain = as_ssm(network).chain(x[0, :3], labels=labels)
    named = list(network.parameters())
    found = torch.autograd.grad(chain.log_normalizer(), named, materialize_grads=True)
    total = sum(p for path, p in every_path(network, x[0, :3]).items() if path[1] == 1)
    assert_close(found, torch.autograd.grad(total.log(), named, materialize_grads=True), rtol=1e-9, atol=1e-11)


def test_compare_measures_soft_and_hard_runs_against_the_chain():
    network, x = build(Elman, temperature=0.3)
    model, lengths = as_ssm(network), [5, 2, 4]
    report = compare(model, network, x, lengths=lengths)
    assert list(report.updates) == ["one step", "hard", "network"]
    for b, n in enumerate(lengths):
        before = None
        exact = model.chain(x[b, :n]).filter().state
        soft, hard = (network.run(x[b, :n], mode=mode) for mode in ("soft", "hard"))
        distance = (exact - soft.state_probs).abs().sum(-1) / 2
        nats = (exact * (exact / soft.state_probs).log()).sum(-1)
        assert_close(report.network.total_variation[b, :n], distance, rtol=1e-10, atol=1e-12)
        assert_close(report.network.divergence[b, :n], nats, rtol=1e-8, atol=1e-12)
        assert not report.network.total_variation[b, n:].any()
        missed = 1 - exact.gather(-1, hard.path[:, None])[:, 0]
        assert_close(report.updates["hard"].total_variation[b, :n], missed, rtol=1e-10, atol=1e-12)
        for t in range(n):
            step = network.run(x[b, t : t + 1], before).state_probs[0]
            distance = (exact[t] - step).abs().sum() / 2
            assert_close(report.updates["one step"].total_variation[b, t], distance, rtol=1e-10, atol=1e-12)
            before = (exact[t] @ network.centroids)[None]
    assert not report.network.total_variation[:, 0].max() > 1e-12  # the first step is the same
    assert report.network.total_variation[:, 1:].max() > 1e-3
    assert report.plot(1).axes
    network.temperature = 1e-3  # almost certain: the chain and both runs are one
    assert compare(model, network, x).network.total_variation.max() < 1e-6


def test_a_step_that_is_linear_where_it_matters_is_exact():
    """Two centroids and candidates that ignore the state: mean and state are the same to the next step."""
    network, x = build(MinGRU, states=2)
    with torch.no_grad():
        network.cell.bias_l0[:4] = 100.0  # gates that always draw
    assert compare(as_ssm(network), network, x).network.total_variation.max() < 1e-12


def test_what_is_no_chain_over_centroids_is_refused():
    network, x = build()
    for cell in (LSTM, PeepholeLSTM):
        with pytest.raises(ValueError, match=f"layer: its cell, a {cell.__name__}, keeps a cell state"):
            as_ssm(build(cell)[0])
    with pytest.raises(ValueError, match="token_probs: was given"):
        as_ssm(network, token_probs=[1.0, 2.0])
    with pytest.raises(ValueError, match="inputs: got 'gaussian'"):
        as_ssm(network, inputs="gaussian")
    model = as_ssm(network)
    with pytest.raises(ValueError, match="labels: got 3 at sequence 0, step 1, expected an integer from 0 to 2"):
        model.chain(x, labels=[[0, 3, 0, 0, 0]] * 3)
    with pytest.raises(ValueError, match=r"labels: got shape \[3, 4\], expected \[3, 5\]"):
        model.chain(x, labels=torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"log_likelihood: got shape \[3, 5, 2\]"):
        model.chain(x, log_likelihood=torch.zeros(3, 5, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="x: got numbers that are not finite"):
        model.chain(x * torch.inf)
    with pytest.raises(ValueError, match=r"h0: got shape \[3, 4\]"):
        model.chain(x, torch.zeros(3, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="layer: has 2 centroids, but the model has 3 states"):
        compare(model, build(states=2)[0], x)
    with pytest.raises(ValueError, match="reads: given with a chain over centroids"):
        compare(model, network, x, reads="probe")
    with pytest.raises(TypeError, match="layer: got GRU, expected a StateRegularized"):
        compare(model, sh.GRU(2, 3).double(), x)
