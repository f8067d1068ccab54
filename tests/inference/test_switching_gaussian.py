"""Filters and smoothers of switching linear models: kernels beside the plain form, and means over beliefs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.regime_paths import random_regimes
from samplehold.inference.chains.switching_gaussian import op, plain, sampling
from samplehold.inference.chains.switching_gaussian.polya_gamma import polya_gamma
from samplehold.inference.chains.switching_gaussian.tables import choose, stick_breaking
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
MODELS = {
    "seed": st.integers(0, 2**31),
    "regimes": st.integers(1, 4),
    "latent": st.integers(1, 3),
    "features": st.integers(1, 3),
    "recurrent": st.booleans(),
}


def sequences(regimes, seed: int, lengths: list[int], missing: float) -> tuple[Tensor, Tensor]:
    x = regimes.simulate(max(lengths), (len(lengths),), seed=seed).x
    holes = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < missing
    return x.masked_fill(holes, torch.nan), torch.tensor(lengths)


@given(
    **MODELS,
    order=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    missing=st.sampled_from([0.0, 0.4]),
)
def test_the_kernel_filters_as_the_plain_form(order, lengths, missing, seed, **sizes):
    regimes = random_regimes(seed, **sizes)
    x, ends = sequences(regimes, seed, lengths, missing)
    tables = regimes.tables()
    found, expected = op.filter(x, ends, tables, order, None), plain.filter(tables, x, ends, order, None)
    further = op.filter(x, ends, tables, order, found.belief)
    again = plain.filter(tables, x, ends, order, expected.belief)
    for one, other in ((found, expected), (further, again)):
        for name in ("log_increment", "state", "lagged", "mean", "covariance"):
            assert_close(getattr(one, name), getattr(other, name), **TIGHT, msg=name)
        assert_close(one.belief.log_weight.exp(), other.belief.log_weight.exp(), **TIGHT)
        # what has next to no weight is known to fewer digits of its own
        told = other.belief.log_weight > -20
        if order > 1:
            assert_close(one.belief.mean[told], other.belief.mean[told], rtol=1e-8, atol=1e-8)
            assert_close(one.belief.covariance[told], other.belief.covariance[told], rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@given(**MODELS, lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3), missing=st.sampled_from([0.0, 0.4]))
def test_the_kernel_smooths_as_the_plain_form(lengths, missing, seed, **sizes):
    regimes = random_regimes(seed, **sizes)
    x, ends = sequences(regimes, seed, lengths, missing)
    found, expected = op.smooth(x, ends, regimes.tables()), plain.smooth(regimes.tables(), x, ends)
    for name in ("log_normalizer", "state", "pairs"):
        assert_close(getattr(found, name), getattr(expected, name), **TIGHT, msg=name)
    for name in ("mean", "covariance"):  # Kim's steps undo moves, and with them roundings
        assert_close(getattr(found, name), getattr(expected, name), rtol=1e-7, atol=1e-7, msg=name)


@pytest.mark.slow
@given(
    **MODELS | {"latent": st.integers(1, 6), "features": st.integers(1, 6)},
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    missing=st.sampled_from([0.0, 0.4]),
)
def test_the_kernels_of_gibbs_moves_draw_as_the_plain_form(lengths, missing, seed, **sizes):
    """Regimes from the same numbers; of latents, which are drawn in another way, the moments."""
    regimes = random_regimes(seed, **sizes)
    (x, ends), tables = sequences(regimes, seed, lengths, missing), regimes.tables()
    generator, n = torch.Generator().manual_seed(seed), 2 * len(lengths)
    draw = lambda *size: torch.rand(n, x.shape[1], *size, generator=generator, dtype=torch.float64)
    path, ends, n_sticks = (draw() * sizes["regimes"]).long(), ends.repeat(2), 0
    if sizes["recurrent"]:
        n_sticks = sizes["regimes"] - 1
    else:
        given_all = x, ends, tables, path, draw()
        for one, other in zip(op.collapsed(*given_all), sampling.collapsed(*given_all), strict=True):
            assert_close(one, other, **TIGHT)
        assert bool((sampling.redrawn(x, ends, tables, path, 3, torch.arange(n))[1] < 0).all())
    moved = torch.arange(1, x.shape[1] + 1) < ends[:, None]
    omega = torch.where(moved.unsqueeze(-1), draw(n_sticks) + 0.1, 0.0)
    given_path = x, ends, tables, path, omega, draw(sizes["latent"]), draw(x.shape[-1] + n_sticks)
    for one, other in zip(op.latents(*given_path)[1:], sampling.latents(*given_path)[1:], strict=True):
        assert_close(one, other, rtol=1e-8, atol=1e-8)


def moves(regimes, x: Tensor, ends: Tensor, path: Tensor, seed: int) -> list[Tensor]:
    """The results of all moves of a Gibbs sampler."""
    generator, tables = torch.Generator().manual_seed(seed), regimes.tables()
    draw = lambda *size: torch.rand(*path.shape, *size, generator=generator, dtype=torch.float64)
    latents = op.latents(x, ends, tables, path, draw(0), draw(tables.n_latent), draw(x.shape[-1]))
    collapsed = op.collapsed(x, ends, tables, path, draw())
    return [*latents, *collapsed, *op.redrawn(x, ends, tables, path, 4, torch.arange(len(path)))]


@pytest.mark.cpu("threads of its kernels")
def test_gibbs_moves_do_not_depend_on_the_number_of_threads_or_on_other_chains():
    regimes = random_regimes(1, regimes=3, latent=2)
    x, ends = sequences(regimes, 2, [1500, 900, 1200, 1], 0.1)
    path, before, found = torch.randint(3, x.shape[:2], generator=torch.Generator().manual_seed(0)), 1, []
    try:
        before = torch.get_num_threads()
        for n in (1, 3):
            torch.set_num_threads(n)
            found.append(moves(regimes, x, ends, path, 5))
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *found))
    alone = moves(regimes, x[:1], ends[:1], path[:1], 5)
    assert torch.equal(alone[1], found[0][1][:1])
    assert torch.equal(alone[-2], found[0][-2][:1])


@pytest.mark.cpu("checks of its kernels")
def test_gibbs_moves_refuse_paths_that_the_model_has_not():
    regimes = random_regimes(1, regimes=2)
    x, ends = sequences(regimes, 2, [4, 3], 0.0)
    path = torch.zeros(2, 4, dtype=torch.long)
    for wrong in (2, -1):
        with pytest.raises(IndexError, match="path"):
            moves(regimes, x, ends, path.clone().fill_(wrong), 0)
    beyond = path.clone()
    beyond[1, 3] = -1  # after the end of its sequence
    assert int(moves(regimes, x, ends, beyond, 0)[3].max()) < 0
    with pytest.raises(IndexError, match="length"):
        moves(regimes, x, ends + 2, path, 0)
    assert all(len(table) == 0 for table in moves(regimes, x[:0], ends[:0], path[:0], 0))


@pytest.mark.cpu("what its kernels do")
def test_a_path_that_cannot_be_is_left_for_one_that_can():
    given = vars(random_regimes(0, regimes=2))
    never = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    regimes = type(random_regimes(0))(**given | {"transition_probs": never, "initial_probs": start})
    x, ends = sequences(regimes, 1, [5], 0.0)
    ends, path = ends.repeat(40), torch.ones(40, 5, dtype=torch.long)
    for _ in range(8):
        path, failed = op.redrawn(x, ends, regimes.tables(), path, 4, torch.randint(2**62, (40,)))
        assert int(failed.max()) < 0
    assert not path.any()


@pytest.mark.parametrize("draw", [op.polya_gamma, polya_gamma], ids=["kernel", "plain"])
@pytest.mark.parametrize("c", [0.0, 2.0, -3.0, 40.0, 300.0])
def test_polya_gamma_numbers_have_their_mean(c, draw):
    drawn = draw(torch.full((10, 2000), c, dtype=torch.float64), torch.arange(1, 11))
    half = torch.tensor(abs(c) or 1e-6, dtype=torch.float64) / 2
    assert float((drawn.mean() - half.tanh() / (4 * half)).abs()) < 5 * float(drawn.std()) / drawn.numel() ** 0.5


@pytest.mark.cpu("streams of its kernels")
def test_a_row_of_polya_gamma_numbers_has_a_stream_of_its_own():
    c = 3 * torch.randn(7, 3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seeds = torch.arange(7)
    drawn = op.polya_gamma(c, seeds)
    for row in (0, 6):
        assert torch.equal(op.polya_gamma(c[row : row + 1], seeds[row : row + 1])[0], drawn[row])
    assert bool((drawn > 0).all())
    edges = op.polya_gamma(torch.tensor([[torch.inf, 1e200, torch.nan]], dtype=torch.float64), torch.tensor([1]))[0]
    assert bool((edges[:2] < 1e-100).all())
    assert bool(edges[2].isnan())


def test_impossible_regimes_have_no_weight():
    given = vars(random_regimes(0, regimes=3))
    never = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]], dtype=torch.float64)
    start = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    regimes = type(random_regimes(0))(**given | {"transition_probs": never, "initial_probs": start})
    x, ends = sequences(regimes, 1, [6, 4], 0.2)
    for order in (1, 2, 3):
        found = op.filter(x, ends, regimes.tables(), order, None)
        assert not found.state[..., 2].any()
        assert not found.lagged[..., 2].any()
        assert_close(found.mean, plain.filter(regimes.tables(), x, ends, order, None).mean, **TIGHT)
    found, expected = op.smooth(x, ends, regimes.tables()), plain.smooth(regimes.tables(), x, ends)
    assert_close(found.pairs, expected.pairs, **TIGHT)
    assert not found.pairs[..., 2, :].any()


def agree(found, expected, *names: str, tolerance: float = 1e-10) -> None:
    assert torch.equal(found.failed, expected.failed)
    for name in names:
        assert_close(getattr(found, name), getattr(expected, name), rtol=tolerance, atol=tolerance, msg=name)


FILTERED = ("log_increment", "state", "lagged", "mean", "covariance")
SMOOTHED = ("log_normalizer", "state", "pairs", "mean", "covariance")


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("contracts", [False, True])
def test_singular_moves_are_undone_by_a_pseudoinverse(noise, contracts):
    """Two latents are equal after each move, or all are 0; a pseudoinverse gives what is known of those before."""
    regimes = random_regimes(3, regimes=2, latent=3, features=2)
    x, ends = sequences(regimes, 1, [7, 4, 1], 0.2)
    tables = regimes.tables()
    moves, state_noise = tables.transition.clone(), torch.zeros_like(tables.state_noise)
    moves[:, 2], state_noise[:, 0, 0] = moves[:, 1], noise
    moves = moves * 0 if contracts else moves
    offset = torch.zeros_like(tables.transition_offset)
    tables = tables._replace(transition=moves, state_noise=state_noise, transition_offset=offset)
    agree(op.smooth(x, ends, tables), plain.smooth(tables, x, ends), *SMOOTHED)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_steps_without_density_are_found_one_by_one(order):
    regimes = random_regimes(3, regimes=2, latent=3, features=2)
    x, ends = sequences(regimes, 1, [7, 5, 4, 3], 0.0)
    tables = regimes.tables()
    x[1, 2], x[2, 3], x[3, :2] = 1e300, 1e150, torch.nan
    found, expected = op.filter(x, ends, tables, order, None), plain.filter(tables, x, ends, order, None)
    assert found.failed.tolist() == expected.failed.tolist() == [-1, 2, -1, -1]
    whole = torch.tensor([0, 2, 3])
    for name in FILTERED:
        one, other = getattr(found, name)[whole], getattr(expected, name)[whole]
        assert_close(one, other, rtol=1e-10, atol=1e-10 * float(1 + other.abs().max()), msg=name)
    blind = tables._replace(
        emission=torch.zeros_like(tables.emission), observation_noise=torch.zeros_like(tables.observation_noise)
    )
    assert op.filter(x, ends, blind, order, None).failed.tolist() == [0, 0, 0, 2]
    assert op.smooth(x, ends, blind).failed.tolist() == [0, 0, 0, 2]


def test_many_regimes_and_latents():
    regimes = random_regimes(3, regimes=20, latent=6, features=4)
    (x, ends), tables = sequences(regimes, 1, [4, 2], 0.1), regimes.tables()
    for order in (1, 2):
        agree(op.filter(x, ends, tables, order, None), plain.filter(tables, x, ends, order, None), *FILTERED)
    agree(op.smooth(x, ends, tables), plain.smooth(tables, x, ends), *SMOOTHED)
    empty = op.smooth(x[:0], ends[:0], tables)
    assert empty.pairs.shape == (0, 3, 20, 20)


@pytest.mark.parametrize("slope", [1.0, 30.0, 1e4, 1e200])
def test_steep_regressions_choose_as_the_plain_form(slope):
    regimes = random_regimes(3, regimes=4, latent=2, features=1, recurrent=True)
    (x, ends), tables = sequences(regimes, 1, [5, 3], 0.0), regimes.tables()
    tables = tables._replace(recurrence=slope * tables.recurrence)
    agree(op.filter(x, ends, tables, 1, None), plain.filter(tables, x, ends, 1, None), *FILTERED)


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_history_that_cannot_be_may_have_any_moments(recurrent):
    regimes = random_regimes(3, regimes=2, latent=2, recurrent=recurrent)
    (x, ends), tables = sequences(regimes, 1, [5, 3], 0.1), regimes.tables()
    log_weight, mean, covariance = op.filter(x, ends, tables, 2, None).belief
    log_weight = torch.tensor([0.0, -torch.inf], dtype=torch.float64).expand(2, 2)
    found = []
    for filler in (0.0, torch.nan):
        mean[:, 1] = filler
        found.append(op.filter(x, ends, tables, 2, plain.Belief(log_weight, mean, covariance)))
    agree(found[1], found[0], *FILTERED, tolerance=0)


@pytest.mark.cpu("stretches of its kernels")
@pytest.mark.parametrize("order", [1, 2, 3])
def test_steps_in_stretches_have_the_same_bits(order, monkeypatch):
    from samplehold.inference.chains.switching_gaussian import native

    regimes = random_regimes(1, regimes=3, latent=3)
    (x, ends), tables = sequences(regimes, 2, [30, 20, 1], 0.1), regimes.tables()
    given_all = x, ends, tables, order, None
    whole = op.filter(*given_all), op.smooth(x, ends, tables)
    monkeypatch.setattr(native, "_LONGEST", 1e-9)
    parts = op.filter(*given_all), op.smooth(x, ends, tables)
    agree(parts[0], whole[0], *FILTERED, tolerance=0)
    agree(parts[1], whole[1], *SMOOTHED, tolerance=0)
    assert torch.equal(parts[0].belief.covariance, whole[0].belief.covariance)


def dense(regimes, regime: int, mean: Tensor, covariance: Tensor, points: int) -> list[Tensor]:
    """P(k), E[s | k] and Cov[s | k] by sums over a fine grid of two latents."""
    line = torch.linspace(-9, 9, points, dtype=torch.float64)
    noise = torch.cartesian_prod(line, line)
    weight = (-noise.square().sum(-1) / 2).softmax(0)
    s = mean + noise @ torch.linalg.cholesky(covariance).mT
    probs = stick_breaking(s @ regimes.recurrence.mT + regimes.recurrence_offset[regime]).exp() * weight[:, None]
    total = probs.sum(0)
    first = probs.mT @ s / total[:, None]
    second = torch.einsum("pk,pi,pj->kij", probs, s, s) / total[:, None, None]
    return [total, first, second - first.unsqueeze(-1) * first.unsqueeze(-2)]


BOUNDS = [(2, 3.0, 1e-12), (2, 10.0, 1e-8), (2, 30.0, 5e-4), (4, 1.0, 1e-9), (4, 3.0, 1e-8), (4, 10.0, 2e-3)]


@pytest.mark.few(2)
@pytest.mark.parametrize(("regimes", "slope", "error"), BOUNDS)
@pytest.mark.slow
def test_means_over_beliefs_are_as_near_as_the_docstring_says(regimes, slope, error):
    """With two latents: along one direction (K = 2), and along two; regressions of this standard deviation."""
    model = random_regimes(3, regimes=regimes, latent=2, recurrent=True)
    covariance = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)
    spread = torch.einsum("ja,ab,jb->j", model.recurrence, covariance, model.recurrence).sqrt()
    model = type(model)(**vars(model) | {"recurrence": slope * model.recurrence / spread[:, None]})
    mean = torch.tensor([0.3, -0.2], dtype=torch.float64)
    found = choose(model.tables(), torch.tensor(1), mean, covariance)
    total, first, second = dense(model, 1, mean, covariance, 1501)
    assert_close(found.log_prob.exp(), total, rtol=0, atol=error)
    share = total.unsqueeze(-1)
    assert_close(found.mean * share, first * share, rtol=0, atol=error)
    assert_close(found.covariance * share.unsqueeze(-1), second * share.unsqueeze(-1), rtol=0, atol=10 * error)


def test_beliefs_without_spread_choose_as_their_mean():
    model = random_regimes(4, regimes=4, latent=2, recurrent=True)
    mean = torch.tensor([0.3, -0.2], dtype=torch.float64)
    found = choose(model.tables(), torch.tensor(2), mean, torch.zeros(2, 2, dtype=torch.float64))
    assert_close(found.log_prob, model.log_transition(mean)[2], **TIGHT)
    assert_close(found.mean, mean.expand(4, 2), **TIGHT)
