"""Models on disk: a folder with a description that people can read and tensors that nothing can execute.

model.json           the class, its parts with their arguments, the names of values, the version
values.safetensors   the tensors: values, hyperparameters, and what else the class holds
"""

import dataclasses
import json
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .parameters import Named

Model = TypeVar("Model")
FORMAT = 1
STRUCTURE, NUMBERS = "model.json", "values.safetensors"


@runtime_checkable
class Storable(Protocol):
    """What a model must offer to be stored: itself as parts with arguments, and tensors by name."""

    name: ClassVar[str]

    def to_parts(self) -> tuple[dict[str, Named], dict[str, Tensor]]: ...

    @classmethod
    def from_parts(cls, parts: dict[str, Any], tensors: dict[str, Tensor]) -> Any: ...


def save_model(model: Storable, path: Path) -> None:
    """Write a model into a folder, which is made where it is not there.

    Raises:
        TypeError: a part that cannot be described, because it is no dataclass.
    """
    parts, tensors = model.to_parts()
    structure = {"format": FORMAT, "class": model.name}
    structure |= {name: _described(part) for name, part in parts.items()}
    structure["tensors"] = {name: list(tensor.shape) for name, tensor in tensors.items()}
    path.mkdir(parents=True, exist_ok=True)
    # two names may stand for one tensor, which files do not allow
    save_file({n: tensor.detach().cpu().contiguous().clone() for n, tensor in tensors.items()}, path / NUMBERS)
    (path / STRUCTURE).write_text(json.dumps(structure, indent=2) + "\n", encoding="utf-8")


def load_model(path: Path) -> Any:
    """Read a model that `save_model` has written.

    Raises:
        ValueError: no such folder; a description that cannot be read, of another version, or of a class that has not
            been defined; tensors that do not fit it.
    """
    missing = [name for name in (STRUCTURE, NUMBERS) if not (path / name).is_file()]
    if missing:
        raise ValueError(
            f"path: {path} holds no {' and no '.join(missing)}; give a folder that model.save has written."
        )
    try:
        structure = json.loads((path / STRUCTURE).read_text(encoding="utf-8"))
        version, kind = structure["format"], find(structure.get("class", "SwitchingSSM"))
        parts = {name: _rebuilt(part) for name, part in structure.items() if isinstance(part, dict) and "class" in part}
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"path: {path / STRUCTURE} is not the description of a model ({error!r}).") from None
    if version != FORMAT:
        raise ValueError(
            f"path: {path} has format {version}, this version reads {FORMAT}; load it with the version that wrote it."
        )
    try:
        return kind.from_parts(parts, load_file(path / NUMBERS))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"path: {path} describes a model that cannot be built: {error}") from None


def load_as(kind: type[Model], path: Path) -> Model:
    """The same, where it must be a model of one class; ValueError where it is another."""
    model = load_model(path)
    if not isinstance(model, kind):
        raise ValueError(f"path: {path} holds a {type(model).__name__}; use {type(model).__name__}.load.")
    return model


def _described(part: Named) -> dict[str, Any]:
    """A dataclass as its name and arguments."""
    if not dataclasses.is_dataclass(part):
        raise TypeError(
            f"{part.name}: cannot be stored, since its arguments are not known; make the class a frozen dataclass."
        )
    fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    return {"class": part.name} | {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Named):
        return _described(value)
    return torch.as_tensor(value).tolist()


def _rebuilt(described: dict[str, Any]) -> Any:
    fields = {n: _rebuilt(v) if isinstance(v, dict) else v for n, v in described.items() if n != "class"}
    return find(described["class"])(**fields)


def find(name: str) -> Any:
    """The class of that name: one that has been defined, or one of the package's own, which load when asked for."""
    if Named.find(name) is None:
        getattr(import_module(__name__.split(".")[0]), name, None)
    found = Named.find(name)
    if found is None:
        raise KeyError(f"unknown class {name!r}: import the module that defines it before you load the model")
    return found
