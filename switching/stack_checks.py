"""What a `StackMixture` refuses, and how it says so."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..inference.checks import check_same_kind
from ..inference.superposition import depths

if TYPE_CHECKING:
    from .stack import StackMixture


def check_mixture(mix: "StackMixture") -> None:
    """Shapes, dtypes and numbers of everything but the capacity."""
    check_same_kind(values=mix.values, log_action=mix.log_action, initial=mix.initial, log_evidence=mix.log_evidence)
    values, log_action = mix.values, mix.log_action
    if values.dim() < 2 or values.shape[-2] < 1:
        raise ValueError(f"values: got shape {list(values.shape)}, expected [*batch, T, V] with at least one step.")
    if log_action.shape[:-1] != values.shape[:-1] or log_action.shape[-1] < 3:
        raise ValueError(
            f"log_action: got shape {list(log_action.shape)}, expected {[*values.shape[:-1], 3]}: log-weights of push, "
            "pop and no-op at each step of values (and further columns only for popping two cells, three cells, ...)."
        )
    check_log_weights("log_action", log_action)
    batch, V = values.shape[:-2], values.shape[-1]
    if mix.initial is not None and (mix.initial.shape[:-2] != batch or mix.initial.shape[-1] != V):
        raise ValueError(
            f"initial: got shape {list(mix.initial.shape)}, expected {[*batch, 'D', V]}: a stack from its top, with "
            "cells as wide as values."
        )
    if mix.on_empty not in ("noop", "forbid"):
        raise ValueError(f"on_empty: got {mix.on_empty!r}, expected 'noop' or 'forbid'.")
    if mix.on_empty == "forbid":
        check_single_pops(mix, "on_empty='forbid'")


def check_log_weights(name: str, table: Tensor) -> None:
    """NaN and +inf are no log-weights, and a step needs some action that is possible."""
    for bad, word in ((table.isnan(), "NaN"), (table.isposinf(), "+inf")):
        if bad.any():
            where = bad.nonzero()[0].tolist()
            raise ValueError(f"{name}: holds {word} at {where}; log-weights are finite numbers or -inf (impossible).")
    nothing = table.isneginf().all(-1)
    if nothing.any():
        where = nothing.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: everything is impossible (-inf) at step {where[-1]}"
            f"{f' of sequence {where[:-1]}' if where[:-1] else ''}; leave something possible at every step."
        )


def check_single_pops(mix: "StackMixture", what: str) -> None:
    if mix.log_action.shape[-1] > 3:
        raise ValueError(
            f"log_action: got {mix.log_action.shape[-1]} actions, but {what} couples the steps, which is solved for "
            "the three actions push, pop, no-op; drop the columns of multiple pops."
        )


def check_capacity(mix: "StackMixture", capacity: int) -> None:
    """Refuse a capacity that histories of more than rounding mass outgrow."""
    T, D = mix.values.shape[-2], mix.n_initial
    if capacity < max(D, 1):
        raise ValueError(f"capacity: got {capacity}, expected at least {max(D, 1)}: one cell, and the initial stack.")
    with torch.no_grad():
        action = mix._log_action.softmax(-1)
        kept = list(depths(action, D, capacity + 1, mix.on_empty))[-1].sum(-1)
        alive = 1.0 if mix.on_empty == "noop" else list(depths(action, D, T + D + 1, "forbid"))[-1].sum(-1)
        lost = (1 - kept / alive).reshape(-1)
    if (worst := float(lost.max())) > T * torch.finfo(action.dtype).eps:
        raise ValueError(
            f"capacity: got {capacity}, but histories that hold {worst:.3g} of the mass of sequence "
            f"{int(lost.argmax())} outgrow it; give a larger one (at T + D = {T + D} no history can), or None."
        )
