"""Inputs of a model: the names or the number of those that a part reads, and their columns in the model's design.

A part of a model reads inputs by name, as in `Copy(2, inputs=["dose"])`, or by number: `Copy(2, inputs=3)` reads the
first three columns. The design of a model has each input once: those of the dynamics, then those of the emission.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from ..inference.numerics.scalars import check_integer

Inputs = int | tuple[str, ...]
"""The number of inputs that a part reads, or their names."""

COEFFICIENT_SCALE = 2.5
"""Prior standard deviation of a coefficient in log odds or logs, for inputs of unit variance (Gelman et al. 2008)."""


def named_or_counted(inputs: Any, argument: str = "inputs", least: int = 0) -> Inputs:
    """The inputs of a part, from names, one name, or a number.

    Raises:
        TypeError: other than these.
        ValueError: a name twice, or fewer than the least number.
    """
    if isinstance(inputs, str):
        inputs = (inputs,)
    if not isinstance(inputs, list | tuple | pd.Index):
        return check_integer(argument, inputs, least=least)
    names = tuple(inputs)
    if not names:
        raise ValueError(f"{argument}: got no names; name at least one input, or leave it out.")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{argument}: got {type(name).__name__}, expected names of inputs, or their number.")
        if names.count(name) > 1:
            raise ValueError(f"{argument}: got {name!r} twice; name each input once.")
    return names


def count_inputs(inputs: Inputs) -> int:
    """The number of inputs."""
    return inputs if isinstance(inputs, int) else len(inputs)


def all_inputs(parts: Iterable[Inputs]) -> Inputs:
    """The inputs of a model, from those of its parts.

    Raises:
        ValueError: some parts name their inputs, and others give a number.
    """
    reading = [inputs for inputs in parts if count_inputs(inputs)]
    numbers = [inputs for inputs in reading if isinstance(inputs, int)]
    if len(numbers) == len(reading):
        return max(numbers, default=0)
    if numbers:
        raise ValueError(f"inputs: got {numbers[0]} in one part and names in another; name the inputs of both.")
    return tuple(dict.fromkeys(name for names in reading if not isinstance(names, int) for name in names))


def columns_of(inputs: Inputs, of: Inputs) -> list[int]:
    """The columns of a part's inputs in a design with these inputs."""
    if isinstance(inputs, int) or isinstance(of, int):
        return list(range(count_inputs(inputs)))
    return [of.index(name) for name in inputs]


def select_columns(design: Float[Tensor, "*n C"], places: Sequence[int]) -> Float[Tensor, "*n P"]:
    """Some columns of a design; a view if they are consecutive."""
    if not places or list(places) == list(range(places[0], places[0] + len(places))):
        first = places[0] if places else 0
        return design[..., first : first + len(places)]
    return design[..., list(places)]
