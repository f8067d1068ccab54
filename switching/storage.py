r"""Models on disk: a folder with one file, `model.safetensors`, which contains no executable code.

Its tensors are the values, the hyperparameters and other tensors of the class. Its metadata are JSON under
`samplehold`: the format, the class, its parts with their arguments, notes of the caller, and the SHA-256 of the whole
file with zeros instead of this number:

    {"format": 1, "sha256": "...", "class": "SwitchingSSM", "dynamics": {"class": "Copy", ...}, ..., "notes": {...}}

A save is complete or has no effect. A file with a changed bit is rejected.
"""

import dataclasses
import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from ..inference.numerics.scalars import check_path
from .data.sealed import sealed, unsealed
from .data.writing import write_file
from .parameters import HARMLESS, Named
from .user_priors import arguments, distribution_of

Model = TypeVar("Model")
FORMAT, FILE = 1, "model.safetensors"
OF_COMMAND = "model"  # the folder of it in the results of the command line
OF_FIT = "fit."  # begins the names of tensors of a fit
ABOUT = "format", "sha256", "class", "notes", "fit"  # entries that are no parts of the model
LENGTHS = "chain_sizes", "inputs", "max_states", "n", "order"  # arguments that are lengths of axes, beside n_...
OWN, DISTRIBUTION = "by name", "distribution"  # keys of a mapping, and of a distribution of Pyro


@runtime_checkable
class Described(Protocol):
    """A model in parts: its specification, and tensors by name."""

    name: ClassVar[str]

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]: ...


class Storable(Described, Protocol):
    """A model that can be stored, and made again from its parts."""

    @classmethod
    def from_parts(cls, parts: dict[str, Any], tensors: dict[str, Tensor]) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Stored:
    """A model from disk, its notes, and the fit that was saved with it."""

    model: Any
    notes: dict[str, Any]
    fit: Any = None


# ---- writing -------------------------------------------------------------------------------------------------------


def save_model(
    model: Storable,
    path: Path,
    notes: Mapping[str, Any] | None = None,
    fit: tuple[Any, Mapping[str, Tensor]] | None = None,
) -> None:
    """Write a model into a folder, which is created if needed; an older model in it is replaced.

    Arguments:
        notes: other facts about the model, in JSON types.
        fit: a fit of the model, in JSON types, and its tensors: see `stored_fit`.

    Raises:
        TypeError: a part that is not a dataclass, or an argument that cannot be stored.
        OSError: the folder or the file cannot be written; an existing model stays unchanged.
    """
    parts, tensors = model.to_parts()
    structure: dict[str, Any] = {"class": model.name} | described(parts)
    structure |= {"notes": dict(notes)} if notes else {}
    if fit is not None:
        structure["fit"] = fit[0]
        tensors = tensors | {OF_FIT + name: tensor for name, tensor in fit[1].items()}
    data = sealed(structure, tensors, FORMAT)
    path.mkdir(parents=True, exist_ok=True)
    write_file(path / FILE, data)


def described(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a model in JSON types.

    Raises:
        TypeError: see `save_model`.
    """
    return {name: _plain(part, name) for name, part in parts.items()}


def _described(part: Named) -> dict[str, Any]:
    """A dataclass as its name and arguments."""
    if not dataclasses.is_dataclass(part):
        raise TypeError(
            f"{part.name}: cannot be stored, because its arguments are unknown; make the class a frozen dataclass."
        )
    fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    fields = {name: value for name, value in fields.items() if value is not None}
    return {"class": part.name} | {name: _plain(value, f"{part.name}.{name}") for name, value in fields.items()}


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, Named):
        return _described(value)
    if isinstance(value, Mapping):
        words = {key: entry for key, entry in value.items() if isinstance(entry, str)}
        return {OWN: {key: words.get(key) or _plain(entry, f"{name}.{key}") for key, entry in value.items()}}
    if isinstance(value, Distribution):
        numbers = arguments(value)
        if numbers is None:
            raise TypeError(
                f"{name}: got {type(value).__name__}, which cannot be stored; a distribution of Pyro that is made of "
                "numbers can."
            )
        return {DISTRIBUTION: type(value).__name__} | {key: _plain(entry, name) for key, entry in numbers.items()}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [entry if isinstance(entry, str) else _plain(entry, name) for entry in value]
    if not isinstance(value, bool | int | float | str):
        raise TypeError(f"{name}: got {value!r}, which cannot be stored; numbers, names, lists of them and parts can.")
    return value


# ---- reading -------------------------------------------------------------------------------------------------------


def load(path: str | Path) -> Any:
    """Read a fit, or a model of any kind, from the folder that `save` of it has written, or `samplehold fit`.

    A fit that was saved without its data has its values, intervals, summary and diagnostics. Its methods of a series
    need x.

    Arguments:
        path: the folder.

    Raises:
        TypeError: a path of another type.
        ValueError: no such folder, no model in it, or a damaged file.

    See Also:
        `Fit.save` and `SwitchingSSM.save`, which write the folder; docs/how_to/save_load_version.md, on versions.

    >>> import tempfile
    >>> import samplehold as sh
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit([1.0, 1.1, 4.0, 4.2], progress=False).save(folder)
    ...     fit = sh.load(folder)
    >>> fit.method, fit.model.n_states
    ('em', 2)
    """
    stored = read_model(check_path("path", path))
    return stored.model if stored.fit is None else stored.fit


def load_as(kind: type[Model], path: Path) -> Model:
    """The model of a folder, if it is of one class; ValueError if the class differs."""
    model = read_model(path).model
    if not isinstance(model, kind):
        raise ValueError(f"path: {path} holds a {type(model).__name__}; use {type(model).__name__}.load.")
    return model


def read_model(path: Path) -> Stored:
    """Read a model and its notes.

    Raises:
        ValueError: no such folder; a file that cannot be read, is damaged, of a later version, or of an undefined
            class; arguments or tensors that do not form a model.
    """
    try:
        structure, tensors = _read(path)
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(OF_FIT)}
        model = _built(structure, own)
        if "fit" not in structure:
            return Stored(model, structure.get("notes", {}))
        of_fit = {name.removeprefix(OF_FIT): tensors[name] for name in tensors.keys() - own.keys()}
        return Stored(model, structure.get("notes", {}), model.fit_of(structure["fit"], of_fit))
    except OSError as error:
        raise ValueError(f"path: {path} cannot be read ({error.strerror or error}).") from None
    except Exception as error:  # parts and libraries can raise any error for such a file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"path: {path} holds no model that can be loaded: {reason}") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Structure and tensors, if they are as written."""
    inside = path / OF_COMMAND
    try:
        data = ((path if (path / FILE).exists() or not (inside / FILE).is_file() else inside) / FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"it has no {FILE}; give a folder that model.save has written.") from None
    return unsealed(data, FORMAT, FILE)


def _built(structure: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """The model; ValueError if it does not use every part and tensor of the description."""
    kind = find(structure["class"])
    if not hasattr(kind, "from_parts"):
        raise ValueError(f"class: got {kind.__name__}, which is a part of models, not a model.")
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name}: got {tensor.dtype}, expected float32 or float64.")
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name}: got numbers that are not finite, expected finite ones.")
    parts = {name: value for name, value in structure.items() if name not in ABOUT}
    _check_sizes(parts, sum(tensor.numel() for tensor in tensors.values()))
    model = kind.from_parts({name: _argument(value, name, False) for name, value in parts.items()}, tensors)
    model_parts, model_tensors = model.to_parts()
    filled = {name for name in model_tensors if name.startswith("weak.")} - set(tensors)  # see `as_before`
    for kind_of, actual, expected in (
        ("parts", parts, model_parts),
        ("tensors", tensors, model_tensors.keys() - filled),
    ):
        if set(actual) != set(expected):
            raise ValueError(f"{kind_of}: got {sorted(actual)}, expected {sorted(expected)}.")
    return model


def _check_sizes(described: Any, most: int, name: str = "") -> None:
    """ValueError if a part has an axis longer than all tensors together, before anything of this length is made."""
    if isinstance(described, dict | list):
        for key, value in described.items() if isinstance(described, dict) else ((name, value) for value in described):
            _check_sizes(value, most, key)
    elif isinstance(described, int) and described > max(most, HARMLESS) and (name.startswith("n_") or name in LENGTHS):
        raise ValueError(f"{name}: got {described:,}, but the file has {most:,} numbers.")


def _part(described: dict[str, Any], name: str) -> Any:
    """A part of a model from its name and arguments: a dataclass that was defined as a part."""
    kind: Any = find(described["class"])
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is None or hasattr(kind, "from_parts"):
        raise ValueError(f"{name}: got {kind.__name__}, which is not a part of a model.")
    flags = {name for name, field in fields.items() if "bool" in str(field.type)}
    return kind(**{n: _argument(v, f"{name}.{n}", n in flags) for n, v in described.items() if n != "class"})


def _argument(value: Any, name: str, flag: bool) -> Any:
    if isinstance(value, dict) and set(value) == {OWN}:
        words = {key: entry for key, entry in value[OWN].items() if isinstance(entry, str)}
        return {key: words.get(key) or _argument(entry, f"{name}.{key}", False) for key, entry in value[OWN].items()}
    if isinstance(value, dict) and DISTRIBUTION in value:
        numbers = {
            key: torch.as_tensor(entry, dtype=torch.float64, device="cpu")
            for key, entry in value.items()
            if key != DISTRIBUTION
        }
        return distribution_of(value[DISTRIBUTION], numbers)
    if isinstance(value, dict):
        return _part(value, name)
    if isinstance(value, list):
        return tuple(entry if isinstance(entry, str) else _argument(entry, name, flag) for entry in value)
    if isinstance(value, str):
        return value
    if isinstance(value, bool) != flag or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}: got {value!r}, expected {'true or false' if flag else 'a finite number'}.")
    return value


def find(name: Any) -> Any:
    """The class of this name: a class that has been defined, or one of the package, which is imported on demand.

    Raises:
        ValueError: there is no such class.
    """
    package = import_module(__name__.split(".")[0])
    if isinstance(name, str):
        others = [name] if name in package.__all__ else package.__all__  # those may make it, in a file of theirs
        for public in others if Named.find(name) is None else ():
            getattr(package, public)
        known = Named.find(name)
        if known is not None:
            return known
    raise ValueError(f"unknown class {name!r}: import the module that defines it before you load the model.")
