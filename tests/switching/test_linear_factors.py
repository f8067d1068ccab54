"""Factors of regressions on paths of real vectors: closed messages are gradients; bounds are exact, or rise."""

import pytest
import torch
from oracles.linear_models import draw
from samplehold.face.chains import LinearGaussianChain
from samplehold.inference.families import (
    Dirichlet,
    GaussianPaths,
    GaussianTables,
    Held,
    LocPrecision,
    MarkovPaths,
    MarkovTables,
    MatrixNormalWishart,
    NormalWishart,
    tree_parts,
)
from samplehold.inference.message_passing import VMP, Block
from samplehold.inference.message_passing.factor_graph import fit_message
from samplehold.switching.dynamics import factors as discrete
from samplehold.switching.linear import factors

DTYPE = torch.float64


def observed(batch: tuple[int, ...], n_steps: int, n_features: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Observations of which some are missing, lengths, and which steps are inside."""
    x = draw(0, *batch, n_steps, n_features)
    x[..., 2, :], x[..., 4, 0] = torch.nan, torch.nan
    lengths = torch.full(batch, n_steps)
    if batch:
        lengths.view(-1)[0] = n_steps - 2
    return x, lengths, (torch.arange(n_steps) < lengths.unsqueeze(-1)).to(DTYPE)


def learning(n_regimes: int, n_chains: int, batch: tuple[int, ...], n_states: int, n_features: int, full: bool) -> VMP:
    """Two restarts of all blocks."""
    n_steps, restarts, unit = 8, 2, torch.eye(n_states + 1, dtype=DTYPE)
    x, lengths, inside = observed(batch, n_steps, n_features)
    family, df = MatrixNormalWishart(n_states + 1), torch.tensor(n_states + 2.0, dtype=DTYPE)
    start = 0.1 * draw(1, n_regimes, n_states + 1, n_states) + 0.5 * unit[:, :n_states]
    shape = (n_features,) if full else (1,)
    seen = draw(2, n_regimes, *(() if full else (n_features,)), n_states + 1, *shape)
    priors = {
        "moves": (family, family.natural(start, unit, df, torch.eye(n_states, dtype=DTYPE))),
        "sights": (
            family,
            family.natural(seen, unit, seen.new_tensor(n_features + 2.0), torch.eye(*shape * 2).to(seen)),
        ),
        "first": (
            NormalWishart(),
            NormalWishart().natural(
                start.new_zeros(n_chains, n_states), start.new_ones(()), df, torch.eye(n_states, dtype=DTYPE)
            ),
        ),
    }
    switch = "switch" if n_regimes > 1 else None
    found = [
        factors.moves("moves", "chain", inside, switch if n_chains == 1 else None),
        (factors.sights if full else factors.features)("sights", "chain", x, inside, switch),
        factors.first_state("first", "chain", len(batch)),
    ]
    paths = (restarts, *batch, n_chains)
    eta = GaussianTables(
        draw(3, *paths, n_steps, n_states),
        -torch.eye(n_states, dtype=DTYPE).expand(*paths, n_steps, -1, -1),
        start.new_zeros(*paths, n_steps - 1, n_states, n_states),
    )
    blocks = [Block("chain", GaussianPaths(lengths.unsqueeze(-1)), eta=eta)]
    if switch:
        priors["initial"] = Dirichlet(), start.new_ones(n_regimes)
        priors["transition"] = Dirichlet(), start.new_ones(n_regimes, n_regimes)
        axes, k = (restarts, *batch), n_regimes
        zero = start.new_zeros(())
        tables = MarkovTables(zero.expand(*axes, k), zero.expand(*axes, k, k), draw(4, *axes, n_steps, k))
        blocks.append(Block("switch", MarkovPaths(lengths), eta=tables))
        found += [
            discrete.first_state("initial", "switch", len(batch) + 1),
            discrete.moves("transition", "switch", len(batch) + 1),
        ]
    parameters = [Block(name, kind, eta, eta.expand(restarts, *eta.shape)) for name, (kind, eta) in priors.items()]
    return VMP([*parameters, *blocks], found, restarts)


@pytest.mark.few(3)
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(
    ("n_regimes", "n_chains", "batch"),
    [(1, 1, ()), (1, 1, (3,)), (2, 1, (3,)), (3, 3, (2,)), (2, 1, ()), (2, 2, (2, 2))],
)
def test_messages_are_gradients_and_no_update_lowers_the_bound(
    n_regimes: int, n_chains: int, batch: tuple[int, ...], full: bool
) -> None:
    engine = learning(n_regimes, n_chains, batch, 2, 3, full)
    for factor in engine.factors:
        stats = [engine.stats(name) for name in factor.blocks]
        for name in factor.blocks:
            closed = fit_message(factor.message(name, *stats), engine.blocks[name].eta)
            for part, twin in zip(tree_parts(closed), tree_parts(factor.gradient(name, *stats)), strict=True):
                torch.testing.assert_close(part, twin, rtol=1e-10, atol=1e-10)
    run = engine.run(10, 0.0, record=True)  # raises where the bound falls
    assert bool((run.elbo[-1] > run.elbo[0]).all())


@pytest.mark.parametrize("full", [True, False])
def test_at_known_parameters_the_bound_of_one_chain_is_the_evidence(full: bool) -> None:
    n_states, n_features, batch = 2, 3, (2,)
    x, lengths, inside = observed(batch, 7, n_features)
    if full:
        x[..., 4, 0] = 0.3  # whole steps alone
    a, c = 0.5 * draw(5, n_states, n_states), draw(6, n_features, n_states)
    shift, offset, mean = draw(7, n_states), draw(8, n_features), draw(9, n_states)
    unit = torch.eye(n_states, dtype=DTYPE)
    q, p = unit + 0.3, 2 * unit - 0.2
    r = torch.diag(torch.rand(n_features, generator=torch.Generator().manual_seed(1), dtype=DTYPE) + 0.5)
    r = r + 0.1 if full else r
    known = {
        "moves": LocPrecision(torch.cat([a.mT, shift[None]])[None, None], torch.linalg.inv(q)[None, None]),
        "first": LocPrecision(mean[None, None], torch.linalg.inv(p)[None, None]),
    }
    if full:
        known["sights"] = LocPrecision(torch.cat([c.mT, offset[None]])[None, None], torch.linalg.inv(r)[None, None])
    else:
        rows = torch.cat([c, offset[:, None]], 1)[..., None]
        known["sights"] = LocPrecision(rows[None, None], (1 / r.diagonal())[None, None, :, None, None])
    families = {name: NormalWishart() if name == "first" else MatrixNormalWishart(n_states + 1) for name in known}
    held = {name: Held(family, known[name]) for name, family in families.items()}
    paths = (1, *batch, 1)
    zero = x.new_zeros(())
    eta = GaussianTables(
        zero.expand(*paths, 7, n_states),
        -unit.expand(*paths, 7, -1, -1),
        zero.expand(*paths, 6, n_states, n_states),
    )
    blocks = [Block(name, family, family.statistics(known[name])) for name, family in held.items()]
    factor = (factors.sights if full else factors.features)("sights", "chain", x, inside)
    engine = VMP(
        [*blocks, Block("chain", GaussianPaths(lengths.unsqueeze(-1)), eta=eta)],
        [factors.moves("moves", "chain", inside), factor, factors.first_state("first", "chain", 1)],
        1,
    )
    engine.update("chain")
    chain = LinearGaussianChain(x, a, q, c, r, mean, p, None, shift, offset, lengths)
    torch.testing.assert_close(engine.elbo(), chain.log_normalizer().sum()[None], rtol=1e-10, atol=0)
    found, expected = engine.stats("chain"), chain.smooth()
    torch.testing.assert_close(found.linear[0, :, 0], expected.mean, rtol=1e-10, atol=1e-10)
    outer = expected.mean.unsqueeze(-1) * expected.mean.unsqueeze(-2)
    torch.testing.assert_close(found.square[0, :, 0], expected.covariance + outer, rtol=1e-10, atol=1e-10)
