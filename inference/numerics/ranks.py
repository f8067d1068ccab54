"""`Ranks`: the processes that share the data of a fit, those of a group of `torch.distributed`.

Each process, a *rank*, has sequences of its own. All have the same parameters and take the same steps, because each
step depends on the data only through sums over the ranks. One `all_reduce` of float64 numbers makes such a sum. It
carries a mark of failure, so an error of one rank ends all of them, each with the error and the rank where it happened.
"""

import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from .clock import WAITING, during
from .deferred import deferred
from .interrupts import heard

T = TypeVar("T")
FAILED, INTERRUPTED = 0, 1  # the first numbers of a sum: how many ranks have failed, and were interrupted
MARKS = 2
IMPOSSIBLE = (ValueError, torch.linalg.LinAlgError)  # pyright: ignore[reportPrivateImportUsage]
"""The errors if the data are impossible, or if rounding moved parameters out of their support."""


class RankError(ConnectionError):
    """Another process of the fit has failed, or cannot be reached."""


class RankValueError(RankError, ValueError):
    """Another process has failed with one of the errors `IMPOSSIBLE`, so all take back a step that all would."""


class Ranks:
    """The processes of a group; without a group, this process alone.

    Arguments:
        group: of `torch.distributed`; None: no group, this process has all data.

    Attributes:
        rank: the number of this process.
        n: the number of processes.
    """

    group: Any
    rank: Any
    n: Any

    def __init__(self, group: Any = None) -> None:
        self.group, self.rank, self.n = group, 0, 1
        self._known: BaseException | None = None  # the last error that all ranks know
        if group is not None:
            self.rank, self.n = self._call(torch.distributed.get_rank), self._call(torch.distributed.get_world_size)

    @staticmethod
    def of(group: Any) -> "Ranks":
        """The ranks of a group; None: of the default group, if there is one.

        Raises:
            TypeError: not a group of `torch.distributed`.
            ValueError: a group without this process.
        """
        known = torch.distributed.is_available() and torch.distributed.is_initialized()
        if group is None:
            return Ranks(torch.distributed.group.WORLD if known else None)
        if not known or not isinstance(group, torch.distributed.ProcessGroup):
            raise TypeError(
                f"group: got {type(group).__name__}, expected a group of torch.distributed after init_process_group(); "
                "leave it out for the default group."
            )
        if torch.distributed.get_rank(group) < 0:
            raise ValueError("group: this process is not in the group; call fit only in the processes of the group.")
        return Ranks(group)

    @property
    def alone(self) -> bool:
        """Whether there is no group."""
        return self.group is None

    def summed(self, compute: Callable[[], list[Tensor]], zeros: list[Tensor]) -> list[Tensor]:
        """The sums over all ranks of what each computes, in the dtypes and on the devices of `zeros`.

        Raises:
            RankError: another rank has failed. The rank that has failed raises its own error.
        """
        if self.alone:
            return compute()
        failure: BaseException | None = None
        try:
            with heard(), deferred():  # checks of this process's numbers fail here, not after the sum
                _raise_told()
                tables = compute()
        except (Exception, KeyboardInterrupt) as error:
            tables, failure = zeros, error
        marks = torch.zeros(MARKS, dtype=torch.float64, device="cpu")
        if failure is not None:
            marks[INTERRUPTED if isinstance(failure, KeyboardInterrupt) else FAILED] = 1.0
        flat = torch.cat([marks.to(self._device), *(t.detach().double().to(self._device).flatten() for t in tables)])
        self._call(torch.distributed.all_reduce, flat)
        if bool(flat[:MARKS].any()):
            self._fail(failure)
        parts = flat[MARKS:].split([zero.numel() for zero in zeros])
        return [part.reshape(zero.shape).to(zero) for part, zero in zip(parts, zeros, strict=True)]

    def total(self, *numbers: float) -> list[float]:
        """The sums of numbers over all ranks."""
        table = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        return self.summed(lambda: [table], [torch.zeros_like(table)])[0].tolist()

    def gathered(self, compute: Callable[[], Any]) -> list[Any]:
        """What each rank computes, in the order of ranks. Errors are as in `summed`."""
        if self.alone:
            return [compute()]
        failure: BaseException | None = None
        computed: Any = None
        try:
            with heard():
                _raise_told()
                computed = compute()
            pickle.dumps(computed)
        except (Exception, KeyboardInterrupt) as error:
            failure = error
        there: list[Any] = [None] * self.n
        self._call(torch.distributed.all_gather_object, there, (computed, failure is not None))
        if any(failed for _, failed in there):
            self._fail(failure)
        return [one for one, _ in there]

    def together(self, compute: Callable[[], T]) -> T:
        """What this rank computes, after all have computed theirs. Errors are as in `summed`."""
        computed: list[T] = []
        self.gathered(lambda: computed.append(compute()))
        return computed[0]

    def jointly(self, compute: Callable[[], T]) -> T:
        """What this rank computes, with sums and gatherings inside. An error outside of these ends the next gathering
        of the others, and so all of them."""
        if self.alone:
            return compute()
        try:
            computed = compute()
        except (Exception, KeyboardInterrupt) as error:
            if not self._is_known(error):
                self.gathered(partial(_raised, error))
            raise
        self.gathered(lambda: None)
        return computed

    def _is_known(self, error: BaseException | None) -> bool:
        """Whether all ranks have raised an error, or that from which it comes."""
        return error is not None and (error is self._known or self._is_known(error.__cause__ or error.__context__))

    def _fail(self, failure: BaseException | None) -> None:
        """Raise the error of this rank, or that of the first rank that has one; errors that are not `IMPOSSIBLE` come
        first."""
        said = None if failure is None or isinstance(failure, KeyboardInterrupt) else _in_words(failure)
        there: list[Any] = [None] * self.n
        self._call(torch.distributed.all_gather_object, there, (said, isinstance(failure, IMPOSSIBLE)))
        errors = sorted((mild, rank, error) for rank, (error, mild) in enumerate(there) if error is not None)
        self._known = KeyboardInterrupt()
        if errors:
            mild, rank, error = errors[0]
            kind = RankValueError if mild else RankError
            is_own = said is not None and failure is not None and isinstance(failure, IMPOSSIBLE) == mild
            self._known = failure if is_own else kind(f"x: process {rank} of {self.n} has failed: {error}")
        assert self._known is not None
        raise self._known

    @property
    def _device(self) -> torch.device:
        """Where the group's backend takes tensors."""
        by_gpu = torch.distributed.get_backend(self.group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if by_gpu else torch.device("cpu")

    def _call(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        """A collective operation.

        Raises:
            RankError: the connection to some process is lost, or it did not answer in the time of the group.
        """
        try:
            with during(WAITING):
                return operation(*arguments, group=self.group)
        except (RuntimeError, torch.distributed.DistError) as error:
            self._known = RankError(
                f"group: process {self.rank} of {self.n} lost the others, which have ended or did not answer "
                f"({str(error).splitlines()[0]}); see their output, and start all of them again."
            )
            raise self._known from None


_told: ContextVar[list[Exception] | None] = ContextVar("told", default=None)


@contextmanager
def told_all() -> Iterator[Callable[[Exception], None]]:
    """Inside, the function takes an error of this process alone. The next sum or gathering raises it in all
    processes."""
    errors: list[Exception] = []
    token = _told.set(errors)
    try:
        yield errors.append
    finally:
        _told.reset(token)


def _raise_told() -> None:
    if errors := _told.get():
        raise errors.pop()


def _raised(error: BaseException) -> None:
    raise error


def _in_words(error: BaseException) -> str:
    """An error with the place where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
