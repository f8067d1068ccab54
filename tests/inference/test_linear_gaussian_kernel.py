"""The kernels of linear Gaussian chains beside their plain twin, in value and gradient."""

import pytest
import samplehold as sh
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.linear_chains import FORMS, NAMES, OFFSETS, agree, close, gradients, tables_of, tolerance, widened
from samplehold.inference.chains.linear_gaussian import op, parallel, parameters, plain
from samplehold.inference.chains.linear_gaussian.parameters import read
from samplehold.inference.chains.linear_gaussian.tables import Tables
from torch import Tensor
from torch.testing import assert_close

pytestmark = pytest.mark.cpu("kernels of the native library")

CHAINS = {
    "seed": st.integers(0, 10_000),
    "batch": st.sampled_from([(), (1,), (3,), (2, 2)]),
    "steps": st.integers(1, 7),
    "states": st.integers(1, 4),
    "features": st.integers(1, 4),
    "missing": st.sampled_from([0.0, 0.3]),
    "varying": st.sets(st.sampled_from(NAMES + OFFSETS)),
    "shared": st.sets(st.sampled_from((*NAMES, *OFFSETS, "x"))),
    "ragged": st.booleans(),
}


@given(**CHAINS, rank=st.integers(0, 4))
def test_values_are_those_of_the_plain_form(dtype, states, rank, **options):
    tables = tables_of(states=states, rank=min(rank, states), dtype=dtype, **options)
    wide, rtol = widened(tables), tolerance(dtype)
    for operator, twin in FORMS:
        found = tuple(x.double() if x.is_floating_point() else x for x in operator(*tables))
        agree(found, twin(wide), rtol)


@given(**(CHAINS | {"steps": st.integers(4, 7)}), diffuse=st.integers(1, 3), rank=st.integers(0, 4))
def test_so_they_are_from_a_diffuse_start(states, diffuse, rank, **options):
    tables = tables_of(states=states, diffuse=min(diffuse, states), rank=min(rank, states), **options)
    for operator, twin in FORMS:
        agree(operator(*tables), twin(tables), rtol=1e-7)


@given(**CHAINS, rank=st.integers(0, 4))
def test_gradients_are_those_of_the_plain_form(dtype, states, rank, **options):
    tables, rtol = tables_of(states=states, rank=min(rank, states), dtype=dtype, **options), tolerance(dtype)
    found, expected = gradients(tables, True), gradients(widened(tables), False)
    assert found.keys() == expected.keys()
    for name, grad in found.items():
        close(grad.double(), expected[name], rtol=10 * rtol)


@given(**(CHAINS | {"steps": st.integers(4, 7)}), diffuse=st.integers(1, 3), rank=st.integers(0, 4))
def test_so_they_are_from_a_diffuse_start_of_whatever_conditioning(states, diffuse, rank, **options):
    """Of 10,000 such chains of three diffuse states, the two forms differ by 2e-9 at most.

    That one has a regression of condition 3e5, whose square the dense twin's normal equations meet: there it differs
    from both by 4e-8, and both from 60 digits by 1e-11.
    """
    tables = tables_of(states=states, diffuse=min(diffuse, states), rank=min(rank, states), **options)
    found, expected = gradients(tables, True), gradients(tables, False)
    for name, grad in found.items():
        close(grad, expected[name], rtol=1e-6)


def in_parallel(function, *arguments, steps: int = 2):
    """What a plain form comes to with a scan over so many steps or more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "PARALLEL", steps)
        return function(*arguments)


@given(**CHAINS, rank=st.integers(0, 4), diffuse=st.integers(0, 2))
def test_a_scan_gives_what_the_loop_over_steps_gives(states, rank, diffuse, **options):
    diffuse = min(diffuse, states)
    tables = tables_of(states=states, rank=min(rank, states), diffuse=diffuse, **options)
    for twin in (plain.evidence, plain.filter, plain.smooth):
        agree(in_parallel(twin, tables), in_parallel(twin, tables, steps=1000), 1e-7 if diffuse else 1e-9)
    if not diffuse:
        found = in_parallel(gradients, tables, False)
        expected = in_parallel(gradients, tables, False, steps=1000)
        for name, grad in found.items():
            close(grad, expected[name], rtol=1e-8)


def test_a_scan_leaves_what_it_cannot_do_to_the_loop():
    """An AR(2) in companion form seen without noise has noise given the state before; a constant has none."""
    x = torch.randn(50, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, none = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    companion = torch.tensor([[0.5, 1.0], [0.3, 0.0]], dtype=torch.float64)
    noise, start = torch.diag(torch.tensor([1.0, 0.0])).double(), torch.eye(2, dtype=torch.float64)
    common = {
        "initial_mean": None,
        "diffuse": None,
        "transition_offset": None,
        "emission_offset": None,
        "lengths": None,
    }
    singular = {"transition": companion, "state_noise": noise, "emission": start[:1], "observation_noise": none}
    tables = read(x, {**common, **singular, "initial_covariance": start}).tables
    assert parallel.scan(tables) is not None
    agree(op.smooth(*tables), plain.smooth(tables))
    growing = {"transition": 1e20 * one, "state_noise": none, "emission": none, "observation_noise": one}
    tables = read(x, {**common, **growing, "initial_covariance": none}).tables
    assert parallel.scan(tables) is None
    agree(op.smooth(*tables), plain.smooth(tables))


@pytest.mark.parametrize("diffuse", [0, 2])
@pytest.mark.parametrize("ragged", [False, True])
def test_draws_are_affine_in_their_noise_with_the_covariance_of_the_posterior(diffuse, ragged):
    """Every number of the noise alone, one after another: the columns of a factor."""
    steps, states = 5, 3
    tables = tables_of(11, batch=(2,), steps=steps, states=states, diffuse=diffuse, ragged=ragged, rank=2)
    n = steps * states + diffuse
    units = torch.cat([torch.eye(n), torch.zeros(1, n)]).double().unsqueeze(1).expand(n + 1, 2, n)
    noise = units[..., : steps * states].reshape(n + 1, 2, steps, states)
    path, _ = op.sample(*tables, noise, units[..., steps * states :])
    _, mean, covariance, cross, _ = plain.smooth(tables)
    close(path[-1], mean, 1e-9)
    columns = path[:-1] - path[-1]
    close(torch.einsum("nbti,nbtj->btij", columns, columns), covariance, 1e-9)
    close(torch.einsum("nbti,nbtj->btij", columns[:, :, 1:], columns[:, :, :-1]), cross, 1e-9)


@pytest.mark.parametrize("diffuse", [0, 1])
@pytest.mark.parametrize("batch", [(2,), (5,), (8,), (9,), (31,), (32,), (37,), (3, 5)])
def test_sequences_of_one_set_go_side_by_side_however_many_there_are(batch, diffuse):
    """Of all batch axes, and of the last one, where the sets have the first."""
    for shared in (NAMES, () if len(batch) == 1 else ("emission",)):
        tables = tables_of(4, batch=batch, steps=9, states=3, features=2, shared=shared, diffuse=diffuse)
        if len(batch) > 1 and shared != NAMES:
            tables = tables._replace(
                transition=tables.transition[:, :1],
                state_factor=tables.state_factor[:, :1],
                observation_factor=tables.observation_factor[:, :1],
                initial_factor=tables.initial_factor[:, :1],
            )
        for operator, twin in FORMS:
            agree(operator(*tables), twin(tables), 1e-8 if diffuse else 1e-10)


@pytest.mark.parametrize(("states", "features"), [(1, 9), (9, 1), (8, 5), (13, 6), (20, 17)])
def test_wide_tables(states, features):
    tables = tables_of(6, batch=(2,), steps=6, states=states, features=features, missing=0.3)
    for operator, twin in FORMS:
        agree(operator(*tables), twin(tables), 1e-9)
    found, expected = gradients(tables, True), gradients(tables, False)
    for name, grad in found.items():
        close(grad, expected[name], rtol=1e-8)


def test_tables_may_have_any_strides():
    """Axes in another order, every second entry, and entries that are there once for all steps."""
    tables = tables_of(8, batch=(4,), steps=8, states=3, features=2, missing=0.2, varying=NAMES, ragged=True)

    def strided(table: Tensor | None) -> Tensor | None:
        if table is None or table.dim() < 2:
            return table
        turned = table.movedim(0, -1).repeat_interleave(2, 0).contiguous()
        return turned[::2].movedim(-1, 0)

    other = Tables(*map(strided, tables))
    for operator, _ in FORMS:
        agree(operator(*other), operator(*tables), 1e-13)
    once = tables._replace(transition=tables.transition[:, :1], emission=tables.emission[:, :1])
    everywhere = once._replace(transition=once.transition.expand(4, 7, 3, 3), emission=once.emission.expand(4, 8, 2, 3))
    for operator, _ in FORMS:
        agree(operator(*everywhere), operator(*once), 1e-13)


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 9),
    rank=st.integers(0, 9),
    scale=st.sampled_from([1.0, 1e-150, 1e140]),
    wrong=st.sampled_from([None, "skew", "negative"]),
)
def test_factors_of_covariances_are_those_of_the_plain_form(dtype, seed, n, rank, scale, wrong):
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(3, n, min(rank, n), generator=generator, dtype=torch.float64)
    covariance = (half @ half.mT) * (scale if dtype == torch.float64 else 1.0)
    if wrong == "negative":
        covariance = covariance - 0.1 * covariance.diagonal(dim1=-2, dim2=-1).amax() * torch.eye(n).double()
    if wrong == "skew" and n > 1:
        covariance[1, 0, 1] = 2 * covariance[1, 0, 1] + covariance[1, 0, 0]
    covariance = covariance.to(dtype)
    (found, is_wrong), (expected, bad) = parameters.root(covariance), parameters._plain_root(covariance)
    assert bool(is_wrong) == bool(bad)
    if not bad:
        size = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
        scaled = size.unsqueeze(-1) * size.unsqueeze(-2)
        error = (found @ found.mT - expected @ expected.mT).abs() / torch.where(scaled > 0, scaled, 1.0)
        assert float(error.max()) < 100 * n * torch.finfo(dtype).eps


@pytest.mark.slow
def test_float32_is_computed_in_float64_and_rounded():
    tables = tables_of(5, steps=30, states=3, missing=0.1, dtype=torch.float32)
    for operator, _ in FORMS:
        for found, expected in zip(operator(*tables), operator(*widened(tables)), strict=True):
            assert_close(found, expected.to(found.dtype), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("noise", [1e-2, 1e-6, 1e-12])
def test_what_is_forgotten_down_to_nothing_leaves_finite_numbers(noise):
    """A level that is seen nearly without noise: the start weighs less by the noise at every step, and then 0."""
    x = torch.randn(300, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(0)
    one = torch.ones(1, 1, dtype=torch.float64)
    chain = sh.chains.LinearGaussianChain(x, one, one, one, noise * one, one[0], one, diffuse=torch.tensor([True]))
    tables = Tables(*chain._tables)
    for operator, twin in FORMS:
        agree(operator(*tables), twin(tables))
    found, expected = gradients(tables, True), gradients(tables, False)
    for name, grad in found.items():  # made of differences that are divided by the noise
        close(grad, expected[name], rtol=max(1e-8, 1e-15 / noise))


def test_a_recursion_at_rest_goes_on_as_if_it_went_on():
    """Beside the same parameters given for each step, with which covariances never rest."""
    tables = tables_of(2, batch=(3,), steps=400, shared=NAMES)
    steps = {"transition": 399, "state_factor": 399, "emission": 400, "observation_factor": 400}
    by_step = tables._replace(
        **{name: getattr(tables, name).expand(n, -1, -1).contiguous() for name, n in steps.items()}
    )
    for operator, _ in FORMS:
        agree(operator(*tables), operator(*by_step), 1e-11)
    found, expected = gradients(tables, True), gradients(by_step, True)
    for name, grad in found.items():
        whole = expected[name].sum(0) if name in steps else expected[name]
        close(grad.reshape(whole.shape), whole, 1e-10)


def test_covariances_that_turn_are_not_at_rest():
    """A season without noise, of which nothing is seen: its variances change places, and are back after each turn."""
    x, none = torch.zeros(100, 1, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
    cycle = torch.eye(4, dtype=torch.float64).roll(1, 0)
    variances = torch.diag(torch.arange(1.0, 5.0)).double()
    chain = sh.chains.LinearGaussianChain(x, cycle, 0 * cycle, none, torch.ones_like(none[:, :1]), None, variances)
    expected = torch.stack([torch.arange(1.0, 5.0).roll(t) for t in range(100)]).double()
    for found in (chain.filter(), chain.smooth()):
        assert_close(found.covariance.diagonal(dim1=-2, dim2=-1), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("ratio", [1e-2, 1e-6, 1e-10])
def test_slow_recursions_rest_late_or_never(ratio):
    """A local level that hardly moves: its variances fall over about 1 / sqrt(ratio) steps."""
    x = torch.randn(1, 3000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    by_step = (ratio * one).repeat(2999, 1, 1)
    constant = sh.chains.LinearGaussianChain(x, one, ratio * one, one, one, diffuse=[True])
    varying = sh.chains.LinearGaussianChain(x, one, by_step.unsqueeze(0), one, one, diffuse=[True])
    for found, expected in ((constant.smooth(), varying.smooth()), (constant.filter(), varying.filter())):
        for one_table, other in zip(vars(found).values(), vars(expected).values(), strict=True):
            assert_close(one_table, other, rtol=1e-11, atol=1e-13)


def test_a_stream_is_filtered_stretch_by_stretch():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one = torch.eye(2, dtype=torch.float64)
    whole = sh.chains.LinearGaussianChain(x, 0.9 * one, one, one, one, initial_covariance=one).filter()
    first = sh.chains.LinearGaussianChain(x[:12], 0.9 * one, one, one, one, initial_covariance=one)
    ahead = first.forecast(1)
    rest = sh.chains.LinearGaussianChain(
        x[12:], 0.9 * one, one, one, one, ahead.state_mean[0], ahead.state_covariance[0]
    )
    assert_close(rest.filter().mean, whole.mean[12:], rtol=1e-12, atol=1e-12)
    assert_close(first.log_normalizer() + rest.log_normalizer(), whole.log_normalizer, rtol=1e-12, atol=0)
