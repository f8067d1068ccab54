"""Linear Gaussian chains at random parameters, and how their kernels are compared with the plain form."""

from typing import Any

import torch
from oracles.placement import tolerances
from samplehold.inference.chains.linear_gaussian import op, plain
from samplehold.inference.chains.linear_gaussian.parameters import read
from samplehold.inference.chains.linear_gaussian.tables import Tables
from torch import Tensor
from torch.testing import assert_close

NAMES = ("transition", "state_noise", "emission", "observation_noise", "initial_covariance")
OFFSETS = ("initial_mean", "transition_offset", "emission_offset")


FORMS = (op.evidence, plain.evidence), (op.filter, plain.filter), (op.smooth, plain.smooth)


def arguments(
    seed: int,
    batch=(2,),
    steps=5,
    states=2,
    features=2,
    missing=0.0,
    varying=(),
    shared=(),
    rank=None,
    diffuse=0,
    ragged=False,
    dtype=torch.float64,
) -> dict[str, Any]:
    """Of a random chain: `varying` parameters have an axis of steps, `shared` ones no batch axes, the noise of states
    some rank; the last states are diffuse."""
    generator = torch.Generator().manual_seed(seed)
    rank = states if rank is None else rank

    def table(name: str, *own: int, axis: int = 0) -> Tensor:
        by_step = (axis and name in varying) or name == "x"
        axes = ([1] * len(batch) if by_step else []) if name in shared else list(batch)
        axes += [axis] if by_step and axis else []
        return torch.randn(*axes, *own, generator=generator, dtype=torch.float64)

    def covariance(name: str, size: int, n_factors: int, axis: int = 0) -> Tensor:
        factor = table(name, size, n_factors, axis=axis)
        return factor @ factor.mT

    turn = table("transition", states, states, axis=steps - 1)
    x = table("x", steps, features)
    x[torch.rand(x.shape, generator=generator) < missing] = torch.nan
    unit = torch.eye(features, dtype=torch.float64)
    given = {
        "transition": turn / torch.linalg.matrix_norm(turn, 2)[..., None, None],
        "state_noise": covariance("state_noise", states, rank, steps - 1),
        "emission": table("emission", features, states, axis=steps),
        "observation_noise": covariance("observation_noise", features, features, steps) + 0.1 * unit,
        "initial_mean": table("initial_mean", states),
        "initial_covariance": covariance("initial_covariance", states, states),
        "transition_offset": table("transition_offset", states, axis=steps - 1),
        "emission_offset": table("emission_offset", features, axis=steps),
    }
    lengths = torch.randint(1 + steps // 2, steps + 1, batch, generator=generator) if ragged else None
    numbers = {name: t.to(dtype) for name, t in ({"x": x} | given).items()}
    return numbers | {"diffuse": torch.arange(states) >= states - diffuse, "lengths": lengths}


def tables_of(seed: int, **options: Any) -> Tables:
    given = arguments(seed, **options)
    return read(given.pop("x"), given).tables


def close(found: Tensor, expected: Tensor, rtol: float = 1e-10) -> None:
    assert found.dtype == expected.dtype
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    assert_close(found, expected.expand_as(found), rtol=rtol, atol=rtol * scale)


def agree(kernel: tuple[Tensor, ...], twin: tuple[Tensor, ...], rtol: float = 1e-10) -> None:
    assert torch.equal(kernel[-1], twin[-1])
    fine = kernel[-1] < 0
    if bool(fine.all()):
        for found, expected in zip(kernel[:-1], twin[:-1], strict=True):
            close(found, expected, rtol)


def widened(tables: Tables) -> Tables:
    """The same numbers in float64, for the twin."""
    return Tables(*(t.double() if t is not None and t.is_floating_point() else t for t in tables))


def tolerance(dtype: torch.dtype) -> float:
    return 1e-10 if dtype == torch.float64 else tolerances(dtype)["rtol"]


def gradients(tables: Tables, kernel: bool) -> dict[str, Tensor]:
    """Of the evidence; none if it has a fault."""
    wanted = {
        name: table.detach().requires_grad_()
        for name, table in tables._asdict().items()
        if table is not None and table.is_floating_point() and name != "directions"
    }
    given = tables._replace(**wanted)
    total, fault = op.evidence(*given) if kernel else plain.evidence(given)
    weights = torch.linspace(1.0, 2.0, max(1, total.numel()), dtype=total.dtype).view(total.shape)
    if bool((fault >= 0).any()):
        return {}
    found = torch.autograd.grad((total * weights).sum(), list(wanted.values()), allow_unused=True)
    return {
        name: torch.zeros_like(wanted[name]) if grad is None else grad for name, grad in zip(wanted, found, strict=True)
    }
