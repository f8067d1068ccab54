"""One call, and whether it ended as it must."""

import dataclasses
import math
import random
import re
import time
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import alike  # noqa: F401 registers its calls
import numpy as np
import pandas as pd
import polars as pl
import samplehold
import torch
from calls import CALLS, Call, Draw
from spoil import spoiled
from torch import Tensor

PACKAGE = Path(samplehold.__file__).parent
NAME = re.compile(r"([A-Za-z_]\w*)(?:\.\w+|\[[^\]]*\])*(?:, [A-Za-z_][\w.]*(?:\[[^\]]*\])?(?:\.\w+)?)*: ")


@dataclasses.dataclass(frozen=True)
class Finding:
    """A call that did not end as it must."""

    seed: int
    number: int
    function: str
    what: str
    where: str
    given: str
    error: BaseException | None = None

    @property
    def kind(self) -> tuple[str, ...]:
        """What findings of one class have in common."""
        return self.function, re.sub(r"0x[0-9a-f]+|[-\d.]+(e[+-]?\d+)?", "#", self.what)[:100], self.where

    def __str__(self) -> str:
        return f"--seed {self.seed} --only {self.number}: {self.function}({self.given}): {self.what[:200]}"


def outcome(seed: int, number: int, only: str | None = None, spent: dict[str, float] | None = None) -> Finding | None:
    """Make the call of this seed and number; None where it ended as it must."""
    chance = random.Random(f"{seed}/{number}")
    torch.manual_seed(chance.randrange(2**31))
    names = [name for name in CALLS if only is None or only in name]
    name = chance.choices(names, [CALLS[name].weight for name in names])[0]
    call = CALLS[name].make(Draw(chance))
    arguments = dict(call.arguments)
    n = chance.choices((0, 1, 2), (0.3, 0.5, 0.2))[0]
    changed = chance.sample(sorted(arguments), min(n, len(arguments)))
    for argument in changed:
        if argument not in call.kept:
            arguments[argument] = spoiled(arguments[argument], chance)
    given = ", ".join(f"{argument}={_short(arguments[argument])}" for argument in changed)
    before = time.perf_counter()

    def finding(what: str, where: str, error: BaseException | None = None) -> Finding:
        return Finding(seed, number, name, what, where, given, error)

    try:
        result = call.function(**arguments)
        said = _wrong(call, arguments, result, bool(changed)) or _accepted(call, arguments, changed)
    except (ValueError, TypeError) as error:
        frame, text = _last(error), str(error)
        found = NAME.match(text)
        allowed = {*arguments, *call.also}
        if not changed:
            return finding(f"refused valid arguments: {type(error).__name__}: {text}", frame, error)
        if not _ours(error) or found is None or found[1] not in allowed:
            return finding(f"{type(error).__name__}: {text.splitlines()[0] if text else ''}", frame, error)
        return None
    except call.raises:
        return None
    except Exception as error:
        text = str(error)
        return finding(f"{type(error).__name__}: {text.splitlines()[0] if text else ''}", _last(error), error)
    finally:
        if spent is not None:
            spent[name] += time.perf_counter() - before
    return None if said is None else finding(said, "result")


def _wrong(call: Call, arguments: Mapping[str, Any], result: Any, changed: bool) -> str | None:
    """What is wrong with an answer: not finite though it should be, or not that of the reference."""
    if call.reference is not None:
        said = call.reference(arguments, result)
        if said is not None:
            return said
    if call.finite and not any(_unbounded(value) for value in arguments.values()):
        for path, table in _tables(result, "result"):
            if table.is_floating_point() and bool(table.isnan().any()):
                return f"NaN in {path}"
    return None


def _accepted(call: Call, arguments: Mapping[str, Any], changed: list[str]) -> str | None:
    """What was taken that means nothing: no number in the place of one, or a number that says nothing."""
    for name in changed:
        given, valid = arguments[name], call.arguments[name]
        if given is valid or name in call.kept:
            continue
        if isinstance(valid, Path) and not (isinstance(given, str | Path) and str(given)):
            return f"took {name}={_short(given)}"
        number = isinstance(valid, int | float) and not isinstance(valid, bool)
        if isinstance(given, _NEVER) and not isinstance(valid, type(given)):
            return f"took {name}={_short(given)}"
        single = isinstance(given, Real | Decimal | np.generic | np.ndarray | Tensor) and not getattr(given, "ndim", 0)
        if number and (isinstance(given, bool | np.bool_) or not (single or _in_place_of_a_number(name, given))):
            return f"took {name}={_short(given)}"
        if number and isinstance(given, float) and not abs(given) < math.inf:
            return f"took {name}={given}"
        if isinstance(valid, int) and number and isinstance(given, float | Decimal | np.floating):
            return f"took {name}={given!r}"
        if isinstance(given, Tensor) and (given.is_complex() or given.is_meta or given.layout != torch.strided):
            return f"took {name}={_short(given)}"
        texts = name in NAMES or (isinstance(valid, list) and bool(valid) and isinstance(valid[0], str))
        if isinstance(given, np.ndarray) and given.dtype.kind in "cMmUS" and not texts:
            return f"took {name}={_short(given)}"
    return None


def _in_place_of_a_number(name: str, given: Any) -> bool:
    """Whether an argument takes this where it takes a number: nothing, a generator as a seed, or a table of numbers."""
    if given is None:
        return name in OPTIONAL
    if isinstance(given, torch.Generator):
        return name == "seed"
    return name in TABLES and isinstance(given, list | tuple | np.ndarray | Tensor | pd.Series)


OPTIONAL = ("seed", "capacity", "block", "lengths", "step")
NAMES = ("steps", "names")  # whatever it is, it is called so
TABLES = ("lengths", "prior", "state_prior", "initial_prior", "transition_prior")  # a number or a table
_NEVER = (complex, bytes, set, date, timedelta, type(pd.NaT), type(lambda: None))


def _unbounded(value: Any) -> bool:
    """Whether numbers were given that may not fit the dtype of an answer."""
    return any(
        table.is_floating_point() and bool((table.detach().nan_to_num(posinf=1e300).abs() > 1e18).any())
        for _, table in _tables(value, "")
        if table.layout == torch.strided and table.device.type != "meta"
    )


def _tables(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors in a result."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        yield path, torch.from_numpy(np.array(value, dtype=np.float64))
    elif isinstance(value, float) and path:
        yield path, torch.tensor(value)
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _tables(part, f"{path}[{i}]")
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _tables(part, f"{path}[{name!r}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        if type(value).__name__ in ("Series", "Forecast"):
            names = ("mean", "variance") if type(value).__name__ == "Forecast" else ()
        else:
            names = tuple(field.name for field in dataclasses.fields(value))
        for name in names:
            yield from _tables(getattr(value, name), f"{path}.{name}")


def _last(error: BaseException) -> str:
    trace = error.__traceback__
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, code.co_name))
        trace = trace.tb_next
    ours = [(file, name) for file, name in frames if _inside(file)]
    file, name = (ours or frames)[-1]
    return f"{Path(file).name}:{name}"


def _inside(file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(PACKAGE) and not path.is_relative_to(PACKAGE / "tests") and ".venv" not in path.parts


def _ours(error: BaseException) -> bool:
    """Whether it was raised by a line of this package."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and _inside(trace.tb_frame.f_code.co_filename)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        some = "" if value.numel() > 12 or value.layout != torch.strided or value.is_meta else f" {value.tolist()}"
        return f"tensor{list(value.shape)} {str(value.dtype)[6:]}{some}"
    if isinstance(value, pd.DataFrame | pd.Series | pl.DataFrame):
        return f"{type(value).__name__}{list(value.shape)}"
    text = repr(value)
    return text if len(text) < 120 else f"{text[:117]}..."
