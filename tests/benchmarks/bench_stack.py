"""Stack networks against straightforward implementations of the same equations, forward and backward.

`python tests/benchmarks/bench_stack.py [--long]` prints a markdown table. Runs use one thread, batch 10, an LSTM-20
controller and 12 inputs, in float32. The pushdown peers use float64, because their sums over real weights overflow
float32. Layer and peer run in turn, and the table shows the least time of each. `--long` adds the cost of the layers up
to n = 640 and its exponent.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from samplehold.face.stacks import NondeterministicStackRNN, StratificationStackRNN, SuperpositionStackRNN
from torch import Tensor, nn
from torch.nn.functional import pad

BATCH, INPUTS, HIDDEN, WIDTH = 10, 12, 20, 10
ZERO = -1e30  # the log-semiring's zero; -inf would make the gradient of logsumexp NaN


class Peer(nn.Module):
    """LSTM cell and linear map as in the layers; `update(stack, raw)` is the textbook's."""

    def __init__(self, reading: int, raw: int, update: Callable[[Any, Tensor], tuple[Any, Tensor]]):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(INPUTS + reading, HIDDEN), nn.Linear(HIDDEN, raw)
        self.update, self.first = update, torch.zeros(reading)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), HIDDEN)
        stack, r, outputs = None, self.first.expand(len(x), -1), []
        for t in range(x.shape[1]):
            h, c = self.cell(torch.cat([x[:, t], r], -1), (h, c))
            stack, r = self.update(stack, self.head(h))
            outputs.append(h)
        return torch.stack(outputs, 1)


def superposition(n: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """A stack of full size, three shifted copies of it, one einsum."""

    def update(stack: Tensor | None, raw: Tensor) -> tuple[Tensor, Tensor]:
        if stack is None:
            stack = raw.new_zeros(len(raw), n, WIDTH)
        pushed = torch.cat([raw[:, 3:].sigmoid()[:, None], stack[:, :-1]], 1)
        popped = torch.cat([stack[:, 1:], torch.zeros_like(stack[:, :1])], 1)
        stack = torch.einsum("ba,abij->bij", raw[:, :3].softmax(-1), torch.stack([pushed, popped, stack]))
        return stack, stack[:, 0]

    return update


def stratification(n: int) -> Callable[..., tuple[list[tuple[Tensor, Tensor]], Tensor]]:
    """Layer by layer from the top, as the equations are written."""

    def update(stack: list[tuple[Tensor, Tensor]] | None, raw: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        pour, drain, value = raw[:, 0].sigmoid(), raw[:, 1].sigmoid(), raw[:, 2:].tanh()
        kept = [(pour, value)]
        for strength, v in stack or []:  # from the top
            kept.append(((strength - drain.relu()).relu(), v))
            drain = drain - strength
        room, reading = torch.ones_like(pour), torch.zeros_like(value)
        for strength, v in kept:
            reading = reading + torch.minimum(strength, room.relu())[:, None] * v
            room = room - strength
        return kept, reading

    return update


def contract(equation: str, a: Tensor, b: Tensor, log: bool) -> Tensor:
    """`torch.einsum`, or the same in the log semiring: lay out all products, then logsumexp."""
    if not log:
        return torch.einsum(equation, a, b)
    (left, right), out = equation.split("->")[0].split(","), equation.split("->")[1]
    summed = sorted(set(left + right) - set(out))
    names = [*out, *summed]

    def lay(x: Tensor, own: str) -> Tensor:
        x = x.permute([own.index(name) for name in names if name in own])
        return x[tuple(slice(None) if name in own else None for name in names)]

    return torch.logsumexp(lay(a, left) + lay(b, right), tuple(range(len(out), len(names))))


def pushdown(Q: int, G: int, width: int, log: bool) -> Callable[..., tuple[dict[str, list[Tensor]], Tensor]]:
    """DuSell and Chiang's gamma[i -> j][a -> r y] and alpha[j][r y], a column j at a step; i = -1 is the bottom.

    With `width` > 0 the pushed vectors are carried through the same recursion (real weights only).
    """
    K = Q * G
    zero = ZERO if log else 0.0

    def update(tables: dict[str, list[Tensor]] | None, raw: Tensor) -> tuple[dict[str, list[Tensor]], Tensor]:
        B, raw = len(raw), raw.double()
        weights = raw[:, : raw.shape[1] - width].view(B, Q, G, -1)
        weights = weights.log_softmax(-1) if width else weights
        push, replace, pop = (weights if log else weights.exp()).split([K, K, Q], -1)
        push, replace = push.reshape(B, 1, K, Q, G), replace.view(B, Q, G, Q, G)
        value = raw[:, raw.shape[1] - width :].sigmoid()
        if tables is None:
            first = torch.full((B, 1, K, Q, G), zero, dtype=raw.dtype)
            first[:, 0, 0, 0, 0] = 0.0 if log else 1.0
            alpha = first[:, 0, 0].flatten(1)
            tables = {
                "gamma": [first],
                "alpha": [alpha, alpha],
                "zeta": [first[..., None] * 0.5 * value.new_ones(width)],
            }
        gamma, zeta = tables["gamma"], tables["zeta"]
        j = len(gamma)  # columns 0..j-1 are there; column j has the rows i = -1..j-1

        def stacked(columns: list[Tensor]) -> Tensor:  # gamma[i -> k] for k = 0..j-2, all with j rows
            rows = [pad(c, [0, 0] * (c.dim() - 2) + [0, j - c.shape[1]], value=zero) for c in columns[: j - 1]]
            return torch.stack(rows, 2)

        column = contract("biaqx,bqxry->biary", gamma[-1], replace, log)
        vectors = torch.einsum("biaqxv,bqxry->biaryv", zeta[-1], replace) if width else None
        if j > 1:
            closed = contract("bkaqx,bqxr->bkar", gamma[-1][:, 1:], pop, log).unflatten(2, (Q, G))
            nested = contract("bikauy,bkuyr->biary", stacked(gamma), closed, log)
            column = torch.logaddexp(column, nested) if log else column + nested
            if width:
                vectors = vectors + torch.einsum("bikauyv,bkuyr->biaryv", stacked(zeta), closed)
        gamma = [*gamma, torch.cat([column, push], 1)]
        alphas = torch.stack(tables["alpha"], 1)
        alpha = contract("bia,biary->bry", alphas, gamma[-1], log).flatten(1)
        if width:
            zeta = [*zeta, torch.cat([vectors, push[..., None] * value[:, None, None, None, None]], 1)]
            reading = torch.einsum("bia,biaryv->bryv", alphas, zeta[-1]).flatten(1) / alpha.sum(-1, keepdim=True)
        else:
            reading = alpha.softmax(-1) if log else alpha / alpha.sum(-1, keepdim=True)
        return {"gamma": gamma, "alpha": [*tables["alpha"], alpha], "zeta": zeta}, reading.to(torch.float32)

    return update


def cases(n: int) -> Iterator[tuple[str, nn.Module, dict[str, nn.Module]]]:
    """Name, layer, peers."""

    def automaton(Q: int, G: int, width: int) -> dict[str, nn.Module]:
        K = Q * G
        reading, raw = K * max(1, width), K * (2 * K + Q) + width
        logs = (False,) if width else (False, True)
        return {"log-space" if log else "real einsum": Peer(reading, raw, pushdown(Q, G, width, log)) for log in logs}

    def nondeterministic(*sizes: int, normalized: bool = False) -> nn.Module:
        return NondeterministicStackRNN(INPUTS, HIDDEN, *sizes, normalized=normalized, stacks=1)

    yield (
        "superposition", SuperpositionStackRNN(INPUTS, HIDDEN, WIDTH, stacks=1),
        {"einsum": Peer(WIDTH, 3 + WIDTH, superposition(n))},
    )  # fmt: skip
    yield (
        "stratification", StratificationStackRNN(INPUTS, HIDDEN, WIDTH, stacks=1),
        {"textbook loop": Peer(WIDTH, 2 + WIDTH, stratification(n))},
    )  # fmt: skip
    yield "vector NS 1-1-5", nondeterministic(1, 1, 5, normalized=True), automaton(1, 1, 5)
    yield "RNS 1-3", nondeterministic(1, 3), automaton(1, 3, 0)
    yield "RNS 2-3", nondeterministic(2, 3), automaton(2, 3, 0)


def seconds(network: nn.Module, x: Tensor) -> float:
    """One forward and backward pass."""
    network.zero_grad()
    begun = time.process_time()  # one thread: what other programs do to the machine matters less than on the wall clock
    out = network(x)
    (out if isinstance(out, Tensor) else out[0]).square().sum().backward()
    return time.process_time() - begun


def same_weights(layer: nn.Module, peer: nn.Module) -> None:
    """Copy the controller and the map to actions, so that both compute the same numbers."""
    with torch.no_grad():
        for mine, other in zip(layer.controller.parameters(), peer.cell.parameters(), strict=True):
            other.copy_(mine)
        peer.first = layer._started(None, torch.zeros(1, INPUTS)).reading[0].detach()
        peer.head.weight.copy_(layer.to_actions.weight)
        peer.head.bias.copy_(layer.to_actions.bias)


def compare(n: int, repeats: int) -> Iterator[tuple[str, str, float, float, float]]:
    """Name, peer, layer's seconds, peer's seconds, largest difference of their outputs."""
    x = torch.randn(BATCH, n, INPUTS, generator=torch.Generator().manual_seed(0))
    for name, layer, peers in cases(n):
        for kind, peer in peers.items():
            same_weights(layer, peer)
            with torch.no_grad():
                gap = float((layer(x)[0] - peer(x)).abs().max())
            times = [(seconds(layer, x), seconds(peer, x)) for _ in range(repeats)]
            mine, other = (min(column[1:]) for column in zip(*times, strict=True))
            yield name, kind, mine, other, gap


def growth(lengths: tuple[int, ...]) -> Iterator[tuple[str, list[float], float]]:
    """Seconds of each layer by length, and the exponent fitted to the last three."""
    x = torch.randn(BATCH, max(lengths), INPUTS, generator=torch.Generator().manual_seed(0))
    for name, layer, _ in cases(1):
        taken = [min(seconds(layer, x[:, :n]) for _ in range(3 if n < 300 else 1)) for n in lengths]
        yield name, taken, float(np.polyfit(np.log(lengths[-3:]), np.log(taken[-3:]), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="also the cost up to n = 640")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--repeats", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| forward + backward, n={options.steps}, batch {BATCH} | ms | peer | peer ms | ratio | difference |")
    print("|---|---|---|---|---|---|")
    for name, kind, mine, other, gap in compare(options.steps, options.repeats):
        print(
            f"| {name} | {mine * 1e3:.1f} | {kind} | {other * 1e3:.1f} | {other / mine:.1f}x | {gap:.0e} |", flush=True
        )
    if options.long:
        lengths = (40, 80, 160, 320, 640)
        print(f"\n| seconds by n | {' | '.join(map(str, lengths))} | exponent |")
        print(f"|---{'|---' * len(lengths)}|---|")
        for name, taken, exponent in growth(lengths):
            print(f"| {name} | {' | '.join(f'{t:.3f}' for t in taken)} | {exponent:.1f} |", flush=True)


if __name__ == "__main__":
    main()
