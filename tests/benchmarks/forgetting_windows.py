"""How many observations the windows of exact filters are certified to need, and how many they do need.

`python tests/benchmarks/forgetting_windows.py [steps]` simulates one series of each of the models in
`tests/models/test_forgetting.py`, and of one that seldom redraws, and prints mean windows: from products of what is
held, from `forgetting`, the least that serve where all before them was one observation, whichever it is, and the least
that serve this series.
"""

import sys
from itertools import accumulate
from pathlib import Path

import torch
from samplehold import Copy, Normal, SwitchingSSM
from samplehold.face.studies import forgetting

sys.path.append(str(Path(__file__).parents[1] / "models"))

from test_forgetting import copy_model, least_windows, weights, windowed


def product_windows(model: SwitchingSSM, x: torch.Tensor, tol: float) -> torch.Tensor:
    """The least windows over which the greatest probabilities of a hold, given the window, multiply to `tol`."""
    held, fresh = weights(model, x)
    window = torch.arange(1, len(x) + 1)
    for t in range(len(x)):

        def earlier(now: tuple[torch.Tensor, torch.Tensor], k: int) -> tuple[torch.Tensor, torch.Tensor]:
            bound, b = now
            kept, drawn = held[k] * b, (fresh[k] * b).sum()
            before = kept + drawn
            return bound * (kept / before).max(), before / before.max()

        start = torch.ones((), dtype=x.dtype), torch.ones_like(held[0])
        bounds = torch.stack([bound for bound, _ in accumulate(range(t, 0, -1), earlier, initial=start)])
        short = (bounds <= tol).nonzero()
        window[t] = short[0, 0] if len(short) else t + 1
    return window


def least(model: SwitchingSSM, x: torch.Tensor, tol: float, values: list[float]) -> list[torch.Tensor]:
    """The least windows where all before them was any one of the values, and for x alone."""
    pasts = torch.stack([model.filter(torch.full((1000, 1), value).to(x)).state[-1] for value in values])
    return [least_windows(windowed(model, x, carried), tol) for carried in (pasts, None)]


def main(steps: int = 400) -> None:
    torch.set_num_threads(1)
    seldom = SwitchingSSM(Copy(2), Normal(1)).with_values(
        redraw_prob=0.005, state_probs=[0.5, 0.5], loc=[[-1.0], [1.0]], scale=[[1.0], [1.0]]
    )
    models = {kind: copy_model(kind, 0.05, torch.Generator().manual_seed(1)) for kind in ("normal", "held", "gated")}
    print("| model | tol | product of holds | certified | least, any past | least, this past |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, model in (models | {"normal, apart, redraws 0.005": seldom}).items():
        x = model.simulate(steps, seed=1).x
        values = [-8.0, 0.0, 8.0] if "normal" in name else [0.0, 1.0, 2.0, 3.0]
        for tol in (0.1, 1e-2, 1e-3):
            found = [product_windows(model, x, tol), forgetting(model, x, tol).window, *least(model, x, tol, values)]
            print(
                f"| {name} | {tol:g} | {' | '.join(f'{window.double().mean():.1f}' for window in found)} |", flush=True
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
