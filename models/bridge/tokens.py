"""Tokens as inputs of networks: checked indices, one-hot features, and a start that is a redraw."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.arrays import numbers
from ...inference.numerics.checks import check_lengths, check_table
from ...inference.numerics.scalars import check_integer, check_kind
from ..networks.inputs import batch_major, weight_of
from ..networks.minimal import MinGRU, MinLSTM
from ..networks.recurrent import check_one_way


@dataclass(frozen=True)
class Tokens:
    """Checked tokens: `index [*b, T]` int64, 0 for missing ones, and `seen [*b, T]`."""

    index: Tensor
    seen: Tensor
    lengths: Tensor | None


def read_tokens(
    tokens: Any, n_tokens: int, lengths: Tensor | Sequence[int] | int | None = None, name: str = "tokens"
) -> Tokens:
    """Tokens `[*b, T]` as checked indices; NaN is a missing one. Error messages call them `name`.

    Raises:
        ValueError: no time axis, a token that is not an integer from 0 to n_tokens - 1, or lengths that do not fit.
    """
    n_tokens = check_integer("n_tokens", n_tokens)
    values = numbers(tokens, name)
    if values.dtype == torch.bool:
        raise TypeError(f"{name}: got booleans, expected integers: the indices of {name}.")
    steps = values.shape[-1] if values.dim() else 0
    if steps == 0:
        raise ValueError(f"{name}: got shape {list(values.shape)}, expected [*batch, T] with at least one step.")
    counts, inside = None, torch.ones(values.shape, dtype=torch.bool, device=values.device)
    if lengths is not None:
        counts = check_lengths(lengths, values.shape[:-1], steps, values.device)
        inside = torch.arange(steps, device=values.device) < counts.unsqueeze(-1)
    seen = inside & ~values.isnan() if values.is_floating_point() else inside
    bad = seen & ~(
        (values >= 0) & (values < n_tokens) & (values == values.floor() if values.is_floating_point() else seen)
    )
    if bool(bad.any()):
        where = tuple(torch.nonzero(bad)[0].tolist())
        *batch, step = where
        place = f"sequence {batch[0] if len(batch) == 1 else tuple(batch)}, " if batch else ""
        raise ValueError(
            f"{name}: got {float(values[where]):g} at {place}step {step}, expected an integer from 0 to "
            f"{n_tokens - 1}; give the indices of {name} [*batch, T], not one-hot rows."
        )
    return Tokens(torch.where(seen, values, 0).long(), seen, counts)


def one_hot(
    tokens: Any, n_tokens: int, lengths: Tensor | Sequence[int] | int | None = None, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "*b T V"]:
    """Tokens `[*b, T]` as rows `[*b, T, n_tokens]` for a network: all zeros for a missing token (NaN).

    For the networks of `as_rnn` a row of zeros *is* a missing observation: their biases are the prior of gate and
    state, and the weights of a token are its log-likelihoods.

    Arguments:
        tokens: numbers from 0; NaN where missing.
        n_tokens: V, the number of tokens.
        lengths: `[*b]`, the number of steps of each sequence; None: all.
        dtype: of the rows.

    Raises:
        TypeError: tokens that are not numbers; a number of tokens that is not an integer; another dtype.
        ValueError: as `read_tokens`.

    See Also:
        `as_rnn`, whose networks read such rows; `redrawn_start`, their first state;
        docs/how_to/compare_network_with_model.md.

    Example:
        >>> import samplehold as sh
        >>> sh.one_hot([2, 0, float("nan")], 3)
        tensor([[0., 0., 1.],
                [1., 0., 0.],
                [0., 0., 0.]], dtype=torch.float64)
    """
    check_kind("dtype", dtype, torch.dtype, "a dtype of torch")
    n_tokens = check_integer("n_tokens", n_tokens)
    read = read_tokens(tokens, n_tokens, lengths)
    return nn.functional.one_hot(read.index, n_tokens).to(dtype) * read.seen.unsqueeze(-1)


def redrawn_start(layer: MinGRU | MinLSTM, x: Tensor) -> Float[Tensor, "L *b D"]:
    r"""The start state `h0` that makes the first step of a layer a redraw, for any gate: the candidate of this step.

    $$h_1 = (1 - g_1)\, v_1 + g_1 v_1 = v_1$$

    A `LogitGRU` also adds evidence while it holds, and starts from its fresh state less this evidence.

    The models in `samplehold.switching` redraw at their first step; a network that starts here does the same.

    Arguments:
        layer: the layer.
        x: the series, as for the layer.

    Raises:
        TypeError: another kind of layer; x that is not a tensor.
        ValueError: x that does not fit the layer.

    See Also:
        `as_rnn`, whose networks start so; `one_hot`, which writes their inputs; docs/background/mingru_exact_bayes.md.

    Example:
        >>> import torch, samplehold as sh
        >>> layer, x = sh.MinGRU(3, 2), torch.eye(3)
        >>> out, _ = layer(x, sh.redrawn_start(layer, x))
        >>> torch.allclose(out[0], layer.activations(x[0]).value)
        True
    """
    check_kind("layer", layer, (MinGRU, MinLSTM), "MinGRU or MinLSTM, whose gates read one input each")
    check_one_way(layer, "and the first step of one is the last of the other")
    table = batch_major(x, layer.input_size, layer.batch_first, weight_of(layer, x))
    if not table.shape[-2]:
        raise ValueError(f"x: got shape {list(x.shape)}, expected at least one step.")
    rows = check_table("x", table[..., 0, :], like=table, finite=True)
    start = []
    for k in range(layer.num_layers):
        before, rows = layer.first_redraw(rows, k)
        start.append(before)
    return torch.stack(start)
