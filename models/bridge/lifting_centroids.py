r"""A state-regularised network whose centroids are drawn is a Markov chain over them, given its inputs.

Let a cell without memory of its own be at centroid i after step t - 1. It draws centroid j with probability

$$A_t(i, j) = \mathrm{softmax}_j(sim(cell(S_i, x_t), S) / \tau),$$

So $s_1, s_2, \dots$ is a chain with these tables, and with $P(s_1) = \alpha_1$ for any $h_0$. The exact distribution
$p_t = A_t^\top p_{t-1}$ and the soft pass $\alpha_t$ use the same step $f_t(h) = \alpha$ with two different means:

$$p_t = E_{p_{t-1}}[f_t(S_s)], \qquad \alpha_t = f_t(E_{\alpha_{t-1}}[S_s]).$$

So the soft pass is the chain's mean field: each step reads the mean of the previous states instead of the state. It is
exact if $\alpha_{t-1}$ is certain, or if $f_t$ is linear near it; `compare` measures the distance.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.chains.markov.chain import MarkovChain
from ...inference.numerics.checks import check_table
from ...inference.numerics.op import transformed
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_kind
from ..networks.state_regularized import StateRegularized
from .lifting import split_network
from .lifting_given import read_inputs
from .tokens import read_tokens


class Read(NamedTuple):
    """The inputs of a network [*b, T, I], batch first, the state before them [*b, H], and lengths or None."""

    rows: Tensor
    start: Tensor
    lengths: Tensor | None


@dataclass(frozen=True, repr=False)
class LiftedStates(Record):
    """A state-regularised network on given inputs, read as a chain over its centroids. Chains are float64.

    Attributes:
        network: the network.

    See Also:
        `as_ssm`, which makes it; `StateRegularized`, its network; docs/background/state_regularized.md.

    Example:
        >>> import torch, samplehold as sh
        >>> network, x = sh.StateRegularized(sh.GRU(3, 4), n_states=5), torch.randn(7, 3)
        >>> chain = sh.as_ssm(network).chain(x)
        >>> chain.filter().state.shape  # P(s_t), the limit of frequencies of runs in mode "sample"
        torch.Size([7, 5])
        >>> known = torch.full((7,), torch.nan)
        >>> known[6] = 2  # the last state is 2
        >>> chain = sh.as_ssm(network).chain(x, labels=known)
        >>> chain.smooth().state.shape, chain.viterbi().path[6]  # the states before it, given this label
        (torch.Size([7, 5]), tensor(2))
    """

    network: nn.Module

    @property
    def layer(self) -> StateRegularized:
        """The state-regularised layer at the end of the network."""
        return check_kind("layer", split_network(self.network)[1], StateRegularized, "a StateRegularized")

    @property
    def n_states(self) -> int:
        """K, the number of centroids."""
        return self.layer.n_states

    def chain(
        self, x: Tensor, h0: Any = None, lengths: Any = None, labels: Any = None, log_likelihood: Any = None
    ) -> MarkovChain:
        """The chain over the centroids, given inputs and, optionally, labels or evidence about its states.

        Its tables are differentiable: the gradient of `log_normalizer()` trains the network on labels, exactly.

        Arguments:
            x, h0, lengths: as for the network; h0 and lengths as for the last module of a `Sequential`.
            labels: [*b, T], the state of each step if it is known, else NaN.
            log_likelihood: [*b, T, K], log-weight of each state at each step, such as the log-probability of a label
                under a readout of the centroids; None: 0.

        Raises:
            ValueError: inputs that do not fit the network; x that is not finite; labels that are not states.
        """
        read = self.read(x, h0, lengths)
        log_initial, log_transition = self._tables(read)
        shape = (*read.rows.shape[:-1], self.n_states)
        table = torch.zeros(shape, dtype=torch.float64, device=read.rows.device)
        if labels is not None:
            known = read_tokens(labels, self.n_states, read.lengths, "labels")
            if known.index.shape != shape[:-1]:
                raise ValueError(f"labels: got shape {list(known.index.shape)}, expected {list(shape[:-1])}, as x has.")
            other = known.index.unsqueeze(-1) != torch.arange(self.n_states, device=known.index.device)
            table = table.masked_fill((other & known.seen.unsqueeze(-1)).to(table.device), -torch.inf)
        if log_likelihood is not None:
            table = table + check_table("log_likelihood", log_likelihood, *shape[-2:]).double()
        return MarkovChain(log_initial, log_transition, table, read.lengths)

    def transition(self, x: Tensor, h0: Any = None, lengths: Any = None) -> Float[Tensor, "*b T K K"]:
        """A_t [old, new] of every step, including the first, which the chain does not need.

        Arguments:
            x: the inputs of the network.
            h0: the states before the first step, as in a call of the network.
            lengths: `[*b]`, the number of steps of each sequence; None: all.
        """
        return self._log_transition(self.read(x, h0, lengths).rows).exp()

    def read(self, x: Tensor, h0: Any = None, lengths: Any = None) -> Read:
        """The inputs of the layer for x, checked, with zeros after each length.

        Arguments:
            x: the inputs of the network.
            h0: the states before the first step, as in a call of the network.
            lengths: `[*b]`, the number of steps of each sequence; None: all.
        """
        layer = self.layer
        rows, counts = read_inputs(self.network, x, lengths)
        ((start,),) = layer._started(h0, rows, rows.shape[:-2], "h0")
        return Read(rows, start, counts)

    def step(self, rows: Tensor, before: Tensor) -> Float[Tensor, "*b K"]:
        """log alpha of inputs [*b, I] and states [*b, H] before them; batch axes broadcast.

        Arguments:
            rows: inputs.
            before: states.
        """
        reading = self.layer.reading(rows)
        (u,) = reading.after(reading.seen, (before,))
        return self.layer.scores()(u).double().log_softmax(-1)

    def _tables(self, read: Read) -> tuple[Tensor, Tensor]:
        return self.step(read.rows[..., 0, :], read.start), self._log_transition(read.rows[..., 1:, :])

    def _log_transition(self, rows: Tensor) -> Tensor:
        """log A of each row, [*b, T, K, K]; computed once for rows that repeat, as symbols do."""
        table = lambda rows: self.step(rows.unsqueeze(-2), self.layer.centroids)
        if rows.requires_grad or transformed() or not rows.numel():
            return table(rows)
        unique, index = rows.flatten(0, -2).unique(dim=0, return_inverse=True)
        return table(unique)[index].unflatten(0, rows.shape[:-1]) if 2 * len(unique) < len(index) else table(rows)


def lift_centroids(network: nn.Module) -> LiftedStates:
    """See `samplehold.models.bridge.correspondence.as_ssm`."""
    lifted = LiftedStates(network)
    if lifted.layer.remembers:
        kind = type(lifted.layer.cell).__name__
        raise ValueError(
            f"layer: its cell, a {kind}, keeps a cell state beside the centroid, so the next state does not depend "
            "on the centroid alone: its states are no Markov chain; use an Elman, GRU or MinGRU cell."
        )
    return lifted
