"""The recurrent networks, their weights in other libraries' layouts, and what can be proved of them."""

from .correspondence import (
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
from .forgetting import Forgetting, forgetting
from .gated import MinGRU, MinLSTM
from .information import information_sweep
from .next_token import price_of_exactness
from .qrnn import QRNN
from .stability import Stability, stability, stabilize
from .stack import NondeterministicStackRNN, StratificationStackRNN, SuperpositionStackRNN
from .truncated import truncate
from .wrapped import GRU, LSTM, Elman

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
