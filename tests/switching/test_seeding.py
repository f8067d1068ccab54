"""What a seed decides, and what it leaves alone."""

import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of
from torch.testing import assert_close

HALF = torch.full((2,), 0.5, dtype=torch.float64)
MODELS = {
    "switching": sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
        redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[0.0], [1.0]], precision=[[1.0], [1.0]]
    ),
    "factorial": factorial_of(HALF, [HALF, HALF], [torch.eye(2).double()] * 2, torch.eye(2).double()),
    "linear": sh.LinearSSM(sh.LocalLevel()).with_values({"sigma2.level": 1.0, "sigma2.irregular": 1.0}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_decides_a_draw_and_no_generator_moves_of_any_device(name, monkeypatch):
    model = MODELS[name]
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeds the generators of all devices"))
    before = torch.random.get_rng_state()
    once, again, other = (model.simulate(6, seed=seed).x for seed in (3, 3, 4))
    assert_close(once, again, rtol=0, atol=0)
    assert not torch.equal(once, other)
    assert torch.equal(torch.random.get_rng_state(), before)
