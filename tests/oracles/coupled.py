"""Models of several chains: made from tables in order, chain by chain, and enumerated by their programs."""

import itertools
from collections.abc import Mapping, Sequence

import pyro
import torch
from samplehold import Emission, FactorialSSM, LayeredSSM, MultivariateNormal, Poisson
from torch import Tensor
from torch.nn.functional import one_hot
from torch.testing import assert_close


def factorial_of(
    redraw_prob: Tensor, state_probs: Sequence[Tensor], loc: Sequence[Tensor], precision: Tensor | None = None
) -> FactorialSSM:
    """A factorial model; counts without a precision."""
    n_features = loc[0].shape[-1]
    emission = Poisson(n_features) if precision is None else MultivariateNormal(n_features)
    values = {"redraw_prob": redraw_prob} | ({} if precision is None else {"precision": precision})
    for d, (probs, part) in enumerate(zip(state_probs, loc, strict=True), start=1):
        values |= {f"state_probs_{d}": probs, f"loc_{d}": part}
    return FactorialSSM([len(probs) for probs in state_probs], emission).with_values(values)


def layered_of(
    emission: Emission,
    values: Mapping[str, Tensor],
    redraw_prob: Tensor,
    tables: Sequence[Tensor],
    state_probs: Tensor,
) -> LayeredSSM:
    """A layered model, whose emission has these values."""
    sizes = [*(table.shape[-1] for table in tables), len(state_probs)]
    between = {f"table_{layer}": table for layer, table in enumerate(tables, start=1)}
    return LayeredSSM(sizes, emission).with_values(values | between, redraw_prob=redraw_prob, state_probs=state_probs)


def point(path, redraw):
    """The sites of a path of states and gates `[T, D]`."""
    data = {}
    for t, d in itertools.product(range(path.shape[0]), range(path.shape[1])):
        data[f"s_{t + 1}_{d + 1}"], data[f"z_{t + 1}_{d + 1}"] = path[t, d], redraw[t, d]
    return data


def log_density(model, x, path, redraw):
    """The program's log density of x, a path of states, and gates."""
    conditioned = pyro.condition(model, point(path, redraw))
    return pyro.poutine.trace(conditioned).get_trace(x).log_prob_sum()


def enumerate_all(model, x):
    """log p(x), P(s_dt | x) and P(z_dt | x): the program's density at every path of states and gates."""
    n_steps, chains = len(x), model.n_chains
    log_weights, paths, redraws = [], [], []
    gates = list(itertools.product((0.0, 1.0), repeat=(n_steps - 1) * chains))
    every = itertools.product(*(range(k) for _ in range(n_steps) for k in model.chain_sizes))
    for s, z in itertools.product(every, gates):
        redraw = torch.cat([torch.ones(chains), torch.tensor(z)]).double().reshape(n_steps, chains)
        path = torch.tensor(s).reshape(n_steps, chains)
        if ((redraw[1:] == 0) & (path[1:] != path[:-1])).any():
            continue
        log_weights.append(log_density(model, x, path, redraw))
        paths.append(path)
        redraws.append(redraw)
    log_weights = torch.stack(log_weights)
    share = log_weights.softmax(0)
    gates = torch.einsum("n,ntd->td", share, torch.stack(redraws))
    marginals = [
        torch.stack([share[i] * one_hot(path[:, d], k) for i, path in enumerate(paths)]).sum(0)
        for d, k in enumerate(model.chain_sizes)
    ]
    return log_weights.logsumexp(0), marginals, gates


def check_point_masses(model, draw, block):
    """Assert that the engine's log joint at the point masses of a draw is the program's; blocks have numbered names."""
    engine, redraw = model.engine(draw.x), draw.redraw.double()
    statistics = {}
    for d, k in enumerate(model.chain_sizes):
        state, z = one_hot(draw.path[:, d], k).double(), redraw[:, d, None]
        tables = engine.blocks[f"{block}_{d + 1}"].eta
        statistics[f"{block}_{d + 1}"] = type(tables)(state * z, state * (1 - z))
    expected = log_density(model, draw.x, draw.path, redraw)
    assert_close(engine.log_joint(statistics), expected, rtol=1e-10, atol=1e-10)
