"""The observed one of two chains (Ghahramani & Hinton 2000, section 4.1), and the cost of filters and samplers:
`python tests/benchmarks/bench_switching.py`.

There are 200 sequences of 200 steps from two scalar chains, s_t = .99 s_t-1 + N(0, 1) and .9 s_t-1 + N(0, 10). One of
them is observed with noise of variance .1, and stays the observed one with probability .95. The parameters are known.
The table shows the share of steps at which the more probable regime is the true one, as a mean over sequences with its
standard error. It has whole sequences, and their first 12 steps alone. For 12 steps a GPB filter of order 12 enumerates
all paths. Filters of order n also use the n - 1 steps after a step. With many draws, Gibbs sampling approaches the
exact posterior. No rule based on x alone is right more often, on average, than the more probable regime of the exact
posterior.
"""

import time
from collections.abc import Callable
from pathlib import Path

import matplotlib
import torch
from samplehold.inference.chains.switching_gaussian import op, plain
from samplehold.switching.data.series import Series
from samplehold.switching.slds.gibbs import gibbs
from samplehold.switching.slds.gpb import gpb_filter, kim_smoother
from samplehold.switching.slds.inference import infer
from samplehold.switching.slds.joint import Regimes
from samplehold.switching.slds.layout import LinearRegimes
from timing import HEADER, Row, paired
from torch import Tensor

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "switching_experiment.png"
N, STEPS, FIRST, CHAINS, SWEEPS, WARMUP = 200, 200, 12, 4, 40, 15
LAYOUT = LinearRegimes(n_regimes=2, n_latent=1, n_features=1)


def parameters() -> dict[str, Tensor]:
    one, none = torch.ones(2, 1, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    noise = torch.tensor([1.0, 10.0], dtype=torch.float64).view(2, 1, 1)
    return {
        "initial_probs": torch.full((2,), 0.5, dtype=torch.float64),
        "transition_probs": torch.tensor([[0.95, 0.05], [0.05, 0.95]], dtype=torch.float64),
        "initial_mean": none,
        "initial_covariance": noise,
        "transition": torch.tensor([0.99, 0.9], dtype=torch.float64).view(2, 1, 1),
        "transition_offset": none,
        "state_noise": noise,
        "emission": one,
        "emission_offset": none,
        "observation_noise": none + 0.1,
    }


def variational(*starts: str) -> Callable[[Regimes, Tensor], Tensor]:
    return lambda regimes, x: infer(LAYOUT, parameters(), Series(x), starts).state


def sampled(regimes: Regimes, x: Tensor) -> Tensor:
    found = gibbs(regimes, x, draws=SWEEPS, warmup=WARMUP, chains=CHAINS, thin=SWEEPS, seed=1)
    if len(x) == N:
        most, worst = found.r_hat[:, 0].quantile(torch.tensor([0.5, 0.99], dtype=x.dtype)).tolist()
        print(
            f"Gibbs, {x.shape[1]} steps: split R-hat {most:.2f} of half of the sequences, up to {worst:.2f} of 99 %.\n"
        )
    return found.state


METHODS: dict[str, Callable[[Regimes, Tensor], Tensor]] = {
    "variational, random start": variational("random"),
    "variational, annealed": variational("annealed"),
    "variational, interpolated start": variational("interpolated"),
    "variational, the best bound of these": variational("random", "annealed", "interpolated"),
    "GPB(1)": lambda regimes, x: gpb_filter(regimes, x, 1).lagged_state,
    "GPB(2)": lambda regimes, x: gpb_filter(regimes, x, 2).lagged_state,
    "GPB(2), Kim's smoother": lambda regimes, x: kim_smoother(regimes, x).state,
    "GPB(8), fixed lag of 7": lambda regimes, x: gpb_filter(regimes, x, 8).lagged_state,
    f"Gibbs, {CHAINS} chains of {SWEEPS} sweeps": sampled,
}


def shares(state: Tensor, path: Tensor) -> Tensor:
    """Of steps at which the likelier regime is the true one, [N]."""
    return (state.argmax(-1) == path).double().mean(-1)


def mean_and_error(share: Tensor) -> str:
    return f"{float(share.mean()):.4f} ± {float(share.std() / len(share) ** 0.5):.4f}"


def experiment() -> None:
    regimes = LAYOUT.regimes(parameters())
    drawn = regimes.simulate(STEPS, (N,), seed=0)
    found, rows = {}, []
    for method in METHODS.values():
        method(regimes, drawn.x[:2, :20])  # what is imported at first use is not measured
    for name, method in METHODS.items():
        start = time.process_time()
        found[name] = shares(method(regimes, drawn.x), drawn.path)
        seconds = time.process_time() - start
        first = shares(method(regimes, drawn.x[:, :FIRST]), drawn.path[:, :FIRST])
        rows.append(f"| {name} | {mean_and_error(found[name])} | {mean_and_error(first)} | {seconds:.2g} |")
    exact = gpb_filter(regimes, drawn.x[:, :FIRST], FIRST).lagged_state
    rows.append(f"| all 2^12 paths | | {mean_and_error(shares(exact, drawn.path[:, :FIRST]))} | |")
    print("| method | share of 200 steps | share of the first 12 alone | processor seconds |\n|---|---:|---:|---:|")
    print("\n".join(rows))
    draw(found)
    print(f"\n![Share of steps in the right regime, by sequence, one panel a method](../figures/{FIGURE.name})\n")


def draw(found: dict[str, Tensor]) -> None:
    figure, axes = plt.subplots(3, 3, figsize=(10, 6.5), sharex=True, sharey=True, layout="constrained")
    bins = torch.linspace(0, 1, 41).numpy()
    for axis, (name, share) in zip(axes.flat, found.items(), strict=True):
        axis.hist(share.numpy(), bins=bins, color="#4878a8")
        axis.axvline(float(share.mean()), color="#c44e52", lw=1)
        axis.set_title(f"{name}: {float(share.mean()):.3f}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("share of steps in the right regime")
    for axis in axes[:, 0]:
        axis.set_ylabel("sequences")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=110)
    plt.close(figure)


def costs() -> None:
    """Kernels beside the same in torch, a loop over steps: no library at hand filters or samples these models."""
    regimes = LAYOUT.regimes(parameters())
    tables = regimes.tables()
    print(HEADER)
    for n_sequences, n_steps in ((200, 200), (1, 2000)):
        x = regimes.simulate(n_steps, (n_sequences,), seed=2).x
        ends = torch.full((n_sequences,), n_steps)
        for order in (1, 2, 4):
            ours, peer = (
                lambda order=order, x=x, ends=ends: op.filter(x, ends, tables, order, None),
                lambda order=order, x=x, ends=ends: plain.filter(tables, x, ends, order, None),
            )
            print(Row(f"GPB({order})", f"({n_sequences}, {n_steps}), K=2 L=2", "torch", *paired(ours, peer, 3.0), 0))
        ours = lambda x=x, ends=ends: op.smooth(x, ends, tables)
        peer = lambda x=x, ends=ends: plain.smooth(tables, x, ends)
        print(Row("Kim's smoother", f"({n_sequences}, {n_steps}), K=2 L=2", "torch", *paired(ours, peer, 3.0), 0))
    print()
    print("| a sweep of Gibbs | size | processor ms |\n|---|---|---:|")
    for n_sequences, n_steps in ((800, 200), (4, 10_000)):
        x = regimes.simulate(n_steps, (n_sequences,), seed=2).x
        for moves in ("alternating", "collapsed"):
            for particles in (0, 16) if moves == "collapsed" else (0,):
                run = lambda n, moves=moves, particles=particles, x=x: gibbs(
                    regimes, x, n, 0, 1, n, moves, particles, seed=0
                )
                run(4)
                few, many = seconds_of(lambda run=run: run(4)), seconds_of(lambda run=run: run(14))
                name = f"{moves}, {particles} particles" if particles else moves
                print(f"| {name} | ({n_sequences}, {n_steps}), K=2 L=2 | {100 * (many - few):.3g} |")


def seconds_of(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    experiment()
    costs()
