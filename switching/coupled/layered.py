r"""`LayeredSSM`: a stack of copy chains; a layer that redraws takes its state from the layer above.

With layers l = 1 (lowest) to L, every layer is a copy chain with its own gates,

$$z^l_t \sim \text{Bernoulli}(\rho_l), \quad s^l_t = s^l_{t-1} \text{ if } z^l_t = 0, \quad
s^l_t \sim B_l[s^{l+1}_t, \cdot] \text{ if } z^l_t = 1 \;(l < L), \quad s^L_t \sim \pi, \qquad
x_t \sim p(x \mid s^1_t, z^1_t),$$

so a redrawn state of layer l is an observation of layer l+1, and a held state has no information about it. The first
step redraws every layer.

**Message passing.** $q = \prod_l q_l(z^l, s^l)$, each an exact chain. Neighbouring layers have the factor
$E[\log p] = \sum_t f^l_t(s)\, m^{l+1}_t(s') \log B_l[s', s]$, with $f^l_t(s) = q(s^l_t = s, z^l_t = 1)$ and
$m^{l+1}_t(s') = q(s^{l+1}_t = s')$. The message up is $\log B_l f^l_t$, the message down $m^{l+1}_t \log B_l$.

**One bottom-up sweep**, `bottom_up`, is the part of message passing that an online network can do, without messages
down or back in time. Layer l is filtered exactly as a single copy chain, with fresh states from their prior,
$\pi_l = \pi_{l+1} B_l$, $\pi_L = \pi$, under the evidence

    layer 1       log p(x_t | s, z) of the emission
    layer l + 1   e_t(s') = sum_s b_t(s) log B_l[s', s], for redrawn and held steps alike

where $b_t$ is the belief that layer l passes up. It is the filtered $P(s^l_t = s, z^l_t = 1)$, which is the message up
with the filter instead of q. Alternatively it is the filtered $P(s^l_t = s)$, as in a stack of recurrent layers, which
observes the layer above at held steps too. The lowest layer is exact for its own chain; the layers above have soft
observations. The sweep is an approximation, while `product` is exact. Further sweeps (`infer`) raise the bound of
independent layers. If layers depend strongly on each other, the marginals of `infer` may still be farther from the
exact ones.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from string import ascii_letters
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.distributions import constraints

from ...inference.chains.contract import Filtered
from ...inference.chains.copy.chain import CopyChain
from ...inference.families import Beta, CopyPaths, CopyTables, Dirichlet
from ...inference.message_passing.engine import VMP, Block, Factor
from ...inference.numerics.checks import broadcast_shapes, naming
from ...inference.numerics.scalars import check_choice
from ..data.ragged import by_sequence
from ..data.series import Given, Series
from ..dynamics.factors import fresh_states, gates
from ..dynamics.markov import Markov
from ..emissions.contract import ByGate
from ..fitting.chain_graph import collected, emission_blocks, emissions
from ..fitting.graph import Graph, Points
from ..fitting.options import Options
from ..fitting.starts import first_labels
from ..fitting.units import Units
from ..model import SwitchingSSM
from ..parameters import Parameter, Parameters, check_parameters, moved, with_prefix
from ..program import Observation
from .contract import CoupledSSM, draw_chain, prior_tables
from .factors import check_possible_everywhere, drawn_under, in_groups, labels_above
from .joint import Indexed


class LayeredSSM(CoupledSSM):
    """A model of layers of copy chains: a layer that redraws takes its state from the layer above.

    Arguments:
        chain_sizes: K_1, ..., K_L, the number of states of each layer, from the lowest.
        emission: the emission of the lowest layer; it may be `Gated`.

    Parameters: `redraw_prob` [L]; `table_l` [K_{l+1}, K_l], P(fresh state of layer l | state of layer l+1), l from 1 to
    L - 1, all entries positive; `state_probs` [K_L], fresh states of the top layer; and those of the emission.

    Priors may be a `Beta` of `redraw_prob`, `Dirichlet` rows of `table_l` and `state_probs`, and conjugate ones of the
    emission: see `prior_kinds`.

    Raises:
        TypeError: sizes that are not whole numbers, or an emission of another type.
        ValueError: sizes below 1.

    See Also:
        `FactorialSSM`, whose chains are independent; `compare_layers`, its comparison with a network;
        docs/guides/tour.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.LayeredSSM([2, 2], sh.Normal()).with_values(
        ...     redraw_prob=[0.5, 0.1], table_1=[[0.9, 0.1], [0.1, 0.9]], state_probs=[0.5, 0.5],
        ...     loc=[[0.0], [4.0]], scale=[[1.0], [1.0]])
        >>> [state.shape for state in model.smooth([0.1, 3.9, 4.2]).state]
        [torch.Size([3, 2]), torch.Size([3, 2])]
    """

    chain_name = "layer"

    @property
    def tables(self) -> list[Tensor]:
        """P(fresh state of a layer | state of the layer above), for all layers except the top."""
        return self._by_chain("table", self.n_chains - 1)

    @property
    def fresh_probs(self) -> tuple[Tensor, ...]:
        """pi_l, the prior probabilities of a fresh state of each layer, from the lowest."""
        probs = [self._values["state_probs"]]
        for table in reversed(self.tables):
            probs.insert(0, probs[0] @ table)
        return tuple(probs)

    # ---- parameters --------------------------------------------------------------------------------------------------

    @property
    def _of_chains(self) -> dict[str, Parameter]:
        """The axes and the support of each parameter, without those of the emission."""
        known = {"redraw_prob": Parameter((self.chain_name,), constraints.unit_interval)}
        for layer in range(1, self.n_chains):
            known[f"table_{layer}"] = Parameter((f"state_{layer + 1}", f"state_{layer}"), constraints.simplex)
        return known | {"state_probs": Parameter((f"state_{self.n_chains}",), constraints.simplex)}

    @property
    def known(self) -> dict[str, Parameter]:
        emitted = self.emission.parameters.items()
        return self._of_chains | {name: parameter.renamed({"state": "state_1"}) for name, parameter in emitted}

    @property
    def sizes(self) -> dict[str, int]:
        states = {f"state_{layer}": k for layer, k in enumerate(self.chain_sizes, start=1)}
        return states | self.emission.sizes | {self.chain_name: self.n_chains}

    def _checked(self, values: Parameters) -> Parameters:
        checked = check_parameters(self._of_chains, values, self.sizes, self.name)
        for name, table in checked.items():
            if name.startswith("table_") and not bool((table > 0).all()):
                raise ValueError(f"{name}: got {table.tolist()}, expected rows of positive probabilities.")
        return checked | self.emission.check_values(values, self.chain_sizes[0])

    # ---- the generative program --------------------------------------------------------------------------------------

    def _step(self, t: int, states: list[Tensor]) -> tuple[list[Tensor], Any]:
        before, states, tables = states, [], self.tables
        rho = self._values["redraw_prob"]
        redraw = rho.new_ones(())
        for layer in reversed(range(self.n_chains)):  # drawn from the top
            probs = self._values["state_probs"] if not states else tables[layer][states[0]]
            redraw, state = draw_chain(t, layer, rho[layer], probs, before[layer] if before else None)
            states.insert(0, state)
        return states, Observation(self.emission, self.values, states[0], redraw)

    # ---- one chain over all joint states -----------------------------------------------------------------------------

    @cached_property
    def product(self) -> SwitchingSSM:
        """The model of one chain over (z^1, s^1, ..., s^L), the state of the top changing fastest: for small models."""
        states = torch.cartesian_prod(*(torch.arange(k, device="cpu") for k in self._axes)).tolist()
        of_lowest, redrawn = tuple(s for _, s, *_ in states), tuple(bool(z) for z, *_ in states)
        emission = Indexed(self.emission, self.chain_sizes[0], of_lowest, redrawn)
        return SwitchingSSM(Markov(len(states)), emission).with_values(self.product_of(self._values))

    def product_of(self, values: Parameters) -> Parameters:
        held, drawn = self._steps(values)
        lead = values["redraw_prob"].shape[:-1]
        moves = torch.stack([held[0], drawn[0]], -4)  # gate, old, above, new of the lowest layer
        rest = [a + b for a, b in zip(held[1:], drawn[1:], strict=True)]
        joint = self._joint([moves, *rest], gated=True).flatten(len(lead), len(lead) + self.n_chains - 1)
        joint = joint.flatten(len(lead) + 1)  # [*r, old states, gate and new states]
        _, fresh = self._steps(values | {"redraw_prob": torch.ones_like(values["redraw_prob"])})
        first = self._joint(fresh)[(..., *[0] * self.n_chains, *[slice(None)] * self.n_chains)].flatten(len(lead))
        initial = torch.cat([torch.zeros_like(first), first], -1)  # the first step redraws
        transition = torch.cat([joint, joint], -2)  # the previous gate has no effect
        emission_values = {name: values[name] for name in self.emission.parameters}
        return emission_values | {"initial_probs": initial, "transition_probs": transition}

    def gates_of(self, values: Parameters) -> Tensor:
        held, drawn = self._steps(values)
        size = torch.Size(self.chain_sizes).numel()
        tables = []
        for layer in range(self.n_chains):
            share = drawn[layer] / (held[layer] + drawn[layer]).clamp_min(torch.finfo(drawn[layer].dtype).tiny)
            ones = [torch.ones_like(table) for table in drawn]
            table = self._joint([*ones[:layer], share, *ones[layer + 1 :]])
            table = table.reshape(*table.shape[: table.ndim - 2 * self.n_chains], size, size)
            if layer == 0:  # the gate of the lowest layer is a part of the joint state
                half = torch.cat([torch.zeros_like(table), torch.ones_like(table)], -1)
            else:
                half = torch.cat([table, table], -1)
            tables.append(torch.cat([half, half], -2))
        return torch.stack(tables, -3)

    def _steps(self, values: Parameters) -> tuple[list[Tensor], list[Tensor]]:
        """P(z = 0, new | old) and P(z = 1, new | above) for each layer, [*r, old, above, new]; none above the top."""
        held, drawn = [], []
        for layer, (rho, k) in enumerate(zip(values["redraw_prob"].unbind(-1), self.chain_sizes, strict=True), start=1):
            rho, top = rho[..., None, None, None], layer == self.n_chains
            fresh = values["state_probs"].unsqueeze(-2) if top else values[f"table_{layer}"]
            same = torch.eye(k).to(fresh).unsqueeze(-2)
            shape = broadcast_shapes(same.shape, fresh.unsqueeze(-3).shape)
            drawn.append(rho * fresh.unsqueeze(-3).expand(*fresh.shape[:-2], *shape[-3:]))
            held.append((1 - rho) * same.expand(shape[-3:]))
        return held, drawn

    def _joint(self, tables: Sequence[Tensor], gated: bool = False) -> Tensor:
        """The product over layers of tables [*r, old, above, new], with a leading gate axis of the lowest if `gated`:
        [*r, old states, gate, new states]."""
        n = self.n_chains
        old, new, gate = ascii_letters[:n], ascii_letters[n : 2 * n], "Z" if gated else ""
        above = [*new[1:], "Y"]  # the top has none, but an axis of length 1
        terms = [f"...{gate if layer == 0 else ''}{old[layer]}{above[layer]}{new[layer]}" for layer in range(n)]
        return torch.einsum(f"{','.join(terms)}->...{old}{gate}{new}", *tables)

    @property
    def _axes(self) -> tuple[int, ...]:
        return 2, *self.chain_sizes

    # ---- message passing ---------------------------------------------------------------------------------------------

    @by_sequence()
    def bottom_up(self, x: Any, *, passed: str = "redrawn", **given: Unpack[Given]) -> tuple[Filtered, ...]:
        """The filter of each layer, from the lowest, in one bottom-up sweep; see the module's docstring.

        Arguments:
            passed: "redrawn": a layer passes up P(s_t, z_t = 1), the message of the model; "state": P(s_t), as in a
                stack of recurrent layers.
        """
        check_choice("passed", passed, ("redrawn", "state"))
        series = self.read(x, **given)
        evidence = self.emission.log_likelihood(series.observations, self._values)
        filters: list[Filtered] = []
        for layer in range(self.n_chains):
            with naming("x"):
                filters.append(self.layer_chain(layer, evidence, series.lengths).filter())
            if layer < self.n_chains - 1:
                belief = filters[-1].state
                if passed == "redrawn":
                    belief = self._redrawn(layer, evidence.redrawn, filters[-1])
                heard = belief @ self.tables[layer].log().mT
                evidence = ByGate(heard, heard)
        return tuple(filters)

    def layer_chain(self, layer: int, evidence: ByGate, lengths: Tensor | None = None) -> CopyChain:
        """The chain of one layer (from 0) under log evidence [*b, T, K_l] of redrawn and of held states.

        Arguments:
            layer: the number of the layer, from 0.
            evidence: log-likelihoods of redrawn and of held states.
            lengths: `[*b]`, the number of steps of each sequence; None: all.
        """
        fresh = self.fresh_probs[layer].log()
        prior = prior_tables(self._values["redraw_prob"][layer], fresh, evidence.redrawn.shape[-2])
        return CopyChain(None, prior.fresh + evidence.redrawn, prior.held + evidence.held, lengths)

    def _redrawn(self, layer: int, log_redrawn: Tensor, filtered: Filtered) -> Tensor:
        """P(s_t, z_t = 1 | evidence up to t): given a redraw, the previous state has no effect."""
        assert filtered.redraw is not None
        return filtered.redraw.unsqueeze(-1) * torch.softmax(self.fresh_probs[layer].log() + log_redrawn, -1)

    def engine(self, x: Any, *, check: bool = True, **given: Unpack[Given]) -> VMP:
        """The engine of the model at its values: a block `layer_l` (from 1, the lowest) of paths for each layer.

        Arguments:
            check: whether the factors are tested.
        """
        series = self.read(x, **given)
        evidence = self.emission.log_likelihood(series.observations, self._values)
        check_possible_everywhere((evidence.redrawn + evidence.held).mean(-1), series)
        inside, flat = series.inside.to(series.observations), torch.zeros_like(evidence.redrawn[..., :1])
        blocks, factors = [], [Factor(_observed(evidence), ("layer_1",), mask=inside)]
        for layer, k in enumerate(self.chain_sizes):
            top = layer == self.n_chains - 1
            log_fresh = self._values["state_probs"].log() if top else self._values["state_probs"].new_zeros(k)
            base = prior_tables(self._values["redraw_prob"][layer], log_fresh, series.n_steps)
            eta = flat.expand(*flat.shape[:-1], k)
            tables = CopyTables(eta if top else eta + self.fresh_probs[layer].log(), eta)
            blocks.append(Block(f"layer_{layer + 1}", CopyPaths(series.lengths, base), eta=tables))
            if not top:
                names = f"layer_{layer + 1}", f"layer_{layer + 2}"
                factors.append(Factor(_drawn_below(self.tables[layer].log()), names, mask=inside))
        return VMP(blocks, factors, check=check)

    def graph(self, series: Series, options: Options, there: Series | None = None) -> Graph:
        emitting, sizes, restarts = emission_blocks(self.emission), self.chain_sizes, options.restarts
        about = Units.of(self.emission, series).about.to(series.like)
        x = series.like
        prior = {n: t.to(x) for n, t in self.emission.prior_scaled(sizes[0], series.rows).items()}
        prior = moved(prior, -about)
        families: dict[str, Any] = {name: block.family for name, (_, block) in emitting.items()}
        priors = {name: block.natural(with_prefix(prior, prefix)) for name, (prefix, block) in emitting.items()}
        for layer, k in enumerate(sizes, start=1):
            top = layer == len(sizes)
            source, shape = ("state", (k,)) if top else (f"table_{layer}", (sizes[layer], k))
            families |= {f"redraw_{layer}": Beta(), source: Dirichlet()}
            priors |= {f"redraw_{layer}": x.new_ones(2), source: x.new_ones(shape)}
        priors |= self._user_etas(x)
        values = partial(_values_at, sizes, collected(emitting), about)
        if there is not None:
            factors, paths = in_groups(there.shifted(about), None, sizes, self._joining)
            return Graph(families, priors, factors, paths, values, alike=True)
        labels = [first_labels(self.emission, Series(series.rows), sizes[0], restarts, options.number)]
        for layer, k in enumerate(sizes[1:]):
            labels.append(labels_above(series, labels[-1], sizes[layer], k, options.number))
        factors, paths = in_groups(series.shifted(about), labels, sizes, self._joining)
        return Graph(families, priors, factors, paths, values)

    def _joining(self, series: Series, chains: list[str]) -> list[Factor]:
        """The factors of a series whose layers have these names."""
        factors, n_axes = emissions(self.emission, chains[0], series), len(series.batch_shape) + 1
        factors += [gates(f"redraw_{layer}", chain, n_axes) for layer, chain in enumerate(chains, start=1)]
        neighbours = enumerate(pairwise(chains), start=1)
        factors += [drawn_under(f"table_{layer}", below, above, n_axes) for layer, (below, above) in neighbours]
        return [*factors, fresh_states("state", chains[-1], n_axes)]


def _observed(evidence: ByGate) -> Any:
    def emission(lowest: CopyTables) -> Tensor:
        return (lowest.fresh * evidence.redrawn + lowest.held * evidence.held).sum(-1)

    return emission


def _drawn_below(log_table: Tensor) -> Any:
    def fresh_states(below: CopyTables, above: CopyTables) -> Tensor:
        return (((above.fresh + above.held) @ log_table) * below.fresh).sum(-1)

    return fresh_states


def _values_at(
    sizes: Sequence[int], emitted: Callable[[Points], Parameters], about: Tensor, points: Points
) -> Parameters:
    """The parameters at points, with locations moved by `about`."""
    layers = range(1, len(sizes) + 1)
    values = {"redraw_prob": torch.stack([points[f"redraw_{layer}"] for layer in layers], -1)}
    values |= {f"table_{layer}": points[f"table_{layer}"] for layer in layers[:-1]}
    return values | {"state_probs": points["state"]} | moved(emitted(points), about)
