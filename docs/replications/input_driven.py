r"""Redraws of a minGRU are independent of the past: is the network too input driven, without dynamics of its own?

Networks learn to predict the next symbol of hidden Markov models. A state $s_t$ of K = 3 moves by a table A, and its
symbol is shown correctly with probability 0.9, in "hazy" chains with 0.6, otherwise another one. What is memory worth,
and which share of it does a network keep on sequences that it has not seen?

$$\text{kept} = \frac{L(\text{marginal } p(x)) - L(\text{network})}{L(\text{marginal } p(x)) - L(\text{exact filter})},
\qquad L = -\,\text{mean} \log p(x_{t+1} \mid x_{1..t}).$$

A network without any memory keeps what the present symbol says. "Past kept" is the same share with $p(x_{t+1} \mid
x_t)$ in place of the marginal, so that 0 is no memory.

    copies      the state stays with probability 0.9, and is drawn afresh with 0.1
    cycle       it advances by one with probability 0.9, and is drawn afresh with 0.1: the copy chain, turning
    left-right  it stays with 0.8 or advances; the last one stays with 0.9 or starts again
    random m    a random table for each seed, whose second eigenvalue has the modulus m: the greater, the slower A mixes

All seeds of a network on some chains are trained at once, as one stack of parameters. The rate of Adam falls to 0 as
a cosine up to the first budget, starts again, and falls to 0 up to the next.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from samplehold.inference.numerics.threads import one_thread_if_small
from samplehold.models.bridge.tokens import one_hot
from samplehold.models.networks.minimal import MinGRU, MinLSTM
from samplehold.models.networks.rotating import RotatingGRU
from samplehold.models.networks.wrapped import GRU, LSTM
from samplehold.models.studies.next_token import make_layer
from samplehold.models.studies.past_in_gates import past_in_gates
from samplehold.switching.dynamics.markov import Markov
from samplehold.switching.emissions.discrete import Categorical
from samplehold.switching.model import SwitchingSSM
from samplehold.switching.views.drawing import FAINT
from scipy.special import stdtrit
from study import Findings, Track, note_of
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

K, BATCH, LENGTH, RATE = 3, 16, 48, 1e-2
NETWORKS: dict[str, Any] = {"MinGRU": MinGRU, "MinLSTM": MinLSTM, "RotatingGRU": RotatingGRU, "GRU": GRU, "LSTM": LSTM}
COLORS = dict(zip(NETWORKS, ("#8c2981", "#fe9f6d", "#de4968", "#1f77b4", "#2ca02c"), strict=True))
Size = tuple[str, int, int]  # network, units, layers


# --- chains -----------------------------------------------------------------------------------------------------------


def redrawn(shift: int, seed: int) -> Tensor:
    """A: advance by `shift` with probability 0.9, otherwise draw afresh."""
    return 0.9 * torch.eye(K, dtype=torch.float64).roll(shift, 1) + 0.1 / K


def left_right(seed: int) -> Tensor:
    """A: stay or advance, and from the last state stay or start again."""
    return torch.tensor([[0.8, 0.2, 0], [0, 0.8, 0.2], [0.1, 0, 0.9]], dtype=torch.float64)


def random_table(modulus: float, seed: int) -> Tensor:
    """A: rows from a Dirichlet distribution and a little of the uniform one, the first table whose second eigenvalue
    has this modulus, up to 0.05."""
    generator, sizes = torch.Generator().manual_seed(seed), torch.full((K, K), 0.3, dtype=torch.float64)
    while True:
        rows = torch._standard_gamma(sizes, generator)  # pyright: ignore[reportPrivateImportUsage]
        table = 0.97 * rows / rows.sum(1, keepdim=True) + 0.03 / K
        if abs(abs(second_eigenvalue(table)) - modulus) < 0.05:
            return table


def second_eigenvalue(table: Tensor) -> complex:
    """The eigenvalue of greatest modulus after 1, with an angle from 0 to pi."""
    values = sorted(torch.linalg.eigvals(table).tolist(), key=lambda value: -abs(value))
    return complex(values[1].real, abs(values[1].imag))


CHAINS: dict[str, tuple[Callable[[int], Tensor], float]] = {  # A, and the probability of showing the state
    "copies": (partial(redrawn, 0), 0.9),
    "cycle": (partial(redrawn, 1), 0.9),
    "hazy copies": (partial(redrawn, 0), 0.6),
    "hazy cycle": (partial(redrawn, 1), 0.6),
    "left-right": (left_right, 0.9),
    "random 0.4": (partial(random_table, 0.4), 0.9),
    "random 0.6": (partial(random_table, 0.6), 0.9),
    "random 0.8": (partial(random_table, 0.8), 0.9),
}


def stationary(table: Tensor) -> Tensor:
    """pi with pi A = pi."""
    system = torch.cat([(table - torch.eye(K).to(table)).mT, torch.ones_like(table[:1])])
    return torch.linalg.lstsq(system, torch.eye(K + 1).to(table)[-1:].mT).solution[:, 0]


def chain_of(name: str, seed: int) -> SwitchingSSM:
    """The hidden Markov model, from its stationary distribution."""
    table_of, shown = CHAINS[name]
    table, other = table_of(seed), (1 - shown) / (K - 1)
    model, probs = SwitchingSSM(Markov(K), Categorical(K)), (shown - other) * torch.eye(K).to(table_of(seed)) + other
    return model.with_values(initial_probs=stationary(table), transition_probs=table, probs=probs)


def without_memory(model: SwitchingSSM) -> tuple[Tensor, Tensor]:
    """log p(x) [K] and log p(x_t+1 | x_t) [K, K]."""
    initial, table, probs = (model.values[name] for name in ("initial_probs", "transition_probs", "probs"))
    joint = probs.mT @ (initial.unsqueeze(-1) * table) @ probs
    return joint.sum(0).log(), (joint / joint.sum(1, keepdim=True)).log()


# --- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How much is trained and judged."""

    seeds: int
    pool: int  # sequences to train on
    judged: tuple[int, int]  # sequences, and their steps
    sizes: tuple[Size, ...]
    budgets: dict[tuple[str, ...], tuple[int, ...]]  # updates after which networks are judged, by chains

    @property
    def common(self) -> int:
        """The largest budget of all chains."""
        return min(max(budgets) for budgets in self.budgets.values())


SIZES: tuple[Size, ...] = (
    *((name, 16, 1) for name in NETWORKS), ("MinGRU", 16, 2), ("MinGRU", 16, 4),
    *((name, 64, 1) for name in NETWORKS), ("MinGRU", 64, 2), ("MinGRU", 64, 4),
)  # fmt: skip
PAIR, OTHERS = ("copies", "cycle"), tuple(name for name in CHAINS if name not in ("copies", "cycle"))
FULL = Plan(5, 4096, (256, 256), SIZES, {PAIR: (400, 1200, 4800), OTHERS: (400, 1200)})
QUICK = Plan(1, 512, (64, 128), (("MinGRU", 16, 2), ("RotatingGRU", 16, 1)), {PAIR: (30, 90)})


class Predictor(nn.Module):
    """A layer and a linear head: log p(x_t+1 | x_1..t) of all symbols."""

    def __init__(self, size: Size, seed: int) -> None:
        super().__init__()
        name, units, layers = size
        self.layer: nn.Module = make_layer(lambda n, d: NETWORKS[name](n, d, num_layers=layers), K, units, seed)
        self.head: nn.Module = make_layer(nn.Linear, units, K, seed)  # pyright: ignore

    def forward(self, x: Tensor) -> Tensor:
        """From symbols [*b, T, K]."""
        return self.head(self.layer(x)[0]).log_softmax(-1)


@dataclass(frozen=True)
class Member:
    """A chain of a seed, with sequences to train on and to judge."""

    chain: str
    seed: int
    train: Tensor  # symbols, one-hot [N, T, K]
    test: Tensor
    exact: float  # mean log p of the judged symbols but the first
    marginal: float
    present: float  # of p(x_t+1 | x_t)

    def row(self, log_prob: float) -> dict[str, Any]:
        """What a network keeps."""
        eigenvalue = second_eigenvalue(CHAINS[self.chain][0](self.seed))
        worth, past = self.exact - self.marginal, self.exact - self.present
        return {
            "chain": self.chain, "seed": self.seed, "eigenvalue": abs(eigenvalue),
            "angle": math.atan2(eigenvalue.imag, eigenvalue.real), "worth": worth,
            "of the past": past, "kept": (log_prob - self.marginal) / worth,
            "past kept": (log_prob - self.present) / past,
        }  # fmt: skip


def member(chain: str, seed: int, plan: Plan) -> Member:
    """Sequences of a chain, and the log probabilities of its exact filter and of references without a past."""
    model = chain_of(chain, seed)
    train, test = model.simulate(LENGTH, (plan.pool,), seed=2 * seed).x, model.simulate(
        plan.judged[1], (plan.judged[0],), seed=2 * seed + 1
    ).x  # fmt: skip
    symbols = one_hot(test[..., 0].long(), K, dtype=torch.float32)
    marginal, present = without_memory(model)
    known, following = symbols[:, :-1].double(), symbols[:, 1:].double()
    return Member(
        chain, seed, one_hot(train[..., 0].long(), K, dtype=torch.float32), symbols,
        exact=float(model.filter(test).log_increment[:, 1:].mean()), marginal=float((following @ marginal).mean()),
        present=float(((known @ present) * following).sum(-1).mean()),
    )  # fmt: skip


def predictions(network: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """Mean log p of the next symbols, one number for each member [M], from x [M, N, T, K]."""
    log_probs = vmap(lambda p, rows: functional_call(network, p, (rows,)))(parameters, x[..., :-1, :])
    return (log_probs * x[..., 1:, :]).sum(-1).mean((-1, -2))


def trained(size: Size, members: list[Member], budgets: tuple[int, ...]) -> tuple[list[list[float]], Any]:
    """The mean log p of judged symbols for each budget and member; and the stack (network, parameters)."""
    networks = [Predictor(size, one.seed) for one in members]
    parameters = {name: value.detach().requires_grad_() for name, value in stack_module_state(networks)[0].items()}
    optimizer = torch.optim.Adam(list(parameters.values()), RATE)
    pool, random, judged = torch.stack([one.train for one in members]), torch.Generator().manual_seed(0), []
    for start, end in pairwise((0, *budgets)):
        for update in range(end - start):
            optimizer.param_groups[0]["lr"] = RATE * (1 + math.cos(math.pi * update / (end - start))) / 2
            rows = torch.randint(pool.shape[1], (BATCH,), generator=random)
            optimizer.zero_grad()
            (-predictions(networks[0], parameters, pool[:, rows])).sum().backward()
            optimizer.step()
        with torch.no_grad():
            judged.append([score(networks[0], parameters, k, one) for k, one in enumerate(members)])
    return judged, (networks[0], parameters)


def score(network: nn.Module, parameters: dict[str, Tensor], k: int, one: Member) -> float:
    """Mean log p of the judged symbols of member k."""
    of_member = {name: value[k : k + 1] for name, value in parameters.items()}
    return float(predictions(network, of_member, one.test.unsqueeze(0)))


# --- the study --------------------------------------------------------------------------------------------------------


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """What networks keep of each chain, for each seed and as means; and the past in the gates of two layers."""
    plan, rows, gates = QUICK if scale == "quick" else FULL, [], []
    seeds = tuple(range(seed, seed + plan.seeds))
    with one_thread_if_small(0):
        members = [member(chain, number, plan) for chains in plan.budgets for chain in chains for number in seeds]
        for size, chains in track(list(product(plan.sizes, plan.budgets)), "networks in training"):
            chosen, budgets = [one for one in members if one.chain in chains], plan.budgets[chains]
            judged, stack = trained(size, chosen, budgets)
            about = dict(zip(("network", "units", "layers"), size, strict=True))
            rows += [
                about | {"updates": budget} | one.row(log_prob)
                for budget, scores in zip(budgets, judged, strict=True)
                for one, log_prob in zip(chosen, scores, strict=True)
            ]
            if size[0] == "MinGRU" and size[2] > 1:
                gates += [about | row for k, one in enumerate(chosen) for row in past_of(stack, k, one)]
    kept = pd.DataFrame(rows)
    tables = {"input_driven_kept": kept, "input_driven_means": means(kept), "input_driven_gates": pd.DataFrame(gates)}
    figures = {"input_driven": drawn(kept, plan.common)}
    return Findings(tables, figures, seeds, note_of(scale))


def past_of(stack: Any, k: int, one: Member) -> list[dict[str, Any]]:
    """For each layer of member k the mean over units of what coins know of the past, and of their entropies, nats."""
    network, parameters = stack
    network.load_state_dict({name: value[k].detach() for name, value in parameters.items()})
    return [
        {"chain": one.chain, "seed": one.seed, "layer": number, "past": float(layer.information.mean()),
         "greatest": float(layer.information.max()), "entropy": float(layer.entropy.mean())}
        for number, layer in enumerate(past_in_gates(network.layer, one.test[:64]), 1)
    ]  # fmt: skip


def means(kept: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, and half the width of 95 % intervals of the means by Student's t."""
    groups: Any = kept.groupby(["network", "units", "layers", "chain", "updates"], sort=False)[["kept", "past kept"]]
    student = groups.size().map(lambda n: stdtrit(n - 1, 0.975) if n > 1 else math.nan)
    half = groups.sem().mul(student, axis=0).add_suffix(" +-")
    return pd.concat([groups.mean(), half], axis=1).reset_index()


def drawn(kept: pd.DataFrame, updates: int) -> Figure:
    """What is kept of the past after these updates in copies and cycle by each network, and in all chains by the angle
    of their eigenvalue."""
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = [row for row in kept.to_dict("records") if row["updates"] == updates]
    order = list(dict.fromkeys(name_of(row) for row in rows))
    for chain, color, shift in (("copies", "#1f77b4", -0.12), ("cycle", "#de4968", 0.12)):
        some = [row for row in rows if row["chain"] == chain]
        shares, at = [100 * row["past kept"] for row in some], [order.index(name_of(row)) + shift for row in some]
        left.plot(shares, at, "o", color=color, markersize=4, alpha=0.7, label=chain)
    left.set_yticks(range(len(order)), order)
    left.invert_yaxis()
    left.axvline(100, color=FAINT, linewidth=0.8)
    left.set(xlabel="kept of what the past says beyond the present symbol, %")
    for name, color in COLORS.items():
        some = [row for row in rows if (row["network"], row["units"], row["layers"]) == (name, 16, 1)]
        angles, shares = [math.degrees(row["angle"]) for row in some], [100 * row["past kept"] for row in some]
        right.plot(angles, shares, "o", color=color, markersize=4, alpha=0.7, label=name if some else None)
    right.axhline(100, color=FAINT, linewidth=0.8)
    right.set(xlabel="angle of the second eigenvalue, degrees", ylabel="kept, %", xticks=range(0, 181, 30))
    for panel in (left, right):
        panel.legend(frameon=False, fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def name_of(row: dict[Any, Any]) -> str:
    """Network, layers and units."""
    return f"{row['network']}, {row['layers']} x {row['units']}"


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "input-driven", *sys.argv[1:]])
