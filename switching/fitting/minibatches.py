r"""Message passing in minibatches: more sequences than one update should have to wait for.

After each batch of n of the N sequences, every block of parameters goes a step of the natural gradient of the bound,

$$\eta \leftarrow (1 - \epsilon_i)\, \eta + \epsilon_i \Big(\eta_0 + \tfrac Nn \sum_{b \in \text{batch}} m_b\Big),
\qquad \epsilon_i = i^{-\kappa},$$

with the messages $m_b$ of exact paths under the $\eta$ before it. For $1/2 < \kappa \le 1$ the steps sum to infinity
and their squares do not, so that $\eta$ goes to a stationary point of the bound (Robbins & Monro 1951; Hoffman, Blei,
Wang & Paisley 2013). A pass takes each sequence once, in an order of its own. The mean over its batches of
$\tfrac Nn \sum_b \log Z_b - KL(q \| p)$ estimates the bound; at the end the bound itself is taken.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from .message_passing import KEPT, PATHS, Climb
from .starts import first_labels

if TYPE_CHECKING:
    from .message_passing import Structure

FORGETTING = 0.7  # kappa: the nearer to 1/2, the sooner early batches are forgotten


def climb_in_batches(
    structure: "Structure",
    batch_size: int,
    restarts: int,
    max_steps: int,
    tol: float,
    seed: int,
    report: Callable[[int, float], None] = lambda step, best: None,
) -> Climb:
    """Passes through all sequences until the estimate of the bound settles, or `max_steps`.

    Each of the first passes keeps the better third of the restarts, until one is left.
    """
    generator = torch.Generator().manual_seed(seed)
    n = structure.series.batch_shape.numel()
    n_batches = -(-n // batch_size)
    sample = structure.sample(seed)
    labels = first_labels(structure.emission, sample.series, structure.dynamics.n_states, restarts, seed)
    first = sample.engine(sample.start(labels))
    first.step()
    etas = {name: block.eta for name, block in first.blocks.items() if name != PATHS}
    kept, final, objective = torch.arange(restarts), torch.full((restarts,), -math.inf, dtype=torch.float64), []
    i, converged, interrupted = 0, False, False
    try:
        while len(objective) < max_steps and not converged:
            estimate = torch.zeros(len(kept), dtype=torch.float64)
            for some in torch.randperm(n, generator=generator).tensor_split(n_batches):
                i += 1
                batch = structure.part(some.sort().values).resumed(etas, i**-FORGETTING, n / len(some))
                estimate += batch.elbo().double().cpu() * len(some) / n
                for name in etas:
                    batch.update(name)
                etas = {name: batch.blocks[name].eta for name in etas}
            final[kept] = estimate
            objective.append(float(estimate.max()))
            report(len(objective), objective[-1])
            if len(kept) > 1:
                better = estimate.argsort(descending=True)[: math.ceil(len(kept) / KEPT)]
                kept, etas = kept[better], {name: eta[better.to(eta.device)] for name, eta in etas.items()}
            else:
                converged = len(objective) > 1 and abs(objective[-1] - objective[-2]) <= tol * abs(objective[-1])
    except KeyboardInterrupt:
        if not objective:
            raise  # nothing has been reached yet
        interrupted = True
    whole = structure.resumed(etas)
    final[kept] = whole.elbo().double().cpu()
    best = int(final[kept].argmax())
    objective.append(float(final[kept[best]]))
    trace = torch.tensor(objective, dtype=torch.float64)
    return Climb(whole, best, trace, final, converged, interrupted)
