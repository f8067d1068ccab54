"""EM of `LinearSSM` against pykalman and dynamax, from the same start: `python tests/benchmarks/bench_linear.py`.

Needs the extra `bench`. All three libraries learn every table and the offsets, with full covariances and no prior, in
float64. The table shows milliseconds of a whole call with that number of steps. Below it is log p(x) at the result,
computed by our filter, or nan if it is not finite. Each call of dynamax compiles its step, and its time includes this.
In the row "compiled" the time of a call of a single step is subtracted. pykalman takes one sequence.
"""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import numpy as np
import torch
from pykalman import KalmanFilter

jax.config.update("jax_enable_x64", True)

from dynamax.linear_gaussian_ssm import LinearGaussianSSM  # noqa: E402
from samplehold import LinearSSM  # noqa: E402
from timing import HEADER, Row, paired  # noqa: E402

STEPS = 20
SIZES = [(1, 500, 2, 4), (32, 500, 4, 8)]
Values = dict[str, np.ndarray]
Fit = Callable[[], Values]


def start(n_latent: int, n_features: int, seed: int) -> Values:
    rng = np.random.default_rng(seed)
    return {
        "transition": 0.9 * np.linalg.qr(rng.normal(size=(n_latent, n_latent)))[0],
        "transition_offset": np.zeros(n_latent),
        "state_noise": 0.3 * np.eye(n_latent),
        "emission": rng.normal(size=(n_features, n_latent)),
        "emission_offset": np.zeros(n_features),
        "observation_noise": 0.5 * np.eye(n_features),
        "initial_mean": np.zeros(n_latent),
        "initial_covariance": np.eye(n_latent),
    }


def ours(x: np.ndarray, begin: Values) -> Values:
    model = LinearSSM(begin["transition"].shape[0], x.shape[-1], observation_noise="full")
    fit = model.fit(x, prior=None, start=begin, restarts=1, max_steps=STEPS, tol=0.0, progress=False)
    return {name: value.numpy() for name, value in fit.model.values.items()}


PYKALMAN = {
    "transition": "transition_matrices",
    "transition_offset": "transition_offsets",
    "state_noise": "transition_covariance",
    "emission": "observation_matrices",
    "emission_offset": "observation_offsets",
    "observation_noise": "observation_covariance",
    "initial_mean": "initial_state_mean",
    "initial_covariance": "initial_state_covariance",
}


def by_pykalman(x: np.ndarray, begin: Values) -> Values:
    peer = KalmanFilter(**{PYKALMAN[name]: value for name, value in begin.items()}, em_vars=list(PYKALMAN.values()))
    peer.em(x[0], n_iter=STEPS)
    return {name: np.asarray(getattr(peer, own)) for name, own in PYKALMAN.items()}


def by_dynamax(x: np.ndarray, begin: Values, steps: int = STEPS) -> Fit:
    peer = LinearGaussianSSM(begin["transition"].shape[0], x.shape[-1])
    params, props = peer.initialize(
        jax.random.PRNGKey(0),
        initial_mean=jax.numpy.asarray(begin["initial_mean"]),
        initial_covariance=jax.numpy.asarray(begin["initial_covariance"]),
        dynamics_weights=jax.numpy.asarray(begin["transition"]),
        dynamics_bias=jax.numpy.asarray(begin["transition_offset"]),
        dynamics_covariance=jax.numpy.asarray(begin["state_noise"]),
        emission_weights=jax.numpy.asarray(begin["emission"]),
        emission_bias=jax.numpy.asarray(begin["emission_offset"]),
        emission_covariance=jax.numpy.asarray(begin["observation_noise"]),
    )
    emissions = jax.numpy.asarray(x)

    def fit() -> Values:
        found, _ = peer.fit_em(params, props, emissions, num_iters=steps, verbose=False)
        tables = {
            "transition": found.dynamics.weights,
            "transition_offset": found.dynamics.bias,
            "state_noise": found.dynamics.cov,
            "emission": found.emissions.weights,
            "emission_offset": found.emissions.bias,
            "observation_noise": found.emissions.cov,
            "initial_mean": found.initial.mean,
            "initial_covariance": found.initial.cov,
        }
        return {name: np.asarray(jax.block_until_ready(table)) for name, table in tables.items()}

    return fit


def evidence(values: Values, x: np.ndarray) -> float:
    if not all(np.isfinite(value).all() for value in values.values()):
        return float("nan")
    model = LinearSSM(values["transition"].shape[0], x.shape[-1], observation_noise="full")
    return float(model.with_values(values).log_evidence(torch.tensor(x)).sum())


def rows() -> Iterator[tuple[Row, str]]:
    for n_sequences, n_steps, n_latent, n_features in SIZES:
        true = LinearSSM(n_latent, n_features, observation_noise="full").with_values(start(n_latent, n_features, 0))
        x = true.simulate(n_steps, (n_sequences,), seed=0).x.numpy()
        begin = start(n_latent, n_features, 1)
        own = partial(ours, x, begin)
        peers: dict[str, Fit] = {"dynamax": by_dynamax(x, begin)}
        if n_sequences == 1 and n_steps <= 1000:
            peers["pykalman"] = partial(by_pykalman, x, begin)
        reached = evidence(own(), x)
        for peer, fit in peers.items():
            size = f"({n_sequences}, {n_steps}), L={n_latent} F={n_features}, {STEPS} steps"
            row = Row("EM of a linear model", size, peer, *paired(own, fit, 3.0), 1)
            if peer == "dynamax":
                once = paired(own, by_dynamax(x, begin, 1), 3.0)[1]
                bare = Row(row.work, size, "dynamax, compiled", row.ours_ms, max(row.peer_ms - once, 0.0), 1)
                yield bare, ""
            yield row, f"log p(x) {reached:.3f} here, {evidence(fit(), x):.3f} by {peer}"


def best_of_all() -> Iterator[str]:
    """Where `fit` ends that chooses its own starts, and where the start above leads after ten times as many steps."""
    for n_sequences, n_steps, n_latent, n_features in SIZES[:1]:
        true = LinearSSM(n_latent, n_features, observation_noise="full").with_values(start(n_latent, n_features, 0))
        x = true.simulate(n_steps, (n_sequences,), seed=0).x
        fit = LinearSSM(n_latent, n_features, "full").fit(x, prior=None, restarts=2, progress=False)
        truth = float(true.log_evidence(x).sum())
        yield f"of ({n_sequences}, {n_steps}) `fit` reaches {fit.loglik:.3f}; at the truth log p(x) is {truth:.3f}"


def main() -> None:
    found = list(rows())
    print(HEADER)
    for row, _ in found:
        print(row)
    print(
        "\n"
        + "".join(f"- {row.size}: {said}\n" for row, said in found if said)
        + "".join(f"- {s}\n" for s in best_of_all())
    )


if __name__ == "__main__":
    main()
