"""What a `StackMixture` refuses, and how it says so."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...inference.numerics.checks import check_same_kind
from ...inference.stacks.superposition.op import depths

if TYPE_CHECKING:
    from .mixture import StackMixture


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
    initial = mix.initial
    if initial is not None and (initial.dim() < 2 or initial.shape[:-2] != batch or initial.shape[-1] != V):
        raise ValueError(
            f"initial: got shape {list(initial.shape)}, expected {[*batch, 'D', V]}: a stack from its top, with "
            "cells as wide as values."
        )
    for name, table in (("values", values), ("initial", initial)):
        if table is not None and not table.isfinite().all():
            where = (~table.isfinite()).nonzero()[0].tolist()
            raise ValueError(f"{name}: holds {float(table[tuple(where)])} at {where}; give finite numbers.")
    if mix.on_empty not in ("noop", "forbid"):
        raise ValueError(f"on_empty: got {mix.on_empty!r}, expected 'noop' or 'forbid'.")
    if mix.on_empty == "forbid":
        check_single_pops(mix, "on_empty='forbid'")
    if mix.log_evidence is not None:
        check_evidence(mix, "log_evidence", mix.log_evidence)


def check_evidence(mix: "StackMixture", name: str, table: object) -> None:
    """Evidence about the element on top: kind, shape, numbers, and that the mixture can take it."""
    check_same_kind(values=mix.values, **{name: table})
    assert isinstance(table, Tensor)
    T = mix.values.shape[-2]
    expected = (*mix.values.shape[:-1], T + mix.n_initial + 1)
    if table.shape != expected:
        raise ValueError(
            f"{name}: got shape {list(table.shape)}, expected {list(expected)}: one column for the push of each step, "
            "then the initial cells, then the empty stack."
        )
    check_numbers(name, table)
    check_single_pops(mix, "evidence")


def check_reads(mix: "StackMixture", name: str, reads: object, scale: object) -> None:
    """Reads of the value on top, and their standard deviation."""
    check_same_kind(values=mix.values, **{name: reads})
    assert isinstance(reads, Tensor)
    if reads.shape != mix.values.shape:
        raise ValueError(f"{name}: got shape {list(reads.shape)}, expected that of values, {list(mix.values.shape)}.")
    if reads.isinf().any():
        raise ValueError(
            f"{name}: holds inf at {reads.isinf().nonzero()[0].tolist()}; give finite reads, or NaN for none."
        )
    check_scale(scale)


def check_scale(scale: object) -> None:
    if not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
        raise ValueError(f"scale: got {scale!r}, expected a standard deviation, a finite number above 0.")


def check_count(name: str, count: object, least: int) -> None:
    """Raise unless it is a whole number of `least` or more."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{name}: got {count!r}, expected a whole number, {least} or more.")
    if count < least:
        raise ValueError(f"{name}: got {count}, expected {least} or more.")


def check_log_weights(name: str, table: Tensor) -> None:
    """NaN and +inf are no log-weights, and a step needs some action that is possible."""
    check_numbers(name, table)
    nothing = table.isneginf().all(-1)
    if nothing.any():
        where = nothing.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: everything is impossible (-inf) at step {where[-1]}"
            f"{f' of sequence {where[:-1]}' if where[:-1] else ''}; leave something possible at every step."
        )


def check_numbers(name: str, table: Tensor) -> None:
    for bad, word in ((table.isnan(), "NaN"), (table.isposinf(), "+inf")):
        if bad.any():
            where = bad.nonzero()[0].tolist()
            raise ValueError(f"{name}: holds {word} at {where}; log-weights are finite numbers or -inf (impossible).")


def check_single_pops(mix: "StackMixture", what: str) -> None:
    if mix.log_action.shape[-1] > 3:
        raise ValueError(
            f"log_action: got {mix.log_action.shape[-1]} actions, but {what} couples the steps, which is solved for "
            "the three actions push, pop, no-op; drop the columns of multiple pops."
        )


def check_capacity(mix: "StackMixture", capacity: int) -> None:
    """Refuse a capacity that histories of more than rounding mass outgrow."""
    T, D = mix.values.shape[-2], mix.n_initial
    check_count("capacity", capacity, 1)
    if capacity < D:
        raise ValueError(f"capacity: got {capacity}, expected at least {D}, the cells of the initial stack.")
    if not mix.values.shape[:-2].numel():
        return
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
