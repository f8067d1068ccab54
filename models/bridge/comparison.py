r"""The distance of a network's states from the exact beliefs of a model, step by step.

The exact filter is $a_t = P(s_t \mid x_{1:t})$. Three other updates carry a belief $Q_t$ forward: the per-step
variational update, converged (`filter_vmp`) and after one sweep, and the network. For each update and every step:

    total variation   1/2 sum_s |a_t(s) - Q_t(s)|
    divergence        KL(a_t || Q_t), nats
    gate              Q(z_t = 1), against P(z_t = 1 | x_1..t)
        evidence lost     log p(x_t | x_1..t-1) - log p(x_t | Q_t-1), nats: the loss when x_t is predicted from Q_t-1

The evidence lost can be negative at a step. Its expectation over the model's data is the divergence of predictions.

A divergence is infinite if the network excludes a state that the model does not exclude.

A network's state is a belief if it is a simplex of K units, and the log of a belief if the network is a linear minGRU
of K units with one shared coin; `as_rnn` makes both. The match of units and states is unknown, so `Comparison.order` is
the order with the least total variation over all steps. From any other state, a linear probe reads the belief
(`samplehold.models.bridge.probe`). It is fitted on one half of x and judged on the other. The gates of such a network
are measured by their information about z (`samplehold.models.bridge.gate_reading`).

Beside the chain over the centroids of a state-regularised network (`samplehold.models.bridge.lifting_centroids`), the
"network" is its soft pass. "One step" is a soft step from the exact distribution, so its error is the new error of each
step. "Hard" is the run of the nearest centroids.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ...inference.chains.contract import Chain, Filtered
from ...inference.numerics.checks import naming
from ...inference.numerics.interrupts import importing
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_choice, check_kind
from ...switching.base import Model
from ...switching.data.frames import to_tensor
from ...switching.data.series import Series
from ...switching.filter_vmp import filter_vmp
from ...switching.model import SwitchingSSM
from ..networks.state_regularized import StateRegularized
from .gate_reading import GateReading, read_gates
from .lifting import split_network
from .lifting_centroids import LiftedStates
from .network_states import READINGS, Seen, belief_of, run
from .probe import Probe

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

CONVERGED = 100  # sweeps of the per-step update
MESSAGE_PASSING, ONE_SWEEP, NETWORK = "message passing", "one sweep", "network"
ONE_STEP, HARD = "one step", "hard"


@dataclass(frozen=True, repr=False)
class Update(Record):
    """One update of a belief, compared with the exact filter; 0 after the end of a sequence."""

    state: Float[Tensor, "*b T K"]  # Q_t
    redraw: Float[Tensor, "*b T"] | None  # Q(z_t = 1); None if there is no such gate, as in a probed network
    total_variation: Float[Tensor, "*b T"]
    divergence: Float[Tensor, "*b T"]
    gate_error: Float[Tensor, "*b T"] | None  # |Q(z_t = 1) - P(z_t = 1 | x_1..t)|
    evidence_lost: Float[Tensor, "*b T"]


@dataclass(frozen=True, repr=False)
class Comparison:
    """A model's exact filter, and the distances of message passing and of a network from it: `summary()`,
    `to_xarray()`, `plot()`.

    Attributes:
        series: the observations.
        exact: the exact filter.
        updates: "network", and before it others by kind of model; see `samplehold.models.bridge.comparison`.
        hidden: `[*b, T, D]`, the states of the network.
        reads: how a belief was read from them: "belief", "logits" or "probe".
        probe: the linear map that read it; None: there is none.
        inside: `[*b, T]`, the steps before the end of each sequence.
        order: `[K]`, the unit of the network for each state of the model; None for a probe.
        gates: the information of a probed network's gates about z; None: there is none.

    See Also:
        `compare`, which makes it; `LayerComparison`, for several layers; docs/how_to/compare_network_with_model.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.Normal())
        >>> model = model.with_values(redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[-1], [1]], scale=[[1], [1]])
        >>> report = sh.compare(model, sh.GRU(1, 8), model.simulate(30, (4,), seed=0).x)
        >>> list(report.updates), report.reads  # its state is not a belief, so a probe reads one
        (['message passing', 'one sweep', 'network'], 'probe')
        >>> report.network.total_variation.shape
        torch.Size([4, 30])
    """

    series: Series
    exact: Filtered
    updates: dict[str, Update]
    hidden: Float[Tensor, "*b T D"]
    reads: str
    probe: Probe | None
    inside: Bool[Tensor, "*b T"]
    order: Int[Tensor, "K"] | None = None
    gates: GateReading | None = None

    @property
    def network(self) -> Update:
        """The network's beliefs, compared with the exact filter."""
        return self.updates[NETWORK]

    def __repr__(self) -> str:
        """The table of `summary`, and notes about the network."""
        return "\n".join(["Comparison", str(self.summary()), *self._notes()])

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        from ...switching.views.tables import html

        return html(". ".join(["Comparison with the exact filter", *self._notes()]), self.summary(), "-")

    def _notes(self) -> list[str]:
        notes = []
        if self.order is not None and self.order.tolist() != sorted(self.order.tolist()):
            units = ", ".join(map(str, self.order.tolist()))
            notes.append(f"Units {units} of the network are matched to states 0 to {len(self.order) - 1}")
        if self.gates is not None:
            gates, unit = self.gates, self.gates.best
            notes.append(
                f"The gate of unit {unit} has the most information about z: {float(gates.information[unit]):.3f} of "
                f"{gates.entropy:.3f} nats, AUC {float(gates.auc[unit]):.3f} (exact: {gates.exact_information:.3f}, "
                f"AUC {gates.exact_auc:.3f})"
            )
        return notes

    def summary(self) -> pd.DataFrame:
        """A row for each update: means over steps (for a probe, held-out steps), greatest errors, nats lost per
        step."""
        rows = {}
        for name, update in self.updates.items():
            kept = self.inside
            if name == NETWORK and self.probe is not None:
                kept = self.probe.held_out
            gate = (torch.nan,) * 2
            if update.gate_error is not None:
                gate = float(update.gate_error[kept].mean()), _greatest(update.gate_error[kept])
            rows[name] = {
                "TV, mean": float(update.total_variation[kept].mean()),
                "TV, max": _greatest(update.total_variation[kept]),
                "KL, mean": float(update.divergence[kept].mean()),
                "gate error, mean": gate[0],
                "gate error, max": gate[1],
                "evidence lost, a step": float(update.evidence_lost[kept].mean()),
            }
        return pd.DataFrame.from_dict(rows, orient="index")

    def to_xarray(self) -> "xr.Dataset":
        """All quantities by update, sequence, time and state; NaN after a sequence's end."""
        with importing():
            from .comparison_views import dataset

        return dataset(self)

    def plot(self, sequence: int = 0, steps: slice | None = None) -> "Figure":
        """The beliefs of one sequence, their distances from the exact one, and the gates.

        Arguments:
            sequence: the number of the sequence.
            steps: the range of steps that is drawn; None: all.

        Raises:
            ValueError: there is no such sequence; `steps` is not a range of its steps.
        """
        with importing():
            from .comparison_views import plot_comparison

        return plot_comparison(self, sequence, slice(None) if steps is None else steps)


def _greatest(error: Tensor) -> float:
    """The maximum, or NaN if there are no steps."""
    return float(error.max()) if error.numel() else torch.nan


def compare(
    model: nn.Module | Model | LiftedStates,
    layer: nn.Module,
    x: Any,
    *,
    inputs: Any = None,
    reads: str | None = None,
    lengths: Any = None,
    dt: Any = None,
) -> Comparison:
    """Measure, at every step, the distance of a network's state from the belief of a model.

    Arguments:
        model: a `SwitchingSSM` with parameter values and without inputs; or the chain of a `StateRegularized`, made
            by `as_ssm`.
        layer: any recurrent layer whose call `layer(inputs)` returns its states [N, T, D], alone or first; a stack
            network, whose state is its controller's state with the reading of its stack; or a `Sequential` that ends in
            a recurrent layer, which gets indices if it begins with an `Embedding`. For a chain over centroids: its
            network, or another one with the same number of centroids.
        x, lengths, dt: sequences as for the model; NaN is missing. The network does not see the gaps.
        inputs: the inputs of the network, [*b, T, I]. None: one-hot rows of symbols, and x itself for other
            observations, with zeros for missing values.
        reads: the meaning of the network's state: "belief", "logits" or "probe"; None: inferred, see
            `samplehold.models.bridge.comparison`.

    Returns:
        `Comparison`. A minGRU or minLSTM whose state is a belief starts with a redraw, as the model does. Any other
        network starts from its default h0.

    Raises:
        TypeError: `model` is not a model.
        ValueError: a model without values or with inputs; inputs that do not fit the network; an observation that is
            impossible; a reading that does not fit the network, such as "belief" for states that are not distributions;
            states that are not finite.

    See Also:
        `as_rnn`, which makes an exact network; `compare_layers`, for layers; docs/how_to/compare_network_with_model.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Categorical(2), sh.Categorical(2)))
        >>> probs, background = [[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5]]
        >>> model = model.with_values(redraw_prob=0.3, state_probs=[0.5, 0.5], probs=probs, background_probs=background)
        >>> table = sh.compare(model, sh.as_rnn(model), [0, 0, 1, 1, 0, 1]).summary()
        >>> table["TV, max"] < 1e-12  # the network is exact; the updates with independent gates and states are not
        message passing    False
        one sweep          False
        network             True
        Name: TV, max, dtype: bool
    """
    if isinstance(model, LiftedStates):
        for name, value in {"inputs": inputs, "reads": reads, "dt": dt}.items():
            if value is not None:
                raise ValueError(f"{name}: given with a chain over centroids, whose network reads x; leave it out.")
        return _compare_states(model, layer, x, lengths)
    model = check_kind("model", model, SwitchingSSM, "a SwitchingSSM; for layers of chains use `compare_layers`")
    check_kind("layer", layer, nn.Module, "a recurrent layer")
    if reads is not None:
        check_choice("reads", reads, READINGS)
    if model.n_inputs:
        raise ValueError("model: reads inputs, but only the exact filter supports them; give a model without.")
    series = model.read(x, lengths=lengths, dt=dt)
    inputs = None if inputs is None else to_tensor(inputs, "inputs")
    with torch.no_grad(), naming("x"):
        chain = model.chain(series)
        exact = chain.filter()
        updates: dict[str, Update] = {}
        if model.dynamics.holds:
            for name, sweeps in ((MESSAGE_PASSING, CONVERGED), (ONE_SWEEP, 1)):
                update = filter_vmp(model, series, sweeps=sweeps)
                updates[name] = measure(chain, exact, update.state, update.redraw, series.inside)
        seen: Seen = run(model, layer, series, inputs, reads)
        belief, probe, order = belief_of(seen, exact.state, series.inside)
        redraw, gates = None, None
        if exact.redraw is not None and seen.draw is not None:
            if probe is None:
                redraw = torch.where(series.inside, seen.draw.mean(-1), 0.0)
            else:
                gates = read_gates(seen.draw, exact.redraw, series.inside)
        updates[NETWORK] = measure(chain, exact, belief, redraw, series.inside)
    return Comparison(series, exact, updates, seen.hidden, seen.reads, probe, series.inside, order, gates)


def _compare_states(model: LiftedStates, layer: nn.Module, x: Tensor, lengths: Any) -> Comparison:
    """A network's soft and hard passes, compared with the exact distribution of drawn centroids."""
    front, network = split_network(check_kind("layer", layer, nn.Module, "a recurrent layer"))
    network = check_kind("layer", network, StateRegularized, "a StateRegularized, as the model is of one")
    if network.n_states != model.n_states:
        raise ValueError(f"layer: has {network.n_states} centroids, but the model has {model.n_states} states.")
    with torch.no_grad():
        read = model.read(x, lengths=lengths)
        chain = model.chain(x, lengths=lengths)
        series, exact = Series(read.rows, read.lengths), chain.filter()
        rows = x if front is None else front(x)
        soft, hard = (network.run(rows, lengths=lengths, mode=mode) for mode in ("soft", "hard"))
        assert hard.path is not None
        mean = exact.state[..., :-1, :].to(read.rows) @ model.layer.centroids
        one_step = torch.cat([exact.state[..., :1, :], model.step(read.rows[..., 1:, :], mean).exp()], -2)
        path = hard.path if network.batch_first else hard.path.movedim(0, -1)
        hidden, probs = (z if network.batch_first else z.movedim(0, -2) for z in (soft.output, soft.state_probs))
        beliefs = {
            ONE_STEP: one_step,
            HARD: nn.functional.one_hot(path.clamp_min(0), model.n_states).double(),
            NETWORK: probs.double() / probs.double().sum(-1, keepdim=True).clamp_min(0.5),
        }
        updates = {
            name: measure(chain, exact, belief * series.inside.unsqueeze(-1), None, series.inside)
            for name, belief in beliefs.items()
        }
    return Comparison(series, exact, updates, hidden, "belief", None, series.inside)


def measure(
    chain: Chain,
    exact: Filtered,
    state: Float[Tensor, "*b T K"],
    redraw: Float[Tensor, "*b T"] | None,
    inside: Bool[Tensor, "*b T"],
) -> Update:
    """The distances of beliefs about a chain from its exact filter; see the module's equations."""

    def kept(table: Tensor) -> Tensor:
        return torch.where(inside, table, 0.0)

    true = exact.state
    some = true >= torch.finfo(true.dtype).tiny  # smaller values are roundings of 0
    ratio = true.where(some, 1.0).log() - state.where(some, 1.0).log()
    divergence = true.where(some, 0.0) * ratio
    lost = exact.log_increment - chain.predictive(state)
    gate_error = None
    if redraw is not None and exact.redraw is not None:
        gate_error = kept((redraw - exact.redraw).abs())
    return Update(
        state=state,
        redraw=redraw,
        total_variation=kept(0.5 * (true - state).abs().sum(-1)),
        divergence=kept(divergence.sum(-1).clamp_min(0)),
        gate_error=gate_error,
        evidence_lost=kept(lost),
    )
