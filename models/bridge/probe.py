r"""Linear probes: the information in a network's states about beliefs that it was not trained on.

Two maps are fitted on some sequences and judged on the others. Least squares with a ridge, from the state to the belief
$a_t$, gives

$$R^2 = 1 - \sum_t \|a_t - \hat a_t\|^2 \Big/ \sum_t \|a_t - \bar a\|^2 ;$$

Multinomial logistic regression on the belief as a soft label gives the log-loss $-\sum_s a_t(s) \log \hat a_t(s)$ in
nats, which is at least the entropy of $a_t$. The baselines are the same maps from the present input alone, and the mean
of the beliefs.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...inference.numerics.checks import check_mask, check_table
from ...inference.numerics.records import Record

MOST_ROWS = 20_000  # the most steps to fit a probe; more are thinned evenly


@dataclass(frozen=True, repr=False)
class Probe(Record):
    """How well linear maps read beliefs from a network's states, on held-out steps; `summary()` is a table of it.

    Attributes:
        r2: by input of the map: "network", "input", "marginal".
        log_loss: nats per step; also "belief", its entropy, which is the minimum.
        state: `[*b, T, K]`, the belief that logistic regression reads from the network.
        held_out: `[*b, T]`, the steps on which the maps were judged.

    See Also:
        `fit_probe`, which makes it; `Comparison`, which has one for networks whose states are not beliefs.

    Example:
        >>> import torch, samplehold as sh
        >>> share = (1 + torch.arange(20.0).sin()) / 2
        >>> belief = torch.stack([share, 1 - share], -1)
        >>> probe = sh.fit_probe(state=belief.log(), belief=belief, inputs=torch.zeros(20, 1))
        >>> probe.held_out.sum(), probe.state.shape
        (tensor(10), torch.Size([20, 2]))
        >>> bool(probe.log_loss["belief"] <= probe.log_loss["network"] < probe.log_loss["input"])
        True
    """

    r2: dict[str, float]
    log_loss: dict[str, float]
    state: Float[Tensor, "*b T K"]
    held_out: Bool[Tensor, "*b T"]

    def summary(self) -> pd.DataFrame:
        """Held-out R^2 and log-loss of the network's states, of the present input alone, and of no input."""
        return pd.DataFrame({"R2": self.r2, "log-loss, nats": self.log_loss}).reindex(
            ["network", "input", "marginal", "belief"]
        )


def fit_probe(
    state: Float[Tensor, "*b T D"],
    belief: Float[Tensor, "*b T K"],
    inputs: Float[Tensor, "*b T I"],
    inside: Bool[Tensor, "*b T"] | None = None,
) -> Probe:
    """Fit linear maps from a network's states to beliefs.

    Arguments:
        state: the network's state at each step; any number of units.
        belief: the target, a distribution over K states at each step.
        inputs: the network's inputs, for the baseline.
        inside: the steps that belong to their sequence; None: all.

    The maps are fitted on the first half of the sequences, or of the steps if there is one sequence, and judged on the
    other half.

    Raises:
        TypeError: arguments that are not tensors.
        ValueError: fewer than two steps to fit or to judge.

    See Also:
        `compare`, which uses it; `Probe`, its result; docs/how_to/compare_network_with_model.md.

    Example:
        >>> import torch, samplehold as sh
        >>> share = (1 + torch.arange(20.0).sin()) / 2
        >>> belief = torch.stack([share, 1 - share], -1)
        >>> probe = sh.fit_probe(state=3 * belief - 1, belief=belief, inputs=torch.zeros(20, 1))
        >>> round(probe.r2["network"], 3)  # the belief is a linear map of such states
        1.0
    """
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    state = check_table("state", state, None, None, finite=True)
    belief = check_table("belief", belief, None, None, finite=True)
    inputs = check_table("inputs", inputs, None, None, finite=True)
    for name, table in (("state", state), ("inputs", inputs)):
        if not bool(table.detach().double().square().sum().isfinite()):
            raise ValueError(f"{name}: got numbers whose squares float64 cannot represent; give them in other units.")
    for name, table in (("belief", belief), ("inputs", inputs)):
        if table.shape[:-1] != state.shape[:-1]:
            raise ValueError(
                f"{name}: got shape {list(table.shape)}, but state has {list(state.shape)}; give a row for each step."
            )
    for name, table in (("state", state), ("belief", belief), ("inputs", inputs)):
        if not table.shape[-1]:
            raise ValueError(f"{name}: got no columns, expected at least one.")
    if inside is not None:
        inside = check_mask("inside", inside, state.shape[:-1])
    inside = torch.ones(state.shape[:-1], dtype=torch.bool, device="cpu") if inside is None else inside.cpu()
    known = belief.detach()[inside.to(belief.device)]
    if bool((known < 0).any()) or not bool((known.sum(-1) > 0).all()):
        raise ValueError("belief: got rows that are no probabilities; give numbers of at least 0, some above it.")
    first = _first_half(inside)
    train, test = (inside & first).flatten().numpy(), (inside & ~first).flatten().numpy()
    if train.sum() < 2 or test.sum() < 2:
        raise ValueError(f"x: a probe has {train.sum()} steps to fit and {test.sum()} to judge; give longer sequences.")
    rows = {"network": state, "input": inputs}
    tables = {name: part.detach().flatten(0, -2).double().cpu().numpy() for name, part in rows.items()}
    target = belief.detach().flatten(0, -2).double().cpu().numpy()
    mean = target[train].mean(0)
    spread = ((target[test] - mean) ** 2).sum()
    r2, loss = {"marginal": 0.0}, {"marginal": _loss(target[test], np.broadcast_to(mean, target[test].shape))}
    read = target
    for name, table in tables.items():
        linear = make_pipeline(StandardScaler(), Ridge(1e-3)).fit(_thin(table[train]), _thin(target[train]))
        wrong = ((target[test] - linear.predict(table[test]).reshape(-1, target.shape[1])) ** 2).sum()
        r2[name] = float(1 - wrong / spread) if spread > 0 else float(wrong == 0)
        probabilities = _logistic(_thin(table[train]), _thin(target[train]), table)
        loss[name] = _loss(target[test], probabilities[test])
        read = probabilities if name == "network" else read
    loss["belief"] = _loss(target[test], target[test])
    predicted = torch.from_numpy(read).to(belief).reshape(belief.shape) * inside.to(belief.device).unsqueeze(-1)
    return Probe(r2, loss, predicted, (inside & ~first).to(belief.device))


def _first_half(inside: Tensor) -> Tensor:
    """Whether each step is used for the fit, [*b, T]."""
    *batch, steps = inside.shape
    n = int(np.prod(batch))
    if n > 1:
        return (torch.arange(n, device="cpu") < (n + 1) // 2).reshape(batch).unsqueeze(-1).expand(*batch, steps)
    return (torch.arange(steps, device="cpu") < (int(inside.sum()) + 1) // 2).expand(inside.shape)


def _thin(table: np.ndarray) -> np.ndarray:
    return table[:: 1 + (len(table) - 1) // MOST_ROWS]


def _logistic(rows: np.ndarray, target: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Probabilities of each state at the rows `wanted`, by logistic regression on soft labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    n, k = target.shape
    if k == 1:
        return np.ones((len(wanted), 1))
    scale = StandardScaler().fit(rows)
    labels = np.repeat(np.arange(k), n)
    model = LogisticRegression(C=100.0, max_iter=1000)
    model.fit(np.tile(scale.transform(rows), (k, 1)), labels, sample_weight=target.T.reshape(-1))
    return model.predict_proba(scale.transform(wanted))


def _loss(target: np.ndarray, probabilities: np.ndarray) -> float:
    return float(-(target * np.log(np.clip(probabilities, 1e-300, None))).sum(-1).mean())
