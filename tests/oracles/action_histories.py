"""Stacks by brute force: every history of push, pop and no-op, every run of a pushdown automaton, one at a time.

Plain Python lists, no shared work between histories. Elements are numbered by the step that pushed them, then the
initial cells from the top, then "empty", as in `samplehold.switching.stacks`.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Expected:
    """What all histories of one sequence say together; `best` holds the actions of the most probable one."""

    log_normalizer: float
    action: Tensor
    top: Tensor
    depth: Tensor
    cells: Tensor
    best: list[int]
    best_log_weight: float


def play(actions: tuple[int, ...], n_initial: int) -> list[list[int]]:
    """The stack after each step, top first, as element numbers."""
    T = len(actions)
    stack = list(range(T, T + n_initial))
    stacks = []
    for t, action in enumerate(actions):
        if action == 0:
            stack = [t, *stack]
        elif action != 2:
            stack = stack[1 if action == 1 else action - 1 :]
        stacks.append(stack)
    return stacks


def every_history(
    log_action: Tensor, values: Tensor, initial: Tensor | None, on_empty: str, log_evidence: Tensor | None
) -> Expected:
    """All histories of one sequence: log_action [T, A], values [T, V], initial [D, V], log_evidence [T, T+D+1]."""
    T, A = log_action.shape
    D = 0 if initial is None else len(initial)
    table = [*values, *([] if initial is None else initial)]
    weights = log_action.tolist()
    evidence = None if log_evidence is None else log_evidence.tolist()
    found = []
    for actions in itertools.product(range(A), repeat=T):
        stacks = play(actions, D)
        log_weight = sum(weights[t][a] for t, a in enumerate(actions))
        before = D
        for t, stack in enumerate(stacks):
            if on_empty == "forbid" and actions[t] == 1 and before == 0:
                log_weight = -math.inf
            before = len(stack)
            if evidence is not None:
                log_weight += evidence[t][stack[0] if stack else T + D]
        if log_weight > -math.inf:
            found.append((log_weight, actions, stacks))
    best = max(found)
    total = best[0] + math.log(math.fsum(math.exp(w - best[0]) for w, _, _ in found))
    action, top, depth = torch.zeros(T, A), torch.zeros(T, T + D + 1), torch.zeros(T, T + D + 1)
    member = torch.zeros(T, T + D, T + D, dtype=torch.float64)  # P(cell i after step t is element c)
    action, top, depth = action.double(), top.double(), depth.double()
    for log_weight, actions, stacks in found:
        p = math.exp(log_weight - total)
        for t, (a, stack) in enumerate(zip(actions, stacks, strict=True)):
            action[t, a] += p
            top[t, stack[0] if stack else T + D] += p
            depth[t, len(stack)] += p
            for i, c in enumerate(stack):
                member[t, i, c] += p
    cells = member @ torch.stack(table).double()
    return Expected(total, action, top, depth, cells, list(best[1]), best[0])


@dataclass(frozen=True)
class ExpectedRuns:
    """What all runs of an automaton say together."""

    log_normalizer: float
    marginals: Tensor
    push: Tensor
    replace: Tensor
    pop: Tensor
    top: Tensor
    best: list[tuple[int, int, int]]
    best_log_weight: float


def every_run(log_initial: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> ExpectedRuns:
    """All runs of one sequence; a step of `best` is (action, state, symbol), action 0 push, 1 pop, 2 replace."""
    T, Q, G = log_pop.shape[:3]
    push, replace, pop = log_push.tolist(), log_replace.tolist(), log_pop.tolist()
    found: list[tuple[float, list[tuple[int, ...]]]] = []

    def go(t: int, state: int, stack: list[tuple[int, int]], log_weight: float, steps: list[tuple[int, ...]]) -> None:
        if log_weight == -math.inf:
            return
        if t == T:
            found.append((log_weight, steps))
            return
        pushed, x = stack[-1]
        for r in range(Q):
            for y in range(G):
                step = (state, x, r, y)
                go(t + 1, r, [*stack, (t, y)], log_weight + push[t][state][x][r][y], [*steps, (0, *step, t)])
                kept = [*stack[:-1], (pushed, y)]
                go(t + 1, r, kept, log_weight + replace[t][state][x][r][y], [*steps, (2, *step, pushed)])
            if len(stack) > 1:
                under = stack[-2]
                step = (1, state, x, r, under[1], under[0])
                go(t + 1, r, stack[:-1], log_weight + pop[t][state][x][r], [*steps, step])

    for q in range(Q):
        for x in range(G):
            go(0, q, [(T, x)], float(log_initial[q, x]), [])
    best = max(found)
    total = best[0] + math.log(math.fsum(math.exp(w - best[0]) for w, _ in found))
    tables = {0: torch.zeros_like(log_push), 1: torch.zeros_like(log_pop), 2: torch.zeros_like(log_replace)}
    marginals, top = torch.zeros_like(log_pop[..., 0]), log_pop.new_zeros(T, T + 1)
    for log_weight, steps in found:
        p = math.exp(log_weight - total)
        for t, (action, q, x, r, y, element) in enumerate(steps):
            tables[action][(t, q, x, r) if action == 1 else (t, q, x, r, y)] += p
            marginals[t, r, y] += p
            top[t, element] += p
    path = [(action, r, y) for action, _, _, r, y, _ in best[1]]
    return ExpectedRuns(total, marginals, tables[0], tables[2], tables[1], top, path, best[0])
