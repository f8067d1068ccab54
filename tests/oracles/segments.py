"""Chains of segments for tests: random blocks of every family, ragged batches, the Nile."""

import csv
import math
from pathlib import Path

import torch
from samplehold.face.chains import Block, SegmentChain
from samplehold.inference.families import Beta, Dirichlet, Gamma, MatrixNormalWishart, NormalGamma, NormalWishart
from torch import Tensor

NILE = Path(__file__).parents[2] / "notebooks" / "data" / "nile.csv"


def block_of(kind: str, n_steps: int, seed: int, n_features: int = 2, scale: float = 3.0) -> tuple[Block, Tensor]:
    """A block and log_base [T] of random data with a change in the middle."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n_steps, n_features, generator=generator, dtype=torch.float64)
    x = noise + scale * (torch.arange(n_steps) >= n_steps // 2).double().unsqueeze(-1)
    one, rates = torch.ones_like(x), x.abs() + 0.1
    full = lambda value: torch.full((n_features,), value, dtype=torch.float64)
    zero = torch.zeros(n_steps, dtype=torch.float64)
    match kind:
        case "normal":
            statistics = torch.stack([x, -one / 2, one / 2, -x.square() / 2], -1)
            prior = NormalGamma().natural(full(0.3), full(0.5), full(1.5), full(2.0))
            return Block(NormalGamma(), prior, statistics), zero - n_features * math.log(2 * math.pi) / 2
        case "poisson":
            counts = torch.poisson(3 * rates, generator)
            base = -torch.lgamma(counts + 1).sum(-1)
            return Block(Gamma(), Gamma().natural(full(1.2), full(0.7)), torch.stack([counts, -one], -1)), base
        case "exponential":
            return Block(Gamma(), Gamma().natural(full(2.0), full(0.7)), torch.stack([one, -rates], -1)), zero
        case "bernoulli":
            heads = (x > 1).double()
            return Block(Beta(), Beta().natural(full(1.0), full(0.5)), torch.stack([heads, 1 - heads], -1)), zero
        case "categorical":
            symbols = torch.nn.functional.one_hot(x.round().clamp(0, 3).long(), 4).double()
            prior = torch.tensor([[1.0, 0.5, 2.0, 0.1]], dtype=torch.float64).expand(n_features, 4)
            return Block(Dirichlet(), prior, symbols), zero
        case "multivariate":
            outer = (x[:, :, None] * x[:, None, :]).flatten(1)
            half = one[:, :1] / 2
            statistics = torch.cat([x, -half, half, -outer / 2], -1).unsqueeze(1)
            eye = torch.eye(n_features, dtype=torch.float64)
            prior = NormalWishart().natural(full(0.1), full(0.4)[0], full(n_features + 1.0)[0], eye / 2)
            return Block(NormalWishart(), prior.unsqueeze(0), statistics), zero - n_features * math.log(2 * math.pi) / 2
        case _:
            design = torch.stack([one[:, 0], noise[:, 0]], -1)
            y = x[:, 1:]
            square = (design[:, :, None] * design[:, None, :]).flatten(1)
            half = one[:, :1] / 2
            statistics = torch.cat([design * y, -square / 2, half, -y.square() / 2], -1).unsqueeze(1)
            eye = torch.eye(2, dtype=torch.float64)
            family, one_by_one = MatrixNormalWishart(2), torch.ones(1, 1, dtype=torch.float64)
            prior = family.natural(torch.zeros(2, 1, dtype=torch.float64), eye / 3, full(3.0)[0], one_by_one)
            return Block(family, prior.unsqueeze(0), statistics), zero - math.log(2 * math.pi) / 2


def hazards(by: str, n_steps: int, seed: int) -> Tensor:
    size = n_steps if by == "step" else 3
    return 0.02 + 0.9 * torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def nile() -> SegmentChain:
    """NormalGamma(m=900, k=.1, a=2, b=2*120^2), P(change) .02, about 900."""
    with NILE.open() as file:
        x = torch.tensor([float(row["volume"]) for row in csv.DictReader(file)], dtype=torch.float64) - 900
    half = torch.full_like(x, 0.5)
    number = lambda value: torch.tensor([value], dtype=torch.float64)
    prior = NormalGamma().natural(number(0.0), number(0.1), number(2.0), number(2 * 120.0**2))
    block = Block(NormalGamma(), prior, torch.stack([x, -half, half, -x.square() / 2], -1).unsqueeze(-2))
    return SegmentChain(block, number(0.02).log(), torch.full_like(x, -math.log(2 * math.pi) / 2))


def ragged(kind: str = "normal", tol: float = 0.0, by: str = "step") -> tuple[SegmentChain, list[SegmentChain]]:
    """Four sequences of different lengths, and each by itself; some observations are missing."""
    parts = [block_of(kind, 30, seed) for seed in range(4)]
    lengths = torch.tensor([[30, 17], [1, 24]])
    seen = torch.rand(4, 30, generator=torch.Generator().manual_seed(0)) < 0.8
    statistics = torch.stack([part.statistics for part, _ in parts]) * seen[..., None, None]
    base = torch.stack([base for _, base in parts]) * seen
    hazard = torch.stack([hazards(by, 30, seed) for seed in range(4)]).log() - 1
    statistics, base, hazard = (table.unflatten(0, (2, 2)) for table in (statistics, base, hazard))
    beyond = torch.arange(30) >= lengths.unsqueeze(-1)
    statistics = statistics.masked_fill(beyond[..., None, None], torch.nan)
    family, prior = parts[0][0].family, parts[0][0].prior
    alone = []
    for place, n in zip(((0, 0), (0, 1), (1, 0), (1, 1)), lengths.flatten().tolist(), strict=True):
        own = hazard[place][:n] if by == "step" else hazard[place]
        alone.append(SegmentChain(Block(family, prior, statistics[place][:n]), own, base[place][:n], by, tol=tol))
    return SegmentChain(Block(family, prior, statistics), hazard, base, by, lengths, tol), alone
