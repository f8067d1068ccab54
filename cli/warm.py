"""`samplehold warm`: the usual kernels, compiled ahead, for containers and for continuous integration.

Every kind of work is done once on a small series by kernels alone. numba keeps the machine code on disk, where the next
process finds it: beside the package, or in the folder that the environment variable `NUMBA_CACHE_DIR` names.
"""

import time
from collections.abc import Callable

import torch
from rich.console import Console

from ..inference.numerics.costs import kernels
from ..models.networks.minimal import MinGRU
from ..switching.dynamics.copy import Copy
from ..switching.dynamics.markov import Markov
from ..switching.emissions.multivariate_normal import MultivariateNormal
from ..switching.emissions.normal import Normal
from ..switching.linear.model import LinearSSM
from ..switching.linear.structures import LocalLevel
from ..switching.model import SwitchingSSM
from ..switching.slds.model import SwitchingLinearSSM

STEPS = 40


def _series() -> torch.Tensor:
    """Two levels and noise, [STEPS, 1]."""
    generator = torch.Generator().manual_seed(0)
    levels = torch.tensor([0.0, 3.0], dtype=torch.float64, device="cpu").repeat_interleave(STEPS // 2).unsqueeze(-1)
    return levels + torch.randn(STEPS, 1, generator=generator, dtype=torch.float64, device="cpu")


def _query(model: SwitchingSSM | LinearSSM | SwitchingLinearSSM, x: torch.Tensor) -> None:
    model.filter(x)
    model.smooth(x)
    model.sample_posterior(x, 2, seed=0)
    model.forecast(x, 2)


def _switching() -> None:
    x, short = _series(), {"restarts": 2, "max_steps": 3, "progress": False}
    for dynamics in Copy, Markov:
        for method, emission in (("em", Normal(1)), ("vmp", Normal(1)), ("vmp", MultivariateNormal(1))):
            model = SwitchingSSM(dynamics(2), emission).fit(x, method=method, **short).model
            _query(model, x)
            model.viterbi(x)


def _linear() -> None:
    x = _series()
    model = LinearSSM(LocalLevel()).fit(x, progress=False).model
    _query(model, x)


def _switching_linear() -> None:
    x = _series()
    model = SwitchingLinearSSM(2, 1).fit(x, restarts=2, max_steps=3, progress=False).model
    _query(model, x)


def _networks() -> None:
    for dtype in torch.float32, torch.float64:
        layer = MinGRU(1, 4).to(dtype)
        layer(_series().to(dtype).unsqueeze(0))[0].sum().backward()


WORK: dict[str, Callable[[], None]] = {
    "switching": _switching,
    "linear": _linear,
    "switching-linear": _switching_linear,
    "networks": _networks,
}


def check_work(names: list[str]) -> list[str]:
    """The kinds of work with these names, all if there are none; ValueError for an unknown name."""
    for name in names:
        if name not in WORK:
            raise ValueError(f"work: got {name!r}, expected some of {', '.join(WORK)}.")
    return list(dict.fromkeys(names)) or list(WORK)


def warm(names: list[str], console: Console) -> None:
    """Compile the kernels of some kinds of work; a line for each says how long it took."""
    with kernels("always"):
        for name in names:
            begun = time.perf_counter()
            WORK[name]()
            console.print(f"{name}: {time.perf_counter() - begun:.1f} s", highlight=False)
