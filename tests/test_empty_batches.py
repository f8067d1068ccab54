"""Batches of no sequence give results of no sequence, everywhere."""

import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of, layered_of
from samplehold.inference import families
from samplehold.inference.gaussian import op as gaussian
from samplehold.inference.scans.gated.op import gated_scan

EMPTY = ((0,), (2, 0))


@pytest.fixture(autouse=True, params=["plain", "native"])
def form(request):
    """Plain forms answer as kernels do."""
    with sh.kernels(request.param):
        yield


def rows(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


def tables(record):
    """All tensors of a record."""
    found = record if isinstance(record, tuple | list) else vars(record).values()
    return [table for table in found if isinstance(table, torch.Tensor)]


@pytest.mark.parametrize("batch", EMPTY)
def test_chains_of_no_sequence(batch):
    never = 1 - torch.eye(3, dtype=torch.float64)
    for chain in (
        sh.chains.CopyChain(None, rows(*batch, 4, 3), rows(*batch, 4, 1)),
        sh.chains.FactoredCopyChain(rows(1), rows(1), rows(3), rows(*batch, 4, 3)),
        sh.chains.CopyChain(rows(3), rows(*batch, 4, 3), rows(*batch, 4, 3), torch.ones(batch, dtype=torch.int64)),
        sh.chains.MarkovChain(rows(3), rows(3, 3), rows(*batch, 4, 3)),
        sh.chains.MarkovChain(rows(3), rows(*batch, 3, 3), rows(*[1] * len(batch), 4, 3)),
        sh.chains.SemiMarkovChain(rows(3), never.log(), rows(3, 2), rows(*batch, 4, 3)),
    ):
        assert chain.log_normalizer().shape == batch
        assert chain.filter().state.shape == chain.smooth().state.shape == (*batch, 4, 3)
        assert chain.viterbi().path.shape == chain.change_probability().shape == (*batch, 4)
        assert chain.sample(5, seed=0).path.shape == (5, *batch, 4)
        assert chain.entropy().shape == batch
        assert all(table.numel() == 0 for table in tables(chain.marginals()) if table.dim() > 2)
        if not isinstance(chain, sh.chains.SemiMarkovChain):
            assert chain.mean_field(sweeps=2).log_normalizer.shape == batch


@pytest.mark.parametrize("batch", EMPTY)
def test_linear_chains_of_no_sequence(batch):
    one = rows(1, 1) + 1
    chain = sh.chains.LinearGaussianChain(rows(*batch, 4, 1), one, one, one, one, diffuse=[True])
    assert chain.log_normalizer().shape == batch
    assert chain.filter().mean.shape == chain.smooth().mean.shape == (*batch, 4, 1)
    assert chain.sample(5, seed=0).latent.shape == (5, *batch, 4, 1)


@pytest.mark.parametrize("batch", EMPTY)
def test_segments_of_no_sequence(batch):
    prior = torch.ones(1, 2, dtype=torch.float64)
    for tol in (0.0, 0.1):
        block = sh.chains.Block(families.Beta(), prior, rows(*batch, 12, 1, 2))
        chain = sh.chains.SegmentChain(block, rows(1) - 1, tol=tol)
        assert chain.log_normalizer().shape == chain.entropy().shape == batch
        assert chain.filter().run.shape == chain.smooth().change.shape == chain.viterbi().path.shape == (*batch, 12)
        assert chain.sample(5, seed=0).parameters[0].shape == (5, *batch, 12, 1)
        assert chain.runs().n_steps.shape == batch
    stream = sh.chains.SegmentStream((families.Beta(),), (prior.expand(*batch, 1, 2),), rows(1) - 1)
    assert stream.update(stream.start(), (rows(*batch, 1, 2),))[1].shape == batch


@pytest.mark.parametrize("batch", EMPTY)
def test_scans_of_no_sequence(batch):
    assert sh.linear_scan(rows(*batch, 4, 3), rows(*batch, 4, 3)).shape == (*batch, 4, 3)
    assert sh.lerp_scan(rows(*batch, 4, 3), rows(*batch, 4, 3), rows(*batch, 3)).shape == (*batch, 4, 3)
    assert gated_scan(rows(*batch, 4, 6), rows(*batch, 3)).shape == (*batch, 4, 3)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_densities_and_moments_of_no_step(lead):
    x, loc, eye = rows(0, 2), rows(*lead, 3, 2), torch.eye(2, dtype=torch.float64).expand(*lead, 3, 2, 2)
    assert gaussian.normal_log_density(x, loc, loc + 1).shape == (*lead, 0, 3)
    assert gaussian.multivariate_normal_log_density(x, loc, eye).shape == (*lead, 0, 3)
    for moments in (gaussian.normal_moments, gaussian.multivariate_normal_moments):
        assert all(not table.any() for table in moments(x, rows(*lead, 0, 3), rows(1, 2)))


@pytest.mark.parametrize("batch", EMPTY)
def test_stacks_of_no_sequence(batch):
    mixture = sh.stacks.StackMixture(rows(*batch, 4, 3).log_softmax(-1), rows(*batch, 4, 2))
    for own in (mixture, mixture.condition(rows(*batch, 4, 5))):
        assert own.log_normalizer().shape == batch
        assert own.top().shape == own.depth_distribution().shape == (*batch, 4, 5)
        assert own.superposition(2).shape == (*batch, 4, 2, 2)
        assert own.sample(3, seed=0).depth.shape == (3, *batch, 4)
        assert own.viterbi().action.shape == (1, *batch, 4)
    steps = [rows(*batch, 4, 2, 1, *more) for more in ((2, 1), (2, 1), (2,))]
    automaton = sh.stacks.PushdownAutomaton(rows(*batch, 2, 1), *steps)
    assert automaton.log_normalizer().shape == batch
    assert automaton.reading().shape == automaton.marginals().shape == (*batch, 4, 2, 1)
    assert automaton.sample(3, seed=0).depth.shape == (3, *batch, 4)
    assert automaton.viterbi().action.shape == (1, *batch, 4)


@pytest.mark.parametrize("kind", [sh.MinGRU, sh.MinLSTM, sh.QRNN, sh.GRU, sh.LSTM, sh.Elman])
def test_networks_of_no_sequence(kind):
    layer = kind(3, 2, num_layers=2)
    out, state = layer(torch.zeros(0, 5, 3))
    assert out.shape == (0, 5, 2)
    assert layer(torch.zeros(0, 5, 3), state)[0].shape == (0, 5, 2)
    assert layer(torch.zeros(0, 5, 3), lengths=torch.zeros(0, dtype=torch.int64))[0].shape == (0, 5, 2)
    assert layer.step(torch.zeros(0, 3))[0].shape == (0, 2)
    assert kind(3, 2, batch_first=False)(torch.zeros(5, 0, 3))[0].shape == (5, 0, 2)


@pytest.mark.parametrize(
    "kind", [sh.stacks.SuperpositionStackRNN, sh.stacks.StratificationStackRNN, sh.stacks.NondeterministicStackRNN]
)
def test_stack_networks_of_no_sequence(kind):
    layer = kind(3, 2, value_size=2)
    assert layer(torch.zeros(0, 5, 3))[0].shape == (0, 5, 2)
    assert layer.run(torch.zeros(2, 0, 5, 3)).reading.shape == (2, 0, 5, layer.reading_size)
    assert layer.step(torch.zeros(0, 3))[0].shape == (0, 2)


def models():
    copy = {"redraw_prob": 0.2, "state_probs": [0.5, 0.5]}
    markov = {"initial_probs": [0.5, 0.5], "transition_probs": [[0.9, 0.1], [0.2, 0.8]]}
    emissions = {
        sh.Normal(2): {"loc": rows(2, 2), "scale": rows(2, 2) + 1},
        sh.MultivariateNormal(2): {"loc": rows(2, 2), "covariance": torch.eye(2).expand(2, 2, 2)},
        sh.Bernoulli(2): {"probs": rows(2, 2) + 0.5},
        sh.Poisson(2): {"rate": rows(2, 2) + 1},
    }
    for emission, values in emissions.items():
        yield sh.SwitchingSSM(sh.Copy(2), emission).with_values(copy | values)
        yield sh.SwitchingSSM(sh.Markov(2), emission).with_values(markov | values)
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    yield factorial_of(half / 5, [half, half], [rows(2, 2), rows(2, 2)], torch.eye(2, dtype=torch.float64))
    yield factorial_of(half / 5, [half, half], [rows(2, 2), rows(2, 2)])
    values = {"loc": rows(2, 2), "scale": rows(2, 2) + 1}
    yield layered_of(sh.Normal(2), values, half / 5, [rows(2, 2) + 0.5], half)


@pytest.mark.few(7)
@pytest.mark.parametrize("model", models(), ids=lambda model: f"{model.name}-{model.emission.name}")
def test_verbs_of_models_on_no_sequence(model):
    x = rows(0, 4, 2)
    several = isinstance(model.chain_sizes, tuple)
    assert model.log_evidence(x).shape == (0,)
    for found in (model.filter(x).state, model.smooth(x).state, model.forecast(x, 4).state):
        assert all(table.shape[:2] == (0, 4) for table in (found if several else [found]))
    assert model.viterbi(x).path.shape[:2] == (0, 4)
    assert model.sample_posterior(x, 3, seed=0).path.shape[:3] == (3, 0, 4)
    assert model.simulate(4, (0,), seed=0).x.shape == (0, 4, 2)
    assert len(model.states(x)) == 0
    assert list(model.states(x).columns) == list(model.states(rows(1, 4, 2)).columns)
    assert model.to_arviz(x, draws=2, seed=0).smoothed.sizes["sequence"] == 0
    assert model.forecast(x, 3).interval(0.8).lower.shape == (0, 3, 2)
    state, out = model.update(model.start((0,)), rows(0, 2))
    assert state.log_evidence.shape == out.log_increment.shape == (0,)
    for method in ("em", "vmp"):
        with pytest.raises(ValueError, match=r"^x: got shape \[0, 4, 2\], a batch of no sequence"):
            model.fit(x, method=method, progress=False)


def test_what_networks_and_models_share_on_no_sequence():
    layer = sh.MinGRU(3, 2)
    lifted = sh.as_ssm(layer)
    tokens = torch.zeros(0, 4, dtype=torch.int64)
    assert lifted.hidden(tokens).shape == (0, 4, 2)
    assert lifted.log_evidence(tokens).shape == (0,)
    assert lifted.sample(4, (0,), seed=0).tokens.shape == (0, 4)
    assert sh.one_hot(tokens, 3).shape == (0, 4, 3)
    assert sh.redrawn_start(layer, torch.zeros(0, 4, 3)).shape == (1, 0, 2)
    assert sh.truncate(layer, 2)(torch.zeros(0, 4, 3)).shape == (0, 4, 2)
    assert sh.studies.forgetting(layer, torch.zeros(0, 4, 3), 0.1).window.shape == (0, 4)
    model = next(models())
    assert sh.filter_vmp(model, rows(0, 4, 2)).state.shape == (0, 4, 2)


def test_a_comparison_on_no_sequence():
    values = {"redraw_prob": 0.3, "state_probs": [0.5, 0.5], "probs": rows(2, 3) + 1 / 3}
    model = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Categorical(3), sh.Categorical(3)))
    model = model.with_values(values, background_probs=rows(1, 3) + 1 / 3)
    found = sh.compare(model, sh.as_rnn(model), rows(0, 4, 1))
    assert found.network.state.shape == (0, 4, 2)
    assert found.summary().isna().all(None)
