"""The stack networks: what they compute is the inference they claim, where they stop being it, and that they learn."""

import copy
import itertools
import math
import pickle
import random
from collections import Counter

import pytest
import torch
from benchmarks.bench_stack import compare
from benchmarks.stack_languages import LANGUAGES, STOP, Predictor, best_possible, draw, excess
from oracles.operators import use_plain_torch
from samplehold import LSTM, QRNN, MinGRU
from samplehold.face.stacks import NondeterministicStackRNN, StackMixture, StratificationStackRNN, SuperpositionStackRNN
from samplehold.inference.stacks.stratification.op import stratify, visible
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

close = torch.testing.assert_close


def made(layer: type, *sizes: int, seed: int = 0, sharp: float = 3.0, **options) -> nn.Module:
    """A layer in double precision with actions decided enough to tell right from wrong."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = layer(*sizes, **options).double()
    with torch.no_grad():
        network.to_actions.weight.mul_(sharp)
    return network


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


VARIANTS = [
    {},
    {"stacks": 2, "n_read": 3},
    {"most_pops": 3, "n_read": 2},
    {"empty": -1.0, "n_read": 2},
    {"feedback": False},
    {"controller": nn.GRU, "stacks": 2},
]


@pytest.mark.parametrize("options", VARIANTS)
def test_superposition_network_holds_the_expected_cells_of_its_mixture(options):
    layer, x = made(SuperpositionStackRNN, 4, 5, 3, **options), inputs(2, 9, 4)
    run, mixture = layer.run(x), layer.mixture(x)
    assert mixture.values.shape == (2, layer.stacks, 9, 3)
    filled = 1 - mixture.depth_distribution().cumsum(-1)[..., : layer.n_read, None]
    cells = mixture.superposition(layer.n_read) + layer.empty * (1 - filled)
    close(run.reading, cells.movedim(1, 2).flatten(2), rtol=1e-12, atol=1e-12)
    close(run.actions.log_action.movedim(2, 1), mixture.log_action)


def test_full_capacity_drops_the_deepest_cell_as_a_stack_that_small_would():
    layer, x = made(SuperpositionStackRNN, 4, 5, 3, stacks=1, capacity=2, n_read=3), inputs(1, 6, 4)
    run = layer.run(x)
    actions, values = run.actions.log_action[0, :, 0].exp(), run.actions.values[0, :, 0]
    expected = torch.zeros(6, 2, 3, dtype=torch.float64)
    for history in itertools.product(range(3), repeat=6):
        stack, p = [torch.zeros(3, dtype=torch.float64)] * 2, 1.0
        for t, action in enumerate(history):
            p = p * actions[t, action]
            moved = {0: [values[t], *stack], 1: [*stack[1:], torch.zeros(3, dtype=torch.float64)], 2: stack}[action]
            stack = moved[:2]
            share = math.prod(actions[s, a] for s, a in enumerate(history[: t + 1])) / 3 ** (5 - t)
            expected[t] += share * torch.stack(stack)
    close(run.reading[0].reshape(6, 3, 3)[:, :2], expected, rtol=1e-12, atol=1e-12)
    assert float(run.reading[0].reshape(6, 3, 3)[:, 2].detach().abs().max()) == 0.0
    with pytest.raises(ValueError, match="capacity: got 2, but histories that hold"):
        layer.mixture(x)


def readings(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The network's mean top, and that of a mixture in which each history's controller reads its own stack."""
    T = x.shape[0]
    histories = torch.tensor(list(itertools.product(range(3), repeat=T)))
    certain = torch.nn.functional.one_hot(histories, 3).double().log()[:, :, None]
    run = layer.run(x.expand(len(histories), -1, -1), log_action=certain)
    taken = run.actions.log_action[:, :, 0].gather(-1, histories[..., None])[..., 0]
    return layer.run(x).reading, (taken.sum(1).exp()[:, None, None] * run.reading).sum(0)


def test_without_feedback_the_network_is_the_mixture_and_with_feedback_it_is_not():
    x = inputs(6, 4)
    mean, exact = readings(made(SuperpositionStackRNN, 4, 5, 3, stacks=1, feedback=False), x)
    close(mean[-1], exact[-1], rtol=1e-12, atol=1e-12)
    layer = made(SuperpositionStackRNN, 4, 5, 3, stacks=1, controller=nn.RNNCell, sharp=0.75)
    with torch.no_grad():
        layer.controller.weight_ih[:, 4:] *= 4
    mean, exact = readings(layer, x)
    assert 0.005 < float((mean[-1] - exact[-1]).abs().max()) < 0.5
    with torch.no_grad():
        layer.controller.weight_ih[:, 4:] = 0  # a controller that looks away from what it is given
    mean, exact = readings(layer, x)
    close(mean[-1], exact[-1], rtol=1e-12, atol=1e-12)


NETWORKS = [
    (SuperpositionStackRNN, {"stacks": 2, "n_read": 2, "most_pops": 2, "empty": -1.0}),
    (SuperpositionStackRNN, {"stacks": 1, "capacity": 3, "n_read": 4, "controller": nn.GRUCell}),
    (StratificationStackRNN, {}),
    (NondeterministicStackRNN, {"states": 2, "symbols": 2, "stacks": 1}),
    (NondeterministicStackRNN, {"value_size": 2, "normalized": True, "reading": "symbol", "stacks": 3}),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("layer", "options"), NETWORKS)
def test_steps_and_pieces_equal_the_whole(layer, options):
    network, x = made(layer, 4, 5, **options), inputs(2, 3, 7, 4)
    whole = network.run(x)
    first = network.run(x[..., :3, :])
    output, state = network(x[..., 3:, :], first.state)
    close(torch.cat([first.output, output], -2), whole.output)
    close(state.reading, whole.state.reading)
    state, outputs = None, []
    for x_t in x.unbind(-2):
        output, state = network.step(x_t, state)
        outputs.append(output)
    close(torch.stack(outputs, -2), whole.output)
    close(state.reading.reshape(2, 3, -1), whole.reading[..., -1, :])
    single = network.run(x[0, 0])
    close(single.output, whole.output[0, 0])
    close(single.reading, whole.reading[0, 0])


def objective(run) -> Tensor:
    return run.reading.square().sum() + run.output.sin().sum()


@pytest.mark.few(3)
@pytest.mark.parametrize(("layer", "options"), NETWORKS)
def test_fused_networks_have_the_value_and_gradient_of_plain_torch(layer, options, monkeypatch):
    network, x = made(layer, 4, 5, **options), inputs(2, 6, 4).requires_grad_()
    parameters = [*network.parameters(), x]
    fused = network.run(x)
    gradients = torch.autograd.grad(objective(fused), parameters)
    use_plain_torch(monkeypatch)
    plain = network.run(x)
    close(fused.reading, plain.reading, rtol=1e-12, atol=1e-12)
    for a, b in zip(gradients, torch.autograd.grad(objective(plain), parameters), strict=True):
        close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.cpu("its kernels")
@pytest.mark.parametrize("lengths", [None, [7, 3]])
def test_fused_lstm_equals_its_steps_in_value_and_gradient(lengths, monkeypatch):
    layer = made(SuperpositionStackRNN, 4, 5, 3, stacks=2, n_read=2, empty=-1.0)
    x = inputs(2, 7, 4).requires_grad_()
    parameters = [*layer.parameters(), x]

    def both(fused):
        monkeypatch.setattr(layer, "_fusible", lambda x: fused)
        start = layer.run(x, lengths=lengths)
        end = layer.run(x.flip(1), start.state)
        total = objective(start) + objective(end) + end.state.stack.cos().sum() + end.state.controller[1].sum()
        total = total + end.actions.log_action.square().sum() + end.actions.values.sum()
        return end.output, torch.autograd.grad(total, parameters)

    assert layer._fusible(x)
    (a, grad_a), (b, grad_b) = both(True), both(False)
    close(a, b, rtol=1e-12, atol=1e-12)
    for one, other in zip(grad_a, grad_b, strict=True):
        close(one, other, rtol=1e-10, atol=1e-12)


def prune_both(layer: nn.Module) -> None:
    prune.l1_unstructured(layer.controller, "weight_hh", 0.5)
    prune.l1_unstructured(layer.to_actions, "weight", 0.5)


def prune_for_good(layer: nn.Module) -> None:
    """Afterwards the parameters stand in another order."""
    for module, name in ((layer.controller, "bias_ih"), (layer.controller, "weight_ih"), (layer.to_actions, "weight")):
        prune.l1_unstructured(module, name, 0.5)
        prune.remove(module, name)


def halve_the_state(layer: nn.Module) -> None:
    layer.controller.register_forward_hook(lambda _module, _given, out: tuple(z / 2 for z in out))


def double_the_actions(layer: nn.Module) -> None:
    layer.to_actions.register_forward_hook(lambda _module, _given, out: 2 * out)


def shift_the_input(layer: nn.Module) -> None:
    layer.controller.register_forward_pre_hook(lambda _module, given: (given[0] + 1, *given[1:]))


def parametrise(layer: nn.Module) -> None:
    nn.utils.parametrizations.weight_norm(layer.to_actions)
    with torch.no_grad():
        layer.to_actions.parametrizations.weight.original0.mul_(2)


def clamp_the_actions(layer: nn.Module) -> None:
    linear = layer.to_actions
    linear.forward = lambda z: nn.Linear.forward(linear, z).clamp(-0.1, 0.1)


CHANGES = [prune_both, prune_for_good, halve_the_state, double_the_actions, shift_the_input, parametrise]


@pytest.mark.parametrize("change", [*CHANGES, clamp_the_actions])
def test_a_layer_whose_modules_were_changed_still_computes_what_its_steps_compute(change):
    layer, x = made(SuperpositionStackRNN, 4, 5, 3, stacks=2), inputs(2, 7, 4)
    before = layer(x)[0]
    change(layer)
    assert layer._fusible(x) == (change is prune_for_good and x.device.type == "cpu")
    run, state, outputs, readings = layer.run(x), None, [], []
    assert not torch.allclose(before, run.output, atol=1e-3)
    for x_t in x.unbind(1):
        output, state = layer.step(x_t, state)
        outputs.append(output)
        readings.append(state.reading)
    close(run.output, torch.stack(outputs, 1), rtol=1e-12, atol=1e-12)
    close(run.reading, torch.stack(readings, 1), rtol=1e-12, atol=1e-12)
    parameters = list(layer.parameters())
    total = torch.stack(outputs, 1).sin().sum() + torch.stack(readings, 1).square().sum()
    ours, theirs = (torch.autograd.grad(loss, parameters) for loss in (objective(run), total))
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, rtol=1e-10, atol=1e-12)


def test_a_hook_on_all_modules_is_called_at_every_step():
    layer, seen = made(SuperpositionStackRNN, 4, 5), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, _given, _out: seen.append(module))
    try:
        layer(inputs(2, 7, 4))
    finally:
        handle.remove()
    assert Counter(seen)[layer.controller] == Counter(seen)[layer.to_actions] == 7


def test_a_call_gives_output_and_state_and_a_run_gives_all():
    for network in (made(layer, 4, 5, **options) for layer, options in NETWORKS):
        x = inputs(2, 3, 4)
        output, state = network(x)
        run = network.run(x)
        assert torch.equal(output, run.output)
        assert torch.equal(state.reading, run.state.reading)
        assert torch.equal(run.reading[:, -1], run.state.reading)
        with pytest.raises(TypeError, match="unpack"):
            _output, _state = run


CONTROLLERS = [nn.LSTMCell, nn.GRUCell, nn.RNNCell, nn.LSTM, nn.GRU, LSTM, MinGRU]


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_any_recurrent_layer_can_be_the_controller(controller):
    network, x = made(SuperpositionStackRNN, 4, 5, controller=controller), inputs(2, 5, 4)
    output, _state = network(x)
    assert output.shape == (2, 5, 5)
    hidden, inner = network.controller, None
    reading, by_hand = torch.zeros(2, network.reading_size, dtype=torch.float64), []
    for t in range(5):  # the controller on what it has read, as a layer over the steps so far
        seen = torch.cat([x[:, t], reading], -1)
        if isinstance(hidden, nn.RNNCellBase):
            inner = hidden(seen, inner)
            out = inner[0] if isinstance(inner, tuple) else inner
        elif hasattr(hidden, "step"):
            out, inner = hidden.step(seen, inner)
        else:
            out, inner = hidden(seen[None], inner)
            out = out[0]
        reading = network.run(x).reading[:, t]
        by_hand.append(out)
    close(torch.stack(by_hand, 1), output)
    assert all(p.grad is not None for p in _after_backward(network, output.sum()))


def _after_backward(network: nn.Module, loss: Tensor) -> list[nn.Parameter]:
    loss.backward()
    return list(network.parameters())


def test_a_module_that_is_no_recurrent_layer_is_refused_by_name():
    with pytest.raises(TypeError, match="controller: got int, expected a recurrent layer"):
        SuperpositionStackRNN(4, 5, controller=lambda *_sizes: 3)
    network = SuperpositionStackRNN(4, 5, controller=nn.Linear)
    with pytest.raises(TypeError, match="controller: got Linear, expected one of torch's recurrent layers or cells"):
        network(torch.zeros(1, 3, 4))


def test_stratification_reads_the_golden_case():
    v = torch.eye(3, dtype=torch.float64)
    strength, reads = torch.zeros(0, dtype=torch.float64), []
    for pour, drain in ((0.8, 0.0), (0.5, 0.1), (0.9, 0.9)):
        strength = stratify(strength, *(torch.tensor(z, dtype=torch.float64) for z in (pour, drain)))
        reads.append(visible(strength) @ v[: len(strength)])
    expected = torch.tensor([[0.8, 0, 0], [0.5, 0.5, 0], [0.1, 0, 0.9]], dtype=torch.float64)
    close(torch.stack(reads), expected, rtol=0, atol=1e-15)


def test_no_action_mixture_reads_what_the_stratification_stack_reads():
    """Of mixtures over two steps none comes nearer to the golden reads, in any coefficient, than (sqrt 5.69 - 2.3) /
    2."""
    bound = (math.sqrt(5.69) - 2.3) / 2  # (0.5 + d)(0.8 + d) = 0.5 - d
    grid = torch.linspace(0, 1, 1001, dtype=torch.float64)
    first, second = torch.meshgrid(grid, grid, indexing="ij")  # P(push) at both steps; the best that is left is no-op
    gaps = torch.stack([(first - 0.8).abs(), (second - 0.5).abs(), ((1 - second) * first - 0.5).abs()]).amax(0)
    assert bound <= float(gaps.min()) < bound + 1e-3
    nearest = torch.tensor([[0.8 + bound, 0, 0.2 - bound], [0.5 - bound, 0, 0.5 + bound]], dtype=torch.float64)
    top = StackMixture(nearest.log(), torch.zeros(2, 1, dtype=torch.float64)).top()
    close(top[0, 0] - 0.8, torch.tensor(bound, dtype=torch.float64), rtol=0, atol=1e-12)
    close(0.5 - top[1, :2], torch.full((2,), bound, dtype=torch.float64), rtol=0, atol=1e-12)


def test_stratification_strengths_are_those_of_its_reads():
    layer, x = made(StratificationStackRNN, 4, 5, 3), inputs(2, 6, 4)
    run, strengths = layer.run(x), layer.strengths(x)
    close((visible(strengths) @ run.actions.values.movedim(-2, 1)).movedim(1, -2).flatten(2), run.reading)
    assert torch.equal(strengths.diagonal(dim1=-2, dim2=-1), run.actions.pour.movedim(-1, 1))


@pytest.mark.parametrize(("reading", "normalized"), [("configuration", False), ("symbol", True)])
def test_nondeterministic_network_reads_the_automaton_it_runs(reading, normalized):
    layer = made(NondeterministicStackRNN, 4, 5, states=2, symbols=3, reading=reading, normalized=normalized, stacks=3)
    x = inputs(2, 8, 4)
    run, automaton = layer.run(x), layer.mixture(x)
    expected = automaton.reading() if reading == "configuration" else automaton.reading().sum(-2)
    close(run.reading, expected.movedim(1, 2).reshape(run.reading.shape), rtol=1e-12, atol=1e-12)
    from_each = torch.cat(
        [run.actions.log_push.flatten(-2), run.actions.log_replace.flatten(-2), run.actions.log_pop], -1
    )
    total = from_each.exp().sum(-1)
    assert torch.allclose(total, torch.ones_like(total)) == normalized
    assert automaton.sample(4, torch.Generator().manual_seed(0)).state.shape == (4, 2, 3, 8)


def test_vector_network_reads_the_expected_value_on_top():
    layer, x = made(NondeterministicStackRNN, 4, 5, states=1, symbols=1, value_size=2, stacks=2), inputs(1, 6, 4)
    with torch.no_grad():
        layer.bottom.copy_(torch.tensor([[0.3, -0.7], [-0.2, 1.1]]))
    run = layer.run(x)
    for n, which in itertools.product(range(1, 7), range(2)):
        weights = torch.stack([run.actions.log_push.flatten(3), run.actions.log_replace.flatten(3)], -1)
        actions = weights[0, :, which, 0].tolist()
        pops = run.actions.log_pop[0, :, which].flatten().tolist()
        values = torch.cat([layer.bottom[which].sigmoid()[None], run.actions.values[0, :, which]])
        weighted, total = torch.zeros(2, dtype=torch.float64), 0.0
        for history in itertools.product((0, 1, 2), repeat=n):
            stack, weight = [0], 0.0
            for t, action in enumerate(history):
                weight += (actions[t][0], pops[t], actions[t][1])[action]
                if action == 0:
                    stack = [*stack, t + 1]
                elif action == 1:
                    stack = stack[:-1]
                if not stack:
                    break
            if stack:
                weighted, total = weighted + math.exp(weight) * values[stack[-1]], total + math.exp(weight)
        close(run.reading[0, n - 1].view(2, 2)[which], weighted / total, rtol=1e-12, atol=1e-12)


def test_with_one_state_and_symbol_it_is_the_mixture_that_never_pops_the_empty_stack():
    layer, x = made(NondeterministicStackRNN, 4, 5, states=1, symbols=1, value_size=1, stacks=1), inputs(5, 4)
    with torch.no_grad():
        layer.bottom.fill_(-1e3)  # the bottom reads as 0, as an empty stack does
    run = layer.run(x)
    log_action = torch.stack(
        [run.actions.log_push, run.actions.log_pop[..., None], run.actions.log_replace], -1
    ).flatten(1)
    for n in range(1, 6):
        mixture = StackMixture(log_action[:n], run.actions.values[:n, 0], on_empty="forbid")
        close(run.reading[n - 1], mixture.superposition(1)[-1, 0], rtol=1e-12, atol=1e-12)
    apart = StackMixture(log_action, run.actions.values[:, 0]).superposition(1)[-1, 0] - run.reading[-1]
    assert float(apart.detach().abs()) > 1e-3  # superposition keeps the histories that popped too often


def test_single_precision_and_missing_batch_axes():
    for layer in (SuperpositionStackRNN, StratificationStackRNN, NondeterministicStackRNN):
        network = made(layer, 4, 5)
        double, x = network(inputs(6, 4))[0], inputs(6, 4).float()
        single = network.float().run(x)
        assert single.output.dtype == single.reading.dtype == torch.float32
        assert single.output.shape == (6, 5)
        close(single.output.double(), double, rtol=1e-4, atol=1e-5)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="stacks: got 0, expected an integer of at least 1"):
        SuperpositionStackRNN(4, 5, stacks=0)
    with pytest.raises(ValueError, match="reading: got 'state', expected one of 'configuration', 'symbol'"):
        NondeterministicStackRNN(4, 5, reading="state")
    layer = SuperpositionStackRNN(4, 5)
    with pytest.raises(ValueError, match=r"x: got shape \[2, 3, 5\], expected \[\*batch, T, input_size\]"):
        layer(torch.zeros(2, 3, 5))
    with pytest.raises(ValueError, match="capacity: got 0, expected an integer of at least 1"):
        SuperpositionStackRNN(4, 5, capacity=0)
    with pytest.raises(ValueError, match="value_size: got -1, expected an integer of at least 0"):
        NondeterministicStackRNN(4, 5, value_size=-1)
    with pytest.raises(TypeError, match=r"x: got torch\.float64 on \S+, expected torch\.float32"):
        layer(torch.zeros(2, 3, 4).double())
    with pytest.raises(TypeError, match=r"x: got torch\.float64 on \S+, expected torch\.float32"):
        layer.step(torch.zeros(2, 4).double())
    with pytest.raises(ValueError, match=r"x: got shape \[2, 5\], expected one step"):
        layer.step(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="hx: holds 2 sequences, but x has 3"):
        layer(torch.zeros(3, 2, 4), layer(torch.zeros(2, 2, 4))[1])
    with pytest.raises(ValueError, match=r"lengths: got 9 of sequence 0, but the series has 3 steps"):
        layer.mixture(torch.zeros(2, 3, 4), lengths=[9, 2])
    with pytest.raises(ValueError, match=r"lengths: got shape \[3\], but the batch axes are \[2\]"):
        layer.mixture(torch.zeros(2, 3, 4), lengths=[3, 2, 1])
    with pytest.raises(ValueError, match=r"log_action: got shape \[2, 3, 3\], expected \[2, 3, 8, 3\]"):
        layer.run(torch.zeros(2, 3, 4), log_action=torch.zeros(2, 3, 3))


def test_mixtures_of_networks_take_lengths():
    x = inputs(2, 5, 4)
    for network in (made(SuperpositionStackRNN, 4, 5, 3, stacks=2), made(NondeterministicStackRNN, 4, 5)):
        ragged, short = network.mixture(x, lengths=[5, 3]), network.mixture(x[1, :3])
        close(ragged.log_normalizer()[1], short.log_normalizer())
        assert torch.equal(ragged.viterbi().action[0, 1][..., :3], short.viterbi().action[0])


RAGGED = [
    *NETWORKS,
    (SuperpositionStackRNN, {"stacks": 2, "capacity": 3}),
    (SuperpositionStackRNN, {"controller": nn.GRU, "num_layers": 2}),
    (StratificationStackRNN, {"controller": nn.LSTM, "feedback": False}),
    (NondeterministicStackRNN, {"symbols": 3, "controller": lambda *sizes: QRNN(*sizes, window=3)}),
    (StratificationStackRNN, {"num_layers": 3, "controller": MinGRU}),
]


@pytest.mark.parametrize(("layer", "options"), RAGGED)
def test_a_sequence_in_a_ragged_batch_goes_as_it_goes_alone(layer, options):
    network, x, lengths = made(layer, 4, 5, **options), inputs(2, 2, 6, 4), torch.tensor([[6, 2], [1, 4]])
    x = torch.where(torch.arange(6)[:, None] < lengths[..., None, None], x, torch.nan).requires_grad_()
    given = network.run(x, lengths=lengths)
    more, further = network(inputs(4, 3, 4, seed=1), given.state)
    gradient = torch.autograd.grad(objective(given) + more.sum(), [x, *network.parameters()], materialize_grads=True)
    assert all(bool(part.isfinite().all()) for part in gradient)
    for k, (i, j) in enumerate(itertools.product(range(2), range(2))):
        n = int(lengths[i, j])
        alone = network.run(x[i, j, :n])
        close(given.output[i, j, :n], alone.output, rtol=1e-12, atol=1e-12)
        close(given.reading[i, j, :n], alone.reading, rtol=1e-12, atol=1e-12)
        assert not given.output[i, j, n:].any()
        assert not given.reading[i, j, n:].any()
        close(given.state.reading[k], alone.state.reading[0], rtol=1e-12, atol=1e-12)
        close(given.state.raw[k], alone.state.raw[0], rtol=1e-12, atol=1e-12)
        output, state = network(inputs(4, 3, 4, seed=1)[k], alone.state)
        close(more[k], output, rtol=1e-12, atol=1e-12)
        close(further.reading[k], state.reading[0], rtol=1e-12, atol=1e-12)
    output, _ = network(x, lengths=lengths)
    assert torch.equal(output, given.output)


@pytest.mark.parametrize(("layer", "options"), NETWORKS)
def test_padding_is_no_step(layer, options):
    network, x = made(layer, 4, 5, **options), inputs(1, 5, 4)
    padded = torch.cat([x, torch.full((1, 9, 4), torch.nan, dtype=torch.float64)], 1)
    close(network(padded, lengths=[5])[1].reading, network(x)[1].reading, rtol=1e-13, atol=1e-13)


def test_past_its_end_a_sequence_does_nothing():
    x, lengths = inputs(2, 4, 4), [4, 2]
    actions = made(SuperpositionStackRNN, 4, 5, 3).run(x, lengths=lengths).actions
    assert bool((actions.log_action[1, 2:].exp() == torch.tensor([0.0, 0.0, 1.0])).all())
    layer = made(StratificationStackRNN, 4, 5, 3)
    actions = layer.run(x, lengths=lengths).actions
    assert not actions.pour[1, 2:].any()
    assert not actions.drain[1, 2:].any()
    left = layer.strengths(x, lengths=lengths)
    assert torch.equal(left[1, :, 3], left[1, :, 1])
    actions = made(NondeterministicStackRNN, 4, 5, states=2).run(x, lengths=lengths).actions
    nothing = actions.log_replace[1, 3].flatten(3).flatten(1, 2).exp()
    assert torch.equal(nothing, torch.eye(4).double().expand_as(nothing))
    assert bool(actions.log_push[1, 3].isneginf().all())


@pytest.mark.parametrize(("layer", "options"), NETWORKS)
def test_time_can_come_first(layer, options):
    network, x, lengths = made(layer, 4, 5, **options), inputs(2, 3, 7, 4), torch.tensor([7, 3, 5]).expand(2, 3)
    first = made(layer, 4, 5, batch_first=False, **options)
    expected, run = network.run(x, lengths=lengths), first.run(x.movedim(-2, 0), lengths=lengths)
    assert torch.equal(run.output.movedim(0, -2), expected.output)
    assert torch.equal(run.reading.movedim(0, -2), expected.reading)
    for ours, theirs in zip(vars(run.actions).values(), vars(expected.actions).values(), strict=True):
        assert ours is theirs or torch.equal(ours.movedim(0, 2), theirs)
    assert torch.equal(first(x.movedim(-2, 0), lengths=lengths)[0].movedim(0, -2), expected.output)
    if layer is SuperpositionStackRNN:
        given = run.actions.log_action.detach()
        override = first.run(x.movedim(-2, 0), log_action=given.clamp_min(-5)).reading.movedim(0, -2)
        close(override, network.run(x, log_action=given.clamp_min(-5).movedim(0, 2)).reading)


def test_controllers_stand_one_above_the_other():
    network, x = made(SuperpositionStackRNN, 4, 5, 3, num_layers=2, controller=nn.GRUCell), inputs(2, 6, 4)
    run, below, above = network.run(x), None, None
    reading, outputs = torch.zeros(2, network.reading_size, dtype=torch.float64), []
    for t in range(6):
        below = network.controller[0](torch.cat([x[:, t], reading], -1), below)
        above = network.controller[1](below, above)
        outputs.append(above)
        reading = run.reading[:, t]
    close(run.output, torch.stack(outputs, 1))
    close(run.actions.log_action[:, -1].flatten(1).exp(), _action_probs(network, above))


def _action_probs(network, hidden: Tensor) -> Tensor:
    raw = network.to_actions(hidden).unflatten(-1, (network.stacks, -1))
    return raw[..., :3].softmax(-1).flatten(1)


def test_dropout_acts_between_controllers_and_in_training_alone():
    network, x = made(SuperpositionStackRNN, 4, 5, 3, num_layers=2, dropout=1.0), inputs(2, 6, 4)
    assert torch.equal(network(x)[0], network(-x)[0])  # nothing of the input comes through
    close(network.eval()(x)[0], made(SuperpositionStackRNN, 4, 5, 3, num_layers=2)(x)[0])
    with pytest.warns(UserWarning, match=r"dropout: got 0.5 for one layer, but it acts between layers"):
        SuperpositionStackRNN(4, 5, dropout=0.5)


@pytest.mark.parametrize("layer", [SuperpositionStackRNN, StratificationStackRNN, NondeterministicStackRNN])
def test_constructors_take_what_torchs_take(layer):
    network = layer(4, 5, value_size=2, bias=False, dtype=torch.float64, num_layers=2, controller=nn.GRUCell)
    assert not any("bias" in name for name, _ in network.named_parameters())
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float64}
    output, state = network(inputs(2, 6, 4))
    close(output[:, -1], network.step(inputs(2, 6, 4)[:, -1], network(inputs(2, 6, 4)[:, :-1])[1])[0])
    assert state.reading.dtype == torch.float64
    assert all(parameter.is_meta for parameter in layer(4, 5, value_size=2, device="meta").parameters())
    with pytest.raises(TypeError, match="bidirectional"):
        layer(4, 5, bidirectional=True)


@pytest.mark.parametrize(("layer", "options"), NETWORKS)
def test_parameters_can_be_drawn_anew(layer, options):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = layer(4, 5, **options)
        drawn = {name: value.clone() for name, value in network.state_dict().items()}
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(7.0)
        torch.manual_seed(1)
        network.reset_parameters()
    for name, value in network.state_dict().items():
        assert torch.equal(value, drawn[name]), name


@pytest.mark.parametrize("layer", [SuperpositionStackRNN, StratificationStackRNN, NondeterministicStackRNN])
def test_a_new_layer_rather_pushes_and_soon_forgets(layer):
    def start() -> Tensor:
        network = layer(4, 50)
        forget = network.controller.bias_ih[50:100]
        assert forget.mean() < -3.5
        before = network.run(torch.zeros(1, 4)).actions
        if layer is StratificationStackRNN:
            return (before.pour - before.drain).mean()
        if layer is SuperpositionStackRNN:
            return (before.log_action[..., 0] - before.log_action[..., 1]).mean()
        return before.log_push.mean() - before.log_pop.mean()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert torch.stack([start() for _ in range(20)]).mean() > 0.1


@pytest.mark.parametrize(("layer", "options"), NETWORKS)
def test_a_detached_state_carries_values_and_no_gradient(layer, options):
    network, x = made(layer, 4, 5, **options), inputs(2, 7, 4)
    first = x[:, :4].clone().requires_grad_()
    output, state = network(first)
    whole = network(x)[0][:, 4:]
    later, _ = network(x[:, 4:], state.detach())
    close(later, whole)
    assert torch.autograd.grad(later.sum() + 0 * output.sum(), first, retain_graph=True)[0].eq(0).all()
    later, _ = network(x[:, 4:], state)
    assert torch.autograd.grad(later.sum(), first)[0].any()


@pytest.mark.parametrize(("layer", "options"), NETWORKS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_a_copied_state_goes_on_by_itself(layer, options, copied):
    network, x = made(layer, 4, 5, **options).requires_grad_(False), inputs(2, 7, 4)
    _, state = network(x[:, :4])
    other = copied(state)
    network(-x[:, 4:], state)
    close(network(x[:, 4:], other)[0], network(x)[0][:, 4:])
    close(network(x[:, 4:], state)[0], network(x)[0][:, 4:])


def test_second_derivatives_of_the_fused_pass_are_those_of_its_steps(monkeypatch):
    layer, x = made(SuperpositionStackRNN, 3, 4, 2, stacks=2, n_read=2), inputs(2, 4, 3).requires_grad_()

    def second(fused: bool) -> tuple[Tensor, ...]:
        monkeypatch.setattr(layer, "_fusible", lambda x: fused)
        run = layer.run(x, lengths=[4, 2])
        parameters = [x, *layer.parameters()]
        first = torch.autograd.grad(objective(run) + run.state.stack.sin().sum(), parameters, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), parameters)

    for one, other in zip(second(True), second(False), strict=True):
        close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("layer", "options"), NETWORKS)
def test_a_hook_that_changes_a_shape_is_named(layer, options):
    network, x = made(layer, 4, 5, **options), inputs(2, 3, 4)
    handle = network.to_actions.register_forward_hook(lambda _module, _given, out: out[..., :-1])
    for call in (lambda: network(x), lambda: network.step(x[:, 0])):
        with pytest.raises(
            ValueError, match=r"to_actions: gave shape \[2, \d+\], expected a tensor of shape \[2, \d+\]"
        ):
            call()
    handle.remove()
    network.controller.register_forward_hook(lambda _module, _given, out: 1)
    with pytest.raises(ValueError, match="controller: gave int, expected a tensor of shape"):
        network(x)


def test_states_of_other_layers_and_dtypes_are_refused_by_name():
    x = inputs(2, 3, 4)
    layer = made(SuperpositionStackRNN, 4, 5, 3)
    state = layer(x)[1]
    with pytest.raises(TypeError, match=r"hx\.reading: got torch\.float64 on \S+, expected torch\.float32"):
        made(SuperpositionStackRNN, 4, 5, 3).float()(x.float(), state)
    with pytest.raises(ValueError, match=r"hx: holds \d+ numbers read and \d+ of actions, expected"):
        made(SuperpositionStackRNN, 4, 5, 2)(x, state)
    with pytest.raises(ValueError, match="a stack of StratificationStackRNN; give a state of this layer"):
        made(StratificationStackRNN, 4, 5, 3)(x, state)
    with pytest.raises(ValueError, match="lengths: a PackedSequence has its own"):
        layer(nn.utils.rnn.pack_sequence([x[0], x[1]]), lengths=[3, 3])
    with pytest.raises(ValueError, match="lengths: got 4 of sequence 0, but the series has 3 steps"):
        layer(x, lengths=[4, 3])


@pytest.mark.parametrize("name", LANGUAGES)
def test_languages_are_drawn_with_the_probability_they_state(name):
    batch = draw(LANGUAGES[name], 4000, 1, 7, random.Random(0), stop=0.3)
    strings = [tuple(s[s >= 0].tolist()) for s in batch.symbols]
    counts, stated = Counter(strings), dict(zip(strings, (-batch.nats).exp().tolist(), strict=True))
    assert sum(stated.values()) == pytest.approx(1.0, abs=1e-5)  # every string occurred
    for string, p in stated.items():
        assert abs(counts[string] / 4000 - p) < 5 * math.sqrt(p / 4000)


def test_the_bound_is_the_least_cross_entropy_and_a_learner_of_the_source_comes_near_it():
    language = LANGUAGES["marked reversal"]
    batch = draw(language, 20000, 40, 100, random.Random(0))
    pairs = (batch.symbols >= 0).sum(1).sub(2).div(2)
    nats = -math.log(STOP) - (pairs - 1) * math.log(1 - STOP) + pairs * math.log(2)  # by the source without an end
    found = (nats.sum() - batch.nats.sum()) / (batch.symbols >= 0).sum()
    assert float(found) == pytest.approx(best_possible(language, 40, 100), abs=1e-3)
    entropy = math.log(30) + pairs * math.log(2)  # 20 to 49 pairs, evenly
    close(batch.nats, entropy.float(), rtol=1e-5, atol=0)


def reverser(sharp: float = 100.0) -> Predictor:
    """A network with weights set by hand that predicts w # reversed w as well as can be, whatever its length.

    Unit 0 remembers that # was read; units 1 and 2 hold the symbol just read, 3 and 4 the same before # only. Symbols
    are pushed before # and popped after it, so what is on top after # is what comes next; before it, the reading is the
    symbol just read, and units 3 and 4 cancel it.
    """
    model = Predictor(SuperpositionStackRNN(4, 20, value_size=2, stacks=1), 3).double()
    one = math.tanh(1.0)  # what a unit shows whose cell is 1
    layer, cell = model.layer, model.layer.controller
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        write = cell.weight_ih.unflatten(0, (4, 20))[2]
        biases = cell.bias_ih.unflatten(0, (4, 20))
        biases[0] = biases[3] = sharp
        biases[1] = -sharp
        biases[1, 0] = sharp
        write[0, 2] = sharp
        for unit, symbol in ((1, 0), (2, 1), (3, 0), (4, 1)):
            write[unit, symbol] = sharp
        cell.weight_hh.unflatten(0, (4, 20))[0, 3:5, 0] = -4 * sharp / one
        push, pop = layer.to_actions.weight[:2]
        push[:3] = torch.tensor([-2.0, 1.0, 1.0]) * sharp / one
        pop[:3] = torch.tensor([2.0, 2.0, 2.0]) * sharp / one
        layer.to_actions.bias[:3] = torch.tensor([0.0, -3.0, 0.5]) * sharp
        layer.to_actions.weight[3, 1] = layer.to_actions.weight[4, 2] = 2 * sharp / one
        layer.to_actions.bias[3:] = -sharp
        symbols, bias = model.readout.weight, model.readout.bias
        for symbol in (0, 1):
            symbols[symbol, 20 + symbol], symbols[symbol, 3 + symbol] = sharp, -sharp / one
        symbols[2, 3:5] = sharp / one
        symbols[3, 0] = 1.5 * sharp / one
        bias.copy_(torch.tensor([(1 - STOP) / 2, (1 - STOP) / 2, STOP, 1.0]).log())
        bias[2:] -= sharp
    return model


def test_a_superposition_stack_with_weights_set_by_hand_solves_marked_reversal_at_any_length():
    language, model = LANGUAGES["marked reversal"], reverser()
    assert 0 <= excess(model, language, 1, 40, stop=STOP) < 0.02  # nats a symbol: it cannot know the longest length
    for shortest, longest in ((1, 40), (40, 100), (600, 601)):
        symbols = draw(language, 50, shortest, longest, random.Random(0)).symbols
        pairs = (symbols >= 0).sum(1) / 2 - 1
        source = pairs * math.log(2) - (pairs - 1) * math.log(1 - STOP) - math.log(STOP)
        assert float(model.nats(symbols)) == pytest.approx(float(source.sum()), rel=1e-6)


@pytest.mark.peer
def test_layers_compute_what_the_textbook_computes():
    for name, kind, _, _, gap in compare(12, 2):
        assert gap < 1e-5, (name, kind)


STACKS = (SuperpositionStackRNN, StratificationStackRNN, NondeterministicStackRNN)


@pytest.mark.hardware("a pass within a backward pass looks for its device")
@pytest.mark.parametrize("layer", STACKS)
def test_a_checkpointed_pass_has_the_gradient_of_a_plain_one(layer):
    network, x = layer(3, 4, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    expected = torch.autograd.grad(network(x)[0].sum(), tuple(network.parameters()))
    found = torch.autograd.grad(checkpoint(network, x, use_reentrant=False)[0].sum(), tuple(network.parameters()))
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)


def test_vectors_on_a_nondeterministic_stack_in_half_precision():
    network, x = NondeterministicStackRNN(3, 4, value_size=2), torch.randn(2, 5, 3)
    with torch.no_grad():
        expected, found = network(x)[0], network.bfloat16()(x.bfloat16())[0]
    assert found.dtype == torch.bfloat16
    assert_close(found.float(), expected, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("layer", STACKS)
def test_what_does_not_fit_inside_is_told_by_name(layer):
    x = torch.randn(3, 5, 3)
    mixed = layer(3, 4)
    mixed.controller.weight_hh = torch.nn.Parameter(mixed.controller.weight_hh.detach().double())
    for call in (lambda: mixed(x), lambda: mixed.step(x[:, 0])):
        with pytest.raises(TypeError, match=r"controller\.weight_hh: got torch\.float64, but the layer reads"):
            call()
    other, deep = layer(3, 4, controller=torch.nn.GRUCell), layer(3, 4, num_layers=2)
    for state, network in ((other(x)[1], layer(3, 4)), (deep(x)[1], layer(3, 4)), (layer(3, 4)(x)[1], deep)):
        with pytest.raises(ValueError, match="hx: holds the state of another controller"):
            network(x, state)
    deep.controller[0].register_forward_hook(lambda module, given, out: (out[0][..., :2], out[1][..., :2]))
    with pytest.raises(ValueError, match=r"controller\[0\]: gave shape"):
        deep(x)
    looped = layer(3, 4, controller=torch.nn.GRU)
    with pytest.raises(ValueError, match="do not support torch's GRU"):
        torch.func.vmap(lambda z: looped(z)[0])(x[:, None])


def vector_readings(push, replace, pop, values, bottom, everywhere):
    """The readings [T, K, V] by the sums of DuSell & Chiang, one loop per index; weights are those of one automaton.

    Their released code puts the vector of the bottom under all pairs of configurations: `everywhere`.
    """
    (T, K, _), Q = push.shape, pop.shape[-1]
    X, V = K // Q, values.shape[-1]
    runs, carried = {(-1, 0): push.new_zeros(K, K)}, {(-1, 0): push.new_zeros(K, K, V)}
    runs[-1, 0][0, 0] = 1.0
    carried[-1, 0][slice(None) if everywhere else 0, slice(None) if everywhere else 0] = bottom
    first = torch.eye(K, dtype=push.dtype)[0]
    top, readings = {-1: first, 0: first}, []
    for j in range(1, T + 1):
        for i in range(-1, j):
            if i == j - 1:
                runs[i, j], carried[i, j] = push[j - 1], push[j - 1][..., None] * values[j - 1]
                continue
            runs[i, j] = runs[i, j - 1] @ replace[j - 1]
            carried[i, j] = torch.einsum("abv,bc->acv", carried[i, j - 1], replace[j - 1])
            for k in range(i + 1, j - 1):
                back = (runs[k, j - 1] @ pop[j - 1]).reshape(Q, X, Q)  # [t, y, r]: the element above is popped
                for kind, table in ((runs, runs[i, k][..., None]), (carried, carried[i, k])):
                    more = torch.einsum("atyv,tyr->aryv", table.unflatten(1, (Q, X)), back).flatten(1, 2)
                    kind[i, j] = kind[i, j] + (more[..., 0] if kind is runs else more)
        top[j] = sum(top[i] @ runs[i, j] for i in range(-1, j))
        readings.append(sum(torch.einsum("a,abv->bv", top[i], carried[i, j]) for i in range(-1, j)) / top[j].sum())
    return torch.stack(readings)


@pytest.mark.cpu("its twin is there")
def test_vectors_are_those_of_the_released_code_if_the_bottom_is_where_the_automaton_starts():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = NondeterministicStackRNN(3, 4, states=2, symbols=2, value_size=3, stacks=1, dtype=torch.float64)
        torch.nn.init.normal_(layer.bottom)
        run = layer.run(torch.randn(6, 3, dtype=torch.float64))
    acted, bottom = run.actions, layer.bottom[0].sigmoid()
    push, replace = (z[:, 0].exp().reshape(6, 4, 4) for z in (acted.log_push, acted.log_replace))
    weights = push, replace, acted.log_pop[:, 0].exp().reshape(6, 4, 2), acted.values[:, 0], bottom
    expected = vector_readings(*weights, everywhere=False)
    assert_close(run.reading.reshape(expected.shape), expected, rtol=1e-12, atol=1e-13)
    released = vector_readings(*weights, everywhere=True)
    assert expected.sum(1).max() < 1 < released.sum(1).max()  # values are below 1, and so is their mean
