"""What compiling the kernel of each operator takes, and its plain form, beside the figures of `COSTS`.

`python tests/benchmarks/kernel_costs.py` does the work of `samplehold warm` in new processes. At several lengths plain
forms do it; their times are fitted by a constant, the steps and the numbers of the arguments (non-negative least
squares of relative errors). Then kernels do it, with an empty cache: the first call of an operator compiles, and the
least of its other calls is taken off.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import nnls
from torch import Tensor

LENGTHS = 20, 60, 180
Calls = dict[str, list[tuple[float, float, float]]]
"""By operator the seconds, steps and numbers of each call."""


def record() -> Calls:
    """Do the work, and note every call."""
    from samplehold.cli import warm
    from samplehold.inference.numerics.costs import mode
    from samplehold.inference.numerics.op import Kernels

    calls: Calls = defaultdict(list)
    find = Kernels.find

    def timed(self: Any, device: str, arguments: Any) -> Callable[..., Any] | None:
        function = find(self, device, arguments)
        served, (_, steps, numbers) = function or self.plain, size(arguments)
        if self._account.cost is None:
            return function

        def call(*given: Any) -> Any:
            begun = time.process_time()
            output = served(*given)
            calls[self._account.name].append((time.process_time() - begun, steps, numbers))
            return tuple(x.contiguous() for x in output) if type(output) is tuple else output

        return call

    Kernels.find = timed  # type: ignore[method-assign]
    for warm.STEPS in LENGTHS if mode() == "never" else LENGTHS[:1]:
        for work in warm.WORK.values():
            work()
    return calls


def size(arguments: Any) -> tuple[float, float, float]:
    """1, steps and numbers, as `Cost.plain` counts them."""
    tables = [x for x in arguments if isinstance(x, Tensor)]
    return 1.0, max((x.shape[-2] for x in tables if x.dim() > 1), default=1), sum(x.numel() for x in tables)


def in_new_process(mode: str) -> Calls:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "SAMPLEHOLD_KERNELS": mode, "NUMBA_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
        script = [sys.executable, "-W", "ignore", __file__, "record"]
        return json.loads(subprocess.run(script, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    from samplehold.inference.numerics.costs import COSTS

    plain, compiled = in_new_process("never"), in_new_process("always")
    print("| operator | compiling (s) | a call (us) | a step (us) | a number (ns) |\n|---|---:|---:|---:|---:|")
    for name, cost in COSTS.items():
        figures: list[float | None] = [None] * 4
        if name in compiled:
            first, *others = (seconds for seconds, *_ in compiled[name])
            figures[0] = first - min(others, default=0.0)
        if name in plain:
            seconds, steps, numbers = np.array(plain[name]).T
            columns = np.stack([1e-6 * np.ones_like(steps), 1e-6 * steps, 1e-9 * numbers], 1)
            weight = 1 / np.maximum(seconds, 1e-6)
            figures[1:] = nnls(columns * weight[:, None], seconds * weight)[0].tolist()
        cells = (
            f"{'-' if figure is None else f'{figure:.3g}'} ({known:g})"
            for figure, known in zip(figures, cost[: len(figures)], strict=True)
        )
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        json.dump(record(), sys.stdout)
    else:
        main()
