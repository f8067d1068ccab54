r"""The bridge between a network and a model: gated networks whose forward pass is a posterior update, to rounding.

    as_ssm      network -> model    any minGRU, minLSTM or QRNN is the exact filter of copy chains; a network of
                                    drawn centroids is a Markov chain over them
    as_rnn      model -> network    a copy model with a gated emission that is linear in x is a minGRU,
                                    and a Turing machine an Elman network with rational weights
        compare     any model, any network: the distance of the network's states from the exact beliefs

The two directions are derived in `samplehold.models.bridge.lifting`, `lifting_given`, `lifting_centroids`
and `lowering`.
"""

from typing import Any, Literal, overload

from torch import nn

from ...inference.numerics.scalars import check_choice, check_kind
from ...switching.base import Model
from ...switching.coupled.layered import LayeredSSM
from ...switching.model import SwitchingSSM
from ..automata.turing import TuringMachine
from ..automata.turing_network import TuringNetwork, turing_network
from ..networks.minimal import MinGRU
from ..networks.state_regularized import StateRegularized
from .layered_network import SweepNetwork, lower_layers
from .lifting import Lifted, lift_tokens, split_network
from .lifting_centroids import LiftedStates, lift_centroids
from .lifting_gaussian import LiftedGaussian, lift_gaussian
from .lifting_given import LiftedNetwork, lift_given
from .lowering import lower


@overload
def as_ssm(  # pyright: ignore[reportOverlappingOverload]
    layer: StateRegularized, token_probs: None = None, inputs: str = "given"
) -> LiftedStates: ...


@overload
def as_ssm(layer: nn.Module, token_probs: Any = None, inputs: Literal["tokens"] = "tokens") -> Lifted: ...


@overload
def as_ssm(layer: nn.Module, token_probs: None = None, *, inputs: Literal["gaussian"]) -> LiftedGaussian: ...


@overload
def as_ssm(layer: nn.Module, token_probs: None = None, *, inputs: Literal["given"]) -> LiftedNetwork: ...


def as_ssm(
    layer: nn.Module, token_probs: Any = None, inputs: str = "tokens"
) -> Lifted | LiftedGaussian | LiftedNetwork | LiftedStates:
    """The model whose posterior update equals a minGRU, minLSTM or QRNN, or the chain of a `StateRegularized`.

    Arguments:
        layer: `MinGRU`, `MinLSTM`, or `QRNN` with f- or fo-pooling, with any weights and any candidate; or a
            `torch.nn.Sequential` that ends in one, such as `Sequential(Embedding(V, I), MinGRU(I, D))`. A
            `StateRegularized` of a cell without memory, or a `Sequential` that ends in one, is a chain for any given
            inputs (see `lifting_centroids`); then omit the other arguments.
        token_probs: [V], the probability of each token, up to a factor; None: uniform. The filter is the same for any
            choice: the probabilities describe the observations, the layer their meaning.
        inputs: "tokens": x is symbols, and one layer is exactly the filter of a generative model of them. "given": x is
            anything; given x, any number of layers in any direction are exactly the filters of copy chains, without a
            density of x (see `lifting_given`). "gaussian": x is a vector of real numbers with a density; candidates are
            exact and gates are a limit (see `lifting_gaussian`).

    Raises:
        TypeError: a network of another kind.
        ValueError: a network whose gates read its own state, or do not sum to one; centroids of an LSTM, which has more
            memory than them; for tokens and Gaussian vectors several layers, directions, or inputs for each gate;
            weights that are not finite, probabilities that are not positive; for Gaussian inputs more units than
            features, or candidates that are not linear in x.

    See Also:
        `as_rnn`, the way back; `Lifted` and `LiftedNetwork`, its results; docs/background/mingru_exact_bayes.md, with
        the proof.

    Example:
        >>> import torch, samplehold as sh
        >>> layer, tokens = sh.MinGRU(4, 3, dtype=torch.float64), torch.tensor([0, 3, 1, 1, 2])
        >>> states, _ = layer(sh.one_hot(tokens, 4))
        >>> bool((sh.as_ssm(layer).hidden(tokens) - states).abs().max() < 1e-12)  # from the filters of its chains
        True
    """
    check_kind("layer", layer, nn.Module, "a recurrent layer")
    check_choice("inputs", inputs, ("tokens", "gaussian", "given"))
    if isinstance(split_network(layer)[1], StateRegularized):
        if token_probs is not None or inputs == "gaussian":
            given = f"inputs: got {inputs!r}" if token_probs is None else "token_probs: was given"
            raise ValueError(f"{given}, but a chain over centroids is given its inputs; leave it out.")
        return lift_centroids(layer)
    if inputs == "tokens":
        return lift_tokens(layer, token_probs)
    if token_probs is not None:
        raise ValueError(f'token_probs: was given with inputs="{inputs}", which has no tokens; leave it out.')
    return lift_gaussian(layer) if inputs == "gaussian" else lift_given(layer)


@overload
def as_rnn(model: SwitchingSSM, space: str = "probability", gate: str = "exact") -> MinGRU: ...


@overload
def as_rnn(model: LayeredSSM, space: str = "probability", gate: str = "exact") -> SweepNetwork: ...


@overload
def as_rnn(model: TuringMachine, space: str = "probability", gate: str = "exact") -> TuringNetwork: ...


def as_rnn(
    model: nn.Module | Model | TuringMachine, space: str = "probability", gate: str = "exact"
) -> MinGRU | SweepNetwork | TuringNetwork:
    """The minGRU whose state is the exact filter of a copy model; an ordinary module that can be trained further.

    The layer reads x (symbols as `one_hot(tokens, V)`) and starts with a redraw, as the model does:

        x = one_hot(tokens, V)
        belief, _ = layer(x, redrawn_start(layer, x))      # = model.filter(tokens).state

    Arguments:
        model: a `SwitchingSSM` of `Copy(K)` dynamics and a `Gated` emission of two emissions of one kind: Categorical,
            Bernoulli, Poisson, or Normal or MultivariateNormal with one scale for all states and the background, as
            fits of `Gated(..., tied={"scale": "all states"})` have. Or a `LayeredSSM` over symbols: the network is then
            a `SweepNetwork`, whose layers with a softmax between them are one bottom-up sweep (`layered_network`), and
            which handles the first step itself. Or a `TuringMachine`: the network is then an Elman network with a
            clipped ReLU and rational weights, whose two steps are one of the machine
            (`samplehold.models.automata.turing_network`); `space` and `gate` have no effect then.
        space: "probability": the state [K] is P(s_t | x_1..t), exactly. "logit": the state is the log of a belief up to
            a constant, under the per-step variational update whose gate depends on x alone, `filter_vmp(model, x,
            gate="input")`. In this space held steps may emit from their state: the emission may also be one of these
            kinds alone, or `Gated(..., by_state=True)`. The network is then a `LogitGRU`; `compare` measures its
            distance from the exact filter, and `samplehold.models.bridge.input_gate` bounds it.
        gate: "exact": if the log-odds of a redraw are not linear in x (several states of counts, of vectors, or of
            several binary features), the layer is an `EvidenceGRU`, whose gate has their log-sum-exp. "linear": always
            a plain `MinGRU`, which omits this term (see `lowering`); `compare` measures the distance.

    Raises:
        TypeError: `model` is not a model.
        ValueError: another model (the error says why its filter is not a minGRU); a probability of 0 in logit space.

    See Also:
        `as_ssm`, the way back; `compare`, which measures the distance; docs/background/mingru_exact_bayes.md, with the
        proof.

    Example:
        >>> import torch, samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Categorical(2), sh.Categorical(2)))
        >>> probs, background = [[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5]]
        >>> model = model.with_values(redraw_prob=0.3, state_probs=[0.5, 0.5], probs=probs, background_probs=background)
        >>> layer, x = sh.as_rnn(model), sh.one_hot([0, 0, 1, 1], 2)
        >>> torch.allclose(layer(x, sh.redrawn_start(layer, x))[0], model.filter([0, 0, 1, 1]).state)
        True
    """
    if isinstance(model, TuringMachine):
        check_choice("space", space, ("probability",))
        check_choice("gate", gate, ("exact",))
        return turing_network(model)
    if isinstance(model, LayeredSSM):
        if check_choice("space", space, ("probability", "logit")) == "logit":
            raise ValueError(f'space: got {space!r}; layers of beliefs are in space="probability".')
        if check_choice("gate", gate, ("exact", "linear")) == "linear":
            raise ValueError(f"gate: got {gate!r}; the gates of a LayeredSSM over symbols are exact; leave it out.")
        return lower_layers(model)
    return lower(model, space, gate)
