"""Chains, scans and EM against hmmlearn, dynamax and Pyro, on the same arrays: `python
tests/benchmarks/bench_inference.py`.

Needs the extra `bench`. Both sides read log tables and return posteriors, at the peer's precision. dynamax, and
samplehold beside it, run in float32. hmmlearn and Pyro run in float64. Run it on a quiet machine.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pyro.distributions as dist
import torch
from dynamax.hidden_markov_model import GaussianHMM as DynamaxHMM
from dynamax.hidden_markov_model import hmm_smoother
from hmmlearn import _hmmc
from hmmlearn.hmm import GaussianHMM
from portable_cases import Size, Table, hmmlearn_smoother, tables
from samplehold import Bernoulli, Emission, Markov, MultivariateNormal, Normal, Poisson, SwitchingSSM, linear_scan
from samplehold.face.chains import FactoredCopyChain, MarkovChain
from samplehold.switching.fitting import EM
from timing import HEADER, Row, paired

SIZES = [(16, 1000, 8), (1, 100_000, 8), (64, 1000, 32), (8, 1000, 256)]
AIMS = {(16, 1000, 8): 3, (1, 100_000, 8): 5}  # beside hmmlearn with scaling
RHO = 0.1


def hmmlearn_log_smoother(initial: np.ndarray, transition: np.ndarray, likelihood: np.ndarray) -> list[np.ndarray]:
    """The posteriors of `hmmlearn_smoother` by its passes in logarithms."""
    start, moves = np.exp(initial), np.exp(transition)
    posteriors = []
    for table in likelihood:
        _, forward = _hmmc.forward_log(start, moves, table)
        joint = forward + _hmmc.backward_log(start, moves, table)
        product = np.exp(joint - joint.max(1, keepdims=True))
        posteriors.append(product / product.sum(1, keepdims=True))
    return posteriors


def dynamax_smoother(initial: np.ndarray, transition: np.ndarray, likelihood: np.ndarray) -> Callable[[], object]:
    start, moves, table = (
        jax.numpy.asarray(t, dtype="float32") for t in (np.exp(initial), np.exp(transition), likelihood)
    )
    smoother = jax.jit(jax.vmap(hmm_smoother, in_axes=(None, None, 0)))
    return lambda: jax.block_until_ready(smoother(start, moves, table))


def markov_smoothers() -> Iterator[Row]:
    for size in SIZES:
        arrays = tables(Size(*size))
        double, single = ([torch.tensor(t, dtype=d) for t in arrays] for d in (torch.float64, torch.float32))
        ours = partial(lambda t: MarkovChain(*t).smooth(), double)
        scaling, by_logs = hmmlearn_smoother(*arrays), partial(hmmlearn_log_smoother, *arrays)
        expected = np.stack(scaling())
        assert np.abs(ours().state.numpy() - expected).max() < 1e-9
        shown = str(size)
        yield Row("Markov smoother", shown, "hmmlearn, scaling", *paired(ours, scaling), AIMS.get(size, 1.5))
        yield Row("Markov smoother", shown, "hmmlearn, log", *paired(ours, by_logs), 1.5)
        yield Row(
            "Markov smoother",
            shown,
            "dynamax",
            *paired(lambda t=single: MarkovChain(*t).smooth(), dynamax_smoother(*arrays)),
            1.5,
        )


def copy_smoothers() -> Iterator[Row]:
    size = (8, 1000, 256)
    arrays, dense = copy_tables(*size)
    peer = hmmlearn_smoother(*dense)
    expected = np.stack(peer())

    def ours(dtype: torch.dtype) -> Callable[[], object]:
        return FactoredCopyChain(*(torch.tensor(table, dtype=dtype) for table in arrays)).smooth

    assert np.abs(ours(torch.float64)().state.numpy() - expected).max() < 1e-9
    yield Row("copy smoother", str(size), "hmmlearn, dense", *paired(ours(torch.float64), peer), 100)
    yield Row("copy smoother", str(size), "dynamax, dense", *paired(ours(torch.float32), dynamax_smoother(*dense)), 10)


def copy_chains_beside_markov_chains() -> Iterator[Row]:
    """The same models as copy chains and as Markov chains; aimed at are no loss, and 1.5 from 8 states on."""
    sizes = [(1, 100_000, k) for k in (2, 4, 8)]
    for size in (*sizes, (16, 1000, 8), (64, 1000, 2), (64, 1000, 8), (64, 1000, 32), (256, 1000, 8)):
        arrays, dense = copy_tables(*size)
        ours, peer = FactoredCopyChain(*map(torch.tensor, arrays)), MarkovChain(*map(torch.tensor, dense))
        assert torch.allclose(ours.smooth().state, peer.smooth().state, rtol=0, atol=1e-12)
        aim = 1 if size[-1] < 8 else 1.5
        yield Row("copy smoother", str(size), "MarkovChain", *paired(ours.smooth, peer.smooth), aim)


def copy_tables(n_sequences: int, n_steps: int, n_states: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """A copy chain's factors, and the tables of a Markov chain that is the same."""
    _, _, likelihood = tables(Size(n_sequences, n_steps, n_states))
    fresh = np.random.default_rng(1).dirichlet(np.ones(n_states))
    factors = np.log([RHO]), np.log1p([-RHO]), np.log(fresh), likelihood
    return factors, (np.log(fresh), np.log((1 - RHO) * np.eye(n_states) + RHO * fresh), likelihood)


def gradients() -> Iterator[Row]:
    for size, target in (((16, 1000, 8), 10), ((64, 1000, 32), 50)):
        leaves = [torch.tensor(t).requires_grad_() for t in tables(Size(*size))]

        def gradient(evidence, leaves=leaves):
            return torch.autograd.grad(evidence(*leaves).sum(), leaves)

        def ours(initial, transition, likelihood):
            start = torch.logsumexp(initial.unsqueeze(-1) + transition, 0)  # Pyro moves before the first observation
            return MarkovChain(start, transition, likelihood).log_normalizer()

        def peer(initial, transition, likelihood):
            hidden = dist.DiscreteHMM(initial, transition, Table(likelihood), validate_args=False)
            return hidden.log_prob(likelihood.detach()[..., 0])  # any value: the table does not look at it

        assert torch.allclose(gradient(ours)[2], gradient(peer)[2], rtol=1e-8)  # Pyro normalises the other tables
        yield Row(
            "log evidence + gradient",
            str(size),
            "Pyro DiscreteHMM",
            *paired(partial(gradient, ours), partial(gradient, peer)),
            target,
        )


def expectation_maximization() -> Iterator[Row]:
    n_steps, n_states, n_features, n_iterations = 10_000, 4, 2, 50
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(n_states, n_features))
    x = centres[np.repeat(rng.integers(n_states, size=n_steps // 20), 20)] + rng.normal(size=(n_steps, n_features))
    start = {
        "initial_probs": np.full(n_states, 1 / n_states),
        "transition_probs": 0.7 * np.eye(n_states) + 0.3 / n_states,
        "loc": centres + rng.normal(size=centres.shape),
        "precision": np.stack([np.eye(n_features)] * n_states),
    }

    def ours(restarts: int) -> Callable[[], object]:
        model = SwitchingSSM(Markov(n_states), MultivariateNormal(n_features))
        problem = replace(model.problem(x), prior=None)
        values = {name: torch.tensor(np.stack([value] * restarts)) for name, value in start.items()}
        return lambda: EM(problem, values).run(n_iterations)

    def hmmlearn_fit() -> GaussianHMM:
        peer = GaussianHMM(
            n_states, "full", n_iter=n_iterations, tol=-np.inf, init_params="", implementation="scaling",
            min_covar=0, covars_prior=0, covars_weight=0,
        )  # fmt: skip
        peer.startprob_, peer.transmat_, peer.means_ = start["initial_probs"], start["transition_probs"], start["loc"]
        peer.covars_ = start["precision"]
        return peer.fit(x)

    size = f"T={n_steps} K={n_states} D={n_features}, {n_iterations} steps"
    fitted = ours(1)()
    assert len(fitted.elbo) == n_iterations
    assert abs(float(fitted.elbo[-1, 0]) - hmmlearn_fit().monitor_.history[-1]) < 1e-3
    yield Row("EM", size, "hmmlearn", *paired(ours(1), hmmlearn_fit), 3)
    yield Row(
        "EM, 16 restarts", size, "hmmlearn, a loop", *paired(ours(16), lambda: [hmmlearn_fit() for _ in range(16)]), 3
    )
    peer = DynamaxHMM(n_states, n_features)
    params, props = peer.initialize(
        jax.random.PRNGKey(0),
        initial_probs=jax.numpy.asarray(start["initial_probs"]),
        transition_matrix=jax.numpy.asarray(start["transition_probs"]),
        emission_means=jax.numpy.asarray(start["loc"]),
        emission_covariances=jax.numpy.asarray(start["precision"]),
    )
    emissions = jax.numpy.asarray(x, dtype="float32")

    def dynamax_fit() -> object:
        return jax.block_until_ready(peer.fit_em(params, props, emissions, num_iters=n_iterations, verbose=False))

    yield Row("EM", size, "dynamax", *paired(ours(1), dynamax_fit), 15)


def wide_emissions() -> Iterator[Row]:
    """The table of all steps and states, against that of independent normals, of which nothing is missing."""
    n_steps, n_features, n_states = 20_000, 48, 16
    torch.manual_seed(0)
    x = torch.randn(n_steps, n_features, dtype=torch.float64)
    level = torch.randn(n_states, n_features, dtype=torch.float64)
    missing = torch.rand(x.shape) < 0.1
    normal = partial(Normal(n_features).table, x, {"loc": level, "precision": level.exp()})
    cases: list[tuple[Emission, torch.Tensor, dict[str, torch.Tensor]]] = [
        (Normal(n_features), x, {"loc": level, "precision": level.exp()}),
        (Bernoulli(n_features), (x > 0).double(), {"probs": level.sigmoid()}),
        (Poisson(n_features), torch.poisson(x.exp()), {"rate": level.exp()}),
    ]
    for emission, seen, values in cases:
        for what, given in (("", seen), (", a tenth missing", seen.masked_fill(missing, torch.nan))):
            size = f"T={n_steps} K={n_states} F={n_features}"
            ours = partial(emission.table, given, values)
            yield Row(f"{emission.name} table{what}", size, "complete Normal", *paired(ours, normal, 2.0), 1 / 3)


def scans() -> Iterator[Row]:
    shape = (16, 4096, 256)
    a, b = torch.rand(shape), torch.randn(shape)
    pair, target = torch.cat([a, b]).flatten(), torch.empty(2 * a.numel())
    half = a.numel() + a.numel() // 2  # read two tables and write one: as many bytes as copying one and a half

    def copy() -> None:
        target[:half].copy_(pair[:half])

    def scan() -> torch.Tensor:
        return linear_scan(a, b)

    yield Row("linear_scan", str(shape), "copying the same bytes in place", *paired(scan, copy), 1 / 1.7)
    yield Row("linear_scan", str(shape), "a + b, with its own result as we have", *paired(scan, lambda: a + b), 1 / 1.7)


MEMORY = """
import ctypes, torch
from samplehold.face.chains import {kind}Chain
torch.manual_seed(0)
n, k = 1_000_000, 8
def chain(n):
    table = torch.randn(1, n, k, dtype=torch.float64)
    return {build}
chain(10_000).smooth()  # loads what a long one takes
whole = chain(n)
ctypes.CDLL(None).malloc_trim(0)  # what that has left would be taken again
with open("/proc/self/clear_refs", "w") as f: f.write("5")
def status(key):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key))
before = status("VmRSS")
out = whole.smooth()
peak = status("VmHWM")
size = sum(t.numel() * t.element_size() for t in vars(out).values() if torch.is_tensor(t)) / 1024
print((peak - before - size) / size)
"""


def memory() -> Iterator[str]:
    """Peak of `smooth` on (1, 1e6, 8) beyond its input and its output, in units of the output."""
    builds = {
        "Markov": "MarkovChain(torch.zeros(k).double(), torch.randn(k, k).double(), table)",
        "Copy": "CopyChain(None, table, table - 1)",
    }
    for kind, build in builds.items():
        program = MEMORY.format(kind=kind, build=build)
        ratio = float(
            subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        )
        yield f"{kind}Chain.smooth on (1, 1000000, 8): {ratio:.2f} times the output beyond input and output (aim: 1.5)"


def main() -> None:
    print(HEADER)
    for part in (
        markov_smoothers,
        copy_smoothers,
        copy_chains_beside_markov_chains,
        gradients,
        expectation_maximization,
        wide_emissions,
        scans,
    ):
        for row in part():
            print(row, flush=True)
    print()
    for line in memory():
        print(line, flush=True)


if __name__ == "__main__":
    main()
