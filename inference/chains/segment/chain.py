r"""Segments: a parameter that is drawn afresh from a conjugate prior at every change, and held between changes.

$$P(\text{changes}, x) = \prod_{\text{segments } a..b} h_{b+1} \prod_{t=a+1}^{b} (1 - h_t)\; p(x_{a..b}), \qquad
p(x_{a..b}) = \int p(\theta) \prod_{t=a}^b p(x_t \mid \theta)\, d\theta = e^{A(\eta_0 + \sum_t T(x_t)) - A(\eta_0)}
\prod_t h(x_t)$$

It is a `CopyChain` whose states are all values of $\theta$. The belief is a mixture over beginnings of the segment in
force, so t terms after t steps: Adams & MacKay 2007 filter them, Fearnhead 2006 smooths and draws. Segments' statistics
are sums from their beginnings, never differences of sums. See `plain` for the recursions and `plain.Bound` for what
`tol` leaves out.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import (
    check_call,
    check_lengths,
    check_possible,
    check_same_kind,
    check_shape,
    common_batch,
    read_lengths,
)
from ...numerics.randomness import Seed, generator_of
from ...numerics.scalars import check_choice, check_integer, check_kind, check_probability
from ..contract import Viterbi
from . import op, paths, plain
from .ahead import before_each
from .checks import check_hazard, check_part, check_prior, parts, read_blocks, shapes_of
from .part import SegmentPart
from .plain import Forward, Function
from .records import Block, FilteredSegments, Later, Runs, SampledSegments, SmoothedSegments, tables_of
from .tables import Tables, log_one_less

Expect = Function | Sequence[Function] | None


class SegmentChain:
    r"""The posterior over the segments of a series, and over the parameter of each segment.

    Arguments:
        blocks: one or several `Block`s of parameters, which change together. Locations lose digits if the data lie many
            standard deviations from 0: give statistics and prior about a location near them, see `VectorFamily.moved`.
        log_hazard: `by="step"`: [*b, T] or [*b, 1], log P(change before t); the first step begins a segment, its entry
            is ignored. `by="run"`: [*b, R], log P(a segment ends after r steps | it does not end before) at r - 1; the
            last entry serves longer runs too. -inf: never; 0: always.
        log_base: [*b, T], the part of $\log p(x_t \mid \theta)$ that does not depend on $\theta$; None: 0.
        lengths: [*b], each sequence's number of steps; None: all have T. Entries after the end are ignored.
        tol: 0 is exact, O(T^2) time. Otherwise beginnings are left out, so that the posterior over segmentations has
            a total variation of at most `tol` from the exact one; time is about linear if changes are clear. `left_out`
            of a record is a bound, at most `tol`.

    Batch axes broadcast. Memory is O(T). All is computed in float64 and returned in the dtype of the tables.

    Raises:
        TypeError: tables that are not float32 or float64 tensors of one dtype on one device; lengths that are not
            integers.
        ValueError: shapes or lengths that do not fit together, hazards above 1, a prior that is not proper. From every
            method: an observation that is impossible or not a number, with its sequence and step.

    Fearnhead 2006, for the recursions over segments; Adams & MacKay 2007, for the filter over run lengths.

    See Also:
        `SegmentStream`, one observation at a time; `Segments`, the model; docs/guides/segments.md.

    >>> import torch, samplehold as sh
    >>> from samplehold.inference.families import Gamma
    >>> counts = torch.tensor([1.0, 0, 2, 1, 9, 7, 8])
    >>> rates = sh.chains.Block(
    ...     Gamma(), torch.tensor([[1.0, -0.5]]), torch.stack([counts, -torch.ones(7)], -1).unsqueeze(-2)
    ... )
    >>> chain = sh.chains.SegmentChain(rates, torch.tensor([0.1]).log(), -torch.lgamma(counts + 1))
    >>> chain.viterbi().path
    tensor([0, 0, 0, 0, 1, 1, 1])
    >>> chain.smooth().change[4]
    tensor(0.9544)
    """

    n_steps: int
    log_hazard: Tensor
    log_base: Tensor | None

    def __init__(
        self,
        blocks: Block | Sequence[Block],
        log_hazard: Tensor,
        log_base: Tensor | None = None,
        by: str = "step",
        lengths: Any = None,
        tol: float = 0.0,
    ):
        self.blocks: tuple[Block, ...] = read_blocks(blocks)
        self.by: str = check_choice("by", by, ("step", "run"))
        self.tol: float = check_probability("tol", tol)
        if self.tol == 1:
            raise ValueError("tol: got 1, which leaves everything out; give a number below 1, such as 1e-9.")
        tables = {f"blocks[{i}].{name}": part for i, block in enumerate(self.blocks) for name, part in parts(block)}
        check_same_kind("log_base", log_hazard=log_hazard, log_base=log_base, **tables)
        lengths = read_lengths(lengths)
        self._ragged: bool = lengths is not None
        self.n_steps, shapes = shapes_of(self.blocks)
        allowed = (
            [(self.n_steps,), (1,)] if by == "step" else [(max(1, log_hazard.shape[-1] if log_hazard.dim() else 1),)]
        )
        self.batch_shape: torch.Size = common_batch(
            log_hazard=check_shape("log_hazard", log_hazard, *allowed),
            log_base=check_shape("log_base", log_base, (self.n_steps,)),
            lengths=None if lengths is None else lengths.shape,
            **shapes,
        )
        self.lengths: Tensor = check_lengths(lengths, self.batch_shape, self.n_steps, log_hazard.device)
        self.log_hazard, self.log_base = log_hazard, log_base
        check_hazard("log_hazard", log_hazard)
        for i, block in enumerate(self.blocks):
            check_prior(f"blocks[{i}].prior", block.family, block.prior)
        self._found: Forward | None = None

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log p(x), [*b], differentiable in all tables; exact up to `left_out`: it is too small by at most
        -log(1 - left_out).

        >>> import torch, samplehold as sh
        >>> from samplehold.inference.families import Beta
        >>> toss = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])  # twice heads
        >>> block = sh.chains.Block(Beta(), torch.ones(1, 2), toss)
        >>> sh.chains.SegmentChain(block, torch.tensor([0.5]).log()).log_normalizer().exp()  # (1/3 + 1/4) / 2
        tensor(0.2917)
        """
        value, failed = op.log_normalizer(self._tables())
        self._check(failed, value)
        return self._shaped(value)

    @torch.no_grad()
    def filter(self, expect: Expect = None) -> FilteredSegments:
        """The belief after each observation.

        Arguments:
            expect: a function of natural parameters [..., D] that gives expectations [..., M], or one for each block;
                None: the expected statistics of the family. Kernels have these, and means and mean squares of the
                parameters (`kernel = "moments"`, see `Segments`); other functions are slow on long series.
        """
        tables = self._tables()
        found, filtered = op.filter(tables, None if expect is None else self._functions(expect))
        total, inside = plain.total(found), tables.inside
        self._check(found.failed, total)
        return FilteredSegments(
            self._shaped(total),
            self._shaped(found.log_increment),
            self._shaped(filtered.begun * inside),
            self._shaped(filtered.run * inside),
            tuple(self._shaped(table * inside[..., None, None]) for table in filtered.expected),
            self._shaped(found.left_out),
        )

    @torch.no_grad()
    def smooth(self, expect: Expect = None) -> SmoothedSegments:
        """The belief given all observations.

        Arguments:
            expect: as in `filter`, for example E[theta] and E[theta^2], from which the mean and the standard deviation
                of a parameter at each step follow.
        """
        tables = self._tables()
        found = self._forward(tables)
        smoothed = op.smooth(tables, found, None if expect is None else self._functions(expect))
        return SmoothedSegments(
            self._shaped(plain.total(found)),
            self._shaped(smoothed.change),
            self._shaped(smoothed.change[:, 1:].sum(-1)),
            tuple(map(self._shaped, smoothed.expected)),
            self._shaped(found.left_out),
        )

    @torch.no_grad()
    def change_probability(self) -> Float[Tensor, "*b T"]:
        """P(a segment begins at t | x); 0 at the first step, as of all chains."""
        tables = self._tables()
        change = self._shaped(op.smooth(tables, self._forward(tables), ()).change)
        return torch.cat([torch.zeros_like(change[..., :1]), change[..., 1:]], -1)

    @torch.no_grad()
    def viterbi(self) -> Viterbi:
        """The most probable segmentation, parameters integrated out, and its log joint; exact for every `tol`."""
        begun, value, failed = op.viterbi(self._tables())
        self._check(failed, value)
        return Viterbi(self._numbered(begun), self._shaped(value), begun.reshape(*self.batch_shape, self.n_steps))

    @torch.no_grad()
    def sample(self, n: int, seed: Seed = None) -> SampledSegments:
        """n independent draws of the segmentation and the parameters given x, O(T) each.

        Arguments:
            n: the number of draws.
            seed: a number, a `torch.Generator`, or None, torch's global generator.

        Raises:
            ValueError: n is not a positive whole number.
        """
        n, tables, device = check_integer("n", n), self._tables(), self.lengths.device
        generator = generator_of(seed, device)
        size = n, len(tables.lengths), self.n_steps
        uniform = torch.rand(size, generator=generator, dtype=torch.float64, device=device)
        begun = paths.sample(tables, self._forward(tables), uniform)
        points = paths.parameters(tables, begun, generator)
        shape = n, *self.batch_shape, self.n_steps
        points = tuple(_shaped_point(point, shape, self.log_hazard.dtype) for point in points)
        return SampledSegments(self._numbered(begun, n), begun.reshape(shape), points)

    @torch.no_grad()
    def entropy(self) -> Float[Tensor, "*b"]:
        """Entropy of the posterior over segmentations, in nats, [*b].

        Backward in time the beginnings are a Markov chain: the entropy of the last one, and of that before each change.
        """
        tables = self._tables()
        found = self._forward(tables)
        last = found.weight.exp()
        change = op.smooth(tables, found, ()).change
        total = (change[:, 1:] * found.entropy[:, 1:]).sum(-1) - torch.xlogy(last, last).sum(-1)
        return self._shaped(total)

    @torch.no_grad()
    def runs(self) -> Runs:
        """The belief about the segment in force at the end of each sequence."""
        tables = self._tables()
        found = self._forward(tables)
        live = plain.kept(tables, found)
        natural = tuple(prior.unsqueeze(1) + part for prior, part in zip(tables.priors, live.sums, strict=True))
        length = (tables.lengths.unsqueeze(-1) - live.start).clamp_min(0).reshape(*self.batch_shape, len(live.start))
        shaped = lambda tables: tuple(map(self._shaped, tables))
        weight, evidence = shaped((live.weight, live.normalizer))
        total, left_out = shaped((plain.total(found), found.left_out))
        return Runs(length, weight, shaped(live.sums), shaped(natural), evidence, total, left_out, self.lengths)

    @torch.no_grad()
    def before_each(self) -> Iterator[tuple[Float[Tensor, "*b R"], tuple[Float[Tensor, "*b R _ _"], ...]]]:
        """The segment of each step in turn, given the steps before it.

        The first table has the probability of each beginning of the segment; the last one has P(a change). The
        others have, by block, the natural parameters of the posterior under each beginning.
        """
        for weight, natural in before_each(self._tables()):
            yield self._shaped(weight), tuple(map(self._shaped, natural))

    def between(self, before: Runs | None, after: Later | None) -> SegmentPart:
        """These steps as a part of a longer chain, exact for every `tol`; see `Chain.between`. Parts share a step.

        Arguments:
            before: the belief about the segment in force at the first step, given it and all earlier steps: `runs()` of
                the part before. It replaces the tables' entries of the first step.
            after: the weight of all steps after the last one: `later()` of the part after.

        Raises:
            TypeError: other records.
            ValueError: records with other batch axes or other blocks.

        >>> import torch, samplehold as sh
        >>> from samplehold.inference.families import Gamma
        >>> counts = torch.tensor([1.0, 0, 2, 1, 9, 7, 8])
        >>> def part(x):
        ...     block = sh.chains.Block(
        ...         Gamma(), torch.tensor([[1.0, -0.5]]), torch.stack([x, -torch.ones(len(x))], -1).unsqueeze(-2)
        ...     )
        ...     return sh.chains.SegmentChain(block, torch.tensor([0.1]).log(), -torch.lgamma(x + 1))
        >>> first, last = part(counts[:4]), part(counts[3:])
        >>> last.between(first.runs(), None).smooth().change, part(counts).smooth().change[3:]
        (tensor([0.0988, 0.9544, 0.0143, 0.0139]), tensor([0.0988, 0.9544, 0.0143, 0.0139]))
        >>> torch.allclose(first.between(None, last.later()).log_normalizer(), part(counts).log_normalizer())
        True
        """
        for name, given, kind, cure in (("before", before, Runs, "runs()"), ("after", after, Later, "later()")):
            if given is not None:
                check_part(name, check_kind(name, given, kind, f"{cure} of another part"), self)
        return SegmentPart(self, before, after)

    def later(self) -> Later:
        """The weight of all steps after the first, given the segment in force there; see `between`."""
        return self.between(None, None).later()

    def _forward(self, tables: Tables) -> Forward:
        if self._found is None:
            found = op.forward(tables.with_floats(tuple(x.detach() for x in tables.floats)))
            self._check(found.failed, plain.total(found))
            self._found = found
        return self._found

    def _tables(self) -> Tables:
        size, T = self.batch_shape.numel(), self.n_steps

        def flat(table: Tensor, n_trailing: int) -> Tensor:
            trailing = table.shape[table.dim() - n_trailing :]
            return table.double().expand((*self.batch_shape, *trailing)).reshape(size, *trailing)

        lengths, inside = self.lengths.reshape(size), None
        if self._ragged:
            inside = torch.arange(T, device=lengths.device) < lengths.unsqueeze(-1)
        within = lambda table: (
            table if inside is None else torch.where(inside.reshape(size, T, *(1,) * (table.dim() - 2)), table, 0.0)
        )
        hazards = self.log_hazard, log_one_less(self.log_hazard.double())
        if self.by == "step":
            hazards = tuple(table.expand(*table.shape[:-1], T) for table in hazards)
        change, hold = (flat(table, 1) for table in hazards)
        base = self.log_hazard.new_zeros(T) if self.log_base is None else self.log_base
        return Tables(
            tuple(block.family for block in self.blocks),
            tuple(flat(block.prior, 2) for block in self.blocks),
            tuple(within(flat(block.statistics, 3)) for block in self.blocks),
            within(flat(base, 1)),
            change,
            hold,
            self.by == "run",
            lengths,
            self.tol,
        )

    def _functions(self, expect: Function | Sequence[Function]) -> tuple[Function, ...]:
        functions = (expect,) * len(self.blocks) if callable(expect) else tuple(expect)
        if len(functions) != len(self.blocks) or not all(map(callable, functions)):
            raise ValueError(
                f"expect: got {len(functions)} entries, expected a function for each of {len(self.blocks)} blocks."
            )
        for function, block in zip(functions, self.blocks, strict=True):
            check_call("expect", function, block.prior.detach().double())
        return functions

    def _check(self, failed: Tensor, total: Tensor) -> None:
        tables = {"log_base": self.log_base} | {
            f"blocks[{i}].statistics": block.statistics.flatten(-2) for i, block in enumerate(self.blocks)
        }
        tables["log_base"] = None if self.log_base is None else self.log_base.unsqueeze(-1)
        check_possible(failed.reshape(self.batch_shape), total.to(self.log_hazard.dtype), **tables)

    def _numbered(self, begun: Tensor, *draws: int) -> Tensor:
        inside = torch.arange(self.n_steps, device=begun.device) < self.lengths.unsqueeze(-1)
        number = begun.reshape(*draws, *self.batch_shape, self.n_steps).cumsum(-1) - 1
        return torch.where(inside, number, -1)

    def _shaped(self, table: Tensor) -> Tensor:
        return table.reshape((*self.batch_shape, *table.shape[1:])).to(self.log_hazard.dtype)


def _shaped_point(point: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    parts = tuple(part.reshape(*shape, *part.shape[3:]).to(dtype) for part in tables_of(point))
    return parts[0] if isinstance(point, Tensor) else type(point)(*parts)
