"""Fits that can be resumed: the file of a checkpoint, and what it is of.

A file belongs to one call: to the data, the model and the options that decide its result. All others are refused by
their names. `progress` and `every` may differ. A file is one safetensors with JSON (see `data.sealed`), written under
another name, synced and renamed. If processes share the data, the first one reads and writes it. Then the data are
known by a sum over sequences, so that another number of processes may go on.
"""

import errno
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..inference.numerics.forms import mode
from ..inference.numerics.ranks import Ranks, told_all
from .data.frames import to_tensor
from .data.packed import Packed
from .data.sealed import unsealed
from .data.series import Series
from .fitting.checkpoint import FORMAT, Checkpoint, loops_of
from .fitting.initialization import values_of_model
from .fitting.options import Options
from .storage import Described, described

OTHERS = (
    "progress",
    "checkpoint",
    "every",
    "saving",
    "number",
    "prior",
    "group",
)  # options that are compared elsewhere, or not
LONGEST = 32  # text of an option that an error shows
LABELS = "index", "features", "sequences", "drivers", "state_names", "subject_names", "stacked", "frame", "checked"


@contextmanager
def resumable(model: Described, series: Series, options: Options) -> Iterator[Options]:
    """The options of a fit with its checkpoint open, which is written at the end, also after Ctrl-C.

    Raises:
        ValueError: the file is of another fit, or cannot be read.
        TypeError: the model has parts that cannot be stored.
        OSError: the file cannot be written.
    """
    if options.checkpoint is None:
        yield options
        return
    path = options.checkpoint.absolute()  # a fit may change the folder of its process
    ranks = Ranks.of(options.group)
    identity = identity_of(model, series, options, ranks)
    found = _found(path, ranks, series.like.device)
    first = ranks.rank == 0
    if found is None:
        identity["seed"] = ranks.gathered(lambda: identity["seed"])[0]  # if it is None, each process has drawn another
        saving = Checkpoint(path, identity, options.every, writes=first)
    else:
        if options.seed is None:  # any number will do, so it is that of the file
            identity["seed"] = found.identity.get("seed")
        _check(path, found.identity, identity)
        saving = Checkpoint(path, identity, options.every, found.loops, first)
    ranks.together(lambda: saving.write(anew=True))  # so that a place that takes no file is known before any work
    with told_all() as tell:
        saving.tell = None if ranks.alone else tell  # raised here alone, it would leave the others waiting for a sum
        try:
            yield replace(options, seed=identity["seed"], saving=saving)
        except Exception:
            raise  # what could not be computed or written is not written either
        except BaseException:
            saving.write()
            raise
        ranks.together(saving.write)


def identity_of(model: Described, series: Series, options: Options, ranks: Ranks) -> dict[str, Any]:
    """What decides the result of a fit, by name, in JSON types."""
    parts, tensors = model.to_parts()
    prior = {name: table for name, table in tensors.items() if name.startswith("prior.")}
    data = {"x": sum_of_digests(series, ranks)} if series.on_disk or not ranks.alone else _digests(series)
    chosen = {f.name: _plain(getattr(options, f.name), f.name) for f in fields(options) if f.name not in OTHERS}
    return {
        "samplehold": _version(),
        "model": _digest(str([model.name, described(parts)]), "model"),
        **data,
        "device": series.like.device.type,
        **chosen,
        "seed": options.number,
        "prior": None if options.prior is None else _digest(prior, "prior"),
        "kernels": mode(),
    }


def sum_of_digests(series: Series, ranks: Ranks) -> str:
    """Text that differs for other sequences or another order of them, but not for other shares of the processes."""
    there = ranks.gathered(lambda: series.n_sequences)
    first, total = sum(there[: ranks.rank]), 0
    for i in range(series.n_sequences):
        one = series.part(torch.tensor([i], device="cpu"))
        length = int(one.last) + 1
        tables = _digests(one if length == one.n_steps else one.stretch(0, length))
        total += int(_digest(str([first + i, tables | {"lengths": length}]), "x"), 16)
        series.release()
    return f"{sum(ranks.gathered(lambda: total)) % 2**256:x}"


def _digests(series: Series) -> dict[str, Any]:
    return {f.name: _digest(getattr(series, f.name), f.name) for f in fields(series) if f.name not in LABELS}


def _plain(option: Any, name: str) -> Any:
    """An option as it is if it is a number or a text, otherwise a digest."""
    return option if isinstance(option, bool | int | float | str | None) else _digest(values_of_model(option), name)


def _digest(value: Any, name: str) -> Any:
    """Text that differs for different values: tensors, tables, numbers, texts, or dictionaries of these."""
    if value is None:
        return None
    if isinstance(value, str):
        return hashlib.sha256(value.encode()).hexdigest()
    if isinstance(value, Mapping):
        return {str(key): _digest(entry, f"{name}[{key!r}]") for key, entry in value.items()}
    if isinstance(value, Packed):
        return {"rows": _digest(value.rows, name), "lengths": _digest(value.lengths, name)}
    table = (value if isinstance(value, Tensor) else to_tensor(value, name)).detach().cpu().contiguous()
    sums = hashlib.sha256(f"{table.dtype} {list(table.shape)} ".encode())
    sums.update(memoryview(table.reshape(-1).view(torch.uint8).numpy()))  # pyright: ignore[reportArgumentType]
    return sums.hexdigest()


def _version() -> str:
    from .. import __version__

    return __version__


def _found(path: Path, ranks: Ranks, device: torch.device) -> Checkpoint | None:
    """The checkpoint of a file, which the first process reads; None: there is none.

    Raises:
        ValueError: it cannot be read.
    """

    def content() -> bytes | None:
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise OSError(errno.EINVAL, "Is a pipe or a device")
            return path.read_bytes() if ranks.rank == 0 else None
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"checkpoint: {path} cannot be read ({reason}); give the path of a file.") from None

    written = ranks.gathered(content)[0]
    if written is None:
        return None
    try:
        structure, tensors = unsealed(written, FORMAT, path.name)
        if "loops" not in structure:
            raise ValueError("it is a file of another kind")
        loops = loops_of(structure["loops"], tensors, device)
        return Checkpoint(path, dict(structure["identity"]), loops=loops)
    except Exception as error:  # parts and libraries can raise any error for such a file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"checkpoint: {path} holds no state of a fit that can be read: {reason.rstrip('.')}; give "
            "another path, or remove the file to start the fit again."
        ) from error


def _check(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise ValueError if a file is of another fit, with the names of what differs."""
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    if not names:
        return
    pairs = {name: (there.get(name), here.get(name)) for name in names}
    said = [
        name
        if any(isinstance(v, dict) or len(str(v)) > LONGEST for v in pair)
        else f"{name}={pair[0]!r}, now {pair[1]!r}"
        for name, pair in pairs.items()
    ]
    raise ValueError(
        f"checkpoint: {path} is of another fit, which differs in {'; '.join(said)}; repeat the call "
        "of that fit to continue it, or give another path."
    )
