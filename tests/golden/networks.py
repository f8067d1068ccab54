"""Networks, conversions, chains, stacks and automata."""

from typing import Any

import samplehold as sh
import torch
from golden.kinds import CALLS, GATE, LOG, WAVE, WORDS, call, fit_of

# ---- networks and models, chains, stacks, automata -------------------------------------------------------------------


def filled(module: torch.nn.Module, scale: float = 0.5) -> torch.nn.Module:
    """The module in float64 with weights that are written here."""
    module.double().requires_grad_(False)
    for number, parameter in enumerate(module.parameters()):
        parameter.copy_(
            scale * torch.sin(1.3 * torch.arange(parameter.numel()).double() + number).reshape(parameter.shape)
        )
    return module


LAYERS = {
    kind.__name__: kind
    for kind in (
        sh.MinGRU,
        sh.MinLSTM,
        sh.RotatingGRU,
        sh.QRNN,
        sh.GRU,
        sh.LSTM,
        sh.Elman,
        sh.PeepholeLSTM,
        sh.DoublingLSTM,
    )
}
for name, layer in LAYERS.items():
    CALLS[name] = lambda layer=layer: filled(layer(2, 4))(WAVE)[0]

TOKENS = WORDS.squeeze(-1).long()
MARKOV = sh.chains.MarkovChain(LOG[0], LOG[1:4], LOG[4:])
COPY = sh.chains.CopyChain(LOG[0], LOG[1:], LOG[1:].flip(0) - 0.2)
FACTORED = sh.chains.FactoredCopyChain(LOG[1:, 0], LOG[1:, 1], LOG[0], LOG[1:])
STACK = sh.stacks.StackMixture(LOG[:8], WAVE[:8])
SYMBOLS = filled(sh.MinGRU(3, 2))


@call
def as_rnn() -> Any:
    model = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Categorical(3), sh.Categorical(3))).with_values(
        redraw_prob=0.3,
        state_probs=[0.4, 0.6],
        probs=[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]],
        background_probs=[[0.2, 0.3, 0.5]],
    )
    layer = sh.as_rnn(model)
    found = sh.compare(model, layer, TOKENS)
    return layer.state_dict(), found.exact.state, found.hidden, found.reads


@call
def as_ssm() -> Any:
    lifted = sh.as_ssm(SYMBOLS)
    chain = lifted.chain(TOKENS)
    return lifted.token_probs, lifted.log_redraw, chain.smooth().redraw, chain.viterbi().redraw


@call
def as_ssm_given_inputs() -> Any:
    network = sh.as_ssm(filled(sh.MinGRU(2, 3)), inputs="given")
    return network.layers(WAVE)[0].chain.smooth().redraw


@call
def state_regularized() -> Any:
    network = filled(sh.StateRegularized(sh.GRU(2, 3), n_states=4))
    return network(WAVE)[0], sh.as_ssm(network).chain(WAVE).smooth().state


def _extracted() -> Any:
    layer, readout = filled(sh.GRU(2, 3), 2.0), filled(torch.nn.Linear(3, 1))
    found = sh.automata.extract_automaton(sh.automata.Acceptor(layer, readout, "01"), max_queries=20)
    return len(found.automaton.states), sorted(found.automaton.input_symbols)


CALLS |= {
    "linear_scan": lambda: sh.linear_scan(GATE, WAVE),
    "lerp_scan": lambda: sh.lerp_scan(GATE, WAVE, WAVE[0]),
    "EvidenceGRU": lambda: filled(sh.EvidenceGRU(2, 3))(WAVE)[0],
    "LogitGRU": lambda: filled(sh.LogitGRU(2, 3))(WAVE)[0],
    "stable": lambda: sh.studies.stability(sh.stable(filled(sh.GRU(2, 3))), input_bound=1.0).stable,
    "layouts": lambda: sh.layouts.to_keras(sh.layouts.from_torch(filled(sh.GRU(2, 3)))),
    "MarkovChain": lambda: (
        MARKOV.log_normalizer(),
        MARKOV.smooth(),
        MARKOV.viterbi(),
        MARKOV.sample(2, 0),
        MARKOV.entropy(),
    ),
    "CopyChain": lambda: (COPY.log_normalizer(), COPY.smooth(), COPY.viterbi(), COPY.sample(2, 0), COPY.entropy()),
    "CopyChain.mean_field": lambda: COPY.mean_field(sweeps=2),
    "FactoredCopyChain": lambda: (FACTORED.log_normalizer(), FACTORED.filter(), FACTORED.smooth(), FACTORED.viterbi()),
    "StackMixture": lambda: (STACK.superposition(3), STACK.top(), STACK.log_normalizer(), STACK.depth_distribution()),
    "StackMixture, draws": lambda: (STACK.viterbi(), STACK.sample(2, 0)),
    "extract_automaton": _extracted,
    "as_weighted_automaton": lambda: sh.automata.as_weighted_automaton(fit_of("Categorical").model),
    "counting_lstm": lambda: sh.automata.counting_lstm("anbnw").state_dict(),
}
