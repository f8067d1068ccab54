"""Which form of an operator serves: the kernels, or the plain form in torch alone."""

import os
from contextvars import ContextVar

MODES = "native", "plain"
VARIABLE = "SAMPLEHOLD_KERNELS"

_mode = os.environ.get(VARIABLE, "native")
if _mode not in MODES:
    raise ValueError(f"{VARIABLE}: got {_mode!r} in the environment, expected one of {', '.join(MODES)}.")

_within: ContextVar[str | None] = ContextVar("form", default=None)  # of a backward pass: that of its forward pass


class kernels:  # a name for users, who call it as a function
    """Choose the form of all operators, for all of the process: kernels, or plain torch, for tests and debugging.

    Call it, or use it as a context manager, which puts the mode before it back. The environment variable
    `SAMPLEHOLD_KERNELS` is the mode of a new process.

    Arguments:
        mode: "native", kernels wherever there are some; "plain", the plain forms.

    Raises:
        ValueError: any other mode.

    See Also:
        `lerp_scan`, a function with such kernels; docs/quality/benchmarks.md, on what they gain; docs/how_to/gpu.md,
        for GPUs.

    >>> import samplehold as sh
    >>> with sh.kernels("plain"):
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

    def __init__(self, by_kernel: bool) -> None:
        self._mode = "native" if by_kernel else "plain"

    def __enter__(self) -> None:
        self._token = _within.set(self._mode)

    def __exit__(self, *error: object) -> None:
        _within.reset(self._token)


def mode() -> str:
    """The mode that holds here."""
    return _within.get() or _mode
