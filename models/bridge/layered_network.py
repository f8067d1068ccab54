r"""A stack of layers of beliefs as a network: one bottom-up sweep of `LayeredSSM`, with a softmax between its layers.

In `LayeredSSM.bottom_up(x, passed="state")` layer l + 1 receives the belief $b_t$ of the layer below as the evidence
$e_t = b_t \log B_l^\top$, and filters it exactly:

$$a_t = \text{softmax}\big(e_t + \log((1 - \rho)\, a_{t-1} + \rho\, \pi)\big), \qquad a_0 = \pi$$

The input is linear in $b_t$, and the softmax makes the belief for the layer above. This is a recurrent network with
matrices $\log B_l$, biases $\log \pi_l$ and one gate $\rho_l$ for each layer, `SweepNetwork`. The lowest layer is the
same, with $e_t = \log p(x_t \mid s)$. If its emission is `Gated`, it is a minGRU (`samplehold.models.bridge.lowering`).

The upper layers are not minGRUs. Their evidence depends on held states as much as on drawn ones, so $a_t$ weighs the
units of $a_{t-1}$ by $e_t$. A gate that all units share cannot do this.

**Without the softmax** the layers pass on their logits, $\log a_t$ less their mean, which are not beliefs.
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_choice, check_kind
from ...switching.coupled.layered import LayeredSSM
from ...switching.data.series import Series
from ...switching.dynamics.copy import Copy
from ...switching.emissions.discrete import Categorical
from ...switching.emissions.gated import Gated
from ...switching.model import SwitchingSSM
from ..networks.listing import Listed
from .lowering import SURE, lower
from .tokens import one_hot, redrawn_start


class BeliefLayer(nn.Module):
    """One layer: the filter of a copy chain whose evidence is linear in the input, held or drawn."""

    weight: nn.Parameter
    redraw_logit: nn.Parameter
    log_prior: nn.Parameter

    def __init__(
        self, log_evidence: Float[Tensor, "K I"], redraw_prob: Tensor, state_probs: Float[Tensor, "K"]
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(log_evidence.clamp(min=-SURE))
        self.redraw_logit = nn.Parameter(torch.logit(redraw_prob).clamp(-SURE, SURE))
        self.log_prior = nn.Parameter(state_probs.log().clamp(min=-SURE))

    def forward(self, x: Float[Tensor, "*b T I"]) -> Float[Tensor, "*b T K"]:
        """Beliefs after each input. The state before the first is the prior, so the first gate has no effect."""
        prior, rho = self.log_prior.softmax(-1), self.redraw_logit.sigmoid()
        state, states = prior, []
        for evidence in (x @ self.weight.T).unbind(-2):
            state = (evidence + torch.lerp(state, prior, rho).log()).softmax(-1)
            states.append(state)
        return torch.stack(states, -2)


class SweepNetwork(Listed):
    """The network of a `LayeredSSM` over tokens: layers of beliefs, from the lowest. It can be trained further.

    `layers[0]` is a `MinGRU` if the emission is gated; all others are `BeliefLayer`. Made by `as_rnn`.

    Arguments:
        layers: from the lowest.

    See Also:
        `as_rnn`, which makes it; `compare_layers`, which measures it; docs/replications/questions.md, with results.

    Example:
        >>> import torch, samplehold as sh
        >>> table, half = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([0.5, 0.5])
        >>> values = {"probs": table, "redraw_prob": half / 5, "table_1": table, "state_probs": half}
        >>> model = sh.LayeredSSM([2, 2], sh.Categorical(2)).with_values(values)
        >>> top, layers = sh.as_rnn(model)(sh.one_hot([0, 0, 1], 2, dtype=torch.float32))
        >>> top.shape, len(layers), torch.allclose(top.sum(-1), torch.ones(3))
        (torch.Size([3, 2]), 2, True)
    """

    layers: nn.ModuleList

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        check_kind("layers", layers, (list, tuple, nn.ModuleList), "a list of modules, from the lowest layer")
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Float[Tensor, "*b T V"], between: str = "softmax") -> tuple[Tensor, tuple[Tensor, ...]]:
        """Beliefs of the top layer [*b, T, K], and of every layer from the lowest.

        Arguments:
            x: one-hot tokens; rows of zeros for missing ones.
            between: the output that a layer passes up: "softmax", its belief; "none", the logits of its belief.

        Raises:
            ValueError: another value of `between`.
        """
        check_choice("between", between, ("softmax", "none"))
        states: list[Tensor] = []
        for layer in self.layers:
            out = layer(x) if isinstance(layer, BeliefLayer) else layer(x, redrawn_start(layer, x))[0]  # pyright: ignore
            states.append(out)
            logits = out.clamp_min(torch.finfo(out.dtype).tiny).log()
            x = out if between == "softmax" else logits - logits.mean(-1, keepdim=True)
        return states[-1], tuple(states)


def lower_layers(model: LayeredSSM) -> SweepNetwork:
    """The network of a `LayeredSSM` over symbols; see `samplehold.models.bridge.correspondence.as_rnn`."""
    emission, values = model.emission, {name: model.values[name] for name in model.emission.parameters}
    rho, fresh = model.values["redraw_prob"], model.fresh_probs
    if isinstance(emission, Gated) and isinstance(emission.emission, Categorical):
        lowest = SwitchingSSM(Copy(model.chain_sizes[0]), emission).with_values(
            values, redraw_prob=rho[0], state_probs=fresh[0]
        )
        layers: list[nn.Module] = [lower(lowest)]
    elif isinstance(emission, Categorical):
        layers = [BeliefLayer(values["probs"].log(), rho[0], fresh[0])]
    else:
        raise ValueError(
            f"model: emits {type(emission).__name__}, but networks of layers only read symbols; "
            "give Categorical(V) or Gated(Categorical(V), Categorical(V))."
        )
    upper = zip(model.tables, rho[1:], fresh[1:], strict=True)
    return SweepNetwork([*layers, *(BeliefLayer(table.log(), gate, probs) for table, gate, probs in upper)])


@dataclass(frozen=True, repr=False)
class LayerComparison(Record):
    """Beliefs about each layer of a `LayeredSSM` from the lowest, in four versions; 0 after the end of a sequence.

    Attributes:
        exact: P(s^l_t | x_1..t), of all layers at once; a table `[*b, T, K]` for each layer.
        sweep: one bottom-up sweep, with every layer exact by itself.
        network: the network of `as_rnn`.
        without_softmax: the same network, passing logits from layer to layer.
        series: the observations.

    See Also:
        `compare_layers`, which makes it; `Comparison`, for one chain; docs/replications/questions.md.

    Example:
        >>> import torch, samplehold as sh
        >>> table, half = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([0.5, 0.5])
        >>> values = {"probs": table, "redraw_prob": half / 5, "table_1": table, "state_probs": half}
        >>> model = sh.LayeredSSM([2, 2], sh.Categorical(2)).with_values(values)
        >>> report = sh.compare_layers(model, sh.as_rnn(model), [0, 0, 1, 1, 1])
        >>> [table.shape for table in report.distance("sweep", "exact")]
        [torch.Size([5]), torch.Size([5])]
        >>> report.summary().index.tolist()  # layers, from the lowest
        [1, 2]
    """

    exact: tuple[Float[Tensor, "*b T _"], ...]
    sweep: tuple[Float[Tensor, "*b T _"], ...]
    network: tuple[Float[Tensor, "*b T _"], ...]
    without_softmax: tuple[Float[Tensor, "*b T _"], ...]
    series: Series

    def distance(self, one: str, other: str) -> tuple[Float[Tensor, "*b T"], ...]:
        """Total variation between two of "exact", "sweep", "network", "without_softmax", a table for each layer.

        Arguments:
            one, other: the names of two versions.
        """
        pairs = zip(getattr(self, one), getattr(self, other), strict=True)
        return tuple(0.5 * (a - b).abs().sum(-1) for a, b in pairs)

    def summary(self) -> pd.DataFrame:
        """Total variation for each layer: the greatest between network and sweep, and means over steps of the
        others."""
        inside = self.series.inside
        columns = {
            "network - sweep, max": [float(d[inside].max()) for d in self.distance("network", "sweep")],
            "without softmax - sweep, mean": [
                float(d[inside].mean()) for d in self.distance("without_softmax", "sweep")
            ],
            "sweep - exact, mean": [float(d[inside].mean()) for d in self.distance("sweep", "exact")],
            "without softmax - exact, mean": [
                float(d[inside].mean()) for d in self.distance("without_softmax", "exact")
            ],
        }
        return pd.DataFrame(columns, index=pd.RangeIndex(1, len(self.sweep) + 1, name="layer"))


def compare_layers(model: LayeredSSM, network: SweepNetwork, x: Any, lengths: Any = None) -> LayerComparison:
    """Compare a network of layers with one bottom-up sweep of a model and its exact filter, with and without softmax.

    Arguments:
        model: small enough for its exact filter, over the product of all layers' states.
        network: `as_rnn(model)`, or one trained from it.
        x, lengths: symbols, as for the model; NaN is missing.

    Raises:
        TypeError: another kind of model or network.
        ValueError: x has other symbols than the model.

    See Also:
        `compare`, for one chain; `as_rnn`, which makes the network; docs/replications/questions.md, with results.

    Example:
        >>> import torch, samplehold as sh
        >>> table, half = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([0.5, 0.5])
        >>> values = {"probs": table, "redraw_prob": half / 5, "table_1": table, "state_probs": half}
        >>> model = sh.LayeredSSM([2, 2], sh.Categorical(2)).with_values(values)
        >>> table = sh.compare_layers(model, sh.as_rnn(model), [0, 0, 1, 1, 1]).summary()
        >>> (table[["network - sweep, max", "without softmax - sweep, mean"]] < 1e-6).to_numpy().tolist()
        [[True, True], [True, False]]
    """
    check_kind("model", model, LayeredSSM, "a LayeredSSM")
    check_kind("network", network, SweepNetwork, "the network of `as_rnn`")
    series = model.read(x, lengths=lengths)
    exact = model.filter(series).state
    sweep = tuple(layer.state for layer in model.bottom_up(series, passed="state"))
    tokens = model.emission.sizes["category"]
    rows = one_hot(series.observations[..., 0], tokens, dtype=model.values["state_probs"].dtype)
    inside = series.inside.unsqueeze(-1)
    with torch.no_grad():
        passed, bare = (network(rows, between)[1] for between in ("softmax", "none"))
    kept = [tuple(torch.where(inside, table, 0.0) for table in tables) for tables in (exact, sweep, passed, bare)]
    return LayerComparison(kept[0], kept[1], kept[2], kept[3], series)
