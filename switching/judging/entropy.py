r"""The entropy of the states given a series.

A path of states is a Markov chain backwards too, whose moves given $x$ are those given $x_{1:t}$:

$$H(s_{1:T} \mid x) = H(s_T \mid x) + \sum_t \sum_j P(s_t = j \mid x)\, H(s_{t-1} \mid s_t = j, x_{1:t}).$$

The entropy of a chain with gates, `Chain.entropy`, is larger: it counts redraws of the old state too.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.checks import naming
from ..emissions.driven import rows_read
from ..parameters import Parameters
from ..problem import Problem


@torch.no_grad()
def states_entropy(model: Any, x: Any) -> float:
    """The entropy of the states of all sequences, each times its weight, in nats.

    Raises:
        TypeError: a model without a single chain of states.
    """
    problem = model.problem(x)
    if not isinstance(problem, Problem):
        raise TypeError(f"icl: got a {model.name}, but it is a criterion of a SwitchingSSM; use bic.")
    values = model.product_of(model.values_like(problem.series.like))
    with naming("x"):
        return float(problem.total(problem.by_sequence(lambda part: of_paths(part, values))))


def of_paths(problem: Problem, values: Parameters) -> Float[Tensor, "*b"]:
    """The entropy of the states of each sequence."""
    chain = problem.chain(values)
    filtered, smoothed = chain.filter().state, chain.smooth().state
    rows = problem.emission.log_likelihood(rows_read(problem.emission, problem.series), values)
    by_gate = problem.with_knowledge(rows)
    old = torch.eye(problem.n_states).to(filtered)
    moves = [problem.after_each(values, state.expand_as(filtered)) for state in old]
    log_move = torch.stack(
        [torch.logaddexp(move.redrawn.log() + by_gate.redrawn, move.held.log() + by_gate.held) for move in moves],
        -2,
    )  # of old and new state, with the likelihood of the new one
    joint = log_move[..., 1:, :, :] + filtered[..., :-1, :, None].log()
    before = torch.where(joint.isneginf().all(-2, keepdim=True), 0.0, joint.softmax(-2))
    steps = (smoothed[..., 1:, :] * torch.special.entr(before).sum(-2)).sum((-2, -1))
    last = problem.series.last[..., None, None]
    at_end = smoothed.gather(-2, last.expand(*smoothed.shape[:-2], 1, smoothed.shape[-1]))
    return steps + torch.special.entr(at_end).sum((-2, -1))
