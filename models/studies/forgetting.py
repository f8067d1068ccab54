r"""How many past inputs a network needs: windows with a proved bound on the error without the rest.

The network of a window w (`networks.truncated`) reads only the last w inputs: at each step it starts from the layer's
default initial state, w steps back. A gated layer's state is linear in the previous state, so after those w steps

$$|h_t - \tilde h_t| = \prod_{s = t-w+1}^{t} hold_s \odot |h_{t-w} - \tilde h_{t-w}| \le \prod_s hold_s \odot m_{t-w}$$

where m is the greatest distance of any state so far from the initial one. For each step, `forgetting` finds the least w
for which this is at most tol; a longer window is never worse. If w reaches the first input, nothing is cut off.

In a stack, the layers above the first read inputs with errors. A gate then is in an interval, and so is a candidate.
Because
$\tilde h' - h' = (1 - \tilde g)(\tilde h - h) + (\tilde g - g)(v - h) + \tilde g (\tilde v - v)$,

$$e' \le \max_{\tilde g} \; (1 - \tilde g)\, e + |\tilde g - g|\, |v - h| + \tilde g \max |\tilde v - v|$$

which is convex in $\tilde g$, and so greatest at an end of its interval (`gated_runs`). For GRU, LSTM and Elman
networks the bound is $G^w m$ with the Lipschitz constants of `stability`, for all inputs of the same magnitude. For the
filter of a switching model the worst case over all beliefs is computed (`forgetting_filter`).

Outputs in floats are certified: bounds include the rounding of both runs in the dtype of the layer, or of the model's
observations. At steps whose window reaches the first input, nothing is cut off, and the bound is 0.

Miller & Hardt 2019, *Stable recurrent models*, arXiv 1805.10369.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.checks import naming
from ...inference.numerics.scalars import check_integer, check_number
from ...switching.base import Model
from ...switching.model import SwitchingSSM
from ..networks.inputs import batch_major, time_major
from ..networks.minimal import MinGRU, MinLSTM
from ..networks.qrnn import QRNN
from ..networks.recurrent import check_one_way
from .forgetting_filter import filter_forgetting
from .gated_runs import GatedRun, roundoff
from .stability import stability
from .windows import Forgetting, all_inputs, check_rounding, first_windows


def forgetting(layer_or_model: nn.Module | Model, x: Any, tol: float, h0: Any = None) -> Forgetting:
    """The number of past inputs that each output of a network needs, for errors of at most `tol`.

    Arguments:
        layer_or_model: `MinGRU` or `MinLSTM` of any depth, a `QRNN` of one layer, a `GRU`, `LSTM` or `Elman` network,
            or a `SwitchingSSM` with `Copy` dynamics, whose filter restarts from its state_probs.
        x: the series, as for the layer; or as for the model, with `model.read(x, lengths=..., dt=...)` for ragged
            sequences and gaps.
        tol: the greatest error allowed in any unit of the output, or total variation of a filter.
        h0: the states before the first step, as for the layer; a model has none.

    Returns:
        `Forgetting(window [*batch, T], bound [*batch, T])`. If no shorter window is certified, it is all t + 1 inputs.
        For one gated layer or a filter any longer window is certified too; for a stack, `truncation_bound` gives the
        bound of a window. A filter's windows hold for any observations before them.

    Raises:
        TypeError: neither such a network nor a model.
        ValueError: tol is not positive, or less than rounding in the dtype allows (the message has the least that can
            be
            certified); a model with other dynamics or with inputs, a series that it cannot produce, or an h0 for
            it; for a
            GRU, LSTM or Elman network an h0 outside the range of its inputs.

    Miller & Hardt 2019, *Stable recurrent models*, arXiv 1805.10369, for the networks whose gates read the state.

    See Also:
        `truncation_bound`, for one window; `truncate`, the network of a window; docs/background/forgetting.md, with
        results.

    Example:
        >>> import torch, samplehold as sh
        >>> layer = sh.MinGRU(input_size=1, hidden_size=1)
        >>> _ = layer.load_state_dict({"weight_l0": torch.zeros(2, 1), "bias_l0": torch.tensor([0.0, 1.0])})
        >>> sh.studies.forgetting(layer, torch.zeros(8, 1), tol=0.1).window  # half of the state is held at each step
        tensor([1, 2, 3, 3, 3, 4, 4, 4])
    """
    tol = check_number("tol", tol, above=0)
    if isinstance(layer_or_model, SwitchingSSM):
        if h0 is not None:
            raise ValueError("h0: given for a model, but its filter starts from its prior; leave it out.")
        return filter_forgetting(layer_or_model, x, tol)
    layer = layer_or_model
    x, h0 = read_series(layer, x, h0)
    if _is_single(layer):
        single = _Single.of(layer, x, h0)
        _check_tolerance(tol, single.rounding, layer)
        window, bound = _product_windows(single, tol)
        window = torch.minimum(window + single.warmup, all_inputs(x))
        return Forgetting(window, torch.where(window == all_inputs(x), 0, bound), tol)
    errors, rounding = _errors(layer, x, h0)
    _check_tolerance(tol, rounding, layer)
    return first_windows(errors, x, tol)


def truncation_bound(layer: nn.Module, x: Tensor, window: int, h0: Any = None) -> Float[Tensor, "*b T"]:
    """A proved bound, at each step, on the greatest error of `truncate(layer, window)(x, h0)` in any unit.

    It is 0 at the first `window` steps, where both have the whole past, and the two differ only by rounding.

    Arguments:
        layer: as for `forgetting`; not a model.
        x, h0: as for the layer.
        window: the number of inputs of each output.

    Raises:
        TypeError: a network of another kind; a window that is not an integer.
        ValueError: a window below 1; a network or an h0 that `forgetting` does not accept.

    Miller & Hardt 2019, *Stable recurrent models*, arXiv 1805.10369.

    See Also:
        `truncate`, the network; `forgetting`, the least window for an error; docs/background/truncation.md.

    Example:
        >>> import torch, samplehold as sh
        >>> layer, x = sh.MinGRU(2, 3, dtype=torch.float64), torch.ones(20, 2, dtype=torch.float64)
        >>> error = (sh.truncate(layer, 5)(x) - layer(x)[0]).abs().amax(-1)
        >>> bool((error <= sh.studies.truncation_bound(layer, x, 5) + 1e-12).all())
        True
    """
    window = check_integer("window", window)
    x, h0 = read_series(layer, x, h0)
    bound = x.new_zeros(x.shape[:-1])
    if _is_single(layer):
        single = _Single.of(layer, x, h0)
        warmup = single.warmup
        ends = torch.arange(min(window, x.shape[-2]) + 1, x.shape[-2] + 1, device=x.device)
        if window > warmup and len(ends):
            begins = (ends - (window - warmup)).expand(*x.shape[:-2], -1)
            bound[..., window:] = _product_bound(single, *_cumulative(single.hold), begins, ends.expand_as(begins))
        else:
            bound[..., window:] = torch.inf
        return bound
    for j, errors in enumerate(_errors(layer, x, h0)[0], 1):
        if j == window:
            bound[..., j - 1 :] = errors
            break
    return bound


# --- one gated layer: products of holds ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Single:
    """The quantities in the bounds of one gated layer."""

    hold: Tensor  # [*b, T, D]
    size: Tensor  # [*b, T + 1, D]: the greatest distance from the initial state so far
    rounding: Tensor  # [*b, T]: of the whole run and of any truncated one, together
    warmup: int  # inputs that fill a QRNN's window

    @staticmethod
    def of(layer: Any, x: Tensor, h0: Any) -> "_Single":
        twin = copy.deepcopy(layer).double().requires_grad_(False).eval()
        start = twin.initial_state(*x.shape[:-2])
        first = start if h0 is None else h0
        run = GatedRun.of(twin, 0, x, first if isinstance(layer, QRNN) else first[0], roundoff(layer))
        warmup, astray = 0, 0
        if isinstance(layer, QRNN):
            start, first, warmup = start.cell, first.cell, layer.window - 1
            # while the window of inputs fills up, a truncated network's gates are not those of the whole one
            astray = min(warmup, 1 if layer.gate == "hold" else warmup)
        distance = (torch.cat([first[0][..., None, :], run.states], -2) - start[0][..., None, :]).abs()
        size = distance.cummax(-2).values + astray
        return _Single(run.now.hold, size, _both(run.rounding(spread=size[..., :-1, :])), warmup)


def _both(rounding: Tensor) -> Tensor:
    """Of two runs [*b, T], of errors of one [*b, T, D]; 0 at the first step, which has no past."""
    both = 2 * rounding.amax(-1)
    both[..., :1] = 0
    return both


def _product_windows(single: _Single, tol: float) -> tuple[Tensor, Tensor]:
    """Least windows and their bounds [*b, T]: the bound rises with the step a window begins at, so by bisection."""
    hold = single.hold
    tables = _cumulative(hold)
    ends = torch.arange(1, hold.shape[-2] + 1, device=hold.device).expand(hold.shape[:-1])
    low, high = torch.zeros_like(ends), ends - 1
    for _ in range(hold.shape[-2].bit_length()):
        middle = (low + high + 1) // 2
        fine = _product_bound(single, *tables, middle, ends) <= tol
        low, high = torch.where(fine, middle, low), torch.where(fine, high, middle - 1)
    return ends - low, _product_bound(single, *tables, low, ends)


def _cumulative(hold: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of log hold over the first r steps [*b, T + 1, D], and the number of holds of exactly 0 among them."""
    none = hold == 0
    logs = torch.where(none, 1, hold).log()
    pad = torch.nn.functional.pad
    return pad(logs.cumsum(-2), (0, 0, 1, 0)), pad(none.long().cumsum(-2), (0, 0, 1, 0))


def _product_bound(single: _Single, logs: Tensor, zeros: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
    """max over units of (product of holds from `begins` to `ends`) * size[begins], and rounding; 0 from step 0 on."""

    def at(table: Tensor, step: Tensor) -> Tensor:
        return table.gather(-2, step[..., None].expand(*step.shape, table.shape[-1]))

    steps = logs.shape[-2] - 1
    rounding = 2 * steps * torch.finfo(logs.dtype).eps * at(logs, ends).abs()  # of the two cumulative sums
    product = (at(logs, ends) - at(logs, begins) + rounding).exp().clamp(max=1)
    kept = at(zeros, ends) == at(zeros, begins)
    bound = torch.where(kept, product * at(single.size, begins), 0).amax(-1)
    return torch.where(begins == 0, 0, bound + single.rounding.gather(-1, ends - 1))


# --- stacks and networks with recurrent weights: errors step by step ---------------------------------------------


def _errors(layer: Any, x: Tensor, h0: Any) -> tuple[Iterator[Tensor], Tensor]:
    """For windows j = 1, 2, .. the bounds of all outputs that have j inputs, [*b, T - j + 1], and rounding [*b, T]."""
    return _lipschitz_errors(layer, x, h0) if isinstance(layer, nn.RNNBase) else _stack_errors(layer, x, h0)


def _lipschitz_errors(network: nn.RNNBase, x: Tensor, h0: Any) -> tuple[Iterator[Tensor], Tensor]:
    limits = stability(network, float(x.abs().max()) if x.numel() else 0.0)
    n = len(limits.reach) // network.num_layers
    if h0 is not None:
        for part, state in enumerate(h0 if isinstance(h0, tuple) else (h0,)):
            size = state.norm(dim=-1) if isinstance(network, nn.RNN) else state.abs().amax(-1)
            over = size.reshape(network.num_layers, -1).amax(-1).to(limits.reach) > limits.reach[part::n]
            if over.any():
                raise ValueError(
                    f"h0: of size {float(size.max()):g} in layer {int(over.nonzero()[0])}, but inputs reach "
                    f"{float(limits.reach[part]):g} from zero; the bound holds for states within reach."
                )
    local = 2 * roundoff(network) * limits.rounding

    def grown(errors: Tensor) -> Tensor:
        return (limits.gain @ errors + local).clamp(max=1e100)  # finite, so that no 0 * inf appears

    def bounds() -> Iterator[Tensor]:
        errors = limits.reach
        for j in range(1, x.shape[-2] + 1):
            errors = grown(errors)
            bound = errors[-n].to(x.device).expand(*x.shape[:-2], x.shape[-2] - j + 1).clone()
            bound[..., 0] = 0
            yield bound

    rounding, error = x.new_zeros(x.shape[:-1]), torch.zeros_like(local)
    if limits.stable:  # else no tolerance is certified, whatever the precision
        for t in range(x.shape[-2]):
            error = grown(error)
            rounding[..., t] = float(error[-n]) if t else 0
    return bounds(), rounding


def _stack_errors(layer: Any, x: Tensor, h0: Tensor | None) -> tuple[Iterator[Tensor], Tensor]:
    twin = copy.deepcopy(layer).double().requires_grad_(False).eval()
    start = twin.initial_state(*x.shape[:-2])
    runs, distances, roundings, inputs = [], [], [], x
    for k in range(layer.num_layers):
        run = GatedRun.of(twin, k, inputs, start[k] if h0 is None else h0[k], roundoff(layer))
        distance = (run.before - start[k][..., None, :]).abs().cummax(-2).values
        distance[..., 0, :] = 0  # the window that begins with the first step starts from h0 itself
        runs.append(run)
        distances.append(distance)
        roundings.append(run.rounding(roundings[-1] if k else None))
        inputs = run.states
    rounding = _both(roundings[-1])

    def bounds() -> Iterator[Tensor]:
        errors = list(distances)
        for j in range(x.shape[-2]):
            below = None
            for k, run in enumerate(runs):
                below = run.advance(errors[k][..., : x.shape[-2] - j, :], below, j)
                errors[k] = below
            bound = errors[-1].amax(-1) + rounding[..., j:] / 2
            bound[..., 0] = 0
            yield bound

    return bounds(), rounding


def _check_tolerance(tol: float, rounding: Tensor, layer: Any) -> None:
    """Refuse a tolerance that two runs in floats can miss for any window."""
    if rounding.numel():
        check_rounding(tol, 1.01 * float(rounding.max()), next(layer.parameters()).dtype)


def _parts(layer: Any) -> Any:
    if not isinstance(layer, (MinGRU, MinLSTM, QRNN, nn.RNNBase)):
        raise TypeError(
            f"layer_or_model: got {type(layer).__name__}, expected MinGRU, MinLSTM, QRNN, GRU, LSTM or Elman; "
            "give the recurrent layer of your network, and its inputs."
        )
    check_one_way(layer, "and no window of past inputs holds all that it reads")
    if isinstance(layer, QRNN) and layer.num_layers > 1:
        raise ValueError(
            "layer: a QRNN of several layers; certify one layer at a time, on the outputs of the one below."
        )
    return layer


def _is_single(layer: Any) -> bool:
    return not isinstance(layer, nn.RNNBase) and layer.num_layers == 1


def read_series(layer: Any, x: Any, h0: Any) -> tuple[Tensor, Any]:
    """x as [*batch, T, F] and h0, in float64."""
    x = batch_major(x, _parts(layer).input_size, layer.batch_first)
    if not bool(x.isfinite().all()):
        raise ValueError("x: got numbers that are not finite; give finite ones.")
    if h0 is not None:
        with naming("h0", "hx"):
            layer(time_major(x[..., :1, :], layer.batch_first), h0)  # raises where it does not fit
    return x.detach().double(), _double(h0)


def _double(state: Any) -> Any:
    """A state as the layer takes it, in float64 and without gradient."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return state.detach().double()
    parts = [_double(part) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
