"""What each update of a belief loses, beside its work."""

import pytest
import torch
from samplehold import filter_vmp
from torch.testing import assert_close
from updates import losses, models, visible_gate

pytestmark = pytest.mark.cpu("the study makes its models there")


def test_the_visible_gate_is_a_distribution_that_mixes_both_halves():
    model = visible_gate(0.1, 0.3, 0.01)
    for name in ("probs", "background_probs"):
        assert_close(model.values[name].sum(-1), torch.ones(3, dtype=torch.float64))
    halves = model.values["probs"].unflatten(-1, (2, 3)).sum(-1)
    assert_close(halves, torch.tensor([[0.99, 0.01]] * 3, dtype=torch.float64))
    assert_close(model.values["background_probs"], model.values["probs"].roll(3, -1))


def test_nothing_is_lost_by_the_exact_filter_and_a_visible_gate_lets_a_network_on_logits_be_near_it():
    lost = {}
    for name, model in models().items():
        x = model.simulate(100, (40,), seed=0).x
        lost[name] = {update: (work, nats) for update, work, nats in losses(model, x)}
        work, nats = lost[name]["exact filter"]
        assert abs(nats) < 1e-12
        assert all(work < more for update, (more, _) in lost[name].items() if update != "exact filter")
        assert all(nats > 1e-3 for update, (_, nats) in lost[name].items() if update != "exact filter")
        state = filter_vmp(model, x, sweeps=4).state  # the same by the definition of a prediction
        values = model.values
        before = 0.9 * state[:, :-1]
        redrawn, held = (t[:, 1:] for t in model.emission.log_likelihood(x, values))
        ahead = (before * held.exp() + 0.1 * values["state_probs"] * redrawn.exp()).sum(-1).log()
        expected = float((model.filter(x).log_increment[:, 1:] - ahead).mean())
        assert lost[name]["message passing, 4 sweeps"][1] == pytest.approx(expected, abs=1e-12)
    logits, probabilities = "minGRU on logits, held evidence", "minGRU on probabilities"
    assert lost["visible gate"][logits][1] < 0.2 * lost["visible gate"][probabilities][1]
    assert lost["hidden gate"][logits][1] > 0.5 * lost["hidden gate"][probabilities][1]
