r"""From a model to a network: the minGRU whose state is the exact filter of a copy model with a gated emission.

With $f(x) = \sum_s \pi(s)\, p(x \mid s, z{=}1)$ and a held step that emits from $p_0$ in every state,

$$a_t = (1 - q_t)\, a_{t-1} + q_t r_t, \qquad
\text{logit}\, q_t = \text{logit}\, \rho + \log \frac{f(x_t)}{p_0(x_t)}, \qquad
r_t = \text{softmax}_s(\log \pi(s) + \log p(x_t \mid s, z{=}1)).$$

**Candidates.** In one exponential family with the statistic x, $\log p(x \mid s) = w_s \cdot x + b_s$ up to a term that
all states share, and r is the softmax of a linear map of x:

| emission | x | $w_s$ | $b_s$ |
|---|---|---|---|
| Categorical | one-hot rows | $\log p_s$ | 0 |
| Bernoulli | as it is | $\text{logit}\, p_s$ | $\sum \log(1 - p_s)$ |
| Poisson | as it is | $\log \lambda_s$ | $-\sum \lambda_s$ |
| normal, one precision P | as it is | $P(\mu_s - \mu_0)$ | $-\frac12 (\mu_s - \mu_0)^\top P (\mu_s + \mu_0)$ |

**Gates.** $\log f(x)$ is a log-sum-exp of such linear functions. It is linear for one-hot rows, one binary feature or a
single state. Otherwise, with `gate="exact"`, the gate of an `EvidenceGRU` adds the log-sum-exp of its candidates. With
`gate="linear"`, a member of the family with the mean of f replaces f. This is an ordinary minGRU whose gate is wrong by

$$\log f(x) - (\bar w \cdot x + \bar b),$$

The error is smaller the better x determines z; `compare` measures it. With a single state at $\mu_1$ the linear
function is logistic regression, $W = (\mu_1 - \mu_0)/\sigma^2$ and $b = \text{logit}\, \rho + (\mu_0^2 - \mu_1^2)/(2
\sigma^2)$.

One-hot tokens select columns of a matrix: the biases are the prior, and a token's weights are its log-likelihoods. So a
row of zeros is a missing token. With other emissions every step must be observed.

**In logit space** the same weights, without the softmax, are the per-step variational update whose gate depends on x
alone, $h_t = (1 - q_t)\, h_{t-1} + q_t v_t$ with $Q(s_t) = \text{softmax}(h_t)$ (`filter_vmp(model, x, gate="input")`).
If held steps emit from their state, the exact filter multiplies the old belief by $p(x_t \mid s, z{=}0)$, which no
minGRU of probabilities does. A minGRU of logits does it, by the candidate

$$v(x) = \log \pi(s) + \log p(x \mid s, 1) + \tfrac{1 - q}{q} \log p(x \mid s, 0),$$

which gives $h_t = (1 - q_t)(h_{t-1} + \log p(x_t \mid s, 0)) + q_t (\log \pi(s) + \log p(x_t \mid s, 1))$: the
network is a `LogitGRU`. Its error has a bound that vanishes if x determines z (`samplehold.models.bridge.input_gate`).

**The first step.** The models redraw at their first step, and the network starts from h_0. They agree for the h_0 of
`samplehold.models.bridge.tokens.redrawn_start`: the candidate of the first step.
"""

from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.scalars import check_choice
from ...switching.base import Model
from ...switching.emissions.contract import Emission
from ...switching.emissions.discrete import Bernoulli, Categorical, Poisson
from ...switching.emissions.multivariate_normal import MultivariateNormal
from ...switching.emissions.normal import Normal
from ...switching.emissions.tied import ALL_STATES
from ...switching.model import SwitchingSSM
from ...switching.parameters import Parameters
from ..networks.evidence import EvidenceGRU, LogitGRU
from ..networks.minimal import MinGRU

SURE = 1e4  # log-odds for certainty: their sigmoid is 0 or 1 in float64, and sums of them do not overflow
EQUAL = 64  # the greatest difference of two equal precisions, in roundings
Layer = TypeVar("Layer", bound=MinGRU)
LINEAR = (Categorical, Bernoulli, Poisson, Normal, MultivariateNormal)


def lower(model: nn.Module | Model, space: str = "probability", gate: str = "exact") -> MinGRU:
    """See `samplehold.models.bridge.correspondence.as_rnn`."""
    check_choice("space", space, ("probability", "logit"))
    check_choice("gate", gate, ("exact", "linear"))
    emission, values, of_held, alike = _check(model, space)
    about = of_held["loc"].mean(0, keepdim=True) if "loc" in of_held else None
    drawn, held = affine(emission, values, about), affine(emission, of_held, about)
    log_state = values["state_probs"].log().clamp(min=-SURE)
    prior = torch.logit(values["redraw_prob"]).clamp(-SURE, SURE)
    if space == "logit":
        _check_positive(emission, values, {} if alike else of_held)
        if not alike:
            return _with_held_evidence(drawn, held, log_state, prior, gate)
    exact = gate == "exact" and not _mixes_to_a_line(emission, drawn)
    above = (0.0, 0.0) if exact else affine(emission, _mean(emission, values, values["state_probs"]), about)
    states, features = drawn.weight.shape
    kind = "simplex" if space == "probability" else "linear"
    options: dict[str, Any] = {"candidate": kind, "dtype": log_state.dtype, "device": log_state.device}
    layer = (EvidenceGRU if exact else MinGRU)(features, states, **options)
    coins = 1 if kind == "simplex" else states
    rows, offset = above[0] - held.weight, prior + above[1] - held.bias
    return _filled(layer, [rows.expand(coins, -1), drawn.weight], [offset.expand(coins), drawn.bias + log_state])


def _with_held_evidence(drawn: "Affine", held: "Affine", log_state: Tensor, prior: Tensor, gate: str) -> LogitGRU:
    """The network on logits of a model whose held steps emit from their state."""
    if gate == "linear":
        raise ValueError(
            'gate: got "linear", but observations at held steps depend on the state, so the gate compares two '
            'mixtures over states; use gate="exact".'
        )
    states, features = drawn.weight.shape
    layer = LogitGRU(features, states, dtype=log_state.dtype, device=log_state.device)
    biases = [held.bias + log_state - prior, drawn.bias + log_state, held.bias]
    return _filled(layer, [held.weight, drawn.weight, held.weight], biases)


def _filled(layer: Layer, weights: list[Tensor], biases: list[Tensor]) -> Layer:
    """The layer with these rows."""
    with torch.no_grad():
        layer.get_parameter("weight_l0").copy_(torch.cat(weights))
        layer.get_parameter("bias_l0").copy_(torch.cat(biases))
    return layer


class Affine(NamedTuple):
    r"""$\log p(x \mid s) = w_s \cdot x + b_s$, up to a term that is the same for all s."""

    weight: Float[Tensor, "K F"]
    bias: Float[Tensor, "K"]


def affine(emission: Emission, values: Parameters, about: Tensor | None = None) -> Affine:
    """The linear functions of the table in this module's docstring; normal densities relative to that at `about` [1,
    F]."""
    if isinstance(emission, Categorical):
        weight = values["probs"].log().clamp(min=-SURE)
        return Affine(weight, weight.new_zeros(len(weight)))
    if isinstance(emission, Bernoulli):
        probs = values["probs"]
        most = SURE if probs.dtype == torch.float64 else 512.0  # they are summed, and float32 has few digits
        return Affine(torch.logit(probs).clamp(-most, most), torch.log1p(-probs).clamp(min=-most).sum(-1))
    if isinstance(emission, Poisson):
        return Affine(values["rate"].log().clamp(min=-SURE), -values["rate"].sum(-1))
    loc, precision = values["loc"], values["precision"][0]
    about = torch.zeros_like(loc[:1]) if about is None else about
    weight = (loc - about) * precision if isinstance(emission, Normal) else (loc - about) @ precision
    return Affine(weight, -0.5 * (weight * (loc + about)).sum(-1))


def _mean(emission: Emission, values: Parameters, state_probs: Tensor) -> Parameters:
    """The parameters of the family's member with the mean of the mixture over states."""
    centre = "rate" if isinstance(emission, Poisson) else "loc" if "loc" in values else "probs"
    return dict(values) | {centre: (state_probs @ values[centre])[None]}


def _mixes_to_a_line(emission: Emission, drawn: Affine) -> bool:
    """Whether the log-density of a mixture over states is linear on all possible x."""
    alike = bool((drawn.weight == drawn.weight[:1]).all() and (drawn.bias == drawn.bias[:1]).all())
    one_bit = isinstance(emission, Bernoulli) and emission.n_features == 1
    return alike or one_bit or isinstance(emission, Categorical)


def token_marginal(model: nn.Module | Model) -> Float[Tensor, "V"]:
    r"""The token probabilities of a model that `as_rnn` accepts: $p(x) = \rho f(x) + (1 - \rho) p_0(x)$.

    With them `as_ssm(as_rnn(model), token_probs=token_marginal(model)).models[0]` is the model again.

    Arguments:
        model: a model of tokens with values.

    Raises:
        TypeError: something else than a model.
        ValueError: a model that `as_rnn` does not accept.

    See Also:
        `as_ssm`, which takes it; `as_rnn`, the way between; docs/background/mingru_exact_bayes.md.

    Example:
        >>> import samplehold as sh
        >>> lifted = sh.as_ssm(sh.MinGRU(3, 1), token_probs=[1.0, 2.0, 1.0])
        >>> sh.token_marginal(lifted.models[0])
        tensor([0.2500, 0.5000, 0.2500], dtype=torch.float64)
    """
    emission, values, of_held, _ = _check(model, "probability")
    if not isinstance(emission, Categorical):
        raise ValueError(
            f"model: emits {type(emission).__name__}, which has no tokens; give Gated(Categorical(V), ...)."
        )
    fresh = values["state_probs"] @ values["probs"]
    return values["redraw_prob"] * fresh + (1 - values["redraw_prob"]) * of_held["probs"][0]


class _Lowerable(NamedTuple):
    """The parts of a model that is a minGRU."""

    emission: Emission  # of redrawn steps; that of held steps is of the same class
    values: Parameters
    of_held: Parameters  # of the emission of held steps
    alike: bool  # whether held steps emit alike in all states


def _check(model: nn.Module | Model, space: str) -> _Lowerable:
    """The parts of a model that is a minGRU; or an error that says why it is not one."""
    if not isinstance(model, SwitchingSSM):
        raise TypeError(f"model: got {type(model).__name__}, expected a SwitchingSSM or LayeredSSM.")
    dynamics, parts = model.dynamics, model.emission.parts
    if not dynamics.holds:
        raise ValueError(
            f"model: has {type(dynamics).__name__} dynamics, whose filter multiplies the old belief by a matrix, as no "
            "minGRU does; give Copy dynamics, or measure how near a network comes with `compare`."
        )
    if model.n_inputs:
        raise ValueError("model: reads inputs, which the network would have to read too; give a model without any.")
    drawn, held = parts[0].emission, parts[-1].emission
    if space == "probability" and not parts[-1].alike:
        raise ValueError(
            'space: got "probability", but this model has no exact minGRU, because its observations while holding '
            f'depend on the state ({held.name}). space="logit" gives an approximation, which is close if x shows '
            "whether a step was a redraw; measure its distance with `compare`."
        )
    if type(drawn) is not type(held) or not isinstance(drawn, LINEAR):
        emits = drawn.name if len(parts) == 1 else f"{drawn.name} on {held.name}"
        raise ValueError(
            f"model: emits {emits}, whose log-likelihoods differ by more than a linear function of x; give "
            f"{'one' if len(parts) == 1 else 'Gated of two alike,'} of {', '.join(kind.__name__ for kind in LINEAR)}."
        )
    if not model.values:
        raise ValueError("model: has no parameter values yet; use model.fit(x).model, or model.with_values(...).")
    values = model.values_like(model.values["state_probs"])
    of_held = parts[-1].own(values)
    if "precision" in values:
        precision = torch.cat([values["precision"], of_held["precision"]])
        rounding = EQUAL * torch.finfo(precision.dtype).eps * precision[-1].abs().amax()
        if not bool(((precision - precision[-1]).abs() <= rounding).all()):
            spread = "scale" if isinstance(drawn, Normal) else "covariance"
            others = "" if len(parts) == 1 else " or from the background"
            raise ValueError(
                f"model: its {spread}s differ between states{others}, which makes log-likelihoods quadratic in x; fit "
                f"{model.emission.name}(..., tied={{{spread!r}: {ALL_STATES!r}}}), give all the same {spread} with "
                "model.with_values(...), or measure the gap with `compare`."
            )
    return _Lowerable(drawn, values, of_held, parts[-1].alike)


def _check_positive(emission: Emission, values: Parameters, of_held: Parameters) -> None:
    """Raise an error for probabilities of 0, whose logs are not finite."""
    name = "rate" if isinstance(emission, Poisson) else "probs"
    tables = [values["state_probs"], *(part[name] for part in (values, of_held) if name in part)]
    if isinstance(emission, Bernoulli):
        tables += [1 - table for table in tables[1:]]
    if not all(bool((table > 0).all()) for table in tables):
        raise ValueError(
            f'space: "logit" needs positive state_probs and {name}, since the log of 0 is no weight; '
            'use space="probability", or give every observation a small probability in every state.'
        )
