"""The members of a fit that its Tab key offers: those that it can answer."""

from collections.abc import Iterable
from typing import Any

from .of_model import OfModel, Verb

INTERNAL = {"of", "reported", "running", "held", "kept", "labels"}


def offered(fit: Any, names: Iterable[str]) -> list[str]:
    """Of these names, those of members that the fit can answer."""
    verbs = {name for name, member in vars(OfModel).items() if isinstance(member, Verb)}
    never = {name for name in verbs if not hasattr(fit.model, name)} | INTERNAL
    never |= {name for name, can in conditions(fit).items() if not can}
    return sorted(set(names) - never)


def conditions(fit: Any) -> dict[str, bool]:
    """The members that only some fits can answer, and whether this one can."""
    model, parts = fit.model, vars(fit.model)
    switching = len(model.chain_sizes) == 1 and "dynamics" in parts
    of_point = fit.posterior is None and fit.has_all
    exact = switching or bool(model.chain_name)  # the chains' tables are those of one chain
    continuous = switching and not model.subjects and hasattr(model.dynamics, "generators")
    return {
        **dict.fromkeys(("aic", "aicc", "bic", "hqic"), of_point),
        "icl": of_point and exact,
        "changes": bool(model.chain_sizes) or hasattr(model, "segments"),
        "n_states_used": switching and not model.subjects,
        "plot_effect": bool(model.chain_sizes) and not isinstance(model.inputs, int) and not model.subjects,
        "paths": fit.paths is not None,
        "plot_transitions": continuous,
        "residuals": exact or hasattr(model, "segments"),
        "sojourn": continuous,
        "subject": bool(model.subjects),
        "transition_table": continuous,
        "update": switching and not model.subjects and not continuous and fit.method in ("em", "vmp"),
    }
