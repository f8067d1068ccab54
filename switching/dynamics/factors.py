"""Factors between a chain's paths and the parameters of its transitions, in expected statistics.

Statistics of parameters are `[*r, ...]`, those of paths `[*r, *b, T, K]`; `n_axes` counts the axes of sequences and
steps between. Messages are the gradients in closed form.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ...inference.families import CopyTables, FactoredTables, MarkovTables, SemiMarkovTables
from ...inference.message_passing.factor_graph import Factor
from ..emissions.conjugate import ConjugateEmission
from ..parameters import widened

LogGate = Callable[[Tensor], tuple[Tensor, Tensor]]
MoveTables = MarkovTables | SemiMarkovTables
"""Tables of paths with a table of the first state, and one of transitions."""


def only(paths: Any, **tables: Tensor) -> Any:
    """A message to some tables of paths; None stands for no message."""
    return type(paths)(**{name: tables.get(name) for name in paths._fields})


def named(name: str, elog: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function under the name that errors use for its factor."""
    elog.__name__ = name
    return elog


def by_state(table: Tensor, lead: torch.Size) -> Tensor:
    """The table's sum over all but its leading axes and the last."""
    return table.reshape(*lead, -1, table.shape[-1]).sum(-2)


def gates(block: str, chain: str, n_axes: int) -> Factor:
    """E log p(z | rho) from the second step on; the block holds log rho and log (1 - rho)."""

    def to_block(paths: CopyTables, redraw: Tensor) -> Tensor:
        return gate_counts(paths.fresh, paths.held, redraw.shape[:-1])

    def log_gate(redraw: Tensor) -> tuple[Tensor, Tensor]:
        log_redraw, log_hold = widened(redraw, 1, n_axes).unbind(-1)
        return log_redraw, log_hold

    return driven_gates(block, chain, log_gate, {block: to_block})


def driven_gates(
    block: str, chain: str, log_gate: LogGate, messages: dict[str, Callable[..., Any]] | None = None
) -> Factor:
    """The same with driven gates: `log_gate` gives their expected log probabilities `[*r, *b, T-1]`.

    Without a closed form of the message to the block these are bounds, convex in the block's statistics.
    """

    def elog(paths: CopyTables, statistics: Tensor) -> Tensor:
        log_redraw, log_hold = log_gate(statistics)
        return paths.fresh.sum(-1)[..., 1:] * log_redraw + paths.held.sum(-1)[..., 1:] * log_hold

    def to_chain(paths: CopyTables, statistics: Tensor) -> CopyTables:
        later = paths.fresh.shape[-2] - 1
        padded = (pad(log.expand(*log.shape[:-1], later), (1, 0)).unsqueeze(-1) for log in log_gate(statistics))
        return CopyTables(*padded)

    closed = messages or {}
    convex = () if closed else (block,)
    return Factor(named(block, elog), (chain, block), {chain: to_chain} | closed, convex=convex)


def gate_counts(fresh: Tensor, held: Tensor, lead: torch.Size) -> Tensor:
    """Expected numbers of redraws and of holds from the second step on: `[*r, 2]`."""
    # one sum over all: sums over the few states of every step would use memory ten times as slowly
    axes = tuple(range(len(lead), fresh.ndim))
    return torch.stack([table[..., 1:, :].sum(axes) for table in (fresh, held)], -1)


def fresh_states(block: str, chain: str, n_axes: int, counted: Tensor | None = None) -> Factor:
    """E log pi(s) of every drawn state."""
    mask = None if counted is None else counted.unsqueeze(-1)

    def elog(paths: CopyTables, log_probs: Tensor) -> Tensor:
        return (paths.fresh * widened(log_probs, 1, n_axes)).sum(-1)

    def to_chain(paths: CopyTables, log_probs: Tensor) -> CopyTables:
        message = widened(log_probs, 1, n_axes)
        return CopyTables.of_steps(message if mask is None else message * mask, None)

    def to_block(paths: CopyTables, log_probs: Tensor) -> Tensor:
        return by_state(paths.fresh if mask is None else paths.fresh * mask, log_probs.shape[:-1])

    return Factor(named(block, elog), (chain, block), {chain: to_chain, block: to_block}, mask=counted)


def factored_gates(block: str, chain: str, n_axes: int, log_gate: LogGate | None = None) -> Factor:
    """`gates` for paths with a separate table of gates; with `log_gate` as `driven_gates`."""

    def table(statistics: Tensor) -> Tensor:
        """[*r, *b, 1, 2] or [*r, *b, T, 2]"""
        if log_gate is None:
            return widened(statistics, 1, n_axes)
        return pad(torch.stack(log_gate(statistics), -1), (0, 0, 1, 0))

    def elog(paths: FactoredTables, statistics: Tensor) -> Tensor:
        return torch.where(paths.gates == 0, 0.0, paths.gates * table(statistics)).sum((-2, -1))

    def to_chain(paths: FactoredTables, statistics: Tensor) -> FactoredTables:
        return FactoredTables(table(statistics), None, None)  # type: ignore[arg-type]

    def to_block(paths: FactoredTables, redraw: Tensor) -> Tensor:
        return by_state(paths.gates, redraw.shape[:-1])

    closed = {block: to_block} if log_gate is None else {}
    convex = () if closed else (block,)
    return Factor(named(block, elog), (chain, block), {chain: to_chain} | closed, convex=convex)


def factored_states(block: str, chain: str, n_axes: int) -> Factor:
    """`fresh_states` for paths with a separate table of gates, which marks the steps that count."""

    def elog(paths: FactoredTables, log_probs: Tensor) -> Tensor:
        return (paths.state * widened(log_probs, 1, n_axes - 1)).sum(-1)

    def to_chain(paths: FactoredTables, log_probs: Tensor) -> FactoredTables:
        return FactoredTables(None, widened(log_probs, 1, n_axes - 1), None)  # type: ignore[arg-type]

    def to_block(paths: FactoredTables, log_probs: Tensor) -> Tensor:
        return by_state(paths.state, log_probs.shape[:-1])

    return Factor(named(block, elog), (chain, block), {chain: to_chain, block: to_block})


def first_state(block: str, chain: str, n_axes: int, counted: Tensor | None = None) -> Factor:
    """E log P(s_1)."""
    mask = torch.ones((), device="cpu") if counted is None else counted[0]

    def elog(paths: MoveTables, log_probs: Tensor) -> Tensor:
        return (paths.initial * widened(log_probs, 1, n_axes - 1)).sum(-1)

    def to_chain(paths: MoveTables, log_probs: Tensor) -> MoveTables:
        return only(paths, initial=widened(log_probs, 1, n_axes - 1) * mask)

    def to_block(paths: MoveTables, log_probs: Tensor) -> Tensor:
        return by_state(paths.initial, log_probs.shape[:-1]) * mask

    return Factor(named(block, elog), (chain, block), {chain: to_chain, block: to_block}, mask=mask)


def constant_start(probs: Tensor, chain: str, counted: Tensor | None = None) -> Factor:
    """log P(s_1), which is known."""
    mask = torch.ones((), device="cpu") if counted is None else counted[0]
    log_probs = torch.where(probs > 0, probs, 1.0).log()  # impossible states are in the base of the paths

    def elog(paths: MoveTables) -> Tensor:
        return (paths.initial * log_probs).sum(-1)

    def to_chain(paths: MoveTables) -> MoveTables:
        return only(paths, initial=log_probs * mask)

    return Factor(named("initial", elog), (chain,), {chain: to_chain}, mask=mask)


def moves(block: str, chain: str, n_axes: int) -> Factor:
    """E log A[old, new] of every transition."""

    def elog(paths: MoveTables, log_table: Tensor) -> Tensor:
        return (paths.transition * widened(log_table, 2, n_axes - 1)).sum((-2, -1))

    def to_chain(paths: MoveTables, log_table: Tensor) -> MoveTables:
        return only(paths, transition=widened(log_table, 2, n_axes - 1))

    def to_block(paths: MoveTables, log_table: Tensor) -> Tensor:
        return paths.transition.reshape(*log_table.shape[:-2], -1, *log_table.shape[-2:]).sum(-3)

    return Factor(named(block, elog), (chain, block), {chain: to_chain, block: to_block})


def segment_lengths(block: str, chain: str, n_axes: int, law: ConjugateEmission, x: Float[Tensor, "D 1"]) -> Factor:
    """E log p(d) of every segment, where `law` is the distribution of d - 1, whose values are x."""

    def table(statistics: Tensor) -> Tensor:
        return widened(law.expected_table(x, statistics).mT, 2, n_axes - 1)

    def elog(paths: SemiMarkovTables, statistics: Tensor) -> Tensor:
        used = paths.duration
        return torch.where(used == 0, 0.0, used * table(statistics)).sum((-2, -1))

    def to_chain(paths: SemiMarkovTables, statistics: Tensor) -> SemiMarkovTables:
        return only(paths, duration=table(statistics))

    def to_block(paths: SemiMarkovTables, statistics: Tensor) -> Tensor:
        used = paths.duration
        lead = used.shape[: used.ndim - 1 - n_axes]
        counts = used.reshape(*lead, -1, *used.shape[-2:]).sum(-3)
        return law.expected_message(x, counts.mT, statistics)

    return Factor(named(block, elog), (chain, block), {chain: to_chain, block: to_block}, convex=(block,))
