"""The cases of `bench_portable`: this library and the installed peers on the same arrays.

A case makes contenders by name from a size, a device and a seed: functions without arguments that do the work once. A
contender that is not installed, or does not run on the device, is a `Missing` with the reason. Peers run at their own
precision: float64, except dynamax and networks, which run in float32.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyro.distributions as dist
import torch
from samplehold import Markov, MinGRU, MultivariateNormal, Normal, SwitchingSSM, linear_scan
from samplehold.face.chains import FactoredCopyChain, LinearGaussianChain, MarkovChain
from samplehold.inference.chains.markov.plain import posterior as plain_posterior
from samplehold.switching.fitting import EM, ChainGraph, engine_from, first_guesses
from torch import Tensor, nn


class Missing(NamedTuple):
    """The reason why a contender is not measured."""

    why: str


class Size(NamedTuple):
    """B sequences of T steps, with K states, features or units."""

    B: int
    T: int
    K: int


_MOST_PAIRS = 1 << 26  # numbers, of which a peer keeps several tables
Contender = Callable[[], Any] | Missing
Contenders = Mapping[str, Contender]


@dataclass(frozen=True)
class Case:
    """One kind of work.

    Attributes:
        title: the name of the work.
        contenders: makes them from a size and a device.
        sizes: the measured sizes; those of `quick` first.
        quick: the number of sizes in a quick run.
    """

    title: str
    contenders: Callable[[Size, torch.device], Contenders]
    sizes: tuple[Size, ...]
    quick: int = 1


def installed(package: str, make: Callable[[], Contender]) -> Contender:
    """A peer's contender, if the peer is installed and works."""
    if importlib.util.find_spec(package) is None:
        return Missing("not installed")
    try:
        return make()
    except (ImportError, AttributeError) as error:
        return Missing(f"another version: {error}")


def of_host(package: str, device: torch.device, make: Callable[[], Contender]) -> Contender:
    """The same for a peer that runs only on the CPU."""
    return installed(package, make) if device.type == "cpu" else Missing("runs on the CPU alone")


# ---- chains ----------------------------------------------------------------------------------------------------------


def tables(size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log P(s_1), a persistent log transition, and log-likelihoods of a few nats."""
    rng = np.random.default_rng(0)
    initial = rng.dirichlet(np.ones(size.K))
    transition = 0.8 * np.eye(size.K) + 0.2 * rng.dirichlet(np.ones(size.K), size.K)
    return np.log(initial), np.log(transition), -(rng.normal(size=size) ** 2)


def hmmlearn_smoother(initial: np.ndarray, transition: np.ndarray, likelihood: np.ndarray) -> Callable[[], Any]:
    """hmmlearn's scaled C++ passes, one sequence after another, as in its `score_samples`."""
    from hmmlearn import _hmmc  # pyright: ignore[reportAttributeAccessIssue]

    start, moves = np.exp(initial), np.exp(transition)

    def smooth() -> list[np.ndarray]:
        posteriors = []
        for table in likelihood:
            probs = np.exp(table)
            _, forward, scale = _hmmc.forward_scaling(start, moves, probs)
            product = forward * _hmmc.backward_scaling(start, moves, probs, scale)
            posteriors.append(product / product.sum(1, keepdims=True))
        return posteriors

    return smooth


def _dynamax_smoother(tables: tuple[np.ndarray, np.ndarray, np.ndarray], device: torch.device) -> Contender:
    import jax  # pyright: ignore[reportMissingImports]
    from dynamax.hidden_markov_model import hmm_smoother  # pyright: ignore[reportMissingImports]

    there = [d for d in jax.devices() if d.platform == {"cpu": "cpu", "cuda": "gpu"}[device.type]]
    if not there:
        return Missing("jax sees no such device")
    arrays = np.exp(tables[0]), np.exp(tables[1]), tables[2]
    placed = [jax.device_put(np.asarray(table, dtype=np.float32), there[0]) for table in arrays]
    smoother = jax.jit(jax.vmap(hmm_smoother, in_axes=(None, None, 0)))
    return lambda: jax.block_until_ready(smoother(*placed))


class Table(dist.TorchDistribution):
    """A table of log-likelihoods in the form of Pyro's `DiscreteHMM`: a distribution that ignores its value."""

    arg_constraints: ClassVar = {}  # pyright: ignore[reportAssignmentType]

    def __init__(self, log_likelihood: Tensor) -> None:
        self.table = log_likelihood
        super().__init__(log_likelihood.shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.table


def _pyro_smoother(tables: tuple[np.ndarray, np.ndarray, np.ndarray], device: torch.device) -> Contender:
    """The derivatives of the evidence of Pyro's `DiscreteHMM` by the likelihoods."""
    start, moves, likelihood = (torch.tensor(table, device=device) for table in tables)
    if likelihood.numel() * len(moves) > _MOST_PAIRS:
        return Missing("keeps a matrix of every step")
    likelihood.requires_grad_()

    def smooth() -> Tensor:
        first = start + likelihood[:, 0]  # it makes a transition before the first of its observations, and normalises
        hidden = dist.DiscreteHMM(first, moves, Table(likelihood[:, 1:]), validate_args=False)
        evidence = hidden.log_prob(likelihood.detach()[:, 1:, 0]) + first.logsumexp(-1)
        return torch.autograd.grad(evidence.sum(), likelihood)[0]

    return smooth


def markov_smoother(size: Size, device: torch.device) -> Contenders:
    arrays = tables(size)
    double = [torch.tensor(table, device=device) for table in arrays]
    single = [table.float() for table in double]
    lengths = torch.full((size.B,), size.T, device=device)
    return {
        "samplehold": lambda: MarkovChain(*double).smooth(),
        "samplehold, float32": lambda: MarkovChain(*single).smooth(),
        "plain torch": lambda: plain_posterior(double[0], double[1][None], double[2], lengths),
        "hmmlearn, scaling": of_host("hmmlearn", device, lambda: hmmlearn_smoother(*arrays)),
        "dynamax, float32": installed("dynamax", lambda: _dynamax_smoother(arrays, device)),
        "Pyro, by derivatives": installed("pyro", lambda: _pyro_smoother(arrays, device)),
    }


def copy_smoother(size: Size, device: torch.device) -> Contenders:
    rho, (log_state, _, table) = 0.1, tables(size)
    dense = np.log((1 - rho) * np.eye(size.K) + rho * np.exp(log_state))
    likelihood, state = torch.tensor(table, device=device), torch.tensor(log_state, device=device)
    redraw, hold = (torch.tensor([gate], dtype=torch.float64, device=device).log() for gate in (rho, 1 - rho))
    moves = torch.tensor(dense, device=device)
    return {
        "samplehold": lambda: FactoredCopyChain(redraw, hold, state, likelihood).smooth(),
        "samplehold, as a Markov chain": lambda: MarkovChain(state, moves, likelihood).smooth(),
        "hmmlearn, dense": of_host("hmmlearn", device, lambda: hmmlearn_smoother(log_state, dense, table)),
        "dynamax, dense, float32": installed("dynamax", lambda: _dynamax_smoother((log_state, dense, table), device)),
    }


def kalman_smoother(size: Size, device: torch.device) -> Contenders:
    """K is the size of the state, and of an observation."""
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(size.K, size.K)))
    turn, x, eye = 0.95 * turn, rng.normal(size=size), np.eye(size.K)
    there, one = (torch.tensor(table, device=device) for table in (turn, eye))
    tables = torch.tensor(x, device=device), there, one, one, one, None, one

    def statsmodels() -> Contender:
        from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

        def smooth() -> None:
            for series in x:
                model = KalmanSmoother(k_endog=size.K, k_states=size.K)
                model["design"], model["obs_cov"], model["transition"] = eye, eye, turn
                model["selection"], model["state_cov"] = eye, eye
                model.initialize_known(np.zeros(size.K), eye)
                model.bind(np.ascontiguousarray(series))
                model.smooth()

        return smooth

    def pykalman() -> Contender:
        from pykalman import KalmanFilter  # pyright: ignore[reportMissingImports]

        known = KalmanFilter(turn, eye, eye, eye, np.zeros(size.K), np.zeros(size.K), np.zeros(size.K), eye)
        return lambda: [known.smooth(series) for series in x]

    return {
        "samplehold": lambda: LinearGaussianChain(*tables).smooth(),
        "statsmodels": of_host("statsmodels", device, statsmodels),
        "pykalman": of_host("pykalman", device, pykalman),
    }


# ---- fits ------------------------------------------------------------------------------------------------------------


def levels(size: Size) -> Tensor:
    """Series of two features that stay at one of K levels for about ten steps."""
    rng = np.random.default_rng(0)
    means = 4.0 * rng.normal(size=(size.K, 2))
    state = np.repeat(rng.integers(size.K, size=(size.B, size.T // 10 + 1)), 10, axis=1)[:, : size.T]
    return torch.from_numpy(means[state] + rng.normal(size=(size.B, size.T, 2)))


STEPS = 10  # of EM that are timed together


def em(size: Size, device: torch.device) -> Contenders:
    """`STEPS` steps of maximum likelihood."""
    x = levels(size).to(device)
    problem = SwitchingSSM(Markov(size.K), Normal(2)).problem(x)
    problem = type(problem)(problem.dynamics, problem.emission, problem.series)
    climb = EM(problem, first_guesses(problem, 1, 0).values)

    def hmmlearn() -> Contender:
        from hmmlearn.hmm import GaussianHMM

        rows, lengths = x.reshape(-1, 2).numpy(), [size.T] * size.B
        model = GaussianHMM(size.K, "diag", n_iter=1, implementation="scaling", random_state=0)
        model.fit(rows, lengths)

        def steps() -> None:
            for _ in range(STEPS):
                statistics, _ = model._do_estep(rows, lengths)
                model._do_mstep(statistics)

        return steps

    return {"samplehold": lambda: climb.run(STEPS), "hmmlearn, scaling": of_host("hmmlearn", device, hmmlearn)}


def hmmlearn_sweep(x: Tensor, n_states: int) -> Callable[[], object]:
    """The body of the loop in the `fit` of hmmlearn's variational HMM, which would also run k-means each time."""
    from hmmlearn.vhmm import VariationalGaussianHMM

    rows, lengths = x.reshape(-1, x.shape[-1]).numpy(), [x.shape[1]] * x.shape[0]
    model = VariationalGaussianHMM(n_states, implementation="scaling", n_iter=1, tol=0, random_state=0)
    model.fit(rows, lengths)

    def sweep() -> object:
        statistics, log_prob = model._do_estep(rows, lengths)
        bound = model._compute_lower_bound(log_prob)
        model._do_mstep(statistics)
        return bound

    return sweep


def vmp(size: Size, device: torch.device) -> Contenders:
    """A sweep with full normals, and its bound."""
    x = levels(size).to(device)
    problem = SwitchingSSM(Markov(size.K), MultivariateNormal(2)).scaled_to(x).problem(x)
    engine = engine_from(ChainGraph.of(problem), first_guesses(problem, 1, 0).values)
    theirs = of_host("hmmlearn", device, lambda: hmmlearn_sweep(x, size.K))
    return {"samplehold": partial(engine.run, 1, 0.0), "hmmlearn, scaling": theirs}


# ---- networks --------------------------------------------------------------------------------------------------------


def scan(size: Size, device: torch.device) -> Contenders:
    """Forward, in float32, compared with a copy of the same bytes."""
    a, b = (torch.rand(*size, device=device) for _ in range(2))
    same = torch.rand(3 * a.numel() // 2, device=device)  # read once and written once
    return {"samplehold": lambda: linear_scan(a, b), "copying the same bytes": same.clone}


def min_gru(size: Size, device: torch.device) -> Contenders:
    """Forward and backward, in float32."""
    x, seed = (torch.randn(*size, device=device) for _ in range(2))
    ours = MinGRU(size.K, size.K).to(device)
    gru = nn.GRU(size.K, size.K, batch_first=True).to(device)

    def fla() -> Contender:
        if device.type == "cpu":
            return Missing("runs on GPUs alone")
        from fla.ops.hgrn import fused_recurrent_hgrn  # pyright: ignore[reportMissingImports]

        weight = torch.randn(2 * size.K, size.K, device=device).requires_grad_()

        def both() -> None:
            gate, value = nn.functional.linear(x, weight).chunk(2, -1)
            hold = nn.functional.logsigmoid(-gate)
            fused_recurrent_hgrn((1 - hold.exp()) * value, hold)[0].backward(seed)

        return both

    return {
        "samplehold MinGRU": lambda: ours(x)[0].backward(seed),
        "torch nn.GRU": lambda: gru(x)[0].backward(seed),
        "fla, HGRN": installed("fla", fla),
    }


def _around(base: Size, T: tuple[int, ...], B: tuple[int, ...], K: tuple[int, ...]) -> tuple[Size, ...]:
    """Sizes that differ from a base in one number; the figure shows these."""
    sizes = [base, *(base._replace(T=t) for t in T), *(base._replace(B=b) for b in B), *(base._replace(K=k) for k in K)]
    return tuple(dict.fromkeys(sizes))


CASES: dict[str, Case] = {
    "markov": Case(
        "Markov chain, smoothed",
        markov_smoother,
        _around(Size(16, 1000, 8), (100, 10_000, 100_000), (1, 64, 256), (2, 32, 128)),
    ),
    "copy": Case(
        "copy chain, smoothed",
        copy_smoother,
        _around(Size(16, 1000, 8), (100, 10_000, 100_000), (1, 64, 256), (2, 32, 128)),
    ),
    "kalman": Case(
        "linear Gaussian chain, smoothed", kalman_smoother, _around(Size(16, 500, 4), (5000,), (1,), (2, 8))
    ),
    "em": Case(f"EM, {STEPS} steps", em, _around(Size(1, 10_000, 4), (1000, 100_000), (64,), (2, 16))),
    "vmp": Case("message passing, a sweep", vmp, _around(Size(64, 1000, 4), (100, 10_000), (1, 256, 4096), (2, 16))),
    "scan": Case("linear recurrence", scan, _around(Size(16, 4096, 256), (256, 65_536), (1, 64), (16, 1024))),
    "mingru": Case(
        "minGRU, forward and backward", min_gru, _around(Size(16, 1024, 64), (128, 8192), (1, 64), (16, 256))
    ),
}
