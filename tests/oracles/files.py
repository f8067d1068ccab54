"""Series whose steps are in a file, from series in memory."""

from dataclasses import replace

import torch
from samplehold.switching.data.packed import Packed
from samplehold.switching.data.scratch import Scratch, blocks_of
from samplehold.switching.data.series import Series
from torch import Tensor

BEYOND = {"x": torch.nan, "inputs": 0.0, "dt": 0.0, "states": -1, "step_weights": 1.0, "noise": 0.0}


def in_file(series: Series) -> Series:
    """The same sequences on one batch axis, with every table of steps in a file."""
    inside, lengths = series.inside, (series.last + 1).flatten()

    def stored(table: Tensor, beyond: float) -> Packed:
        return Packed.on_disk(Scratch.of(blocks_of(table[inside])), lengths, beyond)

    tables = {name: getattr(series, name) for name in BEYOND}
    tables["x"] = series.observations
    changed = {name: stored(table, BEYOND[name]) for name, table in tables.items() if table is not None}
    weights = None if series.weights is None else series.weights.flatten()
    return replace(series, **changed, lengths=lengths, weights=weights, past=None, checked=None, index=None)
