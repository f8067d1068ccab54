"""The recurrent networks, their weights in other libraries' layouts, and what can be proved of them."""

from .forgetting import Forgetting, forgetting
from .gated import MinGRU, MinLSTM
from .qrnn import QRNN
from .stability import Stability, stability, stabilize
from .truncated import truncate
from .wrapped import GRU, LSTM, Elman

__all__ = [
    "GRU",
    "LSTM",
    "QRNN",
    "Elman",
    "Forgetting",
    "MinGRU",
    "MinLSTM",
    "Stability",
    "forgetting",
    "stability",
    "stabilize",
    "truncate",
]
