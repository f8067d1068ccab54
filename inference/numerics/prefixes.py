r"""Associative scans in plain torch: about $2 \log_2 T$ batched operations instead of T."""

from collections.abc import Callable

import torch
from torch import Tensor

Elements = tuple[Tensor, ...]


def prefixes(combine: Callable[[Elements, Elements], Elements], elements: Elements) -> Elements:
    """The combination of all elements up to each one, along the first axis."""
    n = elements[0].shape[0]
    if n < 2:
        return elements
    pairs = combine(tuple(e[0 : n - 1 : 2] for e in elements), tuple(e[1::2] for e in elements))
    odd = prefixes(combine, pairs)
    n_even = (n - 1) // 2
    even = combine(tuple(e[:n_even] for e in odd), tuple(e[2::2] for e in elements)) if n_even else odd
    return tuple(_interleave(e[:1], a, b[:n_even]) for e, a, b in zip(elements, odd, even, strict=True))


def _interleave(first: Tensor, odd: Tensor, even: Tensor) -> Tensor:
    """first, odd[0], even[0], odd[1], ..."""
    first = first.expand(1, *odd.shape[1:])
    others = torch.cat([first, even])
    both = torch.stack([others[: len(odd)], odd], 1).flatten(0, 1)
    return torch.cat([both, others[len(odd) :]])
