"""Pyro's NUTS, one draw at a time, whose whole state can be kept and set: that of its adaptation too."""

from collections.abc import Callable, Mapping
from typing import Any

from pyro.infer import NUTS
from torch import Tensor

from ..parameters import Parameters
from .trees import copied

KERNEL = "_t", "_accept_cnt", "_mean_accept_prob", "_divergences", "_z_last", "_potential_energy_last", "_z_grads_last"
ADAPTER = "step_size", "_current_window"
STEPS = "prox_center", "_x_avg", "_g_avg", "_t"  # of the adaptation of the step size
MASSES = "_inverse_mass_matrix", "_mass_matrix_sqrt", "_mass_matrix_sqrt_inverse"
MOMENTS = "_mean", "_m2", "n_samples"  # of the draws, for the mass matrix


class Sampler:
    """One chain.

    Arguments:
        potential: minus the log density of coordinates by name.
        start: the first coordinates.
        n_warmup: the number of draws in which the sampler adapts.
    """

    kernel: NUTS

    def __init__(self, potential: Callable[[Parameters], Tensor], start: Parameters, n_warmup: int) -> None:
        self.kernel, self._point = NUTS(potential_fn=potential), start
        self.kernel.initial_params = start
        self._n_warmup, self._is_set = n_warmup, False

    def draw(self) -> Parameters:
        """The next draw, of the adaptation or of the posterior."""
        if not self._is_set:
            self._set_up()
        self._point = self.kernel.sample(self._point)
        return self._point

    def state(self) -> dict[str, Any]:
        """A tree (see `trees`) from which `set` continues with the same bits."""
        return {name: {part: copied(vars(of)[part]) for part in parts} for name, of, parts in self._parts()}

    def set(self, state: Mapping[str, Any]) -> None:
        """Go on from the state that a sampler of the same density had."""
        self._set_up()
        for name, of, parts in self._parts():
            for part in parts:
                setattr(of, part, state[name][part])

    def _set_up(self) -> None:
        self.kernel.setup(self._n_warmup)
        self._is_set = True

    def _parts(self) -> list[tuple[str, Any, tuple[str, ...]]]:
        """The objects that have the state, and its parts."""
        adapter: Any = self.kernel._adapter
        masses = adapter.mass_matrix_adapter
        (moments,) = masses._adapt_scheme.values()  # all coordinates are one group
        return [
            ("kernel", self.kernel, KERNEL),
            ("adapter", adapter, ADAPTER),
            ("steps", adapter._step_size_adapt_scheme, STEPS),
            ("masses", masses, MASSES),
            ("moments", moments, MOMENTS),
        ]
