r"""The weighted pushdown recursion: stacks whose actions have any weights, or whose top is observed.

Weights that do not sum to one, or evidence about the top, couple the actions of all steps. A configuration is a state q
with a top symbol x; step t pushes ($q x \to r y$, x stays below), replaces ($q x \to r y$) or pops ($q x \to r$).
Number elements by the step that pushed them, 0 being the bottom, which is never popped. Then

$$N_t[c] = e_t(c) \Big( N_{t-1}[c]\, replace_t + \sum_{c<k<t} N_{k-1}[c]\, M_t[k] \Big), \qquad N_c[c] = e_c(c)\, I,$$
$$M_t[k] = push_k\, N_{t-1}[k]\, pop_t, \qquad F_t[c] = B_c\, N_t[c], \qquad
B_c = \Big(\sum_{c'} F_{c-1}[c']\Big)\, push_c$$

$N_t[c]$ is the weight from element c newly on top to c on top at t (a matrix over configurations), $M_t[k]$ that of an
element pushed at k and popped at t, e the evidence that c is on top at t, $F_t[c]$ the weight of all runs with c on top
at t, and $B_0$ the initial weight. (Lang 1974; DuSell & Chiang 2020 index the same sums by what lies under c.) $O(T^3)$
time and $O(T^2)$ memory, all in logs. With `max` for the sum the same tables hold the best runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...numerics.backends import choose


@dataclass(frozen=True)
class Weights:
    """Log-weights of a pushdown automaton with K = Q G configurations, `state * G + symbol`.

    Arguments:
        log_initial: state and bottom symbol before the first step.
        log_push, log_replace: by configuration before and after.
        log_bottom: what `log_replace` is while the bottom is on top.
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
    """What `inside` computes, as logarithms; times 0..T and elements 0..T, so C = T + 1.

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


def inside(weights: Weights, best: bool = False) -> Inside:
    """The tables of all runs, or with `best` of the best runs.

    On the CPU the fused kernel gives `log_top` a gradient, once. Where the other tables or second derivatives are
    needed, `inside_differentiable` costs more time and memory.
    """
    return Inside(*_backend(*weights.tensors()).inside(*vars(weights).values(), best))


def inside_differentiable(weights: Weights) -> Inside:
    """As `inside`, every table differentiable any number of times; O(T^3) memory while gradients are recorded."""
    from . import plain as stack

    return Inside(*stack.inside(*vars(weights).values()))


def start(log_initial: Float[Tensor, "B K"], n_states: int, n_steps: int = 16) -> object:
    """A run before its first step, to be lengthened by `advance`; `n_steps` is a guess of how long it gets."""
    return _stepwise(log_initial).start(log_initial, n_states, n_steps)


def advance(
    tape: object, log_push: Float[Tensor, "B K K"], log_replace: Float[Tensor, "B K K"], log_pop: Float[Tensor, "B K Q"]
) -> tuple[Float[Tensor, "B n K"], object]:
    """log_top [B, t + 1, K] after one more step, differentiable, and the longer run; the given run stays valid."""
    return _stepwise(log_push).advance(tape, log_push, log_replace, log_pop)


def _backend(*tables: Tensor) -> ModuleType:
    if choose(*tables) == "cpu":
        from . import cpu as stack
    else:
        from . import plain as stack
    return stack


def _stepwise(table: Tensor) -> ModuleType:
    if choose(table) == "cpu":
        from . import tape as stepwise
    else:
        from . import plain as stepwise
    return stepwise


@dataclass(frozen=True)
class Runs:
    """Whole runs of an automaton: 0 push, 1 pop, 2 replace; configuration and element on top are after the step.

    Arguments:
        log_weight: sum of the log-weights of all that the run did.
    """

    action: Int[Tensor, "n B T"]
    configuration: Int[Tensor, "n B T"]
    top: Int[Tensor, "n B T"]
    log_weight: Float[Tensor, "n B"]


Choose = Callable[[Float[Tensor, "*m X"]], Int[Tensor, "*m"]]


def draw(generator: torch.Generator | None) -> Choose:
    """Pick with probability proportional to exp(option), by the Gumbel trick; makes `trace` sample."""

    def pick(options: Tensor) -> Tensor:
        u = torch.rand(options.shape, generator=generator, device=options.device, dtype=torch.float64)
        return (options - (-u.clamp_min(1e-300).log()).log()).argmax(-1)

    return pick


def largest(options: Float[Tensor, "*m X"]) -> Int[Tensor, "*m"]:
    """Pick the best; on the tables of best runs it makes `trace` find the best run."""
    return options.argmax(-1)


def trace(weights: Weights, tables: Inside, n: int, choose: Choose) -> Runs:
    """Walk back from the last step, choosing what each weight was made of; all n B runs at once, T turns.

    A run's pending elements, popped later than now but pushed earlier, wait on an agenda with the configuration they
    will be pushed on. What is on top when the agenda is empty stays for ever, and is chosen from all that can be there.
    """
    B, T, K, Q = weights.log_pop.shape
    G, M = K // Q, n * B
    b = torch.arange(B, device=weights.log_pop.device).repeat(n)
    m = torch.arange(M, device=b.device)
    agenda = torch.zeros(3, M, T + 1, dtype=torch.int64, device=b.device)
    pending = torch.zeros_like(b)

    def open_top(t: int, ending: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """An element on top at t, the configurations it was pushed in and is in, given the weight of what follows."""
        options = tables.below[b, :, :, None] + tables.segment[b, :, :, :, t] + ending[:, None, None]
        index = choose(options.flatten(1))
        return index // (K * K), index // K % K, index % K

    c, a, j = open_top(T, weights.log_pop.new_zeros(M, K))
    log_weight = weights.log_pop.new_zeros(M)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    for t in range(T, 0, -1):
        if weights.log_evidence is not None:
            log_weight = log_weight + weights.log_evidence[b, t - 1, c, j]
        r, y = j // G, j % G
        row = tables.segment[b, c, a]  # [M, K, C]
        replace = torch.where(
            (c == 0)[:, None], weights.log_bottom[b, t - 1, :, j], weights.log_replace[b, t - 1, :, j]
        )
        closing = tables.matched[b, t].unflatten(1, (Q, G))[m, :, y, r, 1:]  # [M, Q, k - 1]
        split = row.unflatten(1, (Q, G))[m, :, y, :-1] + closing
        index = choose(torch.cat([row[:, :, t - 1] + replace, split.flatten(1)], 1))
        pushed, popped = c == t, (index >= K) & (c != t)
        action = torch.where(pushed, 0, torch.where(popped, 1, 2))
        steps.append((action, j, c))

        i = index.clamp_max(K - 1)
        after_replace = (c, a, i, replace[m, i])
        u, k = (index - K).clamp_min(0) // T, (index - K).clamp_min(0) % T + 1
        under = u * G + y
        pop = weights.log_pop[b, t - 1, :, r]
        inner = weights.log_push[b, k - 1, under][..., None] + tables.segment[b, k, :, :, t - 1] + pop[:, None]
        index = choose(inner.flatten(1))
        after_pop = (k, index // K, index % K, pop[m, index % K])
        resumed = agenda[:, m, (pending - 1).clamp_min(0)]
        found = open_top(t - 1, weights.log_push[b, t - 1, :, a])
        parent = torch.where(pending > 0, resumed, torch.stack(found))
        after_push = (*parent, weights.log_push[b, t - 1, parent[2], a])

        here = torch.stack([c, a, under])
        agenda[:, m[popped], pending[popped]] = here[:, popped]
        pending = pending + popped.long() - (pushed & (pending > 0)).long()
        choices = zip(after_push, after_pop, after_replace, strict=True)
        c, a, j, gain = (torch.where(pushed, x, torch.where(popped, y, z)) for x, y, z in choices)
        log_weight = log_weight + gain
    log_weight = log_weight + weights.log_initial[b, j]
    action, configuration, top = (torch.stack(x[::-1], -1).unflatten(0, (n, B)) for x in zip(*steps, strict=True))
    return Runs(action, configuration, top, log_weight.unflatten(0, (n, B)))


Push = Callable[[Float[Tensor, "B n L"], int, int], Float[Tensor, "B n L"]]


def carry(weights: Weights, tables: Inside, bottom: Float[Tensor, "B L"], push: Push) -> Float[Tensor, "B T L"]:
    r"""Posterior expectation, at every step, of a label of the whole stack; one configuration only (K = 1).

    The label of the bottom is given, and pushing element k turns a label linearly into `push(labels, first, last)` for
    k = first..last-1. So the depth is a one-hot label that a push shifts, and the cells are a label that a push shifts
    while it writes the value on top. Expectations run down the derivations as probabilities do in the outside pass:

    $$D_t[c] = P(c\ \text{on top at}\ t \mid \text{all})\; E[label \mid c\ \text{on top at}\ t, \text{all}]$$

    O(T^3 L) time and O(T^2 L) memory.
    """
    B, T = weights.log_pop.shape[:2]
    N, M = tables.segment[:, :, 0, 0], tables.matched[:, :, 0, 0]
    share_top = tables.log_top[..., 0].softmax(-1)  # [B, t, c]
    filtered, opened = bottom[:, None], bottom[:, None]  # labels by time, and by element if it is open for ever
    for t in range(1, T + 1):
        opened = torch.cat([opened, push(filtered[:, t - 1 :], t, t + 1)], 1)
        filtered = torch.cat([filtered, share_top[:, t, None, : t + 1] @ opened], 1)
    stays = [share_top.new_ones(B)]  # probability that nothing on the stack at time t is touched later, from t = T down
    for t in range(T, 0, -1):
        stays.append((torch.stack(stays[::-1], 1) * share_top[:, t:, t]).sum(1))
    ends = torch.stack(stays[::-1], 1)
    D = bottom.new_zeros(B, T + 1, T + 1, bottom.shape[-1])  # by c and t
    D = D + ((ends[..., None] * share_top).transpose(1, 2)[..., None] * opened[:, :, None])
    found = []
    for t in range(T, 0, -1):
        found.append(D[:, : t + 1, t].sum(1))
        now = D[:, :t, t].clone()
        whole = N[:, :t, t] if weights.log_evidence is None else N[:, :t, t] - weights.log_evidence[:, t - 1, :t, 0]
        whole = torch.where(N[:, :t, t].isneginf(), torch.inf, whole)
        held = torch.cat([weights.log_bottom[:, t - 1, 0], weights.log_replace[:, t - 1, 0].expand(B, t - 1)], 1)
        D[:, :t, t - 1] += (N[:, :t, t - 1] + held - whole).exp()[..., None] * now
        split = (N[:, :t, : t - 1] + M[:, t, None, 1:t] - whole[..., None]).exp()  # [B, c, k]
        D[:, :t, : t - 1] += split[..., None] * now[:, :, None]
        D[:, 1:t, t - 1] += push(split.transpose(1, 2) @ now, 1, t)
    return torch.stack(found[::-1], 1)


def expected_use(build: Callable[..., Weights], *leaves: Tensor) -> tuple[Tensor, ...]:
    """How often a run uses each leaf: the gradient of log Z, where `build(*leaves)` makes the weights from log-weights.

    Differentiable in turn if a leaf needs a gradient.
    """
    again = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
    with torch.enable_grad():
        inputs = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in leaves]
        weights = build(*inputs)
        tables = inside_differentiable(weights) if again else inside(weights)
        total = log_total(tables).sum()
        return torch.autograd.grad(total, inputs, create_graph=again, materialize_grads=True)  # no pop at T = 1


def log_total(tables: Inside) -> Float[Tensor, " B"]:
    """log Z of all runs."""
    return torch.logsumexp(tables.log_top[:, -1].flatten(1), -1)


def vanished(tables: Inside) -> tuple[int, int] | None:
    """The first sequence that no run survives, with the step, counted from 0, at which the last one dies; or None."""
    dead = tables.log_top.detach().flatten(2).amax(-1).isneginf()
    if not dead.any():
        return None
    sequence = int(dead.any(1).nonzero()[0])
    return sequence, int(dead[sequence].nonzero()[0]) - 1
