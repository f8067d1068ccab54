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

**The first step.** The models redraw at their first step, and the network starts from h_0. They agree for the h_0 of
`samplehold.models.bridge.tokens.redrawn_start`: the candidate of the first step.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.scalars import check_choice
from ...switching.base import Model
from ...switching.emissions.contract import Emission
from ...switching.emissions.discrete import Bernoulli, Categorical, Poisson
from ...switching.emissions.gated import Gated
from ...switching.emissions.multivariate_normal import MultivariateNormal
from ...switching.emissions.normal import Normal
from ...switching.model import SwitchingSSM
from ...switching.parameters import PREFIX, Parameters
from ..networks.minimal import MinGRU

SURE = 1e4  # log-odds for certainty: their sigmoid is 0 or 1 in float64, and sums of them do not overflow
EQUAL = 64  # the greatest difference of two equal precisions, in roundings
LINEAR = (Categorical, Bernoulli, Poisson, Normal, MultivariateNormal)


class EvidenceGRU(MinGRU):
    r"""One layer of minGRU whose gate also depends on how well the fresh states explain x.

    $$g_t = \sigma(W_g x_t + b_g + \text{logsumexp}(W_v x_t + b_v))$$

    With the weights of `as_rnn` this is the exact $P(z_t{=}1 \mid x_t)$ of a copy model; see
    `samplehold.models.bridge.lowering`. Calls and parameters are as for `MinGRU`.

    Arguments:
        input_size: features of x.
        hidden_size: units, one for each state.
        candidate: "simplex", the state is a belief; "linear", the log of a belief up to a constant.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.EvidenceGRU(3, 2), torch.randn(5, 3)
    >>> layer(x)[0].sum(-1).allclose(torch.tensor(1.0))
    True
    >>> pre = torch.nn.functional.linear(x, layer.weight_l0, layer.bias_l0)  # one gate, two candidates
    >>> layer.activations(x).draw[:, 0].allclose((pre[:, 0] + pre[:, 1:].logsumexp(-1)).sigmoid())
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        candidate: str = "simplex",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_choice("candidate", candidate, ("simplex", "linear"))
        super().__init__(input_size, hidden_size, candidate=candidate, device=device, dtype=dtype)

    def product(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        gates, candidates = super().product(x, *args, **kwargs).split(self.hidden_size, -1)
        return torch.cat([gates + candidates.logsumexp(-1, keepdim=True), candidates], -1)


def lower(model: nn.Module | Model, space: str = "probability", gate: str = "exact") -> MinGRU:
    """See `samplehold.models.bridge.correspondence.as_rnn`."""
    check_choice("space", space, ("probability", "logit"))
    check_choice("gate", gate, ("exact", "linear"))
    emission, values = _check(model)
    background = {name.removeprefix(PREFIX): table for name, table in values.items() if name.startswith(PREFIX)}
    about = background.get("loc")
    state_probs = values["state_probs"]
    drawn, held = affine(emission, values, about), affine(emission, background, about)
    mixture = affine(emission, _mean(emission, values, state_probs), about)
    if space == "logit":
        _check_positive(emission, values)
    exact = gate == "exact" and not _mixes_to_a_line(emission, drawn)
    above, prior = (0.0, 0.0) if exact else mixture, torch.logit(values["redraw_prob"]).clamp(-SURE, SURE)
    log_state = state_probs.log().clamp(min=-SURE)
    states, features = drawn.weight.shape
    kind = "simplex" if space == "probability" else "linear"
    options: dict[str, Any] = {"candidate": kind, "dtype": log_state.dtype, "device": log_state.device}
    layer = (EvidenceGRU if exact else MinGRU)(features, states, **options)
    coins = 1 if kind == "simplex" else states
    with torch.no_grad():
        rows, offset = above[0] - held.weight, prior + above[1] - held.bias
        layer.get_parameter("weight_l0").copy_(torch.cat([rows.expand(coins, -1), drawn.weight]))
        layer.get_parameter("bias_l0").copy_(torch.cat([offset.expand(coins), drawn.bias + log_state]))
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
    r"""$p(x) = \rho f(x) + (1 - \rho) p_0(x)$: the token probabilities of a model that `as_rnn` accepts.

    With them `as_ssm(as_rnn(model), token_probs=token_marginal(model)).models[0]` is the model again.

    Raises:
        ValueError: a model that `as_rnn` does not accept.

    Example:
        >>> import samplehold as sh
        >>> lifted = sh.as_ssm(sh.MinGRU(3, 1), token_probs=[1.0, 2.0, 1.0])
        >>> sh.token_marginal(lifted.models[0])
        tensor([0.2500, 0.5000, 0.2500], dtype=torch.float64)
    """
    emission, values = _check(model)
    if not isinstance(emission, Categorical):
        raise ValueError(
            f"model: emits {type(emission).__name__}, which has no tokens; give Gated(Categorical(V), ...)."
        )
    fresh = values["state_probs"] @ values["probs"]
    return values["redraw_prob"] * fresh + (1 - values["redraw_prob"]) * values["background_probs"][0]


def _check(model: nn.Module | Model) -> tuple[Emission, Parameters]:
    """The emission and values of a model whose filter is a minGRU; or an error with the reason why it is not."""
    if not isinstance(model, SwitchingSSM):
        raise TypeError(f"model: got {type(model).__name__}, expected a SwitchingSSM or LayeredSSM.")
    dynamics, emission = model.dynamics, model.emission
    if not dynamics.holds:
        raise ValueError(
            f"model: has {type(dynamics).__name__} dynamics, whose filter multiplies the old belief by a matrix, as no "
            "minGRU does; give Copy dynamics, or measure how near a network comes with `compare`."
        )
    if dynamics.n_covariates:
        raise ValueError("model: has covariates, which the network would have to read too; give Copy without any.")
    if not isinstance(emission, Gated):
        raise ValueError(
            f"model: has a {type(emission).__name__} emission, so a held step depends on its state, and the gate "
            "depends on the belief; give Gated of it and another of its kind, or measure the gap with `compare`."
        )
    drawn, held = emission.emission, emission.background
    if type(drawn) is not type(held) or not isinstance(drawn, LINEAR):
        raise ValueError(
            f"model: emits {type(drawn).__name__} on {type(held).__name__}, whose log-likelihoods differ by more "
            f"than a linear function of x; give Gated of two alike, of {', '.join(kind.__name__ for kind in LINEAR)}."
        )
    if not model.values:
        raise ValueError("model: has no parameter values yet; use model.fit(x).model, or model.with_values(...).")
    if "precision" in model.values:
        precision, background = model.values["precision"], model.values[PREFIX + "precision"]
        rounding = EQUAL * torch.finfo(precision.dtype).eps * background.abs().amax()
        if not bool(((precision - background).abs() <= rounding).all()):
            spread = "scales" if isinstance(drawn, Normal) else "covariances"
            raise ValueError(
                f"model: its {spread} differ between states or from the background, which makes log-likelihoods "
                f"quadratic in x; give all the same {spread} with model.with_values(...), or measure the gap with "
                "`compare`."
            )
    return drawn, model.values_like(model.values["state_probs"])


def _check_positive(emission: Emission, values: Parameters) -> None:
    """Raise an error for probabilities of 0, whose logs are not finite."""
    name = "rate" if isinstance(emission, Poisson) else "probs"
    tables = [values["state_probs"], *([values[name]] if name in values else [])]
    if isinstance(emission, Bernoulli):
        tables.append(1 - values["probs"])
    if not all(bool((table > 0).all()) for table in tables):
        raise ValueError(
            f'space: "logit" needs positive state_probs and {name}, since the log of 0 is no weight; '
            'use space="probability", or give every observation a small probability in every state.'
        )
