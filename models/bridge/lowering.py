r"""From a model to a network: the minGRU whose state is the exact filter of a copy model with gated tokens.

With $f(x) = \sum_s \pi(s)\, p(x \mid s, z{=}1)$ and a held step that emits from $p_0$, whatever the state,

$$a_t = (1 - q_t)\, a_{t-1} + q_t r_t, \qquad
\text{logit}\, q_t = \text{logit}\, \rho + \log \frac{f(x_t)}{p_0(x_t)}, \qquad
r_t = \text{softmax}_s(\log \pi(s) + \log p(x_t \mid s, z{=}1))$$

is a minGRU of one coin on K units that are a simplex. One-hot tokens read columns of a matrix: the biases are the
prior, $\text{logit}\, \rho$ and $\log \pi$, and a token's weights are its log-likelihoods. So a row of zeros is a
missing token.

**In logit space** the same weights, without the softmax, are the per-step variational update with the gate read from x
alone, $h_t = (1 - q_t)\, h_{t-1} + q_t v_t$ with $Q(s_t) = \text{softmax}(h_t)$ (`filter_vmp(model, x, gate="input")`).

**The first step.** The models redraw at their first step, the network starts from h_0. They agree for the h_0 that
`samplehold.models.bridge.tokens.redrawn_start` gives: the first step's own candidate.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.scalars import check_choice
from ...switching.emissions.discrete import Categorical
from ...switching.emissions.gated import Gated
from ...switching.model import SwitchingSSM
from ...switching.parameters import Parameters
from ..networks.minimal import MinGRU

SURE = 1e4  # log-odds that stand for certainty: their sigmoid is 0 or 1 in float64, with room for sums of them


def lower(model: nn.Module, space: str = "probability") -> MinGRU:
    """See `samplehold.models.bridge.correspondence.as_rnn`."""
    check_choice("space", space, ("probability", "logit"))
    values = _check(model)
    log_state, log_drawn = values["state_probs"].log(), values["probs"].log()  # [K], [K, V]
    if space == "logit" and not bool((log_drawn + log_state[:, None]).isfinite().all()):
        raise ValueError(
            'space: "logit" needs positive state_probs and probs, since the log of 0 is no weight; '
            'use space="probability", or give every token a small probability in every state.'
        )
    states, tokens = log_drawn.shape
    log_fresh = (log_drawn + log_state[:, None]).logsumexp(0)
    gate = _sure(log_fresh - values["background_probs"][0].log())
    prior = _sure(torch.logit(values["redraw_prob"]))
    kind = "simplex" if space == "probability" else "linear"
    layer = MinGRU(tokens, states, candidate=kind, dtype=log_state.dtype, device=log_state.device)
    coins = layer.get_parameter("weight_l0").shape[0] - states
    with torch.no_grad():
        layer.get_parameter("weight_l0").copy_(torch.cat([gate.expand(coins, -1), log_drawn.clamp(min=-SURE)]))
        layer.get_parameter("bias_l0").copy_(torch.cat([prior.expand(coins), log_state.clamp(min=-SURE)]))
    return layer


def token_marginal(model: nn.Module) -> Float[Tensor, "V"]:
    r"""$p(x) = \rho f(x) + (1 - \rho) p_0(x)$: the token probabilities of a model that `as_rnn` takes.

    With them `as_ssm(as_rnn(model), token_probs=token_marginal(model)).models[0]` is the model again.

    Raises:
        ValueError: a model that `as_rnn` does not take.

    Example:
        >>> import samplehold as sh
        >>> lifted = sh.as_ssm(sh.MinGRU(3, 1), token_probs=[1.0, 2.0, 1.0])
        >>> sh.token_marginal(lifted.models[0])
        tensor([0.2500, 0.5000, 0.2500], dtype=torch.float64)
    """
    values = _check(model)
    fresh = values["state_probs"] @ values["probs"]
    return values["redraw_prob"] * fresh + (1 - values["redraw_prob"]) * values["background_probs"][0]


def _check(model: nn.Module) -> Parameters:
    """The parameter values of a model that has a minGRU for its filter; or an error with what stands in the way."""
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
            f"model: has a {type(emission).__name__} emission, so a held step tells about its state and the gate "
            "depends on the belief; give Gated(Categorical(V), Categorical(V)), or measure the gap with `compare`."
        )
    if not isinstance(emission.emission, Categorical) or not isinstance(emission.background, Categorical):
        raise ValueError(
            f"model: emits {type(emission.emission).__name__} on {type(emission.background).__name__}, whose "
            "log-likelihoods are not linear in x; give Gated(Categorical(V), Categorical(V)), with x in bins."
        )
    if not model.values:
        raise ValueError("model: has no parameter values yet; use model.fit(x).model, or model.with_values(...).")
    return model.values


def _sure(log_odds: Tensor) -> Tensor:
    """Log-odds within what a weight can hold; 0 for a token that can be neither drawn nor held."""
    return log_odds.nan_to_num(nan=0.0, posinf=SURE, neginf=-SURE).clamp(-SURE, SURE)
