"""Networks that accept or reject words: a recurrent layer over one-hot symbols, and a readout of its last output."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils import _pytree as tree

from ...inference.numerics.checks import check_call
from ...inference.numerics.scalars import check_integer, check_kind
from ..networks.inputs import a_parameter
from ..networks.listing import Listed
from ..networks.recurrent import check_one_way
from .words import check_alphabet, check_words

CELLS = 2**22  # the most numbers of one-hot rows in one call of a layer


class Acceptor(Listed):
    """A network that accepts or rejects words: a recurrent layer over one-hot symbols, and a readout, the log-odds of
    acceptance.

    A word is accepted if the readout is above 0. (For networks with weights set by hand, the readout need not be
    log-odds.) If the layer has one more input than there are symbols, the last input is a start symbol before every
    word. If it has as many inputs as symbols, the value of the empty word is read from the layer's first state, which
    for layers of this library and torch is the output before the first step.

    Arguments:
        layer: `out, state = layer(x, state)` with x [N, T, input_size] ([T, N, input_size] for batch_first=False), one
            direction: any recurrent layer of this library, or torch's own.
        readout: from its outputs [..., H] to [..., 1]; trained with the layer.
        alphabet: a letter for each symbol, in the order of the inputs.

    Raises:
        TypeError: a layer or readout that is not a module, symbols that are not letters.
        ValueError: no symbol, a symbol twice, a number of inputs that is neither the number of symbols nor one more;
            both
            directions. From every call: a word with other symbols.

    See Also:
        `extract_automaton`, the automaton of one; `counting_lstm`, one with weights set by hand;
        docs/background/automata.md.

    Example:
        >>> import torch, samplehold as sh
        >>> layer, readout = sh.MinGRU(2, 1, dtype=torch.float64), torch.nn.Linear(1, 1, dtype=torch.float64)
        >>> rows = torch.tensor([[-99.0, 99.0], [0.0, 1.0]]).double()  # the gate opens for "b", and draws a 1
        >>> _ = layer.requires_grad_(False).weight_l0.copy_(rows), layer.bias_l0.zero_()
        >>> _ = readout.requires_grad_(False).weight.fill_(2.0), readout.bias.fill_(-1.0)
        >>> network = sh.automata.Acceptor(layer, readout, "ab")  # there is a "b"
        >>> network(["", "aa", "aba"])
        tensor([-1., -1.,  1.], dtype=torch.float64)
        >>> network.accepts(["", "aa", "aba"]).tolist()
        [False, False, True]
    """

    alphabet: tuple[str, ...]
    layer: nn.Module
    readout: nn.Module
    input_size: int
    has_start: bool

    def __init__(self, layer: nn.Module, readout: nn.Module, alphabet: str | Sequence[str] = "01") -> None:
        super().__init__()
        self.alphabet = check_alphabet(alphabet)
        self.layer = check_kind("layer", layer, nn.Module, "a recurrent layer")
        self.readout = check_kind("readout", readout, nn.Module, "a module, such as torch.nn.Linear(hidden_size, 1)")
        self.input_size = check_integer("layer.input_size", getattr(layer, "input_size", None))
        if getattr(layer, "bidirectional", False):
            check_one_way(layer, "and a word's last symbol would be read before its first")
        if self.input_size not in (len(self.alphabet), len(self.alphabet) + 1):
            raise ValueError(
                f"alphabet: got {len(self.alphabet)} symbols, {''.join(self.alphabet)!r}, for a layer with "
                f"input_size={self.input_size}; "
                "give one symbol for each input, or one less: then the last input is a start symbol."
            )
        self.has_start = self.input_size > len(self.alphabet)

    def forward(self, words: Sequence[str]) -> Float[Tensor, "N"]:
        """The log-odds that each word is accepted; gradients flow to layer and readout.

        Arguments:
            words: each a string or a sequence of symbols.
        """
        words = check_words(words, self.alphabet)
        lengths = torch.tensor([len(word) for word in words], dtype=torch.int64, device="cpu")
        after = self.prefixes(words)
        return after.gather(1, lengths.to(after.device)[:, None]).squeeze(1)

    def prefixes(self, words: Sequence[str]) -> Float[Tensor, "N T"]:
        """The log-odds after the first 0, 1, ... symbols of each word; entries after a word's end have no meaning.

        Arguments:
            words: each a string or a sequence of symbols.
        """
        x = self.inputs(words)
        if self.has_start:
            out, _ = self._run(x)
        else:
            first = self._first_output(len(x)).unsqueeze(1)
            out = torch.cat([first, self._run(x)[0]], 1) if x.shape[1] else first
        log_odds = check_call("readout", self.readout, out)
        if log_odds.shape != (*out.shape[:2], 1):
            raise ValueError(
                f"readout: gave shape {list(log_odds.shape)} for outputs {list(out.shape)}, expected "
                f"{[*out.shape[:2], 1]}; end it with one unit."
            )
        return log_odds.squeeze(-1)

    @torch.no_grad()
    def accepts(self, words: Sequence[str]) -> Bool[Tensor, "N"]:
        """Whether each word is accepted; many words are processed in parts.

        Arguments:
            words: each a string or a sequence of symbols.
        """
        words = check_words(words, self.alphabet)
        longest = max(map(len, words), default=0) + 1
        n = max(1, CELLS // (longest * max(self.input_size, getattr(self.layer, "hidden_size", 1))))
        parts = [self(words[i : i + n]) > 0 for i in range(0, len(words), n)]
        return torch.cat(parts).cpu() if parts else torch.zeros(0, dtype=torch.bool, device="cpu")

    @torch.no_grad()
    def states(self, words: Sequence[str]) -> Float[Tensor, "N S"]:
        """The layer's whole state after each word, with all parts concatenated.

        Arguments:
            words: each a string or a sequence of symbols.

        Raises:
            ValueError: a layer whose states have no fixed size, or are unknown before the first step.
        """
        words = check_words(words, self.alphabet)
        symbols = self.encode(words)
        lengths = torch.tensor([len(word) for word in words], dtype=torch.int64, device="cpu")
        rows: Tensor | None = None
        for length in lengths.unique().tolist():
            here = (lengths == length).nonzero().squeeze(1)
            x = self._rows(symbols[here, :length])
            states_here = self._flat(self._run(x)[1] if x.shape[1] else self._first_state(len(here)), len(here))
            rows = states_here.new_zeros(len(lengths), states_here.shape[1]) if rows is None else rows
            rows[here.to(rows.device)] = states_here
        return self._flat(self._a_state(1), 1)[:0] if rows is None else rows

    @torch.no_grad()
    def advance(self, states: Float[Tensor, "N S"], symbol: str) -> Float[Tensor, "N S"]:
        """The states after one more symbol.

        Arguments:
            states: as `states` returns them.
            symbol: the index of the symbol.
        """
        parts, spec = tree.tree_flatten(self._a_state(len(states)))
        sizes = [part.numel() // len(states) for part in parts]
        split = states.split(sizes, 1)
        filled = [
            row.unflatten(1, part.movedim(axis, 0).shape[1:]).movedim(0, axis).contiguous()
            for row, part, axis in zip(split, parts, self.batch_axes, strict=True)
        ]
        x = self._rows(self.encode([symbol]).expand(len(states), 1), start=False)
        return self._flat(self._run(x, tree.tree_unflatten(filled, spec))[1], len(states))

    def inputs(self, words: Sequence[str]) -> Float[Tensor, "N T V"]:
        """The layer's inputs for words: one-hot rows, after a start symbol if there is one; arbitrary after a word's
        end.

        Arguments:
            words: each a string or a sequence of symbols.
        """
        return self._rows(self.encode(words))

    def encode(self, words: Sequence[str]) -> Int[Tensor, "N T"]:
        """Words as indices of symbols, -1 after each word's end.

        Arguments:
            words: each a string or a sequence of symbols.
        """
        index = {symbol: i for i, symbol in enumerate(self.alphabet)}
        rows = [[index[symbol] for symbol in word] for word in check_words(words, self.alphabet)]
        longest = max(map(len, rows), default=0)
        table = [row + [-1] * (longest - len(row)) for row in rows]
        return torch.tensor(table, dtype=torch.int64, device="cpu").reshape(len(rows), longest)

    @cached_property
    def batch_axes(self) -> tuple[int, ...]:
        """The axis of the words in each part of the layer's state."""
        axes = []
        parts = [tree.tree_leaves(self._a_state(n, steps)) for n, steps in ((2, 1), (3, 1), (2, 2))]
        for two, three, later in zip(*parts, strict=True):
            moved = [i for i, (a, b) in enumerate(zip(two.shape, three.shape, strict=True)) if a != b]
            if two.shape != later.shape or len(moved) != 1 or two.shape[moved[0]] != 2:
                raise ValueError(
                    f"network: the states of its {type(self.layer).__name__} have no fixed size, so they cannot "
                    'be clustered; use method="lstar".'
                )
            axes.append(moved[0])
        return tuple(axes)

    @cached_property
    def has_fixed_states(self) -> bool:
        """Whether the state has the same size after every word, and is known before the first symbol."""
        try:
            _ = self.batch_axes
            _ = None if self.has_start else self._first_state(1)
        except ValueError:
            return False
        return True

    def extra_repr(self) -> str:
        return f"alphabet={''.join(self.alphabet)!r}"

    def _a_state(self, n: int, steps: int = 1) -> Any:
        """The states after n words of zeros."""
        with torch.no_grad():
            return self._run(self._like.new_zeros(n, steps, self.input_size))[1]

    @property
    def _like(self) -> Tensor:
        parameter = a_parameter(self.layer)
        return torch.empty(0, device="cpu") if parameter is None else parameter.detach()

    def _rows(self, symbols: Tensor, start: bool = True) -> Tensor:
        """One-hot rows [N, T, input_size], after a start symbol if there is one; arbitrary after a word's end."""
        if self.has_start and start:
            first = symbols.new_full((len(symbols), 1), len(self.alphabet))
            symbols = torch.cat([first, symbols], 1)
        rows = nn.functional.one_hot(symbols.clamp(min=0), self.input_size)
        return rows.to(self._like)

    def _run(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Outputs [N, T, H] and the last state."""
        time_first = not getattr(self.layer, "batch_first", True)
        x = x.transpose(0, 1) if time_first else x
        result = self.layer(x) if state is None else self.layer(x, state)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tensor)):
            raise ValueError(
                f"layer: {type(self.layer).__name__} gave a {type(result).__name__}, expected the pair (out, state)."
            )
        return (result[0].transpose(0, 1) if time_first else result[0]), result[1]

    def _first_state(self, n: int) -> Any:
        """The state before the first step."""
        if isinstance(self.layer, nn.RNNBase):
            return tree.tree_map(torch.zeros_like, self._a_state(n))
        initial: Callable[..., Any] | None = getattr(self.layer, "initial_state", None)
        if initial is None:
            raise ValueError(
                f"network: a {type(self.layer).__name__} has no output before its first step, so the empty "
                "word has no value; build the layer with one more input, for the start symbol of every word."
            )
        return initial(n)

    def _first_output(self, n: int) -> Tensor:
        """The output [N, H] before the first step: the first part of the first state, or 0 if the cell is 0."""
        return tree.tree_leaves(self._first_state(n))[0][-1]

    def _flat(self, state: Any, n: int) -> Tensor:
        parts = zip(tree.tree_leaves(state), self.batch_axes, strict=True)
        return torch.cat([part.movedim(axis, 0).reshape(n, -1) for part, axis in parts], 1)
