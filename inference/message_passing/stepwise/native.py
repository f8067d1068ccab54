"""Mean field on one gate and one state a step on the CPU: one pass over time for each sequence, O(K) a sweep."""

import torch
from torch import Tensor

from ...native.library import function, integers
from ...numerics.native_calls import as_table, refuse_lack, run
from ...numerics.threads import ranges
from . import op

_MIN_WORK = 2048  # log weights, from which on a second thread pays


@op.filter.kernel("cpu")
def filter(
    log_redrawn: Tensor,
    log_held: Tensor,
    log_state: Tensor,
    log_odds: Tensor,
    log_initial: Tensor,
    gate: Tensor | None,
    lengths: Tensor,
    sweeps: int,
    independent: bool,
) -> tuple[Tensor, ...]:
    dtype, (n, steps, states) = log_redrawn.dtype, log_redrawn.shape
    held_states = 1 if log_held.shape[-1] == 1 else states
    given = (
        (log_redrawn, (n, steps, states)),
        (log_held, (n, steps, held_states)),
        (log_state, (n, states)),
        (log_odds, (n, steps)),
        (log_initial, (n, states)),
        (gate, (n, steps)),
    )
    tables = [None if x is None else as_table(x, shape, dtype) for x, shape in given]
    results = [torch.zeros(n, steps, *axes, dtype=dtype, device="cpu") for axes in ((states,), (), (), ())]
    failed = torch.full((n,), -1, dtype=torch.int64, device="cpu")
    sizes = integers(steps, states, held_states, sweeps, independent, 0)
    parts = ranges(n, max(1, -(-_MIN_WORK // max(1, steps * states))), n)
    tasks = [integers(*part) for part in parts]
    run(function("stepwise", dtype), tasks, sizes, *tables, as_table(lengths, (n,), torch.int64), *results, failed)
    refuse_lack(sizes[-1])
    return *results, failed
