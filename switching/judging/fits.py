"""Fits of several models, or of one model to several series, without progress bars."""

from typing import Any

from ...inference.numerics.randomness import Seed
from ..data.series import Given, Series


def is_model(model: Any) -> bool:
    """Whether something is a model that can be fitted."""
    return hasattr(model, "read") and hasattr(model, "fit") and not isinstance(model, type)


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data beside x among keywords, and the options of a fit."""
    given = {name: value for name, value in options.items() if name in Given.__annotations__}
    return given, {name: value for name, value in options.items() if name not in given}


def fitted(model: Any, series: Series, options: dict[str, Any], seed: Seed = 0) -> Any:
    """The fit of a series; Ctrl-C ends all fits, not only this one."""
    fit = model.fit(series, **({"progress": False, "seed": seed} | options))
    if fit.interrupted:
        raise KeyboardInterrupt
    return fit
