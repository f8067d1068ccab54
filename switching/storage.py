r"""Models on disk: a folder with one file that nothing can execute, `model.safetensors`.

Its tensors are the values, the hyperparameters and what else the class holds. Its metadata say in JSON, under
`samplehold`, the format, the class, its parts with their arguments, notes of who saved it, and the SHA-256 of the whole
file with zeros in the place of this number:

    {"format": 1, "sha256": "...", "class": "SwitchingSSM", "dynamics": {"class": "Copy", ...}, ..., "notes": {...}}

A save is all or nothing, and a file of which one bit is another is refused.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from .data.writing import write_file
from .parameters import Named

Model = TypeVar("Model")
FORMAT, FILE, KEY = 1, "model.safetensors", "samplehold"
UNSEALED = "0" * 64
SEAL = re.compile(rb'(?<=\\"sha256\\": \\")[0-9a-f]{64}')


@runtime_checkable
class Storable(Protocol):
    """A model that can be stored: its specification in parts, and tensors by name."""

    name: ClassVar[str]

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]: ...

    @classmethod
    def from_parts(cls, parts: dict[str, Any], tensors: dict[str, Tensor]) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Stored:
    """A model from disk, and the notes that came with it."""

    model: Any
    notes: dict[str, Any]


# ---- writing -------------------------------------------------------------------------------------------------------


def save_model(model: Storable, path: Path, notes: Mapping[str, Any] | None = None) -> None:
    """Write a model into a folder, which is made where it is not there; what it holds of another model goes.

    Arguments:
        notes: what else is to be known of the model, as JSON can say it.

    Raises:
        TypeError: a part that cannot be described, because it is no dataclass, or an argument that is no number.
        OSError: the folder or the file cannot be written; a model that was there is as it was.
    """
    parts, tensors = model.to_parts()
    structure: dict[str, Any] = {"format": FORMAT, "sha256": UNSEALED, "class": model.name}
    structure |= {name: _plain(part, name) for name, part in parts.items()}
    structure |= {"notes": dict(notes)} if notes else {}
    # two names may stand for one tensor, which files do not allow
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    data = bytes_of(own, {KEY: json.dumps(structure, allow_nan=False)})
    seal = hashlib.sha256(data).hexdigest().encode()
    path.mkdir(parents=True, exist_ok=True)
    write_file(path / FILE, SEAL.sub(seal, data, 1))


def _described(part: Named) -> dict[str, Any]:
    """A dataclass as its name and arguments."""
    if not dataclasses.is_dataclass(part):
        raise TypeError(
            f"{part.name}: cannot be stored, since its arguments are not known; make the class a frozen dataclass."
        )
    fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    return {"class": part.name} | {name: _plain(value, f"{part.name}.{name}") for name, value in fields.items()}


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, Named):
        return _described(value)
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(entry, name) for entry in value]
    if not isinstance(value, bool | int | float):
        raise TypeError(f"{name}: got {value!r}, which cannot be stored; numbers, tables of numbers and parts can.")
    return value


# ---- reading -------------------------------------------------------------------------------------------------------


def load_model(path: Path) -> Any:
    """Read a model that `save_model` has written; see `read_model`."""
    return read_model(path).model


def load_as(kind: type[Model], path: Path) -> Model:
    """The same, where it must be a model of one class; ValueError where it is another."""
    model = load_model(path)
    if not isinstance(model, kind):
        raise ValueError(f"path: {path} holds a {type(model).__name__}; use {type(model).__name__}.load.")
    return model


def read_model(path: Path) -> Stored:
    """Read a model and its notes.

    Raises:
        ValueError: no such folder; a file that cannot be read, is damaged, of a later version, or of a class that has
            not been defined; arguments or tensors that are no model.
    """
    try:
        structure, tensors = _read(path)
        return Stored(_built(structure, tensors), structure.get("notes", {}))
    except OSError as error:
        raise ValueError(f"path: {path} cannot be read ({error.strerror or error}).") from None
    except Exception as error:  # a file can make parts and libraries raise anything
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"path: {path} holds no model that can be loaded: {said}") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Structure and tensors, which are what was written."""
    try:
        data = (path / FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"it has no {FILE}; give a folder that model.save has written.") from None
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start > len(data):
        raise ValueError(f"{FILE} is cut off or no safetensors file; save the model again.")
    structure = _json(_json(data[8:start])["__metadata__"][KEY])
    version = structure["format"]
    if version != FORMAT:
        raise ValueError(f"it has format {version!r}, and this version reads {FORMAT}; update samplehold.")
    seal = SEAL.search(data, 0, start)
    unsealed = b"" if seal is None else data[: seal.start()] + UNSEALED.encode() + data[seal.end() :]
    if structure["sha256"] != hashlib.sha256(unsealed).hexdigest():
        raise ValueError(f"{FILE} is damaged, its checksum is another; restore it from a copy, or save it again.")
    return structure, tensors_of(data)


def _json(text: str | bytes) -> dict[str, Any]:
    """An object in JSON without names that come twice, and without NaN."""

    def refuse(name: str) -> None:
        raise ValueError(f"its description has {name}, which is no finite number.")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("its description has a name twice.")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("its description is nested too deeply.") from None
    if not isinstance(found, dict):
        raise ValueError(f"its description is a {type(found).__name__}, expected an object.")
    return found


def _built(structure: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """The model; ValueError where not everything that is said of it becomes part of it."""
    kind = find(structure["class"])
    if not hasattr(kind, "from_parts"):
        raise ValueError(f"class: got {kind.__name__}, which is a part of models.")
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise ValueError(f"{name}: got {tensor.dtype} with numbers that are not finite, expected finite floats.")
    said = {name: value for name, value in structure.items() if name not in ("format", "sha256", "class", "notes")}
    model = kind.from_parts({name: _argument(value, name, False) for name, value in said.items()}, tensors)
    parts, own = model.to_parts()
    for which, there, expected in (("parts", said, parts), ("tensors", tensors, own)):
        if set(there) != set(expected):
            raise ValueError(f"{which}: got {sorted(there)}, expected {sorted(expected)}.")
    return model


def _part(described: dict[str, Any], name: str) -> Any:
    """A part of models from its name and arguments: a dataclass that has been defined as one, and nothing else."""
    kind: Any = find(described["class"])
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is None or hasattr(kind, "from_parts"):
        raise ValueError(f"{name}: got {kind.__name__}, which is no part of models.")
    flags = {name for name, field in fields.items() if field.type in (bool, "bool")}
    return kind(**{n: _argument(v, f"{name}.{n}", n in flags) for n, v in described.items() if n != "class"})


def _argument(value: Any, name: str, flag: bool) -> Any:
    if isinstance(value, dict):
        return _part(value, name)
    if isinstance(value, list):
        return tuple(_argument(entry, name, flag) for entry in value)
    if isinstance(value, bool) != flag or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}: got {value!r}, expected {'true or false' if flag else 'a finite number'}.")
    return value


def find(name: Any) -> Any:
    """The class of that name: one that has been defined, or one of the package's own, which load when asked for.

    Raises:
        ValueError: there is none.
    """
    package = import_module(__name__.split(".")[0])
    if isinstance(name, str):
        if Named.find(name) is None and name in package.__all__:
            getattr(package, name)
        found = Named.find(name)
        if found is not None:
            return found
    raise ValueError(f"unknown class {name!r}: import the module that defines it before you load the model.")
