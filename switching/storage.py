"""Models on disk: a folder with a description that people can read and tensors that nothing can execute.

model.json           dynamics and emission with their arguments, the names of values and prior, the version
values.safetensors   the tensors of both
"""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from .dynamics import Copy, Markov
from .emissions import Bernoulli, Categorical, Gated, MultivariateNormal, Normal, Poisson

if TYPE_CHECKING:
    from .model import SwitchingSSM

FORMAT = 1
PARTS = {
    part.__name__: part for part in (Copy, Markov, Bernoulli, Categorical, Gated, MultivariateNormal, Normal, Poisson)
}
STRUCTURE, NUMBERS = "model.json", "values.safetensors"


def save_model(model: "SwitchingSSM", path: Path) -> None:
    """See `SwitchingSSM.save`."""
    tensors = {f"value.{name}": value for name, value in model.values.items()}
    tensors |= {f"prior.{name}": table for name, table in model.prior.items()}
    structure = {
        "format": FORMAT,
        "dynamics": _described(model.dynamics),
        "emission": _described(model.emission),
        "values": {name: list(value.shape) for name, value in model.values.items()},
    }
    path.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path / NUMBERS)
    (path / STRUCTURE).write_text(json.dumps(structure, indent=2) + "\n", encoding="utf-8")


def load_model(path: Path) -> "SwitchingSSM":
    """See `SwitchingSSM.load`."""
    from .model import SwitchingSSM

    missing = [name for name in (STRUCTURE, NUMBERS) if not (path / name).is_file()]
    if missing:
        raise ValueError(
            f"path: {path} holds no {' and no '.join(missing)}; give a folder that model.save has written."
        )
    try:
        structure = json.loads((path / STRUCTURE).read_text(encoding="utf-8"))
        dynamics, emission = _rebuilt(structure["dynamics"]), _rebuilt(structure["emission"])
        version = structure["format"]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"path: {path / STRUCTURE} is not the description of a model ({error!r}).") from None
    if version != FORMAT:
        raise ValueError(
            f"path: {path} has format {version}, this version reads {FORMAT}; load it with the version that wrote it."
        )
    tensors = load_file(path / NUMBERS)
    model = SwitchingSSM(dynamics, emission)
    prior = {name.removeprefix("prior."): t for name, t in tensors.items() if name.startswith("prior.")}
    values = {name.removeprefix("value."): t for name, t in tensors.items() if name.startswith("value.")}
    if set(prior) != set(model.prior):
        raise ValueError(f"path: {path / NUMBERS} has priors {sorted(prior)}, but the model has {sorted(model.prior)}.")
    model = model.with_prior(prior)
    return model.with_values(values) if values else model


def _described(part: Any) -> dict[str, Any]:
    """A dataclass as its class name and arguments."""
    fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    return {"class": type(part).__name__} | {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _described(value)
    return torch.as_tensor(value).tolist()


def _rebuilt(described: dict[str, Any]) -> Any:
    fields = {n: _rebuilt(v) if isinstance(v, dict) else v for n, v in described.items() if n != "class"}
    if described["class"] not in PARTS:
        raise KeyError(f"unknown part {described['class']!r}")
    return PARTS[described["class"]](**fields)
