"""When a kernel is compiled: as soon as the work in this process repays it.

Compiling a kernel takes seconds, and a small fit is done before. So an operator serves its plain form, and counts what
that costs beyond the kernel, until this would have paid for compiling, or until one call alone would. Then the kernel
serves. That is at most twice as long as knowing all calls ahead would take. A loop that knows the number of its calls
says so by `expected_calls`. The count is made from the sizes of the arguments, never from a clock or from files on
disk, so that the same script always takes the same path.

`COSTS` holds round figures of a present-day processor.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch import Tensor

_LEAST_STEPS = 12  # that are worth a scan
_MOST_PRODUCTS = 4096  # of a step of all sequences, beyond which a loop over steps takes no longer
_MOST_AT_ONCE = 1 << 24  # of all steps, for the sake of memory
MODES = "auto", "always", "never"
VARIABLE = "SAMPLEHOLD_KERNELS"


class Cost(NamedTuple):
    """What compiling the kernel of an operator takes, and its plain form beyond the kernel."""

    compile: float  # s of processor time
    call: float  # us for each call
    step: float  # us for each step of time
    number: float  # ns for each number in the arguments
    scans: bool = False  # whether the plain form is a scan over all steps of small tables
    sweeps: int | None = None  # the place of the argument that says how often each step is computed

    def plain(self, arguments: Iterable[Any]) -> float:
        """Seconds of the plain form on these arguments; their second-to-last axis is counted as time."""
        arguments = list(arguments)
        tables = [x for x in arguments if isinstance(x, Tensor)]
        steps = max((x.shape[-2] for x in tables if x.dim() > 1), default=1)
        steps *= 1 if self.sweeps is None else arguments[self.sweeps]
        if self.scans and tables:
            table = max(tables, key=Tensor.numel)
            if is_scanned(table):
                products = table.numel() * table.shape[-1] ** 2
                return 1e-6 * (self.call + 100 * math.log2(steps)) + 50e-9 * products
        return 1e-6 * (self.call + self.step * steps) + 1e-9 * self.number * sum(x.numel() for x in tables)


def is_scanned(table: Tensor) -> bool:
    """Whether the steps of a discrete chain with a table [*b, T, K] are multiplied all at once, in its plain form."""
    if table.dim() < 2 or table.shape[-2] < _LEAST_STEPS:
        return False
    n_steps, n_states = table.shape[-2:]
    products = table.numel() * n_states**2
    return products <= _MOST_PRODUCTS * n_steps and products <= _MOST_AT_ONCE


COSTS: dict[str, Cost] = {
    "linear_scan": Cost(2.0, 50, 20, 5),
    "lerp_scan": Cost(2.0, 50, 20, 5),
    "gated_scan": Cost(4.0, 50, 30, 10),
    "copy_log_normalizer": Cost(2.5, 250, 40, 20, scans=True),
    "copy_filter": Cost(2.5, 250, 40, 20, scans=True),
    "copy_smooth": Cost(3.0, 450, 80, 40, scans=True),
    "copy_marginals": Cost(2.0, 450, 80, 40, scans=True),
    "copy_viterbi": Cost(1.0, 150, 12, 20),
    "copy_sample": Cost(3.0, 550, 40, 20),
    "factored_copy_filter": Cost(3.0, 300, 60, 20, scans=True),
    "factored_copy_posterior": Cost(4.0, 500, 120, 20, scans=True),
    "markov_filter": Cost(3.0, 250, 60, 60, scans=True),
    "markov_posterior": Cost(4.0, 500, 120, 300, scans=True),
    "markov_viterbi": Cost(1.0, 150, 25, 20),
    "markov_sample": Cost(1.5, 650, 45, 20),
    "markov_rows_filter": Cost(4.0, 300, 60, 60, scans=True),
    "markov_rows_posterior": Cost(5.0, 700, 120, 100, scans=True),
    "markov_row_sums": Cost(2.0, 200, 0, 40),
    "semi_markov_filter": Cost(3.0, 300, 300, 1000),
    "semi_markov_posterior": Cost(4.0, 600, 900, 5000),
    "semi_markov_viterbi": Cost(1.5, 300, 450, 1000),
    "semi_markov_sample": Cost(2.0, 300, 400, 1000),
    "linear_gaussian_evidence": Cost(9.0, 4000, 15, 20),
    "one_series_evidence": Cost(4.0, 16000, 20, 50000),
    "linear_gaussian_filter": Cost(3.5, 5000, 10, 20),
    "linear_gaussian_smooth": Cost(3.5, 6000, 30, 20),
    "linear_gaussian_sample": Cost(2.0, 550, 200, 20),
    "segment_forward": Cost(10.0, 500, 400, 50),
    "segment_smooth": Cost(3.0, 500, 400, 50),
    "segment_update": Cost(4.0, 400, 0, 0),
    "segment_viterbi": Cost(10.0, 500, 400, 50),
    "gaussian_paths": Cost(1.5, 1700, 5, 150),
    "gaussian_paths_sample": Cost(1.5, 1700, 60, 150),
    "switching_gaussian_filter": Cost(4.0, 400, 400, 50),
    "switching_gaussian_smooth": Cost(4.0, 400, 500, 50),
    "gibbs_latents": Cost(3.5, 5000, 350, 50),
    "gibbs_collapsed": Cost(2.0, 4000, 800, 50),
    "gibbs_redrawn": Cost(6.0, 4000, 1000, 50),
    "polya_gamma": Cost(3.0, 100, 0, 50),
    "normal_log_density": Cost(1.0, 20, 0, 5),
    "multivariate_normal_log_density": Cost(1.5, 30, 0, 10),
    "normal_moments": Cost(1.0, 20, 0, 5),
    "multivariate_normal_moments": Cost(1.5, 30, 0, 10),
    "filter_vmp": Cost(3.0, 100, 80, 20, sweeps=7),
    "pushdown": Cost(8.0, 500, 500, 50),
    "pushdown_starts": Cost(3.0, 50, 0, 10),
    "superposed_step": Cost(2.0, 30, 0, 5),
    "stack_lstm": Cost(3.0, 100, 200, 5),
    "normal_peak": Cost(1.5, 50, 0, 20),
    "normal_mean_point": Cost(1.0, 40, 0, 10),
    "expected_normal": Cost(1.0, 50, 0, 10),
    "relative": Cost(3.0, 60, 0, 10),
}

_mode = os.environ.get(VARIABLE, "auto")
if _mode not in MODES:
    raise ValueError(f"{VARIABLE}: got {_mode!r} in the environment, expected one of {', '.join(MODES)}.")

_within: ContextVar[str | None] = ContextVar("form", default=None)  # of a backward pass: that of its forward pass
_expected: ContextVar[int] = ContextVar("calls", default=1)
_counted: ContextVar[bool] = ContextVar("counted", default=True)


class kernels:  # a name for users, who call it as a function
    """Choose when kernels for the CPU are compiled, for all of the process.

    Call it, or use it as a context manager, which puts the mode before it back. The environment variable
    `SAMPLEHOLD_KERNELS` is the mode of a new process.

    Arguments:
        mode: "auto", once the work in this process repays compiling; "always", at the first call; "never".

    Raises:
        ValueError: any other mode.

    See Also:
        `lerp_scan`, a function with such kernels; docs/quality/benchmarks.md, on what they gain; docs/how_to/gpu.md,
        for GPUs.

    >>> import samplehold as sh
    >>> with sh.kernels("never"):
    ...     sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit([1.1, 0.9, 4.2, 4.1], progress=False).converged
    True
    """

    def __init__(self, mode: str) -> None:
        global _mode
        if mode not in MODES:
            raise ValueError(f"mode: got {mode!r}, expected one of {', '.join(map(repr, MODES))}.")
        self._before, _mode = _mode, mode

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        global _mode
        _mode = self._before


class same_form:
    """Within, all operators serve the form that a forward pass had: kernels, or plain."""

    def __init__(self, compiled: bool) -> None:
        self._mode = "always" if compiled else "never"

    def __enter__(self) -> None:
        self._token = _within.set(self._mode)

    def __exit__(self, *error: object) -> None:
        _within.reset(self._token)


@contextmanager
def expected_calls(n: int) -> Iterator[None]:
    """Within, an operator will be called n times with arguments of the same sizes, or more."""
    token = _expected.set(max(1, n))
    try:
        yield
    finally:
        _expected.reset(token)


def mode() -> str:
    """The mode that holds here."""
    return _within.get() or _mode


spent: dict[str, float] = {}
"""Seconds that the plain form of each operator has cost so far in this process."""


def repaid() -> frozenset[str]:
    """The operators of which the kernel serves, as their work has repaid compiling it."""
    return frozenset(name for name, seconds in spent.items() if seconds >= COSTS[name].compile)


@contextmanager
def counted_from(work: Mapping[str, float]) -> Iterator[None]:
    """Within, the work of this process is a copy of `work`; afterwards it is the larger of both."""
    before = dict(spent)
    count_from(work)
    try:
        yield
    finally:
        spent.update({name: max(seconds, spent.get(name, 0.0)) for name, seconds in before.items()})


def count_from(work: Mapping[str, float]) -> None:
    """Set the work of this process."""
    spent.clear()
    spent.update(work)


@contextmanager
def repeated() -> Iterator[None]:
    """Within, work that was counted before is done again: it is not counted, and operators have the same form."""
    token = _counted.set(False)
    try:
        yield
    finally:
        _counted.reset(token)


class Account:
    """What the plain form of one operator has cost so far, against what its kernel would."""

    def __init__(self, name: str | None) -> None:
        self.name: str = name or ""
        self.cost: Cost | None = COSTS.get(self.name)

    def repays(self, arguments: Iterable[Any]) -> bool:
        """Whether the kernel is to serve this call; if not, its plain form is counted."""
        if self.cost is None:
            return True  # nothing is compiled
        chosen = mode()
        if chosen != "auto":
            return chosen == "always"
        before = spent.get(self.name, 0.0)
        if before < self.cost.compile and _counted.get():
            cost = self.cost.plain(arguments)
            spent[self.name] = before + (cost if cost * _expected.get() < self.cost.compile else self.cost.compile)
        return spent.get(self.name, 0.0) >= self.cost.compile

    def spend(self, arguments: Iterable[Any]) -> None:
        """Count the plain form on these arguments."""
        if self.cost is not None and mode() == "auto" and _counted.get():
            spent[self.name] = spent.get(self.name, 0.0) + self.cost.plain(arguments)
