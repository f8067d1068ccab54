"""Switching state-space models and gated recurrent networks as two views of one object.

import samplehold as sh

model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal(n_features=1))
fit = model.fit(series)
fit.model.smooth(series).redraw
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .inference.chains.copy.chain import CopyChain
    from .inference.chains.markov.chain import MarkovChain
    from .inference.scans.linear.op import lerp_scan, linear_scan
    from .models import (
        GRU,
        LSTM,
        QRNN,
        Elman,
        MinGRU,
        MinLSTM,
        NondeterministicStackRNN,
        StratificationStackRNN,
        SuperpositionStackRNN,
        as_rnn,
        as_ssm,
        compare,
    )
    from .switching import (
        Bernoulli,
        Categorical,
        Copy,
        FactorialSSM,
        Fit,
        Forecast,
        Gated,
        LayeredSSM,
        Markov,
        MultivariateNormal,
        Normal,
        Poisson,
        PushdownAutomaton,
        StackMixture,
        SwitchingSSM,
        filter_vmp,
    )
    from .switching.stacks import program as stack_program

# Loaded on first use, so that the command line answers at once.
_HOMES = {
    "CopyChain": "inference.chains.copy.chain",
    "MarkovChain": "inference.chains.markov.chain",
    "lerp_scan": "inference.scans.linear.op",
    "linear_scan": "inference.scans.linear.op",
} | dict.fromkeys(
    (
        *("GRU", "LSTM", "QRNN", "Elman", "MinGRU", "MinLSTM"),
        *("NondeterministicStackRNN", "StratificationStackRNN", "SuperpositionStackRNN"),
        *("as_rnn", "as_ssm", "compare"),
    ),
    "models",
)

__version__ = "0.1.0"

__all__ = [
    "GRU",
    "LSTM",
    "QRNN",
    "Bernoulli",
    "Categorical",
    "Copy",
    "CopyChain",
    "Elman",
    "FactorialSSM",
    "Fit",
    "Forecast",
    "Gated",
    "LayeredSSM",
    "Markov",
    "MarkovChain",
    "MinGRU",
    "MinLSTM",
    "MultivariateNormal",
    "NondeterministicStackRNN",
    "Normal",
    "Poisson",
    "PushdownAutomaton",
    "StackMixture",
    "StratificationStackRNN",
    "SuperpositionStackRNN",
    "SwitchingSSM",
    "as_rnn",
    "as_ssm",
    "compare",
    "filter_vmp",
    "lerp_scan",
    "linear_scan",
    "stack_program",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES.get(name, 'switching')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
