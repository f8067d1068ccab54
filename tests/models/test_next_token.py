"""Where held states emit, a minGRU pays for being exact elsewhere; and trained networks come to hold the posterior."""

import math

import pytest
import torch
from samplehold import MinGRU, MinLSTM, compare, one_hot
from samplehold.face.studies import PriceOfExactness, price_of_exactness, train_next_token
from samplehold.models.studies.next_token import held_model, make_layer
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
@pytest.mark.cpu("the study makes its networks there")
def test_the_price_falls_with_the_redraw_probability_and_with_the_overlap_of_states():
    price = price_of_exactness((0.02, 0.2, 1.0), (0.3, 0.6), n_steps=120)
    assert (price.no_memory.diff(dim=1) < 0).all()
    assert (price.no_memory[0, :2] > price.no_memory[1, :2]).all()
    assert (price.network[:, 0] > 2e-3).all()
    assert price.network[0, 0] > price.network[0, 1] > price.network[0, 2]
    assert price.network[0, 0] > price.network[1, 0]
    assert (price.network[:, 2].abs() < 2e-3).all()  # independent tokens leave nothing to lose
    assert (price.no_memory[:, 2].abs() < 1e-9).all()
    assert (price.network[:, 0] < 0.5 * price.no_memory[:, 0]).all()  # but it does remember
    table = price.summary()
    assert table.loc[(price.overlap[1].item(), price.redraw_prob[0].item()), "no memory loses, nats"] == pytest.approx(
        float(price.no_memory[1, 0])
    )
    assert len(price.plot().axes[0].lines) == 4
    with pytest.raises(ValueError, match="overlaps: got"):
        price_of_exactness((0.1,), (1.5,))


@pytest.mark.cpu("the study makes its networks there")
def test_without_memory_the_loss_is_the_information_of_the_past():
    model = held_model(0.05, 0.3)
    x = model.simulate(400, (50,), seed=0).x
    exact = float(model.filter(x).log_increment[:, 100:].mean())
    price = price_of_exactness((0.05,), (0.3,), n_steps=2)
    assert float(price.no_memory[0, 0]) == pytest.approx(exact + math.log(3), abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MinGRU, MinLSTM])
def test_trained_networks_hold_the_exact_posterior(kind, device):
    model = held_model(0.1, 0.5)
    x = one_hot(model.simulate(64, (1024,), seed=0).x[..., 0], 3, dtype=torch.float32).to(device)
    layer = make_layer(kind, 3, 16)
    before = compare(model, layer, model.simulate(100, (20,), seed=1).x, reads="probe").probe
    trained = train_next_token(layer, x, 150)
    assert trained.loss[-20:].mean() < trained.loss[:5].mean() - 0.05
    after = compare(model, trained.layer, model.simulate(100, (20,), seed=1).x, reads="probe").probe
    assert before is not None
    assert after is not None
    assert after.r2["network"] > 0.85
    assert after.r2["network"] > before.r2["network"]
    assert after.r2["network"] > after.r2["input"] + 0.3 > 0.3
    assert after.log_loss["network"] < after.log_loss["input"] - 0.1
    assert after.log_loss["network"] < after.log_loss["belief"] + 0.05


def test_training_repeats_and_predictions_are_distributions(device):
    model = held_model(0.1, 0.5)
    x = one_hot(model.simulate(20, (70,), seed=0).x[..., 0], 3, dtype=torch.float32).to(device)
    before = torch.get_rng_state()
    runs = [train_next_token(make_layer(MinGRU, 3, 4), x, 3, seed=seed) for seed in (0, 0)]
    assert torch.equal(torch.get_rng_state(), before)
    drawn = [train_next_token(make_layer(MinGRU, 3, 4), x, 3, seed=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert_close(drawn[0].loss, drawn[1].loss, rtol=0, atol=0)
    assert_close(runs[0].loss, runs[1].loss, rtol=0, atol=0)
    found = runs[0].log_probs(x[:5])
    assert found.shape == (5, 19)
    every = torch.stack(
        [runs[0].log_probs(torch.cat([x[:5, :1], torch.eye(3)[k].expand(5, 1, 3)], 1)) for k in range(3)]
    )
    assert_close(every.exp().sum(0), torch.ones(5, 1))


class Bare(torch.nn.Module):
    """A layer that says nothing of its sizes."""

    def __init__(self):
        super().__init__()
        self.inner = make_layer(MinGRU, 2, 5)

    def forward(self, x):
        return self.inner(x)


def test_any_layer_is_trained_and_a_missing_token_is_no_target():
    x = one_hot(torch.tensor([[0.0, 1.0], [0.0, math.nan]]), 2, dtype=torch.float32)
    trained = train_next_token(Bare(), x, 80, rate=0.1)
    assert trained.head.in_features == 5
    assert trained.loss[-1] < 0.1  # read as a token, the missing one would contradict the other
    assert (trained.log_probs(x)[1] == 0).all()


def test_every_overlap_has_its_curve():
    price = PriceOfExactness(torch.tensor([0.1, 1.0]), torch.linspace(0, 1, 4), torch.zeros(4, 2), torch.ones(4, 2))
    assert len(price.plot().axes[0].lines) == 8
