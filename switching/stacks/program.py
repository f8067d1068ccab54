"""The stack mixture as a Pyro program: actions are sites, the stack follows from them, its top is read.

Its density is that of `StackMixture`: summing the actions out gives `log_normalizer()` of the mixture conditioned on
`read_likelihood(reads, scale)`, so Pyro's enumeration, SVI and Predictive apply to the same model.
"""

from contextlib import ExitStack

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ...inference.stacks.superposition.op import superpose
from .checks import check_reads, check_scale
from .mixture import StackMixture


def stack_program(mixture: StackMixture, scale: float, reads: Tensor | None = None) -> Float[Tensor, "*b T V"]:
    """Sites `a_1, x_1, a_2, ...`, one plate a batch axis, and deterministic `stack_t` [*b, T+D, V]; returns the reads.

    A certain action moves the cells by the same update that averages them under an uncertain one. Weights that are no
    probabilities, and pops that are forbidden, enter as factors `weight_t`: these steer inference, but
    not what `Predictive` draws forward (`StackMixture.sample` draws with them). For enumeration, wrap the program in
    `pyro.infer.config_enumerate`; memory grows as 3^T.

    Arguments:
        mixture: actions and values, without evidence.
        scale: standard deviation of a read of the value on top (0 for the empty stack).
        reads: [*b, T, V], observed; NaN: a number not read; None: all are drawn.

    Raises:
        ValueError: the mixture already holds evidence, or reads have another shape than its values.
    """
    values, V = mixture.values, mixture.values.shape[-1]
    if mixture.log_evidence is not None:
        raise ValueError(
            "mixture: holds evidence already; give the program the mixture before `condition`, and the reads."
        )
    check_scale(scale)
    if reads is not None:
        check_reads(mixture, "reads", reads, scale)
    log_action, past = mixture._log_action, mixture._past
    marked = torch.cat([values, torch.ones_like(values[..., :1])], -1)  # the last column says that a cell is filled
    initial = values[..., :0, :] if mixture.initial is None else mixture.initial
    initial = torch.cat([initial, torch.ones_like(initial[..., :1])], -1)
    cells = pad(initial, (0, 0, 0, values.shape[-2]))
    batch = values.shape[:-2]
    plates = [pyro.plate(f"sequences_{i}", n, dim=i - len(batch)) for i, n in enumerate(batch)]
    observations = []
    for t in range(values.shape[-2]):
        with ExitStack() as scope:
            for plate in plates:
                scope.enter_context(plate)
            action = pyro.sample(f"a_{t + 1}", dist.Categorical(logits=log_action[..., t, :]))
            weight = torch.logsumexp(log_action[..., t, :], -1)
            if mixture.on_empty == "forbid":
                weight = torch.where((action == 1) & (cells[..., 0, -1] == 0), -torch.inf, weight)
            pyro.factor(f"weight_{t + 1}", weight)
            cells = _moved(cells, action, log_action.shape[-1], marked[..., t, :])
            pyro.deterministic(f"stack_{t + 1}", cells[..., :V], event_dim=2)
            read = dist.Normal(cells[..., 0, :V], torch.full_like(cells[..., 0, :V], scale))
            seen = None
            if reads is not None:
                there = ~(reads[..., t, :].isnan() | past[..., t, None])
                read, seen = read.mask(there), reads[..., t, :].nan_to_num()
            observations.append(pyro.sample(f"x_{t + 1}", read.to_event(1), obs=seen))
    return torch.stack(torch.broadcast_tensors(*observations), -2)


def _moved(cells: Tensor, action: Tensor, n_actions: int, value: Tensor) -> Tensor:
    """Cells after a certain action, whose shape may hold enumerated axes that the cells do not have yet."""
    certain = one_hot(action, n_actions).to(cells.dtype)
    shape = torch.broadcast_shapes(certain.shape[:-1], cells.shape[:-2])
    return superpose(
        cells.expand(*shape, *cells.shape[-2:]),
        certain.expand(*shape, n_actions),
        value.expand(*shape, value.shape[-1]),
    )
