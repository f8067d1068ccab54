"""The recurrent networks, their weights in other libraries' layouts, and what can be proved of them."""

from .bridge.correspondence import (
    Comparison,
    Lifted,
    as_rnn,
    as_ssm,
    compare,
    compare_layers,
    one_hot,
    redrawn_start,
    token_marginal,
)
from .networks.minimal import MinGRU, MinLSTM
from .networks.qrnn import QRNN
from .networks.stack import NondeterministicStackRNN, StratificationStackRNN, SuperpositionStackRNN
from .networks.truncated import truncate
from .networks.wrapped import GRU, LSTM, Elman
from .studies.forgetting import Forgetting, forgetting
from .studies.information import information_sweep
from .studies.next_token import price_of_exactness
from .studies.stability import Stability, stability, stabilize

__all__ = [
    "GRU",
    "LSTM",
    "QRNN",
    "Comparison",
    "Elman",
    "Forgetting",
    "Lifted",
    "MinGRU",
    "MinLSTM",
    "NondeterministicStackRNN",
    "Stability",
    "StratificationStackRNN",
    "SuperpositionStackRNN",
    "as_rnn",
    "as_ssm",
    "compare",
    "compare_layers",
    "forgetting",
    "information_sweep",
    "one_hot",
    "price_of_exactness",
    "redrawn_start",
    "stability",
    "stabilize",
    "token_marginal",
    "truncate",
]
