r"""Networks with weights set by hand that count, and one that stores a word.

All weights are small integers and halves, times `SCALE`, so gates are open or closed to $10^{-28}$, and exactly so in
`saturated`'s limit. A word is accepted if the layer's output at its last symbol satisfies some linear conditions.

        a^n b^n       one cell counts a up and b down; another counts symbols out of order
    a^n b^n c^n   two count, a against b and b against c
        a^n b^n w     the LSTM's cell stops counting at the first a after a b: h stores that b has been read

For n > 0. A QRNN detects symbols out of order by a window of two symbols, an LSTM by h. A QRNN of one layer cannot
accept $a^n b^n w$ (`samplehold.models.networks.saturated`). Networks for brackets are in
`samplehold.models.automata.brackets`.

**A word in one cell** (`palindrome_lstm`). Before the mark, a bit z does $c' = c / 2 + z / 2$: both $f + f'$ and the
input gate are half open. After the mark, $c' = 2 c - z$. If z is the top bit, this is c without it. Otherwise c leaves
(0, 1) for good: for c of 1 or more, $2 c - z$ is at least 1. For negative c it is negative and, after as many bits, an
integer. So c is 0 again if the second half is the first reversed, and otherwise 1 away or more. In floats of p binary
digits c is exact for words of p bits, and for longer words only if their outer bits are 0.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.scalars import check_choice
from ..networks.doubling import DoublingLSTM
from ..networks.qrnn import QRNN
from ..networks.wrapped import LSTM
from .acceptor import Acceptor

SCALE = 256.0
LANGUAGES = {"anbn": "ab", "anbncn": "abc", "anbnw": "ab"}


class Conditions(nn.Module):
    """A readout: the margin of the tightest of some linear conditions, rows @ [h, 1] < 0."""

    rows: Tensor

    def __init__(self, rows: Float[Tensor, "N D1"]) -> None:
        super().__init__()
        self.register_buffer("rows", rows)

    def forward(self, out: Float[Tensor, "*b D"]) -> Float[Tensor, "*b 1"]:
        """Above 0 if all conditions hold."""
        return -(out @ self.rows[:, :-1].mT + self.rows[:, -1]).amax(-1, keepdim=True)


Row = dict[str, float]  # weights by their input: a symbol, the output of a unit, or "" for an offset
Unit = dict[str, Row]  # the rows of a unit's gates and candidate; omitted gates are open
ALWAYS: Row = {"": 1}

IN_ORDER: dict[str, Unit] = {  # b_read: 1 from the first b on; disorder: a number from the first a after it on
    "b_read": {"i": {"b": 1, "a": -1}, "f": {"a": 1, "b": -1}},
    "disorder": {"i": {"a": 1, "b_read": 1, "": -1.5}},
}
LSTMS: dict[str, dict[str, Unit]] = {
    "anbn": {"count": {"g": {"a": 1, "b": -1}}, **IN_ORDER, "begun": {}},
    "anbncn": {
        "count": {"i": {"a": 1, "b": 1, "c": -1}, "g": {"a": 1, "b": -1}},
        "second": {"i": {"a": -1, "b": 1, "c": 1}, "g": {"b": 1, "c": -1}},
        "b_read": {"i": {"a": -1, "b": 1, "c": 1}, "f": {"a": 1, "b": -1, "c": -1}},  # or c
        "c_read": {"i": {"a": -1, "b": -1, "c": 1}, "f": {"a": 1, "b": 1, "c": -1}},
        "disorder": {"i": {"a": 1, "b_read": 1, "": -1.5}},
        "disorder_2": {"i": {"b": 1, "c_read": 1, "": -1.5}},
        "begun": {},  # counts all
    },
    "anbnw": {
        "begun": {"i": {"a": 0.5, "b": -1, "b_read": -1}},  # with an a
        "ended": {"i": {"a": 1, "b_read": 1, "": -1.5}},
        "count": {"i": {"a": -1, "b_read": -1, "ended": -10, "": 1.5}, "g": {"a": 1, "b": -1}},
        "b_read": IN_ORDER["b_read"],
    },
}
QRNNS: dict[str, dict[str, Unit]] = {  # "b before" is the symbol one step back
    "anbn": {"count": {"g": {"a": 1, "b": -1}}, "disorder": {"i": {"a": 1, "b before": 1, "": -1.5}}, "begun": {}},
    "anbncn": {
        "count": {"i": {"a": 1, "b": 1, "c": -1}, "g": {"a": 1, "b": -1}},
        "second": {"i": {"a": -1, "b": 1, "c": 1}, "g": {"b": 1, "c": -1}},
        "disorder": {"i": {"a": 1, "b before": 1, "c before": 1, "": -1.5}},
        "disorder_2": {"i": {"b": 1, "c before": 1, "": -1.5}},
        "begun": {},
    },
}
CONDITIONS: dict[str, list[Row]] = {  # expressions that must be less than 0; tanh 1 is 0.76
    "anbn": [{"count": 1, "": -0.4}, {"count": -1, "": -0.4}, {"disorder": 1, "": -0.4}, {"begun": -1, "": 0.4}],
    "anbnw": [{"count": 1, "": -0.4}, {"begun": -1, "": 0.4}],
}
CONDITIONS["anbncn"] = [
    *CONDITIONS["anbn"],
    {"second": 1, "": -0.4},
    {"second": -1, "": -0.4},
    {"disorder_2": 1, "": -0.4},
]
PALINDROME: dict[str, Unit] = {
    # an input gate of 0 is half open: before the mark, as the two forget gates together are
    "word": {
        "i": {"mark_read": 1, "0": -2, "#": -2},
        "f": {"mark_read": 1, "#": 1},
        "d": {"mark_read": 1, "": -0.5},
        "g": {"mark_read": -1, "": 0.5},
    },
    "length": {"i": {"0": 1, "1": 1, "#": -1}, "d": {"": -1}, "g": {"mark_read": -1, "": 0.5}},
    "mark_read": {"i": {"#": 1, "0": -1, "1": -1}, "d": {"": -1}},  # 2 after a second mark
}
BALANCED: list[Row] = [
    *({part: sign, "": -0.4} for part in ("word", "length") for sign in (1.0, -1.0)),
    {"mark_read": -1, "": 0.4},
    {"mark_read": 1, "": -0.9},
]


def counting_lstm(language: str, dtype: torch.dtype = torch.float64) -> Acceptor:
    """An LSTM that accepts a language of counts, within the range of its floats.

    Arguments:
        language: "anbn", "anbncn" or "anbnw": $a^n b^n$, $a^n b^n c^n$, $a^n b^n w$ with any word w; n > 0.
        dtype: of the weights.

    Raises:
        TypeError: a dtype that is not a floating one.
        ValueError: another language.

    Weiss, Goldberg & Yahav 2018, *On the practical computational power of finite precision RNNs for language
    recognition*.

    See Also:
        `counting_qrnn`, the same with a QRNN; `counter_machine`, which shows the counters; docs/background/counting.md.

    >>> import samplehold as sh
    >>> sh.automata.counting_lstm("anbnw").accepts(["aabb", "aabbabaab", "aababbb", "b", ""]).tolist()
    [True, True, False, False, False]
    """
    alphabet = LANGUAGES[check_choice("language", language, LANGUAGES)]
    return lstm_acceptor(alphabet, LSTMS[language], CONDITIONS[language], dtype)


def counting_qrnn(language: str, dtype: torch.dtype = torch.float64) -> Acceptor:
    """A QRNN of ifo-pooling and a window of 2 that accepts a language of counts.

    Arguments:
        language: "anbn" or "anbncn", as in `counting_lstm`.
        dtype: of the weights.

    Raises:
        TypeError: a dtype that is not a floating one.
        ValueError: "anbnw", which no QRNN of one layer accepts.

    Merrill, Weiss, Goldberg, Schwartz, Smith & Yahav 2020, *A formal hierarchy of RNN architectures*.

    See Also:
        `counting_lstm`, which accepts one more language; `counter_machine`, which shows the counters;
        docs/background/counting.md.

    >>> import samplehold as sh
    >>> sh.automata.counting_qrnn("anbn").accepts(["aabb", "abab", "aab", ""]).tolist()
    [True, False, False, False]
    """
    if check_choice("language", language, LANGUAGES) == "anbnw":
        raise ValueError(
            'language: got "anbnw", but the gates of one QRNN layer cannot detect the end of the count (see '
            "samplehold.models.networks.saturated); take counting_lstm."
        )
    alphabet, units = LANGUAGES[language], QRNNS[language]
    layer: Any = QRNN(len(alphabet), len(units), pooling="ifo", window=2, dtype=dtype).requires_grad_(False)
    rows = _rows(units, "figo", [*(f"{symbol} before" for symbol in alphabet), *alphabet])
    layer.weight_l0.copy_(rows[:, :-1].unflatten(1, (2, -1)).mT)
    layer.bias_l0.copy_(rows[:, -1])
    return Acceptor(layer, readout(CONDITIONS[language], units, dtype), alphabet)


def palindrome_lstm(dtype: torch.dtype = torch.float64) -> Acceptor:
    """A `DoublingLSTM` that accepts the marked palindromes, a word over 0 and 1, #, and the word reversed.

    Arguments:
        dtype: of the weights.

    Raises:
        TypeError: a dtype that is not a floating one.

    See Also:
        `DoublingLSTM`, its layer; `counting_lstm`, for counts; docs/background/doubling.md, on what such a cell stores.

    >>> import samplehold as sh
    >>> sh.automata.palindrome_lstm().accepts(["011#110", "011#100", "011#11", "#", "0#0#"]).tolist()
    [True, False, False, True, False]
    """
    alphabet = "01#"
    layer: Any = DoublingLSTM(len(alphabet), len(PALINDROME), dtype=dtype).requires_grad_(False)
    rows = _rows(PALINDROME, "ifdgo", [*alphabet, *PALINDROME])
    layer.weight_l0.copy_(rows[:, :-1])
    layer.bias_l0.copy_(rows[:, -1])
    return Acceptor(layer, readout(BALANCED, PALINDROME, dtype), alphabet)


def lstm_acceptor(alphabet: str, units: dict[str, Unit], conditions: list[Row], dtype: torch.dtype) -> Acceptor:
    """An LSTM with a unit for each entry of `units`, that accepts a word if all conditions on its output hold."""
    layer: Any = LSTM(len(alphabet), len(units), dtype=dtype).requires_grad_(False)
    rows = _rows(units, "ifgo", [*alphabet, *units])
    layer.weight_ih_l0.copy_(rows[:, : len(alphabet)])
    layer.weight_hh_l0.copy_(rows[:, len(alphabet) : -1])
    layer.bias_ih_l0.copy_(rows[:, -1])
    layer.bias_hh_l0.zero_()
    return Acceptor(layer, readout(conditions, units, dtype), alphabet)


def _rows(units: dict[str, Unit], gates: str, sources: Sequence[str]) -> Tensor:
    """Weights and offsets [gates * units, sources + 1] of a layer."""
    return SCALE * table((unit.get(gate, ALWAYS) for gate in gates for unit in units.values()), sources)


def readout(conditions: list[Row], units: Iterable[str], dtype: torch.dtype) -> Conditions:
    """The readout for conditions on the outputs of units: expressions that must be less than 0."""
    return Conditions(table(conditions, list(units)).to(dtype))


def table(rows: Iterable[Row], sources: Sequence[str]) -> Tensor:
    """Numbers [rows, sources + 1], the offset last."""
    places = {source: place for place, source in enumerate([*sources, ""])}
    lines = []
    for row in rows:
        line = [0.0] * len(places)
        for source, value in row.items():
            line[places[source]] = value
        lines.append(line)
    return torch.tensor(lines, dtype=torch.float64, device="cpu")
