"""Message passing against hmmlearn's variational HMM, and restarts as a batch: `python tests/benchmarks/bench_vmp.py`.

One iteration of a hidden Markov model with full normals of two features: an E-step under expected logs, the update of
every block and the bound. hmmlearn runs with scaling, its faster way, from the same data and start. Run it on a quiet
machine.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from hmmlearn.vhmm import VariationalGaussianHMM
from samplehold import Copy, Markov, MultivariateNormal, Normal, SwitchingSSM
from samplehold.inference.vmp import VMP
from samplehold.switching.dynamics import Drive
from samplehold.switching.sequences import Sequences
from samplehold.switching.variational import Structure
from timing import HEADER, Row, paired

SIZES = [(1, 10_000, 4, 1.5), (64, 1000, 4, 5.0), (256, 1000, 4, 4.0), (64, 1000, 16, 8.0)]
RESTARTS = 32


def levels(n_sequences: int, n_steps: int, n_states: int, n_features: int) -> torch.Tensor:
    """Sequences that stay at one of several levels for about ten steps."""
    rng = np.random.default_rng(0)
    means = 4.0 * rng.normal(size=(n_states, n_features))
    state = np.repeat(rng.integers(n_states, size=(n_sequences, n_steps // 10 + 1)), 10, axis=1)[:, :n_steps]
    return torch.from_numpy(means[state] + rng.normal(size=(n_sequences, n_steps, n_features)))


def engine_of(model: SwitchingSSM, x: torch.Tensor, restarts: int) -> VMP:
    structure = Structure.of(model.scaled_to(x), Sequences(x), Drive())
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(model.n_states, (restarts, *x.shape[:-1]), generator=generator)
    return structure.engine(structure.start(labels))


def iteration(engine: VMP) -> Callable[[], object]:
    def ours() -> object:
        engine.step()
        return engine.elbo()

    return ours


def hmmlearn_iteration(x: torch.Tensor, n_states: int) -> Callable[[], object]:
    """The body of the loop in its `fit`, which itself would also run k-means each time."""
    rows, lengths = x.reshape(-1, x.shape[-1]).numpy(), [x.shape[1]] * x.shape[0]
    peer = VariationalGaussianHMM(n_states, implementation="scaling", n_iter=1, tol=0, random_state=0)
    peer.fit(rows, lengths)

    def theirs() -> object:
        statistics, log_prob = peer._do_estep(rows, lengths)
        bound = peer._compute_lower_bound(log_prob)
        peer._do_mstep(statistics)
        return bound

    return theirs


def against_hmmlearn() -> Iterator[Row]:
    for n_sequences, n_steps, n_states, target in SIZES:
        x = levels(n_sequences, n_steps, n_states, 2)
        model = SwitchingSSM(Markov(n_states), MultivariateNormal(2))
        times = paired(iteration(engine_of(model, x, 1)), hmmlearn_iteration(x, n_states))
        size = f"{n_sequences} x {n_steps}, K={n_states}"
        yield Row("VMP iteration, full normal", size, "hmmlearn, scaling", *times, target)


def batch_against_loop() -> Iterator[Row]:
    for dynamics, emission in ((Copy(4), Normal(2)), (Markov(4), MultivariateNormal(2))):
        x = levels(1, 1000, 4, 2)[0]
        model = SwitchingSSM(dynamics, emission)
        together = iteration(engine_of(model, x, RESTARTS))
        one_by_one = [iteration(engine_of(model, x, 1)) for _ in range(RESTARTS)]
        times = paired(together, lambda fits=one_by_one: [fit() for fit in fits])
        name = f"{type(dynamics).__name__}, {type(emission).__name__}"
        yield Row(f"{RESTARTS} restarts as a batch, {name}", "1 x 1000, K=4", "a loop over them", *times, 1.3)


if __name__ == "__main__":
    print(HEADER, flush=True)
    for rows in (against_hmmlearn(), batch_against_loop()):
        for row in rows:
            print(row, flush=True)
