"""The factorial model: program, product chain and enumeration are one density; message passing bounds it from below."""

import itertools

import pytest
import torch
from oracles.coupled import check_point_masses, enumerate_all, factorial_of
from torch.testing import assert_close


def random_model(seed=0, n_states=(2, 3), counts=False):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    root = draw(2, 2)
    return factorial_of(
        redraw_prob=torch.sigmoid(draw(len(n_states))),
        state_probs=[draw(k).softmax(-1) for k in n_states],
        loc=[0.5 * draw(k, 2) if counts else 2 * draw(k, 2) for k in n_states],
        precision=None if counts else root @ root.T + 0.5 * torch.eye(2),
    )


@pytest.mark.parametrize("counts", [False, True])
def test_product_chain_equals_enumeration(counts):
    model = random_model(1, (2, 2), counts)
    x = model.simulate(3 if counts else 2, seed=1).x
    expected, marginals, gates = enumerate_all(model, x)
    found = model.smooth(x)
    assert_close(found.log_normalizer, expected, rtol=1e-10, atol=1e-10)
    assert_close(found.redraw, gates, rtol=1e-9, atol=1e-11)
    assert_close(model.filter(x).redraw[-1], gates[-1], rtol=1e-9, atol=1e-11)
    for d in range(2):
        assert_close(found.state[d], marginals[d], rtol=1e-9, atol=1e-11)
        assert_close(model.filter(x).state[d][-1], marginals[d][-1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("counts", [False, True])
def test_log_joint_at_point_masses_equals_the_program(counts):
    model = random_model(2, (2, 3), counts)
    draw = model.simulate(6, seed=3)
    check_point_masses(model, draw, "chain")


@pytest.mark.parametrize("counts", [False, True])
def test_elbo_rises_and_stays_below_the_exact_evidence(counts):
    model = random_model(3, (2, 3), counts)
    x = model.simulate(12, (2,), seed=2).x
    engine = model.engine(x)
    values = [v for _ in range(5) for v in engine.sweep().elbo.values()]
    assert all(b >= a - 1e-10 * abs(a) for a, b in itertools.pairwise(values))
    assert values[-1] > values[0]
    evidence = model.log_evidence(x).sum()
    assert values[-1] < evidence
    found = model.infer(x)
    assert found.converged
    assert_close(found.elbo[-1], evidence, rtol=0.2, atol=0)


@pytest.mark.parametrize("counts", [False, True])
def test_one_chain_or_chains_that_share_no_feature_are_exact(counts):
    single = random_model(4, (3,), counts)
    x = single.simulate(10, seed=1).x
    found = single.infer(x)
    assert_close(found.elbo[-1], single.log_evidence(x), rtol=1e-10, atol=0)
    assert_close(found.state[0], single.smooth(x).state[0], rtol=1e-9, atol=1e-11)
    model = random_model(5, (2, 3), counts)
    loc = [model.loc[0] * torch.tensor([1.0, 0.0]), model.loc[1] * torch.tensor([0.0, 1.0])]
    model = factorial_of(
        model.redraw_prob, model.fresh_probs, loc, None if counts else torch.diag(torch.tensor([0.5, 2.0]).double())
    )
    x = model.simulate(10, seed=1).x
    found = model.infer(x)
    assert_close(found.elbo[-1], model.log_evidence(x), rtol=1e-10, atol=0)
    for d in range(2):
        assert_close(found.state[d], model.smooth(x).state[d], rtol=1e-9, atol=1e-11)


def test_missing_and_ragged_data_equal_what_is_left_by_hand():
    model = random_model(6)
    x = model.simulate(7, (2,), seed=1).x
    whole, alone = model.infer(x, lengths=[7, 4]), [model.infer(x[0]), model.infer(x[1, :4])]
    assert_close(whole.elbo[-1], alone[0].elbo[-1] + alone[1].elbo[-1], rtol=1e-8, atol=0)
    assert_close(model.log_evidence(x, lengths=[7, 4])[1], model.log_evidence(x[1, :4]), rtol=1e-12, atol=0)
    # a feature that is never seen is a model without it
    x = x[0].clone()
    x[:, 1] = torch.nan
    covariance = torch.linalg.inv(model.precision)[:1, :1]
    less = factorial_of(model.redraw_prob, model.fresh_probs, [m[:, :1] for m in model.loc], 1 / covariance)
    assert_close(model.log_evidence(x), less.log_evidence(x[:, :1]), rtol=1e-10, atol=0)
    assert_close(model.infer(x).elbo[-1], less.infer(x[:, :1]).elbo[-1], rtol=1e-9, atol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("counts", [False, True])
def test_variational_em_never_lowers_the_bound_and_finds_well_separated_parts(counts):
    loc = [torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 3.0]])]
    truth = factorial_of(
        torch.tensor([0.2, 0.1], dtype=torch.float64),
        [torch.tensor([0.5, 0.5], dtype=torch.float64)] * 2,
        [table.double() + 0.2 for table in loc],
        None if counts else 4 * torch.eye(2, dtype=torch.float64),
    )
    x = truth.simulate(250, (3,), seed=3).x
    x[0, 10:13] = torch.nan
    start = factorial_of(
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        truth.fresh_probs,
        [0.6 * table.double() + 0.1 for table in loc],
        None if counts else torch.eye(2, dtype=torch.float64),
    )
    fit = start.fit(x, "em", max_steps=40, tol=1e-7, prior=None, progress=False)
    assert (fit.objective.diff() >= -1e-9 * fit.objective[:-1].abs()).all()
    evidence = fit.model.log_evidence(x).sum()
    assert fit.objective[-1] <= evidence + 1e-9 * evidence.abs()
    assert fit.objective[-1] > fit.objective[0] + 1
    assert evidence > truth.log_evidence(x).sum() - 10
    steps = torch.stack([loc[1] - loc[0] for loc in fit.model.loc]).abs()
    order = steps[:, 0].argsort(descending=True)  # chains have no names of their own
    assert_close(fit.model.redraw_prob[order], truth.redraw_prob, rtol=0, atol=0.08)
    assert_close(steps[order], 3 * torch.eye(2).double(), rtol=0, atol=0.15)


def test_bad_arguments_are_named():
    model = random_model(0)
    with pytest.raises(ValueError, match=r"loc_2: got shape \(2, 2\); FactorialSSM needs \[3, 2\]"):
        factorial_of(model.redraw_prob, model.fresh_probs, [model.loc[0], model.loc[0]], model.precision)
    with pytest.raises(ValueError, match="precision: got a matrix that is not symmetric positive definite"):
        factorial_of(model.redraw_prob, model.fresh_probs, model.loc, -model.precision)
    with pytest.raises(ValueError, match="x: got -1 at step 0, feature 0; expected counts"):
        random_model(0, counts=True).infer(-torch.ones(3, 2))
    x = model.simulate(5, seed=0).x
    x[2, 0] = torch.nan
    with pytest.raises(ValueError, match="x: at some step only some features are missing"):
        model.fit(x, progress=False)
    with pytest.raises(ValueError, match="x: at some step only some features are missing"):
        model.fit(x, "vmp", progress=False)
    with pytest.raises(ValueError, match="method: got 'nuts'"):
        model.fit(x, "nuts", progress=False)
