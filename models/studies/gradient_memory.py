r"""How far back the gradient of a network's state reaches, and the belief of a model that it has held so long.

The state of a gated layer is $h_t = (1 - g_t) \odot h_{t-1} + g_t \odot v_t$, and its gates and candidates read the
inputs alone. So for given inputs the Jacobian over n steps is diagonal:

$$\frac{\partial h_t}{\partial h_{t-n}} = \mathrm{diag} \prod_{k=t-n+1}^{t} (1 - g_k), \qquad
\prod_{k=t-n+1}^{t} (1 - g_k) = P(z_{t-n+1} = \dots = z_t = 0 \mid x_{1..t}).$$

The right side is the posterior probability, in the model of the layer (`as_ssm`), that the unit's chain has redrawn
nothing in the last n steps. It is in [0, 1] for any weights, so within a layer no gradient explodes.

A stack of gated layers has a block triangular Jacobian, since no lower layer reads a higher one. Its Lyapunov exponents
are those of its diagonal blocks, so none is positive. The blocks beside the diagonal are sums of n products, so a norm
grows at most with a power of n: in two layers, with $M_k = \partial h^{(2)}_k / \partial h^{(1)}_k$,

$$\Big\| \frac{\partial (h^{(1)}_t, h^{(2)}_t)}{\partial (h^{(1)}_{t-n}, h^{(2)}_{t-n})} \Big\| \le
1 + n \max_k \|M_k\|.$$

The gates of a GRU, an LSTM, and an Elman network's state read the state. Their Jacobians are products of full matrices,
computed step by step with a renormalised product, so that no number underflows.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.func import jacrev, vmap

from ...inference.numerics.checks import check_integers
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_kind
from ...inference.numerics.threads import one_thread_if_small
from ...switching.views.drawing import FAINT, INK, NotebookFigure
from ..bridge.lifting import check_liftable
from ..bridge.lifting_given import lift_given
from ..networks.minimal import MinGRU, MinLSTM
from ..networks.qrnn import QRNN
from ..networks.wrapped import GRU, LSTM, Elman
from .forgetting import read_series

A_DECADE = 20  # default ages
NUMBERS = 2**21  # of the Jacobians that are computed together


@dataclass(frozen=True, repr=False)
class GradientMemory(Record):
    """Norms of the derivative of a network's last state with respect to earlier ones; `summary()` and `plot()`.

    Attributes:
        ages: `[n]`, steps back, increasing.
        log_norm: `[*b, n]`, of the spectral norm of d state_T / d state_{T - age}.
        log_held: `[C, *b, n]`, log P(no redraw in the last `age` steps | inputs); None: no model.

    See Also:
        `gradient_memory`, which makes it; docs/background/gradients.md, with results.

    Example:
        >>> import torch, samplehold as sh
        >>> layer = sh.MinGRU(input_size=1, hidden_size=1)
        >>> _ = layer.load_state_dict({"weight_l0": torch.zeros(2, 1), "bias_l0": torch.tensor([-3.0, 1.0])})
        >>> memory = sh.studies.gradient_memory(layer, torch.zeros(100, 1))
        >>> round(memory.half_life, 1), round(float(memory.rate), 4)  # 1 / (1 + exp(-3)) is held at each step
        (14.3, -0.0486)
    """

    ages: Int[Tensor, "n"]
    log_norm: Float[Tensor, "*b n"]
    log_held: Float[Tensor, "C *b n"] | None

    @property
    def rate(self) -> Float[Tensor, "*b"]:
        """The mean growth of the norm, in nats a step, up to the greatest age: an estimate of the greatest Lyapunov
        exponent."""
        return self.log_norm[..., -1] / self.ages[-1]

    @property
    def mean_log_norm(self) -> Float[Tensor, "n"]:
        """The logarithm of the norm's mean over sequences."""
        norms = self.log_norm.reshape(-1, len(self.ages))
        return norms.logsumexp(0) - math.log(len(norms))

    @property
    def half_life(self) -> float:
        """The steps after which the mean norm first is 1/2, between ages by interpolation; inf if it never is."""
        return crossing(self.ages, self.mean_log_norm, math.log(0.5))

    def summary(self) -> pd.DataFrame:
        """A row for each age, with logarithms to base 10.

        The columns are the norm, as a mean over sequences and its extremes, and the least and the greatest mean belief
        of a chain.
        """
        norms = self.log_norm.reshape(-1, len(self.ages))
        columns = {"norm, log10": self.mean_log_norm, "least": norms.amin(0), "greatest": norms.amax(0)}
        if self.log_held is not None:
            held = _mean_of_chains(self.log_held)
            columns |= {"P(held), least chain": held.amin(0), "P(held), greatest chain": held.amax(0)}
        index = pd.Index(self.ages.tolist(), name="age")
        return pd.DataFrame({name: (logs / math.log(10)).tolist() for name, logs in columns.items()}, index)

    def plot(self) -> Figure:
        """The mean norm by age, and the mean belief of each chain that its state is as old."""
        figure = NotebookFigure(6.5, 4.0)
        panel = figure.subplots()
        ages = self.ages.tolist()
        chains = () if self.log_held is None else _mean_of_chains(self.log_held)
        for k, held in enumerate(chains):
            label = "belief of each chain to have held" if k == 0 else None
            panel.plot(ages, held / math.log(10), color=FAINT, linewidth=0.8, label=label)
        panel.plot(ages, self.mean_log_norm / math.log(10), color="#8c2981", label="norm of the gradient")
        panel.axhline(0.0, color=FAINT, linewidth=0.8, linestyle=":")
        panel.set(xscale="log")
        panel.set_xlabel("steps back", color=INK)
        panel.set_ylabel("log10, mean over sequences", color=INK)
        panel.legend(frameon=False)
        panel.spines[["top", "right"]].set_visible(False)
        return figure


def gradient_memory(layer: nn.Module, x: Tensor, ages: Sequence[int] | None = None, h0: Any = None) -> GradientMemory:
    """The spectral norm of the derivative of a network's last state with respect to its state some steps earlier.

    The derivative is of the full state: all layers, with the cells of an LSTM. It counts every way through the
    network. `log_held` counts the way through a layer's own state alone; in a single gated layer there is no other. The
    computation is in float64.

    Arguments:
        layer: `MinGRU` or `MinLSTM` of any depth, a `QRNN` of one layer with pooling "f" or "fo" (the state is its
            cell), or a `GRU`, `LSTM` or `Elman` network; one direction.
        x, h0: as for the layer; one batch axis at most, except for a single gated layer.
        ages: numbers of steps, from 1 to all; None: about twenty a decade.

    Returns:
        `GradientMemory(ages [n], log_norm [*batch, n], log_held [chains, *batch, n])`, the chains of the lowest layer
        first. `log_held` is None if gates read the state.

    Raises:
        TypeError: another kind of network.
        ValueError: a network that runs both ways; x or h0 that do not fit it; an age that is not there.

    Hochreiter et al. 2001, *Gradient flow in recurrent nets*; Engelken et al. 2023, *Lyapunov spectra of chaotic
    recurrent neural networks*.

    See Also:
        `forgetting`, on the inputs that an output needs; docs/background/gradients.md, with results.

    Example:
        >>> import torch, samplehold as sh
        >>> layer, x = sh.MinGRU(3, 4, dtype=torch.float64), torch.randn(50, 3, dtype=torch.float64)
        >>> memory = sh.studies.gradient_memory(layer, x, ages=[10])
        >>> (lifted,) = sh.as_ssm(layer, inputs="given").layers(x)  # the model's belief: drawn 10 steps ago, or before
        >>> torch.allclose(memory.log_held[:, 0].exp(), lifted.last_draw()[:, : 50 - 10 + 1].sum(-1))
        True
    """
    kinds = (MinGRU, MinLSTM, QRNN, GRU, LSTM, Elman)
    check_kind("layer", layer, kinds, "MinGRU, MinLSTM, QRNN, GRU, LSTM or Elman")
    gated = not isinstance(layer, nn.RNNBase)
    if gated:
        check_liftable(layer)
    x, h0 = read_series(layer, x, h0)
    steps = x.shape[-2]
    if not steps:
        raise ValueError(f"x: got shape {list(x.shape)}, expected at least one step.")
    at = (_default_ages(steps) if ages is None else _checked_ages(ages, steps)).to(x.device)
    twin: Any = copy.deepcopy(layer).double().requires_grad_(False).eval()
    twin.batch_first = True
    log_held = None
    if gated:
        held = torch.cat([part.log_hold for part in lift_given(twin).layers(x, h0)])
        log_held = held.flip(-1).cumsum(-1)[..., at - 1]
    if log_held is not None and twin.num_layers == 1:
        return GradientMemory(at, log_held.amax(0), log_held)
    return GradientMemory(at, log_norms(twin, x, at, h0), log_held)


def log_norms(
    layer: Any, x: Float[Tensor, "*b T F"], ages: Int[Tensor, "n"], h0: Any = None, readout: Tensor | None = None
) -> Float[Tensor, "*b n"]:
    """log of the spectral norm of d state_T / d state_{T - age}, from products of the Jacobians of steps.

    Arguments:
        layer: without gradient, of the dtype of x, batch first; its state is a tensor, or a pair of them.
        readout: [V, S], the derivative of some function of the flattened state, as the first factor; None: identity.
    """
    batch, steps = x.shape[:-2], x.shape[-2]
    rows = x.reshape(-1, steps, x.shape[-1])
    with one_thread_if_small(0), torch.no_grad():
        states = _states(layer, x, h0)
        size = sum(part.shape[2:].numel() for part in states)
        product = torch.eye(size, dtype=x.dtype, device=x.device) if readout is None else readout
        product = product.expand(len(rows), *product.shape)
        log, norms, wanted = x.new_zeros(len(rows)), [], set(ages.tolist())
        together = max(1, NUMBERS // max(1, len(rows) * size**2))
        for end in range(steps, 0, -together):
            span = slice(max(0, end - together), end)
            jacobians = _jacobians(layer, rows[:, span], [part[:, span] for part in states])
            for k in reversed(range(jacobians.shape[1])):
                product = product @ jacobians[:, k]
                scale = product.abs().amax((-2, -1))
                product = product / torch.where(scale > 0, scale, 1.0)[:, None, None]
                log = log + scale.log()
                if steps - span.start - k in wanted:
                    norms.append(log + torch.linalg.matrix_norm(product, 2).log())
    return torch.stack(norms, -1).reshape(*batch, len(ages))


def crossing(ages: Tensor, logs: Tensor, level: float) -> float:
    """The least age at which `logs`, 0 at age 0 and linear between ages, is at most `level`; inf if there is none."""
    below = (logs <= level).nonzero()
    if not len(below):
        return math.inf
    k = int(below[0])
    last_age, last = (float(ages[k - 1]), float(logs[k - 1])) if k else (0.0, 0.0)
    age, log = float(ages[k]), float(logs[k])
    return age if math.isinf(log) else last_age + (age - last_age) * (last - level) / (last - log)


def _states(layer: Any, x: Tensor, h0: Any) -> list[Tensor]:
    """The parts of the state before each step, each [B, T, layers, units]."""
    state, track = h0, []
    if state is None and hasattr(layer, "initial_state"):
        state = layer.initial_state(*x.shape[:-2])
    elif state is None:
        zeros = x.new_zeros(layer.num_layers, *x.shape[:-2], layer.hidden_size)
        state = (zeros, zeros) if layer.mode == "LSTM" else zeros
    for row in x.unbind(-2):
        track.append(state if isinstance(state, tuple) else (state,))
        _, state = layer.step(row, state)
    return [
        torch.stack(part).reshape(len(track), layer.num_layers, -1, layer.hidden_size).permute(2, 0, 1, 3)
        for part in zip(*track, strict=True)
    ]


def _jacobians(layer: Any, x: Tensor, states: list[Tensor]) -> Tensor:
    """Of the flattened state after each step with respect to that before it, [B, T, S, S]."""

    def step(row: Tensor, *parts: Any) -> Tensor:
        _, after = layer.step(row, parts if len(states) > 1 else parts[0])
        return torch.cat([part.flatten() for part in (after if isinstance(after, tuple) else (after,))])

    each: Any = jacrev(step, argnums=tuple(range(1, len(states) + 1)))
    parts: Any = vmap(each)(x.flatten(0, 1), *(part.flatten(0, 1) for part in states))
    return torch.cat([part.flatten(2) for part in parts], -1).unflatten(0, x.shape[:2])


def _mean_of_chains(log_held: Tensor) -> Tensor:
    """The logarithm of each chain's mean over sequences, [C, n]."""
    held = log_held.flatten(1, -2) if log_held.dim() > 2 else log_held.unsqueeze(1)
    return held.logsumexp(1) - math.log(held.shape[1])


def _default_ages(steps: int) -> Tensor:
    n = math.ceil(A_DECADE * math.log10(steps))
    return torch.tensor(sorted({1, steps} | {round(10 ** (k / A_DECADE)) for k in range(n)}), device="cpu")


def _checked_ages(ages: Any, steps: int) -> Tensor:
    at = check_integers(ages, "ages", "numbers of steps").cpu()
    if at.dim() != 1 or not len(at) or at[0] < 1 or at[-1] > steps or (at.diff() < 1).any():
        raise ValueError(f"ages: got {at.tolist()}, expected increasing integers from 1 to {steps}, the steps of x.")
    return at
