"""Checks of the arguments of chains of segments."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...numerics.checks import check_shape
from ...numerics.deferred import refuse_if
from ...numerics.scalars import check_kind
from .records import Block, Conjugate


def check_hazard(name: str, log_hazard: Tensor) -> None:
    """Raise `ValueError` unless these are logarithms of probabilities."""
    bad = ~(log_hazard.detach() <= 0)

    def complain() -> None:
        index = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name}: got {log_hazard[index].item():g} at {list(index)}; give logarithms of probabilities, at most 0."
        )

    refuse_if(bad.any(), complain)


def check_prior(name: str, family: Conjugate, prior: Tensor) -> None:
    """Raise `ValueError`, with the name, unless a prior is proper."""
    try:
        family.check(prior.detach())
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def read_blocks(blocks: Any) -> tuple[Block, ...]:
    blocks = (blocks,) if isinstance(blocks, Block) else tuple(blocks)
    if not blocks:
        raise ValueError("blocks: got none; give at least one Block of parameters.")
    for block in blocks:
        check_kind("blocks", block, Block, "a Block, or a sequence of them")
    return blocks


def parts(block: Block) -> tuple[tuple[str, Tensor], ...]:
    return ("prior", block.prior), ("statistics", block.statistics)


def shapes_of(blocks: tuple[Block, ...]) -> tuple[int, dict[str, Sequence[int] | None]]:
    """The number of steps, and the batch axes of all tables."""
    steps = blocks[0].statistics.shape[-3] if blocks[0].statistics.dim() > 2 else 0
    if steps == 0:
        raise ValueError(
            f"blocks[0].statistics: got shape {list(blocks[0].statistics.shape)}, expected [*batch, T, F, D] with at "
            "least one step."
        )
    shapes = {}
    for i, block in enumerate(blocks):
        if block.prior.dim() < 2 or 0 in block.prior.shape[-2:]:
            raise ValueError(f"blocks[{i}].prior: got shape {list(block.prior.shape)}, expected [*batch, F, D].")
        shapes[f"blocks[{i}].prior"] = block.prior.shape[:-2]
        name = f"blocks[{i}].statistics"
        shapes[name] = check_shape(name, block.statistics, (steps, *block.prior.shape[-2:]))
    return steps, shapes


def check_part(name: str, given: Any, chain: Any) -> None:
    """Raise `ValueError` unless a record of another part has the batch axes and the blocks of a chain."""
    n_last = 1 if hasattr(given, "length") else 2
    batch, expected = given.log_weight.shape[:-n_last], chain.batch_shape
    if batch != expected:
        raise ValueError(f"{name}: got batch axes {list(batch)}, but this part has {list(expected)}; make them equal.")
    shapes = [list(table.shape[-2:]) for table in given.statistics]
    own = [list(block.prior.shape[-2:]) for block in chain.blocks]
    if shapes != own:
        raise ValueError(f"{name}: got blocks of shape {shapes}, but this part has {own}; give parts of one series.")
    runs, hazards = given.log_weight.shape[-2] if n_last == 2 else 0, chain.log_hazard.shape[-1]
    if n_last == 2 and runs != (hazards if chain.by == "run" else 1):
        raise ValueError(f"{name}: its hazards are not those of this part; give parts of one series.")
