"""Streams of observations, step by step, against the filter of the whole series."""

from typing import Any

import torch
from torch import Tensor


def streamed(model: Any, x: Tensor, **beside: Tensor) -> tuple[Any, list[Any]]:
    """The state after the last step of x [*b, T, F], and what each update returns; `beside`: tables [*b, T, ...]."""
    batch, outputs = tuple(x.shape[:-2]), []
    state = model.start(batch)
    for t in range(x.shape[-2]):
        at = {name: table.select(len(batch), t) for name, table in beside.items()}
        state, output = model.update(state, x[..., t, :], **at)
        outputs.append(output)
    return state, outputs


def assert_stream_is_filter(
    model: Any, x: Tensor, *names: str, rtol: float = 1e-9, atol: float = 1e-10, **beside: Tensor
) -> Any:
    """In the outputs of these names, and in log p(x); returns the state of the stream."""
    filtered, (state, outputs) = model.filter(x, **beside), streamed(model, x, **beside)
    for name in names:
        for t, output in enumerate(outputs):
            expected = _at_step(getattr(filtered, name), x.dim() - 2, t)
            torch.testing.assert_close(getattr(output, name), expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(state.log_evidence, model.log_evidence(x, **beside), rtol=rtol, atol=atol)
    assert state.steps == len(outputs)
    return state


def _at_step(table: Any, axis: int, t: int) -> Any:
    """A step of a table, or of several by number or by name."""
    if isinstance(table, dict):
        return {name: part.select(axis, t) for name, part in table.items()}
    return table.select(axis, t) if isinstance(table, Tensor) else tuple(part.select(axis, t) for part in table)
