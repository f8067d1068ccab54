"""The file of a fit that has begun: where its loops stand, so that the same call goes on from there.

A fit is a sequence of loops: a batch of restarts, a chain of draws. Between loops everything follows from the data, the
options and the results of earlier loops. The file has the result of each loop that has ended and the newest state of
the one that runs, so a resumed fit walks the same way, takes what is known from the file, and goes on within the loop.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..data.sealed import sealed
from ..data.writing import write_output
from .trees import copied, read, written

FORMAT = 1

Result = TypeVar("Result")


@dataclass
class Loop:
    """A loop of a fit.

    Attributes:
        name: of its kind.
        tree: its result if it has ended, otherwise its newest state; see `trees`.
    """

    name: str
    tree: Any = None
    ended: bool = False


class Checkpoint:
    """The loops of a fit. Without a file nothing is kept.

    Arguments:
        path: of the file; None: there is none.
        identity: JSON that says of what fit it is.
        every: seconds between two writes.
        loops: those of the file.
        writes: whether this process writes the file; another one of those that share the data may.

    Attributes:
        tell: takes an error of writing during a fit that processes share; None: it is raised at once.
    """

    path: Path | None
    identity: Any
    every: float
    loops: list[Loop]

    tell: Callable[[Exception], None] | None = None

    def __init__(
        self,
        path: Path | None = None,
        identity: Any = None,
        every: float = 0.0,
        loops: list[Loop] | None = None,
        writes: bool = True,
    ) -> None:
        self.path, self.identity, self.every = path, identity, every
        self.loops, self._place = loops or [], 0
        self._written_at, self._is_written, self._writes = time.monotonic(), True, writes
        self._keeps = path is not None

    def stop(self) -> None:
        """Keep the file as it is from now on: the fit was interrupted."""
        self._keeps = False

    def finished(self, name: str) -> Any:
        """The result of the next loop if it is known, which is then over; otherwise None."""
        if not self._keeps or self._place >= len(self.loops) or not self.loops[self._place].ended:
            return None
        loop = self._next(name)
        self._place += 1
        return copied(loop.tree, deep=False)

    def start_loop(self, name: str) -> Any:
        """Begin the next loop; its newest state if there is one, otherwise None."""
        if not self._keeps:
            return None
        if self._place == len(self.loops):
            self.loops.append(Loop(name))
        return copied(self._next(name).tree)

    def note(self, state: Callable[[], Any]) -> None:
        """Keep the state of the loop that runs, and write it if it is time.

        The state is a new tree, whose tensors do not change later.
        """
        if not self._keeps:
            return
        self.loops[self._place] = Loop(self.loops[self._place].name, state())
        self._changed()

    def end(self, result: Callable[[], Any]) -> None:
        """Keep the result of the loop that runs."""
        if not self._keeps:
            return
        self.loops[self._place] = Loop(self.loops[self._place].name, result(), ended=True)
        self._place += 1
        self._changed()

    def once(self, name: str, make: Callable[[], Result]) -> Result:
        """The result of a loop without states: that of the file, or a new one."""
        known = self.finished(name)
        if known is None:
            self.start_loop(name)
            known = make()
            self.end(lambda: copied(known, deep=False))
        return known

    def write(self, anew: bool = False) -> None:
        """Write what has changed; `anew`: in any case.

        Raises:
            OSError: the file cannot be written; an older one stays unchanged.
        """
        if self.path is None or not self._writes or (self._is_written and not anew):
            return
        tensors: dict[str, Tensor] = {}
        loops = [
            {"name": loop.name, "ended": loop.ended, "tree": written(loop.tree, tensors)}
            for loop in self.loops
            if loop.ended or loop.tree is not None
        ]
        structure = {"identity": self.identity, "loops": loops}
        try:
            write_output(self.path, sealed(structure, tensors, FORMAT))
        except OSError as error:
            reason = error.strerror or error
            raise OSError(
                f"checkpoint: {self.path} cannot be written ({reason}); check that its folder exists and has space, "
                "then repeat the call: the fit continues from the last state in the file."
            ) from error
        self._written_at, self._is_written = time.monotonic(), True

    def _next(self, name: str) -> Loop:
        loop = self.loops[self._place]
        if loop.name != name:
            raise ValueError(
                f"checkpoint: {self.path} has the loop {loop.name!r} where this fit has {name!r}; remove the file to "
                "start the fit again."
            )
        return loop

    def _changed(self) -> None:
        self._is_written = False
        if time.monotonic() - self._written_at < self.every:
            return
        try:
            self.write()
        except OSError as error:
            if self.tell is None:
                raise
            self.tell(error)


def loops_of(plain: Any, tensors: dict[str, Tensor], device: torch.device) -> list[Loop]:
    """The loops of a file."""
    return [Loop(p["name"], read(p["tree"], tensors, device), p["ended"]) for p in plain]
