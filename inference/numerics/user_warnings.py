"""Warnings that point to the line of the user's program, however deep the library found their cause."""

import sys
import warnings

PASSED = ("samplehold", "torch", "contextlib")  # packages whose calls are not the user's


def warn_user(text: str) -> None:
    """A UserWarning at the nearest call from outside the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PASSED:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)
