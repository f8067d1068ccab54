r"""`LayeredSSM`: copy chains on top of each other; a state of one layer is what the layer above says when it is asked.

With layers l = 1 (lowest) to L, every layer a copy chain with gates of its own,

$$z^l_t \sim \text{Bernoulli}(\rho_l), \quad s^l_t = s^l_{t-1} \text{ if } z^l_t = 0, \quad
s^l_t \sim B_l[s^{l+1}_t, \cdot] \text{ if } z^l_t = 1 \;(l < L), \quad s^L_t \sim \pi, \qquad
x_t \sim p(x \mid s^1_t, z^1_t),$$

so a drawn state of layer l is an observation of layer l+1, and a held one tells nothing about it. The first step
redraws every layer.

**Message passing.** $q = \prod_l q_l(z^l, s^l)$, each an exact chain. Neighbours meet in
$E[\log p] = \sum_t f^l_t(s)\, m^{l+1}_t(s') \log B_l[s', s]$, with $f^l_t(s) = q(s^l_t = s, z^l_t = 1)$ and
$m^{l+1}_t(s') = q(s^{l+1}_t = s')$. The message up is $\log B_l f^l_t$, the message down $m^{l+1}_t \log B_l$.

**One bottom-up sweep**, `bottom_up`, is the part of it that an online network can do: no message comes down, and none
comes back in time. Layer l is filtered exactly as a copy chain on its own, its fresh states drawn from what the prior
says of them, $\pi_l = \pi_{l+1} B_l$, $\pi_L = \pi$, under the evidence

    layer 1       log p(x_t | s, z) of the emission
    layer l + 1   e_t(s') = sum_s b_t(s) log B_l[s', s], whether the layer draws or holds

where $b_t$ is the softmaxed belief that layer l passes up: the filtered $P(s^l_t = s, z^l_t = 1)$, the message above
with the filter in the place of q; or, as a stack of recurrent layers passes it, the filtered $P(s^l_t = s)$ itself,
which asks the layer above at every step, held ones too. The lowest layer is exact as far as its own chain goes; the
layers above have soft observations. It is an approximation: `product_chain` is exact. Further sweeps (`infer`) raise
the bound of independent layers; where layers depend strongly on each other, its marginals may still be farther from the
exact ones.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from torch import Tensor

from ...inference.chains.contract import Filtered
from ...inference.chains.copy.chain import CopyChain
from ...inference.chains.markov.chain import MarkovChain
from ...inference.families import CopyPaths, CopyTables
from ...inference.message_passing.engine import VMP, Block, Factor
from ..data.series import Sequences, read_sequences
from ..emissions import Emission
from ..parameters import Parameters
from ..program import Observation
from .contract import CoupledChains, CoupledDraw, draw_chain, draw_model, prior_tables
from .fit import CoupledFit


@dataclass(frozen=True, eq=False)
class LayeredSSM(CoupledChains):
    """Layers of copy chains, from the lowest to the top.

    Arguments:
        emission: what the lowest layer looks like; `Gated` too.
        values: the emission's parameters, as `SwitchingSSM.values` holds them.
        redraw_prob: [L], the redraw probability of each layer.
        tables: L - 1 tables [K_{l+1}, K_l] of P(fresh state of layer l | state of layer l+1), all entries positive.
        state_probs: [K_L], fresh states of the top layer.

    Raises:
        ValueError: shapes that do not fit, rows that are no probabilities, a table with a zero.
    """

    emission: Emission
    values: Parameters
    redraw_prob: Tensor
    tables: Sequence[Tensor]
    state_probs: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", self.emission.check_values(dict(self.values)))
        _check(self)

    @property
    def n_layers(self) -> int:
        return len(self.redraw_prob)

    @property
    def n_states(self) -> tuple[int, ...]:
        """Numbers of states from the lowest layer to the top."""
        return (*(table.shape[-1] for table in self.tables), len(self.state_probs))

    @property
    def fresh_probs(self) -> tuple[Tensor, ...]:
        """pi_l, what the prior says of a fresh state of each layer, from the lowest."""
        probs = [self.state_probs]
        for table in reversed(self.tables):
            probs.insert(0, probs[0] @ table)
        return tuple(probs)

    # ---- the generative program --------------------------------------------------------------------------------------

    def program(self, x: Tensor | None = None, n_steps: int | None = None, batch_shape: tuple[int, ...] = ()) -> Tensor:
        """Pyro sites `z_t_l`, `s_t_l` (from 1, layer 1 the lowest) and `x_t`; conditioned on x where given."""
        if x is not None:
            n_steps, batch_shape = x.shape[-2], tuple(x.shape[:-2])
        assert n_steps is not None
        plates = [pyro.plate(f"sequences_{i}", n, dim=i - len(batch_shape)) for i, n in enumerate(batch_shape)]
        states: list[Tensor] = []
        seen = []
        for t in pyro.markov(range(1, n_steps + 1)):
            with ExitStack() as scope:
                for plate in plates:
                    scope.enter_context(plate)
                redraw, states = self._draw(t, states)
                observation = Observation(self.emission, self.values, states[0], redraw)
                seen.append(pyro.sample(f"x_{t}", observation, obs=None if x is None else x[..., t - 1, :]))
        return torch.stack(seen, -2)

    def _draw(self, t: int, before: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The gate of the lowest layer and the states of all, drawn from the top."""
        states: list[Tensor] = []
        redraw = self.redraw_prob.new_ones(())
        for layer in reversed(range(self.n_layers)):
            probs = self.state_probs if not states else self.tables[layer][states[0]]
            redraw, state = draw_chain(t, layer, self.redraw_prob[layer], probs, before[layer] if before else None)
            states.insert(0, state)
        return redraw, states

    def simulate(self, n_steps: int, batch_shape: tuple[int, ...] = (), seed: int | None = None) -> CoupledDraw:
        """A draw of states, gates and observations; a seed makes it repeatable and leaves global state alone."""
        return CoupledDraw(*draw_model(self.program, self.n_layers, n_steps, batch_shape, seed))

    # ---- exact inference ---------------------------------------------------------------------------------------------

    def product_chain(self, x: Any, lengths: Any = None) -> MarkovChain:
        """The chain over (z^1, s^1, ..., s^L), the top layer's state changing fastest: for small models."""
        series = self._read(x, lengths)
        sizes = self.n_states
        moves = self._moves([torch.eye(k).to(self.state_probs) for k in sizes])  # [s, new z^1, new s]
        start = self._moves([torch.zeros(k, k).to(self.state_probs) for k in sizes], first=True)[0]
        likelihood = torch.stack(
            torch.broadcast_tensors(*reversed(self.emission.log_likelihood(series.values, self.values))), -2
        )  # [*b, T, z^1, s^1], held before redrawn
        upper = moves.shape[-1] // sizes[0]
        table = likelihood.repeat_interleave(upper, -1).flatten(-2)
        transition = moves.flatten(1).repeat(2, 1)  # the gate before does not matter
        return MarkovChain(start.flatten().log(), transition.log(), table, series.lengths)

    def _moves(self, same: list[Tensor], first: bool = False) -> Tensor:
        """P(z^1, s | s before) as [prod K, 2, prod K]; all layers redraw where it is the first step."""
        total = self.redraw_prob.new_ones((1,) * (1 + 2 * self.n_layers))
        for layer, keep in enumerate(same):
            rho = torch.ones_like(self.redraw_prob[layer]) if first else self.redraw_prob[layer]
            top = layer == self.n_layers - 1
            fresh = rho * (self.state_probs.unsqueeze(0) if top else self.tables[layer])  # [above, new]
            parts = [
                fresh.unsqueeze(0).expand(len(keep), -1, -1),
                ((1 - rho) * keep).unsqueeze(1).expand(-1, len(fresh), -1),
            ]
            shape = [1] * (1 + 2 * self.n_layers)  # z^1, old states, new states
            shape[1 + layer], shape[1 + self.n_layers + layer] = len(keep), len(keep)
            if not top:
                shape[2 + self.n_layers + layer] = len(fresh)
            drawn, held = (part.transpose(1, 2).reshape(shape) for part in parts)
            total = total * (torch.cat([held, drawn]) if layer == 0 else held + drawn)
        size = self.redraw_prob.new_empty(self.n_states).numel()
        return total.expand(2, *self.n_states, *self.n_states).reshape(2, size, size).transpose(0, 1)

    def _marginals(self, joint: Tensor) -> tuple[Tensor, ...]:
        split = joint.unflatten(-1, (2, *self.n_states))
        axes = range(-self.n_layers, 0)
        return tuple(split.sum([-self.n_layers - 1, *(a for a in axes if a != layer)]) for layer in axes)

    # ---- message passing ---------------------------------------------------------------------------------------------

    def bottom_up(self, x: Any, lengths: Any = None, passed: str = "redrawn") -> tuple[Filtered, ...]:
        """Each layer's filter, from the lowest, in one bottom-up sweep; see the module's definition.

        Arguments:
            passed: "redrawn": a layer passes up P(s_t, z_t = 1), the message of the model;
                "state": P(s_t), what a stack of recurrent layers passes up.
        """
        if passed not in ("redrawn", "state"):
            raise ValueError(f'passed: got {passed!r}, expected "redrawn" or "state".')
        series = self._read(x, lengths)
        redrawn, held = self.emission.log_likelihood(series.values, self.values)
        found: list[Filtered] = []
        for layer in range(self.n_layers):
            found.append(self.layer_chain(layer, redrawn, held, series.lengths).filter())
            if layer < self.n_layers - 1:
                belief = found[-1].state
                if passed == "redrawn":
                    belief = self._redrawn(layer, redrawn, found[-1])
                redrawn = held = belief @ self.tables[layer].log().mT
        return tuple(found)

    def layer_chain(
        self, layer: int, log_redrawn: Tensor, log_held: Tensor, lengths: Tensor | None = None
    ) -> CopyChain:
        """One layer (from 0) on its own under log evidence [*b, T, K_l] of drawn and of held states."""
        prior = prior_tables(self.redraw_prob[layer], self.fresh_probs[layer].log(), log_redrawn.shape[-2])
        return CopyChain(None, prior.fresh + log_redrawn, prior.held + log_held, lengths)

    def _redrawn(self, layer: int, log_redrawn: Tensor, found: Filtered) -> Tensor:
        """P(s_t, z_t = 1 | evidence up to t): given a redraw, the state before does not matter."""
        assert found.redraw is not None
        return found.redraw.unsqueeze(-1) * torch.softmax(self.fresh_probs[layer].log() + log_redrawn, -1)

    def engine(self, x: Any, lengths: Any = None, check: bool = True) -> VMP:
        """The model on the engine: a block `layer_l` (from 1, the lowest) of exact paths for each layer."""
        series = self._read(x, lengths)
        redrawn, held = self.emission.log_likelihood(series.values, self.values)
        inside = series.inside.to(series.values)
        flat, start = torch.zeros_like(redrawn[..., :1]), self.fresh_probs
        blocks, factors = [], [Factor(_emission(redrawn, held), ("layer_1",), mask=inside)]
        for layer, k in enumerate(self.n_states):
            top = layer == self.n_layers - 1
            log_fresh = self.state_probs.log() if top else self.state_probs.new_zeros(k)
            base = prior_tables(self.redraw_prob[layer], log_fresh, series.values.shape[-2])
            eta = flat.expand(*flat.shape[:-1], k)
            tables = CopyTables(eta if top else eta + start[layer].log(), eta)
            blocks.append(Block(f"layer_{layer + 1}", CopyPaths(series.lengths, base), eta=tables))
            if not top:
                names = f"layer_{layer + 1}", f"layer_{layer + 2}"
                factors.append(Factor(_asked(self.tables[layer].log()), names, mask=inside))
        return VMP(blocks, factors, check=check)

    def fit(
        self,
        x: Any,
        restarts: int = 8,
        max_steps: int = 500,
        tol: float = 1e-6,
        seed: int = 0,
        lengths: Any = None,
        progress: bool = True,
    ) -> CoupledFit:
        """Learn all tables and the emission by message passing, restarts as one batch.

        The model gives the numbers of states and the emission; its values are not looked at. Priors are flat, that of
        the emission is scaled to x.

        Raises:
            ValueError: as `infer`; with full normals, steps that miss single features.
        """
        from .layered_fit import fit_layers

        return fit_layers(self, self._read(x, lengths), restarts, max_steps, tol, seed, progress)

    def _read(self, x: Any, lengths: Any) -> Sequences:
        series = read_sequences(x, self.emission.n_features, lengths)
        self.emission.check(series.values)
        return replace(series, values=series.values.to(self.state_probs))


def _emission(redrawn: Tensor, held: Tensor) -> Any:
    def emission(lowest: CopyTables) -> Tensor:
        return (lowest.fresh * redrawn + lowest.held * held).sum(-1)

    return emission


def _asked(log_table: Tensor) -> Any:
    def fresh_states(below: CopyTables, above: CopyTables) -> Tensor:
        return (((above.fresh + above.held) @ log_table) * below.fresh).sum(-1)

    return fresh_states


def _check(model: LayeredSSM) -> None:
    redraw, sizes = model.redraw_prob, model.n_states
    if redraw.ndim != 1 or len(redraw) != len(sizes):
        raise ValueError(
            f"redraw_prob: got shape {list(redraw.shape)}, but {len(model.tables)} tables and state_probs make "
            f"{len(sizes)} layers; give one probability a layer."
        )
    if not bool(((redraw >= 0) & (redraw <= 1)).all()):
        raise ValueError(f"redraw_prob: got {redraw.tolist()}, expected probabilities.")
    for layer, table in enumerate(model.tables):
        if tuple(table.shape) != (sizes[layer + 1], sizes[layer]):
            raise ValueError(
                f"tables[{layer}]: got shape {list(table.shape)}, expected {[sizes[layer + 1], sizes[layer]]}: "
                "a row for each state of the layer above."
            )
        if not bool((table > 0).all()) or not bool(((table.sum(-1) - 1).abs() < 1e-5).all()):
            raise ValueError(f"tables[{layer}]: got {table.tolist()}, expected rows of positive probabilities.")
    probs = model.state_probs
    if not bool((probs >= 0).all()) or abs(float(probs.sum()) - 1) > 1e-5:
        raise ValueError(f"state_probs: got {probs.tolist()}, expected probabilities that sum to 1.")
    for name, dims in model.emission.event_dims.items():
        rows = model.values[name].shape[-1 - dims]
        if rows != (1 if name.startswith("background_") else sizes[0]):
            raise ValueError(f"{name}: got {rows} rows, but the lowest layer has {sizes[0]} states.")
