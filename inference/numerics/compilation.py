"""Compilation of the functions of a CPU kernel.

`kernel` is for the loops, `exact_kernel` for loops that depend on the order of operations, `inlined` for the small
functions that they call. None uses numba's parallel mode: a kernel takes a range of sequences and releases the
interpreter lock, and `threads` runs several at once.

A function that a kernel calls is linked into the kernel, and optimised only there. numba would also compile it by
itself. Then it would be optimised once for each level of calls, and become machine code that nothing calls.

numba counts a reference to an array every time it is taken from a record. Functions that neither create nor return an
array need no counting. `lean_kernel` and `inlined` switch it off, so records cost nothing there.
"""

import inspect
import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numba
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering
from numba.core.types import unliteral

_logger = logging.getLogger("samplehold")


class _LinkedLibrary(JITCodeLibrary):
    """Code for callers. They link it into theirs and optimise the whole, so it needs no machine code of its own."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerForCallers(NativeLowering):
    _name = "lower_for_callers"

    def run_pass(self, state: Any) -> bool:
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        state.library.finalize()
        entry = object().__sizeof__  # never called: numba's key for the function, which has to be a built-in method
        state.targetctx.insert_user_function(entry, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=entry)
        return True


class _ForCallers(CompilerBase):
    """The steps of numba for a function that only kernels call."""

    def define_pipelines(self) -> list[Any]:
        steps = DefaultPassBuilder.define_nopython_pipeline(self.state)
        steps.passes = [(_LowerForCallers if kind is NativeLowering else kind, text) for kind, text in steps.passes]
        steps.finalize()
        return [steps]


_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_FOR_CALLERS: dict[str, Any] = {"no_cpython_wrapper": True, "pipeline_class": _ForCallers}
# -inf is a legal weight, so no flag may assume finite numbers; sums may be reordered so that they vectorise.
_REORDERED = {"reassoc", "contract", "arcp", "nsz"}
INLINED: dict[str, Any] = {**_OPTIONS, **_FOR_CALLERS, "fastmath": {"contract"}, "forceinline": True, "_nrt": False}
"""The options of `inlined`, for functions that are compiled in another way."""


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call; the machine code is kept on disk if a folder is writable."""
    return _compiled(function, fastmath=_REORDERED)


def exact_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `kernel`, with every operation in the order of the source."""
    return _compiled(function, fastmath=False)


def lean_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `kernel`, for functions that neither create nor return an array."""
    return _compiled(function, fastmath=_REORDERED, _nrt=False)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function into the kernels that call it; a call would pass each array as seven arguments.

    It is compiled separately, so its operations keep their order, except fused multiply-adds. It must neither create
    nor return an array.
    """
    return _of_any_constant(numba.njit(**INLINED)(inspect.unwrap(function)))


def _of_any_constant(compiled: Any) -> Any:
    """The same function, compiled once for all constants; numba gives each constant its own type."""
    plain = compiled.get_call_template

    def get_call_template(args: Any, kws: dict[str, Any]) -> Any:
        return plain([unliteral(a) for a in args], {name: unliteral(a) for name, a in kws.items()})

    compiled.get_call_template = get_call_template
    return compiled


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A function that is compiled in one way for Python, and in another for kernels."""
    function = inspect.unwrap(function)  # numba cannot compile through a wrapper, such as a run-time type checker's
    compiled: Any = numba.njit(**_OPTIONS, **options)(function)
    with suppress(RuntimeError):  # no writable cache folder: compile once in each process
        compiled._cache = _Cache(function)
    for_callers = _of_any_constant(numba.njit(**_OPTIONS, **_FOR_CALLERS, **options)(function))
    compiled.get_call_template, compiled.get_overload = for_callers.get_call_template, for_callers.get_overload
    return compiled


@cache
def _last_change() -> float:
    """When a file of the room was last changed: a kernel contains the code of functions in other files."""
    room = Path(__file__).parents[1]
    return max((path.stat().st_mtime for path in room.rglob("*.py")), default=0.0)


class _Cache(FunctionCache):
    """numba's cache of a function; an unreadable file is replaced, and the first compilation is logged."""

    _said: ClassVar[set[str]] = set()

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stored: Any = self._cache_file
        stored._source_stamp = stored._source_stamp, _last_change()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            loaded = super().load_overload(sig, target_context)
        except Exception:  # damaged files can make pickle raise anything
            loaded = None
            with suppress(OSError):
                self.flush()
        if loaded is None:
            self._say_once("compiling kernels, once on this machine", _logger.info)
        return loaded

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except (OSError, ValueError) as error:
            text = f"kernel cache: {error}; the next process compiles its kernels again."
            self._say_once(text, partial(warnings.warn, stacklevel=3))

    def _say_once(self, text: str, say: Callable[[str], object]) -> None:
        if text not in self._said:
            self._said.add(text)
            say(text)
