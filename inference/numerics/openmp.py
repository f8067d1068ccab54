"""Work on torch's own threads: the call into the OpenMP runtime that torch has loaded into this process.

The runtime has a function that runs a given function on every thread of its team. This module looks it up by platform.
If there is none, the caller uses its own threads.
"""

import ctypes
import sys
from collections.abc import Callable

Team = Callable[[Callable[[], None], int], None]
"""Runs a function on a number of threads at once, and returns when all are done. The function must not raise."""

# GCC's runtime has this function. LLVM's and Intel's on Linux have it too, for programs compiled by GCC. Runtimes of
# other # platforms only accept C functions with a variable number of arguments.
_ENTRY = {"linux": "GOMP_parallel"}
_Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def find_team(platform: str = sys.platform) -> Team | None:
    """The threads of torch's runtime, or None if they cannot be used."""
    try:
        # torch loads its runtime where every library of the process can find it
        parallel = getattr(ctypes.CDLL(None), _ENTRY[platform])
    except (KeyError, AttributeError, OSError, TypeError):
        return None
    parallel.argtypes, parallel.restype = (_Region, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None

    def run(function: Callable[[], None], n_threads: int) -> None:
        parallel(_Region(lambda _: function()), None, n_threads, 0)

    return run
