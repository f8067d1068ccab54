"""Checks of the arguments of stacks and their networks. Tables in, nothing out."""

import torch
from torch import Tensor

from ...inference.numerics.checks import check_same_kind
from ...inference.numerics.scalars import check_choice, check_number
from ...inference.stacks.superposition.op import depths


def check_numbers(**tables: Tensor) -> None:
    """Raise `ValueError` for NaN or +inf, which are not log-weights."""
    for name, table in tables.items():
        for bad, word in ((table.isnan(), "NaN"), (table.isposinf(), "+inf")):
            if bad.any():
                at = bad.nonzero()[0].tolist()
                raise ValueError(f"{name}: holds {word} at {at}; log-weights are finite numbers or -inf (impossible).")


def check_log_weights(name: str, table: Tensor) -> None:
    """Log-weights [*b, T, X] with some possible entry at every step."""
    check_numbers(**{name: table})
    nothing = table.isneginf().all(-1)
    if nothing.any():
        *sequence, step = nothing.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: all entries are impossible (-inf) at step "
            f"{step}{f' of sequence {sequence}' if sequence else ''}; give at least one of them a finite weight."
        )


def check_mixture(log_action: Tensor, values: Tensor, initial: Tensor | None, on_empty: str) -> None:
    """Shapes, dtypes and numbers of a mixture's arguments."""
    check_same_kind("initial", values=values, log_action=log_action, initial=initial)
    if values.dim() < 2 or values.shape[-2] < 1:
        raise ValueError(f"values: got shape {list(values.shape)}, expected [*batch, T, V] with at least one step.")
    if log_action.shape[:-1] != values.shape[:-1] or log_action.shape[-1] < 3:
        raise ValueError(
            f"log_action: got shape {list(log_action.shape)}, expected {[*values.shape[:-1], 3]}: log-weights of push, "
            "pop and no-op at each step of values (and further columns only for popping two cells, three cells, ...)."
        )
    check_log_weights("log_action", log_action)
    batch, V = values.shape[:-2], values.shape[-1]
    if initial is not None and (initial.dim() < 2 or initial.shape[:-2] != batch or initial.shape[-1] != V):
        raise ValueError(
            f"initial: got shape {list(initial.shape)}, expected {[*batch, 'D', V]}: a stack from its top, with "
            "cells as wide as values."
        )
    for name, table in (("values", values), ("initial", initial)):
        if table is not None and not table.isfinite().all():
            where = (~table.isfinite()).nonzero()[0].tolist()
            raise ValueError(f"{name}: holds {float(table[tuple(where)])} at {where}; give finite numbers.")
    check_choice("on_empty", on_empty, ("noop", "forbid"))
    if on_empty == "forbid":
        check_single_pops(log_action, "on_empty='forbid'")


def check_evidence(name: str, table: object, log_action: Tensor, n_elements: int) -> None:
    """Evidence about the element on top: type, shape, numbers, and whether a mixture of these actions supports it."""
    check_same_kind(log_action=log_action, **{name: table})
    assert isinstance(table, Tensor)
    expected = (*log_action.shape[:-1], n_elements)
    if table.shape != expected:
        raise ValueError(
            f"{name}: got shape {list(table.shape)}, expected {list(expected)}: one column for the push of each step, "
            "then the initial cells, then the empty stack."
        )
    check_numbers(**{name: table})
    check_single_pops(log_action, "evidence")


def check_single_pops(log_action: Tensor, option: str) -> None:
    """Raise `ValueError` if an action pops several cells."""
    if log_action.shape[-1] > 3:
        raise ValueError(
            f"log_action: got {log_action.shape[-1]} actions, but {option} couples the steps, which is only supported "
            "for the three actions push, pop, no-op; drop the columns of multiple pops."
        )


def check_reads(reads: object, scale: object, values: Tensor) -> float:
    """Check reads of the value on top unless they are None; return the standard deviation of their error."""
    number = check_number("scale", scale, above=0)
    check_same_kind("reads", values=values, reads=reads)
    if not 0 < float(torch.tensor(number, dtype=values.dtype, device="cpu") ** 2) < torch.inf:
        dtype = str(values.dtype).removeprefix("torch.")
        raise ValueError(f"scale: got {number:g}, whose square {dtype} cannot represent; use other units, or float64.")
    if not isinstance(reads, Tensor):
        return number
    if reads.shape != values.shape:
        raise ValueError(f"reads: got shape {list(reads.shape)}, expected that of values, {list(values.shape)}.")
    if reads.isinf().any():
        where = reads.isinf().nonzero()[0].tolist()
        raise ValueError(f"reads: holds inf at {where}; give finite reads, or NaN for none.")
    return number


@torch.no_grad()
def check_capacity(capacity: int, action: Tensor, n_initial: int, on_empty: str) -> None:
    """Refuse a capacity that is too small for histories of more than rounding mass, under action probabilities [*b, T,
    A]."""
    T, D = action.shape[-2], n_initial
    if capacity < D:
        raise ValueError(f"capacity: got {capacity}, expected at least {D}, the cells of the initial stack.")
    if not action.numel():
        return
    kept = list(depths(action, D, capacity + 1, on_empty))[-1].sum(-1)
    alive = 1.0 if on_empty == "noop" else list(depths(action, D, T + D + 1, "forbid"))[-1].sum(-1)
    lost = (1 - kept / alive).reshape(-1)
    if (worst := float(lost.max())) > T * torch.finfo(action.dtype).eps:
        raise ValueError(
            f"capacity: got {capacity}, but histories that hold {worst:.3g} of the mass of sequence "
            f"{int(lost.argmax())} need more; give a larger one (T + D = {T + D} is always enough), or None."
        )


def check_initial(log_initial: Tensor) -> None:
    """Log-weights of an automaton's first state and bottom symbol."""
    if log_initial.dim() < 2 or not log_initial.shape[-2:].numel():
        raise ValueError(
            f"log_initial: got shape {list(log_initial.shape)}, expected [*batch, Q, G], one state and symbol or more."
        )
    check_numbers(log_initial=log_initial)


def check_transitions(leading: tuple[int, ...], sizes: tuple[int, int], **tables: Tensor) -> None:
    """Weights of an automaton's transitions, with the axes `leading` before those of states and symbols."""
    Q, G = sizes
    for name, end in {"log_pop": (Q, G, Q), "log_push": (Q, G, Q, G), "log_replace": (Q, G, Q, G)}.items():
        if tables[name].shape != (*leading, *end):
            raise ValueError(
                f"{name}: got shape {list(tables[name].shape)}, expected {[*leading, *end]} for {Q} states and {G} "
                "symbols, as log_initial has them; all tables have the same batch and time axes."
            )
    check_numbers(**tables)
