"""Networks that are kept stable are certified to be so, before, through and after training."""

import copy
import itertools

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.networks import with_normal_weights
from samplehold import GRU, LSTM, QRNN, Elman, MinGRU, MinLSTM, PeepholeLSTM, stable
from samplehold.face.studies import stability
from torch import nn
from torch.nn.utils import parametrize

WRAPPED, MINIMAL = (Elman, LSTM, GRU), (MinGRU, MinLSTM)
GATED = (
    (MinGRU, {}),
    (MinGRU, {"candidate": "positive"}),
    (MinGRU, {"candidate": "simplex", "block": 2}),
    (MinLSTM, {}),
    (MinLSTM, {"candidate": "simplex", "block": 2}),
    (QRNN, {"pooling": "f"}),
    (QRNN, {"pooling": "fo", "window": 2}),
    (QRNN, {"pooling": "ifo"}),
)
EVERY = [(Elman, {}), (LSTM, {}), (GRU, {}), *GATED]


def build(kind, seed, scale, **options):
    return with_normal_weights(kind(3, 4, dtype=torch.float64, **options), seed, scale)


def uniform(random, *shape):
    return 2 * torch.rand(*shape, generator=random, dtype=torch.float64) - 1


def certified(network, norm, lipschitz, bound, random):
    """Whether every layer brings states nearer by the factor."""
    slack = 1 + 1e-12
    if isinstance(network, Elman) and norm == "inf":
        tables = [getattr(network, f"weight_hh_l{k}") for k in range(network.num_layers)]
        return all(float(table.abs().sum(1).max()) <= lipschitz * slack for table in tables)
    if isinstance(network, WRAPPED):
        return stability(network, bound).rate <= lipschitz * slack
    x = bound * uniform(random, 1, 200, 3).sign()  # corners, where gates are farthest
    for k in range(network.num_layers):
        rows = x if isinstance(network, MINIMAL) else torch.cat([x[..., : network.window - 1, :], x], -2)
        if float(network.activations(rows, k).hold.max()) > lipschitz * slack:
            return False
        if k + 1 < network.num_layers:
            x = layer_output(network, x, k)
    return True


def layer_output(network, x, k):
    """What layer k makes of what it reads, from zeros."""
    options = (
        {"candidate": network.candidate, "block": network.block if network.candidate == "simplex" else None}
        if isinstance(network, MINIMAL)
        else {"pooling": network.pooling, "window": network.window}
    )
    kind = next(kind for kind in (*MINIMAL, QRNN) if isinstance(network, kind))
    one = kind(x.shape[-1], network.hidden_size, dtype=x.dtype, **options)
    one.load_state_dict({f"{name}_l0": getattr(network, f"{name}_l{k}").detach() for name in ("weight", "bias")})
    return one(x)[0].detach()


@pytest.mark.parametrize(("kind", "options"), EVERY)
@examples(15)
@given(
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([0.1, 1.0, 20.0]),
    lipschitz=st.sampled_from([0.1, 0.5, 0.9, 0.99]),
    bound=st.sampled_from([0.0, 1.0, 3.0]),
    num_layers=st.integers(1, 2),
)
def test_whatever_its_weights_a_network_is_stable(kind, options, seed, scale, lipschitz, bound, num_layers):
    network, random = build(kind, seed, scale, num_layers=num_layers, **options)
    for norm in ("inf", "2") if kind is Elman else ("inf",):
        kept = stable(copy.deepcopy(network), norm, lipschitz, bound)
        assert certified(kept, norm, lipschitz, bound, random)


@pytest.mark.parametrize(("kind", "options"), EVERY)
def test_two_states_come_nearer_by_the_factor_at_every_step(kind, options):
    network, random = build(kind, 3, 3.0, **options)
    network = stable(network, lipschitz=0.8)
    x = uniform(random, 6, 3)
    if kind is QRNN:
        states = [network.initial_state()._replace(cell=uniform(random, 1, 4)) for _ in range(2)]
    else:
        single = [uniform(random, 1, 4) / (1 if kind not in MINIMAL else 4) for _ in range(2)]
        states = [(h, 0.1 * h) for h in single] if kind is LSTM else single
    apart = []
    for x_t in [None, *x]:
        if x_t is not None:
            states = [network.step(x_t, state)[1] for state in states]
        one, other = ((state.cell,) if kind is QRNN else state if kind is LSTM else (state,) for state in states)
        apart.append(max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)))
    for before, after in itertools.pairwise(apart):
        assert after <= 0.8 * before * (1 + 1e-12)


@pytest.mark.parametrize(("kind", "options"), EVERY)
def test_weights_within_the_limits_stay_as_they_are(kind, options):
    network, _ = build(kind, 0, 0.001, **options)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    stable(network, lipschitz=0.9)
    for name, value in before.items():
        assert torch.equal(getattr(network, name), value)


@pytest.mark.parametrize(("kind", "options"), EVERY)
def test_training_does_not_lead_out(kind, options):
    network, random = build(kind, 1, 1.0, **options)
    network = stable(network, lipschitz=0.7)
    x, target = uniform(random, 8, 12, 3), 100 * uniform(random, 8, 12, 4)
    optimizer = torch.optim.SGD(network.parameters(), 1.0)
    for _ in range(20):
        loss = (network(x)[0] - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)  # so that weights stay within what floats resolve
        optimizer.step()
        assert certified(network, "inf", 0.7, 1.0, random)


@pytest.mark.few(5)
@pytest.mark.cpu("torch's checks know few devices")
@pytest.mark.parametrize(("kind", "options"), EVERY)
def test_it_is_differentiated_copied_and_set_free(kind, options):
    network, random = build(kind, 2, 1.5, **options)
    network = stable(network, lipschitz=0.6)
    x = uniform(random, 1, 5, 3)
    originals = {name: value.detach().requires_grad_() for name, value in network.named_parameters()}

    def output(*values):
        return torch.func.functional_call(network, dict(zip(originals, values, strict=True)), x)[0]

    assert torch.autograd.gradcheck(output, tuple(originals.values()))
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(3)
    assert certified(other, "inf", 0.6, 1.0, random)
    assert torch.equal(network(x)[0], output(*originals.values()))
    before = network(x)[0]
    for name in list(network.parametrizations):
        parametrize.remove_parametrizations(network, name)
    assert torch.equal(network(x)[0], before)
    assert set(network.state_dict()) == set(build(kind, 0, 1.0, **options)[0].state_dict())


@pytest.mark.parametrize("scale", [0.3, 3.0, 60.0])
def test_the_hold_factor_of_a_minlstm_reaches_its_limit_and_stays_below(scale):
    network, _ = build(MinLSTM, 5, scale)
    with torch.no_grad():
        network.bias_l0[:4] = 1e3  # forget gates that want to be 1
        forget, draw = network.weight_l0[:8].split(4)
        draw.copy_(-forget)  # one input is the worst for both gates
    network = stable(network, lipschitz=0.7, input_bound=2.0)
    hold = network.activations(2.0 * network.weight_l0[:4].sign()).hold.diagonal()
    limit = torch.full_like(hold, 0.7)
    reachable = network.bias_l0[:4] < 1e3  # not where even f = 1 is low beside i
    torch.testing.assert_close(hold[reachable], limit[reachable], rtol=1e-11, atol=0)
    assert (hold <= limit * (1 + 1e-11)).all()
    assert reachable.any()


def test_what_cannot_be_kept_stable_is_refused():
    with pytest.raises(TypeError, match=r"network: got PeepholeLSTM, expected Elman, LSTM, GRU"):
        stable(PeepholeLSTM(2, 3))
    with pytest.raises(TypeError, match=r"network: got GRU, .* load_state_dict"):
        stable(nn.GRU(2, 3))
    with pytest.raises(ValueError, match=r"norm: got '2' for LSTM, whose known conditions are in 'inf'"):
        stable(LSTM(2, 3), "2")
    with pytest.raises(ValueError, match=r"norm: got 'nuclear', expected"):
        stable(Elman(2, 3), "nuclear")
    with pytest.raises(ValueError, match=r"network: has no bias"):
        stable(GRU(2, 3, bias=False))
    with pytest.raises(ValueError, match=r"both directions"):
        stable(GRU(2, 3, bidirectional=True))
    for lipschitz in (0.0, 1.0, -1.0, 1e-300):
        with pytest.raises(ValueError, match=r"lipschitz: got"):
            stable(Elman(2, 3), lipschitz=lipschitz)
    with pytest.raises(ValueError, match=r"input_bound: got"):
        stable(GRU(2, 3), input_bound=-1.0)
