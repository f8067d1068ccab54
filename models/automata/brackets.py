r"""Networks with weights set by hand that accept balanced brackets.

    Dyck-1           balanced brackets of one kind: one counter
    shuffle          every kind is balanced by itself, such as ([)]: a counter for each kind
    Dyck-k to depth D  brackets of k kinds that nest properly, at most D open at once: D registers

**Counters.** A count may not fall below 0, which another unit stores. In the LSTM it reads the sign of the count, one
symbol late; a count that is -1 at the end fails by itself. In the Elman network of ReLU all weights are 0, 1 or -1:
$c' = relu(c + open - close)$, $below' = relu(close - c)$, $failed' = relu(failed + below)$. Its states are integers, so
it is exact for words of up to $2^{24}$ symbols in float32 and $2^{53}$ in float64.

**Registers.** $level_d$ is 1 while at least d brackets are open, and $bit_{d, j}$ is 1 or -1, bit j of the kind of the
d-th of them. Both are set when the d-th opens ($level_{d-1} - level_d$ is 1) and reset when it closes ($level_{d+1}$ is
0). A unit for each d, j and value stores that a bracket closed another kind than the d-th. These are
$D (1 + 3 \lceil \log_2 k \rceil) + 2$ units with small weights, for any length: of the order of Hewitt et al. 2020.

Without a bound on the depth, no saturated LSTM accepts Dyck-2: its states after n symbols are polynomially many in n,
and Dyck-2 has exponentially many prefixes that must be distinguished. One QRNN layer does not accept Dyck-1: its gates
read only the last k symbols. Let u contain every window of k symbols and end Dyck-1's count at 0. Then
$(^{p} )^{q} (^{r} )^{s} u$ and $(^{r} )^{q} (^{p} )^{s} u$ with blocks of k or more end in the same state, but if
$r < q \le p$ only the first can be balanced (`samplehold.models.networks.saturated` has this argument for $a^n b^n w$).

Hewitt, Hahn, Ganguli, Liang & Manning 2020, *RNNs can generate bounded hierarchical languages with optimal memory*;
Weiss, Goldberg & Yahav 2018; Merrill et al. 2020; Suzgun, Gehrmann, Belinkov & Shieber 2019, *LSTM networks can perform
dynamic counting*.
"""

from typing import Any

import torch

from ...inference.numerics.scalars import check_integer
from ..networks.wrapped import Elman
from .acceptor import Acceptor
from .counters import Row, Unit, lstm_acceptor, readout, table

KINDS = ("()", "[]", "{}", "<>")


def shuffle_dyck_lstm(kinds: int = 1, dtype: torch.dtype = torch.float64) -> Acceptor:
    """An LSTM that accepts the words in which every kind of bracket is balanced by itself; one kind: Dyck-1.

    Arguments:
        kinds: from 1 to 4: (), [], {}, <>.
        dtype: counts are exact up to $2^{24}$ in float32, $2^{53}$ in float64.

    Raises:
        TypeError: a number of kinds that is not an integer; a dtype that is not a floating one.
        ValueError: kinds outside 1 to 4.

    Suzgun, Gehrmann, Belinkov & Shieber 2019, *LSTM networks can perform dynamic counting*.

    See Also:
        `shuffle_dyck_elman`, the same without gates; `dyck_lstm`, whose kinds must nest; docs/background/counting.md.

    >>> import samplehold as sh
    >>> sh.automata.shuffle_dyck_lstm(2).accepts(["([)]", "())(", "([)", ""]).tolist()
    [True, False, False, True]
    """
    pairs = KINDS[: check_integer("kinds", kinds, most=len(KINDS))]
    units: dict[str, Unit] = {}
    for opens, closes in pairs:
        mine: Row = {symbol: 1.0 if symbol in (opens, closes) else -1.0 for symbol in "".join(pairs)}
        units[f"count {opens}"] = {"i": mine, "g": {opens: 1, closes: -1}}
        units[f"below {opens}"] = {"i": {f"count {opens}": -1, "": -0.4}}
    return lstm_acceptor("".join(pairs), units, _zero(units), dtype)


def shuffle_dyck_elman(kinds: int = 1, dtype: torch.dtype = torch.float64) -> Acceptor:
    """An Elman network of ReLU that accepts the words of `shuffle_dyck_lstm`, with weights 0, 1 and -1.

    Arguments:
        kinds: from 1 to 4: (), [], {}, <>.
        dtype: of the weights.

    Raises:
        TypeError: a number of kinds that is not an integer; a dtype that is not a floating one.
        ValueError: kinds outside 1 to 4.

    Weiss, Goldberg & Yahav 2018, *On the practical computational power of finite precision RNNs for language
    recognition*.

    See Also:
        `shuffle_dyck_lstm`, the same with an LSTM; `dyck_lstm`, whose kinds must nest; docs/background/counting.md.

    >>> import samplehold as sh
    >>> network = sh.automata.shuffle_dyck_elman(2)
    >>> network.accepts(["([)]", "())(", "([)", ""]).tolist(), network.layer.hidden_size
    ([True, False, False, True], 5)
    """
    pairs = KINDS[: check_integer("kinds", kinds, most=len(KINDS))]
    alphabet, rows = "".join(pairs), {}
    for opens, closes in pairs:
        rows[f"count {opens}"] = {f"count {opens}": 1.0, opens: 1.0, closes: -1.0}
        rows[f"below {opens}"] = {f"count {opens}": -1.0, closes: 1.0}
    rows["failed"] = {"failed": 1.0} | {f"below {opens}": 1.0 for opens, _ in pairs}
    layer: Any = Elman(len(alphabet), len(rows), bias=False, nonlinearity="relu", dtype=dtype).requires_grad_(False)
    weights = table(rows.values(), [*alphabet, *rows])[:, :-1]
    layer.weight_ih_l0.copy_(weights[:, : len(alphabet)])
    layer.weight_hh_l0.copy_(weights[:, len(alphabet) :])
    return Acceptor(layer, readout(_zero(rows), rows, dtype), alphabet)


def dyck_lstm(kinds: int = 2, depth: int = 5, dtype: torch.dtype = torch.float64) -> Acceptor:
    """An LSTM that accepts properly nested brackets, with at most `depth` open at once.

    Arguments:
        kinds: from 1 to 4: (), [], {}, <>.
        depth: D; deeper words are rejected.
        dtype: of the weights.

    Raises:
        TypeError: a number that is not an integer; a dtype that is not a floating one.
        ValueError: kinds outside 1 to 4; a depth below 1.

    Hewitt, Hahn, Ganguli, Liang & Manning 2020, *RNNs can generate bounded hierarchical languages with optimal memory*.

    See Also:
        `shuffle_dyck_lstm`, without nesting of kinds; `counting_lstm`, for counts; docs/background/counting.md.

    >>> import samplehold as sh
    >>> network = sh.automata.dyck_lstm(kinds=2, depth=3)
    >>> network.accepts(["([])[]", "([)]", "[[[]]]", "[[[[]]]]", "]["]).tolist(), network.layer.hidden_size
    ([True, False, True, False, False], 14)
    """
    pairs = KINDS[: check_integer("kinds", kinds, most=len(KINDS))]
    depth = check_integer("depth", depth)
    opens, closes = (dict.fromkeys(symbols, 1.0) for symbols in zip(*pairs, strict=True))
    signs = [{symbol: 2.0 * (k >> j & 1) - 1 for k, pair in enumerate(pairs) for symbol in pair} for j in _bits(kinds)]
    units: dict[str, Unit] = {
        "underflow": {"i": closes | {"level 1": -1, "": -0.6}},
        "overflow": {"i": opens | {f"level {depth}": 1, "": -1.4}},
    }
    for d in range(1, depth + 1):
        below = {f"level {d - 1}": 1.0, "": -1.4} if d > 1 else {"": -0.6}
        above = {f"level {d + 1}": 1.0} if d < depth else {}
        gates: Unit = {
            "i": opens | {f"level {d}": -1} | below,
            "f": dict.fromkeys(closes, -1.0) | dict.fromkeys(above, 1.5) | {"": 0.5},
        }
        units[f"level {d}"] = gates
        for j, sign in enumerate(signs):
            units[f"bit {d} {j}"] = gates | {"g": sign}
            for value in (1.0, -1.0):
                wanted = {symbol: 1.0 for symbol in closes if sign[symbol] == value}
                rest = {f"bit {d} {j}": -value, "": -1.4} | dict.fromkeys(above, -1.0)
                units[f"mismatch {d} {j} {value}"] = {"i": wanted | rest}
    checked = [name for name in units if not name.startswith(("bit", "level"))]
    return lstm_acceptor("".join(pairs), units, _zero([*checked, "level 1"]), dtype)


def _bits(kinds: int) -> range:
    return range((kinds - 1).bit_length())


def _zero(units: Any) -> list[Row]:
    """Conditions that hold if all units are 0; otherwise they are 1 or more, or -1 or less."""
    return [{name: sign, "": -0.4} for name in units for sign in (1.0, -1.0)]
