"""Is one matrix on [x, h] faster than one on x and one on h?

A step of an LSTM or an Elman network is the same either way (`to_joined`, `from_joined`); a GRU resets U h before it is
added, and has to keep two. With two matrices, the product with all inputs of a sequence can come first, as in
`torch.nn.LSTM`. Timed on one thread: a whole sequence, forward, without gradients.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from samplehold.models.networks.layouts import from_torch, to_joined
from samplehold.models.networks.wrapped import LSTM, Elman
from samplehold.models.studies.next_token import make_layer
from study import Findings, Track
from torch import Tensor
from torch.nn.functional import linear

SIZES = ((1, 64), (16, 64), (16, 256), (128, 256))  # sequences, and units
STEPS, TIMES = 200, 5
KINDS: dict[str, type[LSTM | Elman]] = {"LSTM": LSTM, "Elman": Elman}


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """Times of the three forms, and by how much their last states differ in units of roundoff."""
    sizes = SIZES[:3] if scale == "quick" else SIZES
    rows, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for batch, units in track(sizes, "sizes"):
            for kind, make in KINDS.items():
                layer = make_layer(make, units, units, seed)
                x = torch.randn(STEPS, batch, units, generator=torch.Generator().manual_seed(seed))
                rows.append({"network": kind, "sequences": batch, "units": units} | _timed(layer, x))
    finally:
        torch.set_num_threads(threads)
    return Findings({"joined": pd.DataFrame(rows)}, seeds=(seed,))


def forms(layer: Any, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The last hidden state [B, H] of x [T, B, I], from one matrix, from two, and from two of which one came before."""
    weights, like = from_torch(layer), next(layer.parameters()).detach()
    kernel, bias, W, U = (
        torch.from_numpy(table).to(like) for table in (*to_joined(weights), weights.input, weights.hidden)
    )
    K = kernel.T.contiguous()

    def over(gates: Callable[[Tensor, Tensor], Tensor], rows: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[1], len(U[0]))
        for row in rows.unbind():
            h, c = _step(gates(row, h), c)
        return h

    return {
        "one matrix": lambda: over(lambda row, h: linear(torch.cat([row, h], -1), K, bias), x),
        "two matrices": lambda: over(lambda row, h: linear(row, W, bias) + linear(h, U), x),
        "inputs first": lambda: over(lambda row, h: torch.addmm(row, h, U.T), linear(x, W, bias)),
    }


def _step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    if gates.shape[-1] == c.shape[-1]:
        return gates.tanh(), c
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@torch.no_grad()
def _timed(layer: Any, x: Tensor) -> dict[str, float]:
    """Milliseconds of each form, the least of several runs that take turns, and the greatest difference."""
    run, least, ends = forms(layer, x), {}, {}
    for _ in range(TIMES):
        for name, form in run.items():
            begun = time.perf_counter()
            ends[name] = form()
            taken = 1e3 * (time.perf_counter() - begun)
            least[f"{name}, ms"] = min(taken, least.get(f"{name}, ms", taken))
    apart = max(float((end - ends["one matrix"]).abs().max()) for end in ends.values())
    return least | {"apart, roundoffs": apart / torch.finfo(x.dtype).eps}


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "joined", *sys.argv[1:]])
