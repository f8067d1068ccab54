"""The stack mixture as a Pyro program: actions are sites, the stack is deterministic, and its top is read.

Its density is that of `StackMixture`: the sum over actions gives `log_normalizer()` of the mixture conditioned on
`read_likelihood(reads, scale)`. So Pyro's enumeration, SVI and Predictive apply to the same model.
"""

from contextlib import ExitStack

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ...inference.numerics.checks import broadcast_shapes
from ...inference.numerics.scalars import check_kind
from ...inference.stacks.superposition.op import superpose
from ..seeding import in_turn
from .checks import check_reads
from .mixture import StackMixture


@in_turn()
def stack_program(mixture: StackMixture, reads: Tensor | None = None, *, scale: float) -> Float[Tensor, "*b T V"]:
    """The Pyro program of a stack with uncertain actions; returns the reads.

    Sites are `a_1, x_1, a_2, ...`, with one plate for each batch axis, and the deterministic `stack_t` [*b, T+D, V].

    A certain action moves the cells by the update that averages them under an uncertain one. Weights that are not
    probabilities, and forbidden pops, enter as factors `weight_t`. These affect inference, but not the forward draws of
    `Predictive` (`StackMixture.sample` uses them). For enumeration, wrap the program in `pyro.infer.config_enumerate`;
    memory grows as 3^T.

    Arguments:
        mixture: actions and values, without evidence.
        reads: [*b, T, V], observed; NaN for a number that was not read; None: all are drawn.
        scale: standard deviation of a read of the value on top (0 for the empty stack).

    Raises:
        TypeError: reads are not a tensor, or have another dtype or device than the mixture's values.
        ValueError: the mixture already has evidence; reads have another shape than its values, or hold inf; scale is
            not a
            finite number above 0.

    Joulin & Mikolov 2015, section 3.2, for the update of the cells.

    See Also:
        `StackMixture.condition`, the same inference without Pyro; docs/background/stacks.md, with the derivation.

    >>> import torch
    >>> import samplehold as sh
    >>> from pyro.infer import TraceEnum_ELBO, config_enumerate
    >>> mixture = sh.stacks.StackMixture(torch.zeros(3, 3).log_softmax(-1), torch.tensor([[1.0], [2.0], [3.0]]))
    >>> reads = torch.tensor([[1.0], [2.0], [1.0]])  # push 1, push 2, pop
    >>> program = config_enumerate(sh.stacks.stack_program)
    >>> loss = TraceEnum_ELBO().loss(program, lambda *args, **options: None, mixture, reads, scale=0.1)
    >>> evidence = mixture.condition(mixture.read_likelihood(reads, scale=0.1)).log_normalizer()
    >>> abs(loss + float(evidence)) < 1e-5
    True
    """
    check_kind("mixture", mixture, StackMixture, "a StackMixture")
    values, V = mixture.values, mixture.values.shape[-1]
    if mixture.log_evidence is not None:
        raise ValueError("mixture: holds evidence already; pass the mixture before `condition`, and the reads.")
    scale = check_reads(reads, scale, values)
    marked = pad(values, (0, 1), value=1.0)  # the last column is 1 for a filled cell
    cells = pad(pad(mixture.initial_cells, (0, 1), value=1.0), (0, 0, 0, values.shape[-2]))
    batch = values.shape[:-2]
    if 0 in batch:
        raise ValueError("mixture: got no sequence; Pyro's plates need at least one.")
    plates = [pyro.plate(f"sequences_{i}", n, dim=i - len(batch)) for i, n in enumerate(batch)]
    observations = []
    for t, log_action in enumerate(mixture.log_prior.unbind(-2)):
        with ExitStack() as scope:
            for plate in plates:
                scope.enter_context(plate)
            action = pyro.sample(f"a_{t + 1}", dist.Categorical(logits=log_action))
            weight = torch.logsumexp(log_action, -1)
            if mixture.on_empty == "forbid":
                weight = torch.where((action == 1) & (cells[..., 0, -1] == 0), -torch.inf, weight)
            pyro.factor(f"weight_{t + 1}", weight)
            cells = _moved(cells, action, log_action.shape[-1], marked[..., t, :])
            pyro.deterministic(f"stack_{t + 1}", cells[..., :V], event_dim=2)
            read = dist.Normal(cells[..., 0, :V], torch.full_like(cells[..., 0, :V], scale))
            seen = None
            if reads is not None:
                there = ~(reads[..., t, :].isnan() | mixture.past_end[..., t, None])
                read, seen = read.mask(there), reads[..., t, :].nan_to_num()
            observations.append(pyro.sample(f"x_{t + 1}", read.to_event(1), obs=seen))
    return torch.stack(torch.broadcast_tensors(*observations), -2)


def _moved(cells: Tensor, action: Tensor, n_actions: int, value: Tensor) -> Tensor:
    """Cells after a certain action, whose shape may have enumerated axes that the cells do not have yet."""
    certain = one_hot(action, n_actions).to(cells.dtype)
    shape = broadcast_shapes(certain.shape[:-1], cells.shape[:-2])
    return superpose(
        cells.expand(*shape, *cells.shape[-2:]),
        certain.expand(*shape, n_actions),
        value.expand(*shape, value.shape[-1]),
    )
