"""Fits of several models, or of one model to several series, without progress bars."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...inference.numerics.checks import ImpossibleError
from ...inference.numerics.randomness import Seed
from ...inference.numerics.scalars import check_path
from ..data.series import Given, Series


def is_model(model: Any) -> bool:
    """Whether something is a model that can be fitted."""
    return hasattr(model, "read") and hasattr(model, "fit") and not isinstance(model, type)


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data beside x among keywords, and the options of a fit.

    Raises:
        ValueError: a checkpoint that is not a folder.
    """
    given = {name: value for name, value in options.items() if name in Given.__annotations__}
    options = {name: value for name, value in options.items() if name not in given}
    if options.get("checkpoint") is not None:
        options["checkpoint"] = _folder(check_path("checkpoint", options["checkpoint"]))
    return given, options


def _folder(path: Path) -> Path:
    """A folder for the checkpoints of several fits, which is made if there is none."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise ValueError(
            f"checkpoint: {path} is no folder ({reason}), but this call makes several fits, each with a file in it; "
            "give the path of a folder."
        ) from None
    return path.absolute()


def fitted(model: Any, series: Series, options: dict[str, Any], seed: Seed = 0, *, file: str) -> Any:
    """The fit of a series; Ctrl-C ends all fits, not only this one.

    Arguments:
        file: the name of its checkpoint in the folder, if the options have one.
    """
    options = {"progress": False, "seed": seed} | options
    if options.get("checkpoint") is not None:
        options["checkpoint"] = options["checkpoint"] / file
    fit = model.fit(series, **options)
    if fit.interrupted:
        raise KeyboardInterrupt
    return fit


@contextmanager
def possible(model: Any, options: dict[str, Any]) -> Iterator[None]:
    """Inside, errors about observations that are impossible after a fit to others say what makes them possible."""
    try:
        yield
    except ImpossibleError as error:
        flat = options.get("prior", "weak") is None
        cures = ['prior="weak" instead of prior=None'] if flat else []
        axes = getattr(getattr(model, "emission", None), "sizes", {})
        if any(axis.endswith("category") for axis in axes):
            cures.append("an emission that counts each category once more, as Categorical(n_categories, prior=2.0)")
        cure = f" Give {' and '.join(cures)}." if cures else " Give a prior under which it is possible."
        reason = "The fit to other steps gave it the probability 0, because they have none like it."
        raise ImpossibleError("x", f"{error.message} {reason}{cure}", error.failed) from None
