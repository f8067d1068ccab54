"""The message-passing engine, given two factors written as functions, is the minGRU's forward pass and `filter_vmp`."""

import pytest
import samplehold as sh
import torch
from engine_filter import engine_filter
from samplehold.face.chains import CopyChain
from samplehold.inference.message_passing.stepwise.op import filter_steps
from torch import Tensor
from torch.testing import assert_close

MODELS, SEQUENCES, STEPS = 200, 2, 7
TIGHT = {"rtol": 0.0, "atol": 1e-12}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def random_model(seed: int, n_states: int, n_tokens: int) -> sh.SwitchingSSM:
    """Tokens that may be all but impossible, and a gate from nearly closed to nearly open."""
    random = torch.Generator().manual_seed(seed)

    def rows(*shape: int) -> Tensor:
        return (3 * torch.randn(*shape, generator=random, dtype=torch.float64)).softmax(-1)

    rho = torch.sigmoid(2 * torch.randn((), generator=random, dtype=torch.float64))
    return sh.SwitchingSSM(sh.Copy(n_states), sh.Gated(sh.Categorical(n_tokens), sh.Categorical(n_tokens))).with_values(
        redraw_prob=rho, state_probs=rows(n_states), probs=rows(n_states, n_tokens), background_probs=rows(1, n_tokens)
    )


def tables(
    seed: int, n_states: int, wide: bool, device: str = "cpu", spread: float = 2.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of random models: redrawn, held, state and odds, [MODELS, SEQUENCES, ...]."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return (spread * torch.randn(*shape, generator=random, dtype=torch.float64)).to(device)

    redrawn, state = draw(MODELS, SEQUENCES, STEPS, n_states), draw(MODELS, 1, n_states).log_softmax(-1)
    held = draw(MODELS, SEQUENCES, STEPS, n_states if wide else 1)
    return redrawn, held, state.expand(-1, SEQUENCES, -1), draw(MODELS, 1, 1).expand(-1, SEQUENCES, STEPS)


@pytest.mark.parametrize(("n_states", "n_tokens"), [(1, 2), (2, 3), (5, 4)])
def test_the_engine_is_the_forward_pass_of_a_min_gru_whose_gate_it_is_given(n_states, n_tokens):
    random = torch.Generator().manual_seed(n_states)
    for seed in range(5):
        model = random_model(seed, n_states, n_tokens)
        x = torch.randint(n_tokens, (3, 30), generator=random)
        layer, rows = sh.as_rnn(model, space="logit"), sh.one_hot(x, n_tokens)
        with torch.no_grad():
            hidden = layer(rows, sh.redrawn_start(layer, rows))[0]
            gate = layer.activations(rows).draw[..., 0]
        log_probs = model.probs.log()
        found = engine_filter(
            log_probs.T[x], torch.zeros(30, 1), model.state_probs.log(), torch.zeros(30, dtype=torch.float64), gate
        )
        assert_close(found.logits, hidden.log_softmax(-1), **TIGHT)
        assert_close(found.redraw[:, 1:], gate[:, 1:], **TIGHT)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("sweeps", [1, 2, 7, 40])
def test_the_engine_is_the_step_by_step_filter_whose_gate_it_infers(sweeps, wide, device):
    given = tables(sweeps, 3, wide, device)
    found = engine_filter(*given, sweeps=sweeps)
    expected = filter_steps(*given, sweeps=sweeps)
    assert_close(found.logits.exp(), expected.state, **TIGHT)
    assert_close(found.redraw, expected.redraw, **TIGHT)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gate_that_is_given_is_taken_as_it_is(device):
    redrawn, held, state, odds = tables(3, 4, True, device)
    gate = torch.rand(MODELS, SEQUENCES, STEPS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gate[:, :, 3], gate[:, :, 5] = 0.0, 1.0
    gate = gate.to(device)
    found = engine_filter(redrawn, held, state, odds, gate)
    expected = filter_steps(redrawn, held, state, odds, gate=gate)
    assert_close(found.logits.exp(), expected.state, **TIGHT)
    assert_close(found.redraw, expected.redraw, **TIGHT)


def exact(redrawn: Tensor, held: Tensor, state: Tensor, odds: Tensor) -> Tensor:
    log_rho, log_hold = (torch.nn.functional.logsigmoid(z)[..., None] for z in (odds, -odds))
    return CopyChain(None, log_rho + state.unsqueeze(-2) + redrawn, (log_hold + held).expand_as(redrawn)).filter().state


def distance(given: tuple[Tensor, ...], sweeps: int) -> float:
    """Mean total variation from the exact filter."""
    found = engine_filter(*given, sweeps=sweeps).logits.exp()  # type: ignore[arg-type]
    return float((found - exact(*given)).abs().sum(-1).mean() / 2)


def test_how_far_it_is_from_the_exact_chain():
    given = tables(0, 3, False)
    assert distance(given, 4) > 0.02  # gate and state are not independent
    redrawn, held, state, odds = given
    for certain in (torch.full_like(odds, 200.0), torch.full_like(odds, -200.0)):
        assert distance((redrawn, held, state, certain), 4) < 1e-12  # no gate to infer
    one = (redrawn[..., :1], held, torch.zeros_like(state[..., :1]), odds)
    assert distance(one, 4) == pytest.approx(0.0, abs=1e-15)  # no state
    told = (redrawn + torch.tensor([0.0, -1e3, -1e3]).to(redrawn), held, state, odds)
    assert distance(told, 4) < distance(given, 4) / 5  # a state that is told apart
