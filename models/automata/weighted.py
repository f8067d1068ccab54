r"""Weighted automata: a row vector, a matrix for each symbol, a column vector; and learning them by an SVD.

$$f(x_1 \dots x_T) = \alpha^\top A_{x_1} \cdots A_{x_T} \beta$$

**A recurrent layer whose gates read only the present symbol is a weighted automaton**: given the symbol, its step is
affine in the state. With $(1, h)$ for the state of K units, `hold` and `draw` the gates at symbol x, and v its
candidate,

$$(1, h') = (1, h) \begin{pmatrix} 1 & draw \odot v \\ 0 & diag(hold) \end{pmatrix}, \qquad
f = (1, h) \begin{pmatrix} b \\ w \end{pmatrix}$$

minGRU, minLSTM and QRNN (f-pooling) have K + 1 states. The output gate of fo- and ifo-pooling depends on the last
symbol, so the automaton carries o * c beside c: 2 K + 1 states.

A linear second-order network is one, too: its matrices are any matrices (`samplehold.models.networks.second_order`).

**A hidden Markov chain over symbols is a weighted automaton**: $\alpha$ is the first state's distribution, $A_x[i, j] =
p(x \mid i) \,p(j \mid i)$, and $\beta = 1$. Values are the probabilities of prefixes; those of each length sum to 1.

**From values to an automaton** (Hsu, Kakade & Zhang 2012; Balle, Carreras, Luque & Quattoni 2014). The Hankel matrix
$H[p, s] = f(ps)$ of a function of an automaton with r states has rank at most r. With $H = U D V^\top$ cut to r, and
$H_x[p, s] = f(pxs)$,

$$\alpha^\top = H[\epsilon, \cdot]\, V, \qquad A_x = (H V)^{+} H_x V, \qquad \beta = (H V)^{+} H[\cdot, \epsilon]$$

compute f exactly if H has the rank of the whole function.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.arrays import floating
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_choice, check_integer, check_number
from ...switching.data.series import Drive
from ...switching.dynamics.copy import Copy
from ...switching.dynamics.markov import Markov
from ...switching.emissions.discrete import Categorical
from ...switching.model import SwitchingSSM
from ..networks.minimal import MinGRU, MinLSTM
from ..networks.qrnn import QRNN
from ..networks.second_order import SecondOrder
from .acceptor import Acceptor
from .words import check_alphabet, check_word, check_words

COUNTS = ("words", "prefixes")
LONGEST = 2  # the greatest length of prefixes and suffixes of samples
NOTHING = 1e-12  # singular values below this, relative to the greatest, are rounding


@dataclass(frozen=True, repr=False)
class WeightedAutomaton(Record):
    r"""A weighted automaton, a function of words: $f(x_1 \dots x_T) = \alpha^\top A_{x_1} \cdots A_{x_T} \beta$.

    Arguments:
        initial: $\alpha$ [K].
        transitions: $A$ [K, K], indexed [old, new], by symbol; each symbol is one letter.
        final: $\beta$ [K].

    Raises:
        TypeError: tables that are not numbers, symbols that are not letters.
        ValueError: tables whose shapes do not fit, numbers that are not finite, no symbol.

    Balle, Carreras, Luque & Quattoni 2014, *Spectral learning of weighted automata*.

    See Also:
        `as_weighted_automaton`, of a network or a model; `spectral`, from values; docs/background/automata.md.

    Example:
        >>> import samplehold as sh
        >>> ones = sh.automata.WeightedAutomaton([1, 0], {"0": [[1, 0], [0, 1]], "1": [[1, 1], [0, 1]]}, [0, 1])
        >>> ones.values(["", "0110", "1011"])  # counts the ones
        tensor([0., 2., 3.], dtype=torch.float64)
        >>> ones.totals(3)  # in all words of 0, 1, 2, 3 symbols
        tensor([ 0.,  1.,  4., 12.], dtype=torch.float64)
    """

    initial: Float[Tensor, "K"]
    transitions: Mapping[str, Float[Tensor, "K K"]]
    final: Float[Tensor, "K"]

    def __init__(self, initial: Any, transitions: Mapping[str, Any], final: Any) -> None:
        if not isinstance(transitions, Mapping):
            raise TypeError(f"transitions: got {type(transitions).__name__}, expected a matrix by symbol.")
        try:
            symbols = check_alphabet(list(transitions))
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace("alphabet", "transitions", 1)) from None
        first = _table("initial", initial)
        if first.dim() != 1 or not len(first):
            raise ValueError(f"initial: got shape {list(first.shape)}, expected [K] with at least one state.")
        n = len(first)
        tables = {symbol: _table(f"transitions[{symbol!r}]", transitions[symbol], (n, n)) for symbol in symbols}
        object.__setattr__(self, "initial", first)
        object.__setattr__(self, "transitions", tables)
        object.__setattr__(self, "final", _table("final", final, (n,)))

    @property
    def alphabet(self) -> tuple[str, ...]:
        """The symbols, in the order of `transitions`."""
        return tuple(self.transitions)

    @property
    def n_states(self) -> int:
        """K."""
        return len(self.initial)

    def values(self, words: Sequence[str]) -> Float[Tensor, "N"]:
        """f of each word.

        Arguments:
            words: strings of symbols.

        Raises:
            TypeError: `words` is not a list of strings.
            ValueError: a word with other symbols; the error names it.
        """
        index = {symbol: i for i, symbol in enumerate(self.alphabet)}
        rows = [[index[symbol] for symbol in word] for word in check_words(words, self.alphabet)]
        longest = max(map(len, rows), default=0)
        state = self.initial.expand(len(rows), -1)
        for t in range(longest):
            now = torch.tensor([row[t] if t < len(row) else -1 for row in rows], device="cpu")
            for i, table in enumerate(self._tables):
                state = torch.where((now == i)[:, None], state @ table, state)
        return state @ self.final

    def totals(self, longest: int) -> Float[Tensor, "n"]:
        """The sums of f over all words of 0, 1, ... `longest` symbols.

        Arguments:
            longest: the greatest length.
        """
        longest = check_integer("longest", longest, least=0)
        state, sums = self.initial, []
        for _ in range(longest + 1):
            sums.append(state @ self.final)
            state = state @ self._sum
        return torch.stack(sums)

    def total(self) -> float:
        """The sum of f over all words of all lengths.

        Raises:
            ValueError: the sum of the matrices has a spectral radius of 1 or more, so the sum does not converge.
        """
        radius = float(torch.linalg.eigvals(self._sum).abs().max())
        if radius >= 1:
            raise ValueError(
                f"transitions: their sum has a spectral radius of {radius:.6g}, expected less than 1 for a sum over "
                "all words; use `totals`."
            )
        eye = torch.eye(self.n_states, dtype=torch.float64, device="cpu")
        return float(self.initial @ torch.linalg.solve(eye - self._sum, self.final))

    @cached_property
    def _tables(self) -> Tensor:
        return torch.stack(list(self.transitions.values()))

    @property
    def _sum(self) -> Tensor:
        return self._tables.sum(0)


@torch.no_grad()
def as_weighted_automaton(
    network: Acceptor | SwitchingSSM, alphabet: str | Sequence[str] | None = None
) -> WeightedAutomaton:
    """The weighted automaton that a network or a hidden Markov chain *is*.

    Arguments:
        network: an `Acceptor` of one `MinGRU`, `MinLSTM`, `QRNN` (window 1) or linear `SecondOrder` layer, with a
            linear readout; values are its log-odds. Or a `SwitchingSSM` of `Markov` or `Copy` dynamics and
            `Categorical` emissions; values are the probabilities of words, `exp(log_evidence)`, and 1 for the empty
            word.
        alphabet: for a model, a letter for each category; None: digits. An acceptor has its own alphabet.

    Raises:
        TypeError: a network of another kind.
        ValueError: a network that is not a weighted automaton; the error says why.

    Rabusseau, Li & Precup 2019, *Connecting weighted automata and recurrent neural networks through spectral learning*.

    See Also:
        `as_second_order`, the way back; `extract_automaton`, for networks that are not linear;
        docs/background/automata.md.

    Example:
        >>> import torch, samplehold as sh
        >>> network = sh.automata.Acceptor(sh.QRNN(2, 3), torch.nn.Linear(3, 1), "ab").double()
        >>> automaton = sh.automata.as_weighted_automaton(network)
        >>> automaton.n_states  # 1, cells and outputs
        7
        >>> words = ["", "abba", "b" * 99]
        >>> torch.allclose(automaton.values(words), network(words), rtol=1e-12)
        True
    """
    if isinstance(network, SwitchingSSM):
        return _of_model(network, alphabet)
    if not isinstance(network, Acceptor):
        raise TypeError(
            f"network: got {type(network).__name__}, expected an Acceptor(layer, readout, alphabet), or a SwitchingSSM."
        )
    if alphabet is not None and check_alphabet(alphabet) != network.alphabet:
        raise ValueError(
            f"alphabet: got {alphabet!r}, but the network has {''.join(network.alphabet)!r}; leave it out."
        )
    layer, readout = _qualified(network)
    if isinstance(layer, SecondOrder):
        return _of_second_order(network, layer, readout)
    size, linear = layer.hidden_size, readout.weight.double()[0]
    bias = 0.0 if readout.bias is None else float(readout.bias)
    rows = torch.eye(layer.input_size, dtype=layer.weight_l0.dtype, device=layer.weight_l0.device)
    now, shown = layer.activations(rows), None
    if isinstance(layer, QRNN):
        _, shown = layer._products(rows, 0)
    hold, draw, value = (part.double().cpu() for part in (now.hold, now.draw, now.value))
    gate = None if shown is None else shown.double().sigmoid().cpu()
    tables = []
    for x in range(layer.input_size):
        cell = torch.cat([(draw[x] * value[x])[None], hold[x].diag()])  # [1 + D, D] from (1, h) to h'
        parts = [torch.eye(1 + size, 1, dtype=torch.float64, device="cpu"), cell]
        if gate is not None:
            parts.append(cell * gate[x])
        step = torch.cat(parts, 1)
        tables.append(torch.cat([step, step.new_zeros(step.shape[1] - 1 - size, step.shape[1])]))
    n, start = len(tables[0]), network._first_state(1)
    initial = torch.zeros(n, dtype=torch.float64, device="cpu")
    initial[0] = 1
    if not isinstance(layer, QRNN):
        initial[1:] = start.double().cpu().flatten()
    final = torch.zeros(n, dtype=torch.float64, device="cpu")
    final[0], final[-size:] = bias, linear.cpu()
    if network.has_start:
        initial = initial @ tables.pop()
    return WeightedAutomaton(initial, dict(zip(network.alphabet, tables, strict=True)), final)


def spectral(
    values: Mapping[str, float] | Sequence[str],
    rank: int,
    alphabet: str | Sequence[str] | None = None,
    longest: int | None = None,
    count: str = "words",
) -> WeightedAutomaton:
    """A weighted automaton of `rank` states from values of words, by an SVD of their Hankel matrix.

    Arguments:
        values: f of words, by word; or sampled words, whose shares are f.
        rank: the number of states; the automaton is exact if f has an automaton of this rank and values are exact.
        alphabet: the symbols; None: those that occur in `values`, in alphabetic order.
        longest: prefixes and suffixes of the Hankel matrix are all words of up to this many symbols, so the values of
            all words of up to 2 longest + 1 are read; None: the greatest possible for the values, or 2 for samples.
        count: for samples: f(w) is the share of "words" that equal w; or, for sequences without an end, the share of
            samples with w as one of their "prefixes", among samples that are long enough.

    Raises:
        TypeError: values that are not numbers or words.
        ValueError: a rank greater than that of the Hankel matrix; a word whose value is missing or not finite; samples
            that
            are all too short; symbols outside the alphabet.

    Hsu, Kakade & Zhang 2012, *A spectral algorithm for learning hidden Markov models*; Balle, Carreras, Luque &
    Quattoni 2014, *Spectral learning of weighted automata*, section 3.

    See Also:
        `as_second_order`, the network of the result; `WeightedAutomaton`, its type; docs/background/automata.md.

    Example:
        >>> import samplehold as sh
        >>> from itertools import product
        >>> words = ["".join(word) for n in range(4) for word in product("ab", repeat=n)]
        >>> learned = sh.automata.spectral({word: word.count("b") for word in words}, rank=2)
        >>> [round(value, 9) for value in learned.values(["babb" * 5, "aaab"]).tolist()]
        [15.0, 1.0]
    """
    rank, count = check_integer("rank", rank), check_choice("count", count, COUNTS)
    table, symbols, longest, sampled = _read_values(values, alphabet, longest, count)
    basis = ["".join(word) for n in range(longest + 1) for word in product(symbols, repeat=n)]

    def hankel(symbol: str = "") -> Tensor:
        wanted = [[prefix + symbol + suffix for suffix in basis] for prefix in basis]
        missing = next((word for row in wanted for word in row if word not in table), None)
        if missing is not None and not sampled:
            raise ValueError(
                f"values: has none of {missing!r}, expected all words of up to {2 * longest + 1} symbols; give these, "
                "or a smaller longest."
            )
        return torch.tensor(
            [[table.get(word, 0.0) for word in row] for row in wanted], dtype=torch.float64, device="cpu"
        )

    table_of_words = hankel()
    _, sizes, right = torch.linalg.svd(table_of_words, full_matrices=False)
    reached = int((sizes > NOTHING * max(float(sizes[0]), 1e-300) * len(basis)).sum())
    if rank > reached:
        raise ValueError(
            f"rank: got {rank}, but the Hankel matrix of {len(basis)} prefixes and suffixes has the rank {reached}; "
            "give a rank of at most that, or longer words."
        )
    V = right[:rank].T
    inverse = torch.linalg.pinv(table_of_words @ V)
    transitions = {symbol: inverse @ hankel(symbol) @ V for symbol in symbols}
    return WeightedAutomaton(table_of_words[0] @ V, transitions, inverse @ table_of_words[:, 0])


def _table(name: str, values: Any, shape: tuple[int, ...] | None = None) -> Tensor:
    table = floating(values, name).detach().double().cpu()
    if shape is not None and tuple(table.shape) != shape:
        raise ValueError(
            f"{name}: got shape {list(table.shape)}, expected {list(shape)}, as initial has {shape[0]} states."
        )
    if not bool(table.isfinite().all()):
        raise ValueError(f"{name}: got numbers that are not finite; give finite ones.")
    return table


def _qualified(network: Acceptor) -> tuple[Any, nn.Linear]:
    """Layer and readout, or an error that says why they are not a weighted automaton."""
    layer, readout = network.layer, network.readout
    kind = type(layer).__name__
    if isinstance(layer, SecondOrder) and layer.nonlinearity != "linear":
        raise ValueError(
            f'network: its SecondOrder layer has nonlinearity="{layer.nonlinearity}", expected "linear", so that its '
            "step is linear in the state."
        )
    if not isinstance(layer, MinGRU | MinLSTM | QRNN | SecondOrder):
        raise ValueError(
            f"network: the gates of its {kind} read its own state, so its step is not affine in the state for a given "
            "symbol; give one of a MinGRU, MinLSTM, QRNN or SecondOrder, or use `spectral` or `extract_automaton`."
        )
    if layer.num_layers != 1:
        raise ValueError(
            f"network: its {kind} has {layer.num_layers} layers, and those above the first are gated by states, not by "
            "symbols; give one layer."
        )
    if isinstance(layer, QRNN) and layer.window != 1:
        raise ValueError(
            f"network: the gates of its QRNN read {layer.window} symbols each, so a symbol has no single matrix; give "
            "one with window=1."
        )
    if not isinstance(readout, nn.Linear):
        raise ValueError(
            f"network: its readout is a {type(readout).__name__}, and values are linear in states; give a Linear."
        )
    if readout.out_features != 1:
        raise ValueError(
            f"network: its readout has {readout.out_features} outputs, and a word has one value; give a Linear of one."
        )
    return layer, readout


def _of_second_order(network: Acceptor, layer: Any, readout: nn.Linear) -> WeightedAutomaton:
    """With a 1 before the state if there are offsets, as for gated layers."""
    initial, final = layer.start_l0.double().cpu(), readout.weight.double()[0].cpu()
    tables = list(layer.weight_l0.double().cpu().permute(1, 2, 0))  # [old, new] of each symbol
    if layer.bias or readout.bias is not None:
        one = initial.new_ones(1)
        row = layer.bias_l0.double().cpu() if layer.bias else torch.zeros_like(initial)
        tables = [torch.cat([torch.cat([one, row])[None], nn.functional.pad(table, (1, 0))]) for table in tables]
        offset = torch.zeros_like(one) if readout.bias is None else readout.bias.double().cpu()
        initial, final = torch.cat([one, initial]), torch.cat([offset, final])
    if network.has_start:
        initial = initial @ tables.pop()
    return WeightedAutomaton(initial, dict(zip(network.alphabet, tables, strict=True)), final)


def _of_model(model: SwitchingSSM, alphabet: Any) -> WeightedAutomaton:
    dynamics, emission = model.dynamics, model.emission
    if not isinstance(dynamics, Markov | Copy) or not isinstance(emission, Categorical):
        raise ValueError(
            f"network: got {model}, expected Markov or Copy dynamics with Categorical emissions: symbols drawn given a "
            "state."
        )
    values = {name: value.detach().double().cpu() for name, value in model.values.items()}
    emitted = values["probs"]
    if dynamics.reads:
        raise ValueError("network: its moves depend on inputs, so a symbol has no single matrix.")
    if isinstance(dynamics, Markov):
        first, moves = dynamics.first(values, Drive()), values["transition_probs"]
    else:
        first, redraw = values["state_probs"], values["redraw_prob"]
        moves = (1 - redraw) * torch.eye(len(first), dtype=torch.float64, device="cpu") + redraw * first
    n_symbols = emitted.shape[-1]
    symbols = check_alphabet("0123456789"[:n_symbols] if alphabet is None else alphabet)
    if len(symbols) != n_symbols:
        raise ValueError(f"alphabet: got {len(symbols)} symbols for {n_symbols} categories; give a letter for each.")
    return WeightedAutomaton(
        first, {symbol: emitted[:, x, None] * moves for x, symbol in enumerate(symbols)}, torch.ones_like(first)
    )


def _read_values(
    values: Any, alphabet: Any, longest: int | None, count: str
) -> tuple[dict[str, float], tuple[str, ...], int, bool]:
    """f by word, the symbols, the greatest length of prefixes and suffixes, and whether f comes from samples."""
    sampled = not isinstance(values, Mapping)
    if sampled and (isinstance(values, str) or not isinstance(values, Sequence)):
        raise TypeError(f"values: got {type(values).__name__}, expected numbers by word, or a list of words.")
    if not values:
        raise ValueError("values: got no word, expected some.")
    for word in values:
        if not isinstance(word, str):
            raise TypeError(f"values: got {word!r:.60}, expected words, which are strings.")
    occurring = sorted({symbol for word in values for symbol in word})
    symbols = check_alphabet(occurring if alphabet is None else alphabet)
    for word in values:
        check_word(word, symbols, "values")
    deepest = (max(map(len, values)) - 1) // 2
    if longest is None:
        longest = max(0, deepest if not sampled else LONGEST)
    longest = check_integer("longest", longest, least=0)
    if not sampled:
        return (
            {word: check_number(f"values[{word!r}]", value) for word, value in values.items()},
            symbols,
            longest,
            False,
        )
    if count == "words":
        counted = Counter(values)
        return {word: n / len(values) for word, n in counted.items()}, symbols, longest, True
    if max(map(len, values)) < 2 * longest + 1:
        raise ValueError(
            f"values: got words of at most {max(map(len, values))} symbols, expected some of {2 * longest + 1} for "
            f"longest={longest}; give longer ones, or a smaller longest."
        )
    prefixes = Counter(word[:n] for word in values for n in range(min(len(word), 2 * longest + 1) + 1))
    reaching = [sum(len(word) >= n for word in values) for n in range(2 * longest + 2)]
    return {word: n / reaching[len(word)] for word, n in prefixes.items()}, symbols, longest, True
