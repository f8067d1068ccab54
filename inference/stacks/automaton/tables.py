"""The inputs and results of the weighted pushdown recursion; `op` has the equations."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ...numerics.records import Record


@dataclass(frozen=True, repr=False)
class Weights(Record):
    """Log-weights of a pushdown automaton with K = Q G configurations, `state * G + symbol`.

    Arguments:
        log_initial: state and bottom symbol before the first step.
        log_push, log_replace: by configuration before and after.
        log_bottom: `log_replace` while the bottom is on top.
        log_pop: by configuration before and state after.
        log_evidence: of element c on top at step t in a configuration; None: no evidence.
    """

    log_initial: Float[Tensor, "B K"]
    log_push: Float[Tensor, "B T K K"]
    log_replace: Float[Tensor, "B T K K"]
    log_bottom: Float[Tensor, "B T K K"]
    log_pop: Float[Tensor, "B T K Q"]
    log_evidence: Float[Tensor, "B T C K"] | None = None

    def tensors(self) -> list[Tensor]:
        """All the tables that are given."""
        return [x for x in vars(self).values() if x is not None]


@dataclass(frozen=True)
class Inside:
    """What `op.inside` computes, as logarithms; times 0..T and elements 0..T, so C = T + 1.

    Arguments:
        segment: $N_t[c]$ by configuration newly on top, configuration at t, and t.
        matched: $M_t[k]$ by t, configuration under the element, state after its pop, and k.
        below: $B_c$, everything that ends with pushing c.
        log_top: $F_t[c]$, all runs up to t with c on top at t.
    """

    segment: Float[Tensor, "B C K K C"]
    matched: Float[Tensor, "B C K Q C"]
    below: Float[Tensor, "B C K"]
    log_top: Float[Tensor, "B C C K"]
