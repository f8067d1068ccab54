"""Fits of several models, or of one model to several series, without progress bars."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...inference.numerics.checks import ImpossibleError
from ...inference.numerics.randomness import Seed
from ..data.series import Given, Series


def is_model(model: Any) -> bool:
    """Whether something is a model that can be fitted."""
    return hasattr(model, "read") and hasattr(model, "fit") and not isinstance(model, type)


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data beside x among keywords, and the options of a fit.

    Raises:
        ValueError: a checkpoint, as there are several fits.
    """
    if options.get("checkpoint") is not None:
        raise ValueError(
            f"checkpoint: got {options['checkpoint']!r}, but a checkpoint holds one fit, and this call makes several; "
            "fit each model by itself, with its own file."
        )
    given = {name: value for name, value in options.items() if name in Given.__annotations__}
    return given, {name: value for name, value in options.items() if name not in given}


def fitted(model: Any, series: Series, options: dict[str, Any], seed: Seed = 0) -> Any:
    """The fit of a series; Ctrl-C ends all fits, not only this one."""
    fit = model.fit(series, **({"progress": False, "seed": seed} | options))
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
