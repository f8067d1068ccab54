"""A linear gate and message passing become exact as the input tells the gate, I(x;z) -> H(z)."""

import math

import pytest
import torch
from samplehold import as_rnn
from samplehold.face.studies import information_sweep
from samplehold.models.studies.information import gaussian_model, mutual_information
from torch.testing import assert_close

pytestmark = [pytest.mark.kernels, pytest.mark.cpu("the study makes its models there")]


@pytest.fixture(scope="module")
def sweep():
    return information_sweep((0.0, 1.0, 2.0, 4.0, 6.0, 8.0), n_steps=500)


def test_information_is_measured_and_runs_from_near_nothing_to_the_entropy_of_the_gate(sweep):
    entropy = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8))
    assert sweep.entropy == pytest.approx(entropy)
    assert sweep.information[0] < 0.05 * entropy
    assert sweep.information[-1] > 0.999 * entropy
    assert (sweep.information.diff() > 0).all()
    assert (sweep.information <= entropy).all()


@pytest.mark.parametrize("separation", [0.5, 3.0])
def test_information_by_quadrature_is_that_of_samples(separation):
    model = gaussian_model(separation, 2.0, 0.2)
    random = torch.Generator().manual_seed(0)
    n = 400_000
    z = torch.rand(n, generator=random) < 0.2
    side = torch.where(torch.rand(n, generator=random, dtype=torch.float64) < 0.5, -1.0, 1.0)
    x = torch.randn(n, 2, generator=random, dtype=torch.float64)
    x = x + z.double()[:, None] * torch.stack([torch.full_like(side, separation), side], -1)

    def density(centre):
        return (-0.5 * ((x - torch.tensor(centre)) ** 2).sum(-1)).exp() / (2 * math.pi)

    drawn = 0.5 * (density([separation, -1.0]) + density([separation, 1.0]))
    held = density([0.0, 0.0])
    ratio = torch.where(z, drawn, held) / (0.2 * drawn + 0.8 * held)
    terms = ratio.log()
    assert abs(float(mutual_information(model, separation, 2.0) - terms.mean())) < 5 * float(terms.std()) / math.sqrt(n)


def test_no_separation_and_no_spread_tell_nothing():
    assert abs(float(mutual_information(gaussian_model(0.0, 0.0, 0.3), 0.0, 0.0))) < 1e-12


def test_distances_fall_to_nothing_as_information_reaches_the_entropy(sweep):
    for name in ("network", "message passing", "one sweep"):
        distance = sweep.total_variation[name]
        assert (distance.diff() < 0).all(), name
        assert distance[-1] < 0.01 * distance[0], name
        assert distance[-1] < 5e-4, name
        assert (sweep.gate_error[name].diff()[2:] < 0).all(), name
    assert (sweep.total_variation["network"] < sweep.total_variation["message passing"]).all()


def test_the_linear_gate_leaves_out_the_stated_term_and_its_candidates_are_exact():
    model = gaussian_model(1.5, 2.0, 0.2)
    layer = as_rnn(model, gate="linear")
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    now = layer.activations(x)
    likelihood = model.emission.log_likelihood(x, model.values)
    assert_close(now.value, likelihood.redrawn.softmax(-1))
    drawn = (likelihood.redrawn + math.log(0.5)).logsumexp(-1)
    exact = math.log(0.2 / 0.8) + drawn - likelihood.held[:, 0]
    left_out = torch.log(torch.cosh(x[:, 1])) - 0.5
    assert_close(torch.logit(now.draw[:, 0]), exact - left_out)


def test_tables_and_pictures_of_a_sweep(sweep):
    table = sweep.summary()
    assert table.shape == (6, 5)
    assert table["I / H(z)"].iloc[-1] == pytest.approx(float(sweep.information[-1]) / sweep.entropy)
    (panel,) = sweep.plot().axes
    curve = panel.lines[2].get_ydata()
    assert_close(torch.as_tensor(curve), sweep.total_variation["network"])
    with pytest.raises(ValueError, match="redraw_prob: got 1"):
        information_sweep(redraw_prob=1.0)
    with pytest.raises(ValueError, match="separations: got"):
        information_sweep((0.0, -1.0))
