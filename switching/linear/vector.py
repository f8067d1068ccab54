"""What models have in common whose hidden state is a real vector, and that nothing drives from outside."""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from ...inference.numerics.scalars import check_kind
from ..data.reading import read_series
from ..data.series import Given, Series
from ..parameters import Parameter, Parameters, described, read_tables
from ..verbs import Verbs


class VectorModel(Verbs):
    """A model with `values` by name, empty while it has none."""

    values: Parameters

    @property
    def known(self) -> Mapping[str, Parameter]:
        """What is known of each parameter besides its values: axes and support."""
        raise TypeError(f"{self.name}: says nothing of its parameters.")

    @property
    def n_features(self) -> int:
        """F, the length of one observation."""
        raise TypeError(f"{self.name}: says nothing of its features.")

    @property
    def _like(self) -> Tensor:
        """A number of float64, where the values lie."""
        device = next((value.device for value in self.values.values()), None)
        return torch.zeros((), dtype=torch.float64, device=device)

    def values_like(self, x: Tensor) -> Parameters:
        """The values in the dtype and on the device of x."""
        if not self.values:
            raise ValueError("model: has no parameter values yet; use model.fit(x).model, or model.with_values(...).")
        return {name: value.to(x) for name, value in self.values.items()}

    def describe(self) -> Parameters:
        """The parameter values as a reader knows them."""
        return described(self.known, self.values)

    def product_of(self, values: Parameters) -> Parameters:
        """Parameters as those of the chain in `problem`: these themselves."""
        return values

    def read(self, x: Any, *, horizon: int = 0, **given: Unpack[Given]) -> Series:
        """The observations and their labels as one `Series`, checked against this model.

        Raises:
            ValueError: see `data.reading.read_series`; covariates or gaps, of which it has none.
        """
        for name in ("covariates", "dt"):
            if given.get(name) is not None:
                raise ValueError(f"{name}: got some, but nothing drives a {self.name}; leave it out.")
        if not isinstance(x, Series):
            return read_series(x, self.n_features, **given)
        for name in (name for name, value in given.items() if value is not None):
            raise ValueError(f"{name}: got some besides a Series, which has its own; leave it out.")
        if x.observations.shape[-1] != self.n_features:
            raise ValueError(f"x: got {x.observations.shape[-1]} feature(s), but the model has {self.n_features}.")
        if x.covariates is not None or x.gaps is not None:
            raise ValueError(
                f"x: got a Series with covariates or gaps, but nothing drives a {self.name}; leave them out."
            )
        return x

    def _tables(self, values: Mapping[str, Any] | None, named: Mapping[str, Any]) -> Parameters:
        """What was given by name, as tensors; ValueError of names that are no parameter's."""
        given = {**(check_kind("values", values, Mapping, "numbers by name") if values is not None else {}), **named}
        unknown = [name for name in given if name not in self.known]
        if unknown:
            raise ValueError(f"values: got unknown parameter(s) {unknown}; this model has {list(self.known)}.")
        return read_tables(given) if given else {}
