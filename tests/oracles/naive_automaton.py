r"""The weighted pushdown recursion as DuSell and Chiang write it, in the real semiring, one loop per index.

With $\gamma[i \to j][qx, ry]$ the weight of going from configuration (q, x) at time i to (r, y) at time j with exactly
one more element on the stack, y on top of the untouched x, and $\alpha[j][ry]$ the weight of all runs up to j:

$$\gamma[i \to j][qx, ry] = [i = j - 1]\, push_j[qx, ry] + \sum_{sz} \gamma[i \to j - 1][qx, sz]\, replace_j[sz, ry]
    + \sum_{k=i+1}^{j-2} \sum_u \gamma[i \to k][qx, uy] \sum_{sz} \gamma[k \to j - 1][uy, sz]\, pop_j[sz, r]$$
$$\alpha[j][ry] = \sum_{i, q, x} \alpha[i][qx]\, \gamma[i \to j][qx, ry]$$

where the bottom element is pushed before time 0. Weights are not logarithms here and overflow for long runs.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def forward_weights(
    log_initial: Float[Tensor, " K"],
    log_push: Float[Tensor, "T K K"],
    log_replace: Float[Tensor, "T K K"],
    log_pop: Float[Tensor, "T K Q"],
) -> Float[Tensor, "n K"]:
    """alpha[j] for j = 0..T: the total weight of all runs by configuration (state and top symbol). One sequence."""
    T, K, Q = log_pop.shape
    G = K // Q
    push, replace, pop = log_push.exp(), log_replace.exp(), log_pop.exp()
    bottom = [log_initial.exp()]  # alpha through the bottom alone, from the element "before time 0"
    gamma: dict[tuple[int, int], Tensor] = {}
    closed: dict[tuple[int, int], Tensor] = {}
    alpha = [bottom[0]]
    for j in range(1, T + 1):
        for k in range(j - 1):
            closed[k, j] = gamma[k, j - 1] @ pop[j - 1]
        for i in range(-1, j):
            rows = bottom if i < 0 else [gamma[i, k] if k > i else replace.new_zeros(0) for k in range(j)]
            if i == j - 1:
                gamma[i, j] = push[j - 1]
                continue
            total = rows[j - 1] @ replace[j - 1]
            for k in range(i + 1, j - 1):
                for u in range(Q):
                    for r in range(Q):
                        for y in range(G):
                            term = torch.zeros_like(total)
                            term[..., r * G + y] = rows[k][..., u * G + y] * closed[k, j][u * G + y, r]
                            total = total + term
            if i < 0:
                bottom.append(total)
            else:
                gamma[i, j] = total
        alpha.append(bottom[j] + sum((alpha[i] @ gamma[i, j] for i in range(j)), torch.zeros_like(bottom[j])))
    return torch.stack(alpha)
