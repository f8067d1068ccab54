"""Every public function with arguments that it must take, drawn at random."""

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyro.distributions as dist
import reference
import samplehold as sh
import torch
from oracles.action_histories import every_history, every_run
from oracles.coupled import factorial_of, layered_of
from oracles.effort import effort
from oracles.machines import random_machine
from reference import close
from samplehold.inference import families
from samplehold.inference.scans.gated.op import gated_scan
from samplehold.switching.stacks.automaton import advance, start
from torch import Tensor, nn

Reference = Callable[[Mapping[str, Any], Any], str | None]


@dataclass(frozen=True)
class Call:
    """A function and arguments that it takes.

    Attributes:
        also: names, besides those of the arguments, that an error may start with.
        kept: arguments that are never spoiled.
        raises: what else the function says that it raises.
        finite: whether an answer to finite numbers holds no NaN.
        reference: from arguments and answer, what is wrong with it; None: nothing.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    also: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    raises: tuple[type[Exception], ...] = ()
    finite: bool = True
    reference: Reference | None = field(default=None, repr=False)


class Maker(NamedTuple):
    make: Callable[["Draw"], Call]
    weight: float


CALLS: dict[str, Maker] = {}


def function(name: str, weight: float = 1.0) -> Callable[[Callable[["Draw"], Call]], Callable[["Draw"], Call]]:
    def register(make: Callable[["Draw"], Call]) -> Callable[["Draw"], Call]:
        CALLS[name] = Maker(make, weight)
        return make

    return register


class Draw:
    """Valid arguments of every kind."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.dtype = random.choice((torch.float32, torch.float64))
        self.batch = random.choice(((), (1,), (2,), (3,), (2, 2), (0,)))
        self.T, self.K, self.F = random.randint(1, 5), random.randint(1, 3), random.randint(1, 2)
        self.emission_reads = False  # whether the emission of a model reads an input

    def one(self, *of: Any) -> Any:
        return self.random.choice(of)

    def table(self, *shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, dtype=self.dtype)

    def log_weights(self, *shape: int) -> Tensor:
        """Log-weights of which some are -inf, none of a first column."""
        scale = self.one(1.0, 1.0, 10.0, 300.0)
        table = self.table(*shape, scale=scale)
        if self.random.random() < 0.3 and table.numel():
            never = torch.rand(table.shape) < 0.2
            never[..., 0] = False
            table = table.masked_fill(never, -torch.inf)
        return table

    def probs(self, *shape: int) -> Tensor:
        table = torch.rand(*shape, dtype=torch.float64) + 0.05
        return (table / table.sum(-1, keepdim=True)).to(self.dtype)

    def lengths(self, batch: tuple[int, ...] | None = None, T: int | None = None) -> Any:
        batch, T = self.batch if batch is None else batch, self.T if T is None else T
        if self.random.random() < 0.5:
            return None
        lengths = torch.randint(1, T + 1, batch)
        return self.one(lengths, lengths.tolist() if lengths.numel() else lengths, lengths.numpy())

    def seed(self) -> Any:
        return self.one(0, 7, None, torch.Generator().manual_seed(3), np.int64(5))


# ---- chains, scans ---------------------------------------------------------------------------------------------------


def _told(given: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether numbers of the size of a chain's weights tell its states: what is promised is right to their rounding."""
    tables = [given[name] for name in names if name not in ("log_initial", "lengths")]
    sizes = [float(table.detach().double().nan_to_num(0, 0, 0).abs().amax()) for table in tables if table.numel()]
    return max(sizes, default=0.0) * sum(map(len, tables)) * 1e-16 < 1e-4


def _chain_call(r: Draw, kind: Any, arguments: dict[str, Any], truth: Any) -> Call:
    """A verb of a chain of such arguments; mean fields want no weights of -inf."""
    method = r.one(*CHAIN_VERBS)
    if method == "mean_field":
        for name, table in arguments.items():
            if isinstance(table, Tensor) and table.is_floating_point():
                arguments[name] = table.nan_to_num(neginf=-9)
    own: dict[str, Any] = {"sample": {"n": 3, "seed": r.seed()}, "mean_field": {"sweeps": 2}}.get(method, {})

    def run(**given: Any) -> Any:
        made = kind(**{name: given[name] for name in arguments})
        return getattr(made, method)(**{name: given[name] for name in own})

    def check(given: Mapping[str, Any], result: Any) -> str | None:
        if kind is sh.chains.MarkovChain and given["log_transition"].dim() != 2:  # a table for each step, or sequence
            return None
        total, state = truth(**{name: given[name] for name in arguments})
        if method == "log_normalizer" and not close(result, total):
            return f"log-normaliser {result.flatten().tolist()[:3]} for {total.flatten().tolist()[:3]}"
        if method == "smooth" and _told(given, arguments) and not close(result.state, state, 1e-3):
            return "state is not that of the reference"
        return None

    return Call(run, arguments | own, reference=check)


CHAIN_VERBS = ("log_normalizer", "log_normalizer", "smooth", "smooth", "filter", "marginals", "viterbi", "entropy")
CHAIN_VERBS += ("change_probability", "sample", "mean_field")


@function("CopyChain", 6)
def _(r: Draw) -> Call:
    arguments = {
        "log_initial": r.one(None, r.log_weights(*r.batch, r.K)),
        "log_fresh": r.log_weights(*r.batch, r.T, r.K),
        "log_held": r.log_weights(*r.batch, r.T, r.one(1, r.K)),
        "lengths": r.lengths(),
    }
    return _chain_call(r, sh.chains.CopyChain, arguments, reference.copy_chain)


@function("SegmentChain", 4)
def _(r: Draw) -> Call:
    by = r.one("step", "run")
    statistics = torch.rand(*r.batch, r.T, r.F, r.K + 1, dtype=r.dtype).round()
    arguments = {
        "prior": torch.rand(r.F, r.K + 1, dtype=r.dtype) + 0.1,
        "statistics": statistics,
        "log_hazard": r.probs(*r.batch, r.one(1, r.T) if by == "step" else r.K).log() - 0.1,
        "log_base": r.one(None, r.table(*r.batch, r.T)),
        "by": by,
        "lengths": r.lengths(),
        "tol": r.one(0.0, 1e-6, 0.1),
    }
    method = r.one("log_normalizer", "filter", "smooth", "viterbi", "entropy", "change_probability", "sample", "runs")
    own: dict[str, Any] = {"sample": {"n": 3, "seed": r.seed()}}.get(method, {})
    place = r.one("alone", "whole", "between")  # as a part of a longer series

    def run(**given: Any) -> Any:
        block = sh.chains.Block(families.Dirichlet(), given["prior"], given["statistics"])
        rest = {name: given[name] for name in arguments if name not in ("prior", "statistics")}
        made: Any = sh.chains.SegmentChain(block, **rest)
        if place != "alone":
            made = made.between(made.runs(), made.later()) if place == "between" else made.between(None, None)
        return getattr(made, method)(**{name: given[name] for name in own})

    return Call(run, arguments | own, also=("blocks",), finite=method != "sample")  # NaN after the end


@function("FactoredCopyChain", 6)
def _(r: Draw) -> Call:
    gates = r.one(1, r.T)
    redraw, hold = r.log_weights(*r.batch, gates), r.log_weights(*r.batch, gates)
    arguments = {
        "log_redraw": redraw.where(~(redraw.isinf() & hold.isinf()), 0.0),  # a step can be taken in one way at least
        "log_hold": hold,
        "log_state": r.log_weights(r.K),
        "log_likelihood": r.log_weights(*r.batch, r.T, r.K),
        "lengths": r.lengths(),
    }
    return _chain_call(r, sh.chains.FactoredCopyChain, arguments, reference.factored_copy_chain)


@function("MarkovChain", 6)
def _(r: Draw) -> Call:
    arguments = {
        "log_initial": r.log_weights(r.K),
        "log_transition": r.log_weights(r.K, r.K),
        "log_likelihood": r.log_weights(*r.batch, r.T, r.K),
        "lengths": r.lengths(),
    }
    return _chain_call(r, sh.chains.MarkovChain, arguments, reference.markov_chain)


@function("LinearGaussianChain", 3)
def _(r: Draw) -> Call:
    L, F = r.one(1, 2), r.F
    factor, noise = torch.randn(L, L, dtype=r.dtype), torch.randn(F, F, dtype=r.dtype)
    given = {
        "x": r.table(*r.batch, r.T, F),
        "transition": 0.5 * torch.eye(L, dtype=r.dtype),
        "state_noise": factor @ factor.mT,
        "emission": torch.randn(F, L, dtype=r.dtype),
        "observation_noise": noise @ noise.mT + torch.eye(F, dtype=r.dtype),
        "initial_mean": r.one(None, torch.zeros(L, dtype=r.dtype)),
        "initial_covariance": torch.eye(L, dtype=r.dtype),
        "lengths": r.lengths(),
    }
    method = r.one("log_normalizer", "filter", "smooth", "entropy")
    return Call(lambda **given: getattr(sh.chains.LinearGaussianChain(**given), method)(), given, finite=False)


@function("SwitchingLinearSSM", 4)
def _(r: Draw) -> Call:
    one_chain, recurrent = r.random.random() < 0.5, r.random.random() < 0.3
    k, shared = max(r.K, 2), "one chain" if one_chain or recurrent else "chain per regime"
    model = sh.SwitchingLinearSSM(k, r.one(1, 2), r.F, shared, recurrent=recurrent)
    values = {}
    for name, parameter in model.known.items():
        shape = [model.sizes[dim] for dim in parameter.dims]
        table = torch.rand(shape, dtype=r.dtype) + 0.1
        if "probs" in name:
            table = table / table.sum(-1, keepdim=True)
        elif name.endswith("covariance") or name == "state_noise":
            table = torch.eye(shape[-1], dtype=r.dtype).expand(shape)
        values[name] = 0.5 * table if name == "transition" else table
    if r.random.random() < 0.2:  # a companion form
        values["state_noise"] = values["state_noise"].clone()
        values["state_noise"][..., -1, -1] = 0.0
    model, given = model.with_values(values), {"x": r.table(*r.batch, r.T, r.F), "lengths": r.lengths()}
    method = r.one("log_evidence", "filter", "smooth", "viterbi", "forecast", "states", "read", "problem", "update")
    if method == "update":
        own = {"batch_shape": r.batch, "x_t": r.table(*r.batch, r.F)}
        return Call(_from_a_start(model.update), own, finite=False)
    given |= {"horizon": 2} if method == "forecast" else {}
    given |= {"order": r.one(None, 2, 3)} if method == "smooth" else {}
    return Call(getattr(model, method), given, finite=False)


@function("linear_scan", 3)
def _(r: Draw) -> Call:
    shape = (*r.batch, r.one(r.T, 0), r.F)
    given = {"a": r.table(*shape), "b": r.table(*shape), "h0": r.one(None, r.table(*r.batch, r.F))}

    def check(given: Mapping[str, Any], result: Any) -> str | None:
        expected = reference.recurrence(given["a"], given["b"], given["h0"])
        return _same_unless_too_large(result, expected)

    return Call(sh.linear_scan, given, finite=False, reference=check)


@function("lerp_scan", 3)
def _(r: Draw) -> Call:
    shape = (*r.batch, r.one(r.T, 0), r.F)
    given = {
        "gate": torch.rand(shape, dtype=r.dtype),
        "value": r.table(*shape),
        "h0": r.one(None, r.table(*r.batch, r.F)),
    }

    def check(given: Mapping[str, Any], result: Any) -> str | None:
        gate = given["gate"].detach().double()
        expected = reference.recurrence(1 - gate, gate * given["value"].detach().double(), given["h0"])
        return _same_unless_too_large(result, expected)

    return Call(sh.lerp_scan, given, finite=False, reference=check)


def _same_unless_too_large(result: Tensor, expected: Tensor) -> str | None:
    if not bool(expected.isfinite().all()) or (expected.numel() and float(expected.abs().amax()) > 1e30):
        return None
    return None if close(result, expected, 1e-4) else "not the states of the reference"


# ---- models ----------------------------------------------------------------------------------------------------------


DYNAMICS: dict[str, Any] = {
    "Copy": lambda r: sh.Copy(r.K),
    "Driven": lambda r: sh.Copy(r.K, inputs=1),
    "Markov": lambda r: sh.Markov(r.K),
    "DrivenMarkov": lambda r: sh.Markov(r.K, inputs=1),
    "Continuous": lambda r: sh.ContinuousMarkov(r.K),
}
READING: dict[str, Any] = {  # emissions with inputs
    "Normal": lambda r: sh.LinearRegression(r.F, inputs=1),
    "Bernoulli": lambda r: sh.Bernoulli(r.F, inputs=1),
    "Poisson": lambda r: sh.Poisson(r.F, inputs=1),
    "Categorical": lambda r: sh.Categorical(3, inputs=1),
}
GATED = "Gated", "GatedByState", "GatedTied", "GatedTiedByState"


def _values(r: Draw, dynamics: str, emission: str) -> dict[str, Any]:
    K, F = r.K, 1 if emission == "Categorical" else r.F
    own: dict[str, Any] = {
        "Copy": lambda: {"redraw_prob": r.one(0.3, torch.tensor(0.2)), "state_probs": r.probs(K)},
        "Driven": lambda: {"redraw_intercept": 0.1, "redraw_weights": [0.5], "state_probs": r.probs(K)},
        "Markov": lambda: {"initial_probs": r.probs(K), "transition_probs": r.probs(K, K)},
        "Continuous": lambda: {"initial_probs": r.probs(K), "rates": torch.rand(K, K, dtype=r.dtype).fill_diagonal_(0)},
        "DrivenMarkov": lambda: {
            "initial_probs": r.probs(K),
            "transition_probs": r.probs(K, K),
            "transition_weights": r.table(K, K, 1) * (1 - torch.eye(K, dtype=r.dtype)).unsqueeze(-1),
        },
    }[dynamics]()
    full = torch.eye(F, dtype=r.dtype).expand(K, F, F)

    def gated(n_backgrounds: int, tied: bool = False) -> dict[str, Any]:
        scales = {"scale": torch.ones(1 if tied else K, F, dtype=r.dtype)}
        if not tied:
            scales["background_scale"] = torch.ones(n_backgrounds, F, dtype=r.dtype)
        return scales | {"loc": r.table(K, F), "background_loc": r.table(n_backgrounds, F)}

    own |= {
        "Normal": lambda: {"loc": r.table(K, F), "scale": 0.5 + torch.rand(K, F, dtype=r.dtype)},
        "MultivariateNormal": lambda: {"loc": r.table(K, F), "covariance": full},
        "Bernoulli": lambda: {"probs": 0.1 + 0.8 * torch.rand(K, F, dtype=r.dtype)},
        "Poisson": lambda: {"rate": 0.5 + torch.rand(K, F, dtype=r.dtype)},
        "Categorical": lambda: {"probs": r.probs(K, 3)},
        "Gated": lambda: gated(1),
        "GatedByState": lambda: gated(K),
        "GatedTied": lambda: gated(1, tied=True),
        "GatedTiedByState": lambda: gated(K, tied=True),
    }[emission]()
    if r.emission_reads:
        own["coefficients"] = r.table(K, 2 if emission == "Categorical" else F, 1)
    return own


def _parts(r: Draw, *, emissions: tuple[str, ...] = ()) -> tuple[str, str, Any, Any]:
    names = emissions or ("Normal", "Normal", "MultivariateNormal", "Bernoulli", "Poisson", "Categorical", *GATED)
    emission = r.one(*names)
    copies = "Copy", "Copy", "Driven"
    dynamics = r.one(*copies) if emission in GATED else r.one(*copies, "Markov", "DrivenMarkov", "Continuous")
    tied = {"scale": "all states"}
    r.emission_reads = not emissions and emission in READING and r.random.random() < 0.3
    if r.emission_reads:
        return dynamics, emission, DYNAMICS[dynamics](r), READING[emission](r)
    made = {
        "Normal": lambda: sh.Normal(r.F),
        "MultivariateNormal": lambda: sh.MultivariateNormal(r.F),
        "Bernoulli": lambda: sh.Bernoulli(r.F),
        "Poisson": lambda: sh.Poisson(r.F),
        "Categorical": lambda: sh.Categorical(3),
        "Gated": lambda: sh.Gated(sh.Normal(r.F), sh.Normal(r.F)),
        "GatedByState": lambda: sh.Gated(sh.Normal(r.F), sh.Normal(r.F), by_state=True),
        "GatedTied": lambda: sh.Gated(sh.Normal(r.F), sh.Normal(r.F), tied=tied),
        "GatedTiedByState": lambda: sh.Gated(sh.Normal(r.F), sh.Normal(r.F), by_state=True, tied=tied),
    }[emission]()
    return dynamics, emission, DYNAMICS[dynamics](r), made


def _valued(r: Draw) -> tuple[str, str, sh.SwitchingSSM]:
    dynamics, emission, moves, made = _parts(r)
    return dynamics, emission, sh.SwitchingSSM(moves, made).with_values(_values(r, dynamics, emission))


def _fitted(model: Any) -> Callable[..., Any]:
    """The values of a fit, and its objective."""

    def run(**given: Any) -> Any:
        fit = model.fit(**given)
        return fit.model.values, fit.objective

    return run


def _from_a_start(verb: Callable[..., Any]) -> Callable[..., Any]:
    """`update` or `extend` of a model at its start."""
    model = verb.__self__
    return lambda batch_shape, **given: verb(model.start(batch_shape), **given)


def _x(r: Draw, emission: str, T: int | None = None, batch: tuple[int, ...] | None = None) -> Tensor:
    batch, T = r.batch if batch is None else batch, r.T if T is None else T
    shape = (*batch, T, 1 if emission == "Categorical" else r.F)
    x = {
        "Bernoulli": lambda: torch.randint(0, 2, shape).to(r.dtype),
        "Categorical": lambda: torch.randint(0, 3, shape).to(r.dtype),
        "Poisson": lambda: torch.randint(0, 5, shape).to(r.dtype),
    }.get(emission, lambda: r.table(*shape))()
    if r.random.random() < 0.3 and x.numel():
        x = x.masked_fill(torch.rand(shape) < 0.2, torch.nan)
    return x


DRIVEN = "Driven", "DrivenMarkov"


def _drive(r: Draw, dynamics: str, batch: tuple[int, ...], n: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if dynamics in DRIVEN or r.emission_reads:
        found["inputs"] = r.one(0.0, 2000.0) + r.table(*batch, n, 1)  # about 0, or a year
    if dynamics in ("Copy", "Driven") and r.random.random() < 0.4:
        found["dt"] = torch.rand(*batch, n, dtype=r.dtype) * 2
    if dynamics == "Continuous" and r.random.random() < 0.7:
        found["dt"] = 0.1 + torch.rand(*batch, n, dtype=r.dtype)
    return found


def _knowledge(r: Draw, emission: str) -> dict[str, Any]:
    """Known states, as numbers or as weights, weights of sequences or of steps, and variances of noise."""
    beside: dict[str, Any] = {}
    noisy = emission in ("Normal", *GATED) and not r.emission_reads
    if noisy and r.random.random() < 0.4:
        beside["noise"] = r.one(torch.rand(*r.batch, r.T), torch.rand(*r.batch, r.T, r.F) * 3)
    if r.random.random() < 0.5:
        beside["states"] = r.one(torch.randint(-1, r.K, (*r.batch, r.T)), torch.rand(*r.batch, r.T, r.K) + 0.01)
    if r.random.random() < 0.5 or not beside:
        beside["weights"] = r.one(torch.rand(r.batch) + 0.1, torch.randint(0, 3, (*r.batch, r.T)).to(r.dtype))
    return beside


VERBS = (
    "log_evidence",
    "log_evidence",
    "smooth",
    "smooth",
    "filter",
    "viterbi",
    "read",
    "chain",
    "durations",
    "states",
)


@function("SwitchingSSM", 12)
def _(r: Draw) -> Call:
    dynamics, emission, model = _valued(r)
    method = r.one(*VERBS)
    method = "smooth" if method == "durations" and 0 in r.batch else method
    given = {"x": _x(r, emission), "lengths": r.lengths()} | _drive(r, dynamics, r.batch, r.T)

    def check(given: Mapping[str, Any], result: Any) -> str | None:
        x = given["x"]
        plain = isinstance(x, Tensor) and x.dim() > 1 and x.dtype in (torch.float32, torch.float64)
        if not plain or r.emission_reads or dynamics in DRIVEN or emission in ("MultivariateNormal", *GATED):
            return None
        if method not in ("log_evidence", "smooth") or (given["lengths"] is not None and x.dim() == 2):
            return None
        gaps = given.get("dt")
        if gaps is not None and (not isinstance(gaps, Tensor) or dynamics == "Continuous"):
            return None
        total, state = reference.model(dynamics, emission, model.values, x.detach(), given["lengths"], gaps)
        if float(total.abs().max() if total.numel() else 0) > 1e12:
            return None
        if method == "log_evidence":
            return None if close(result, total, 1e-4) else f"log p(x) {result.tolist()} for {total.tolist()}"
        return None if close(result.state, state, 1e-3) else "state is not that of the reference"

    return Call(getattr(model, method), given, reference=check)


@function("SwitchingSSM with known states and weights", 6)
def _(r: Draw) -> Call:
    dynamics, emission, model = _valued(r)
    method = r.one(*(verb for verb in VERBS if verb != "durations"), "sample_posterior", "forecast")
    given = {"x": _x(r, emission)} | _knowledge(r, emission)
    given |= {"forecast": {"horizon": 2}, "sample_posterior": {"n": 2}}.get(method, {})
    if method != "forecast":
        return Call(getattr(model, method), given | {"lengths": r.lengths()} | _drive(r, dynamics, r.batch, r.T))
    return Call(model.forecast, given | _drive(r, dynamics, r.batch, r.T + 2))


@function("forecast", 2)
def _(r: Draw) -> Call:
    dynamics, emission, model = _valued(r)
    given = {"x": _x(r, emission), "horizon": 2} | _drive(r, dynamics, r.batch, r.T + 2)
    if len(given) == 2:
        given["lengths"] = r.lengths()
    if r.random.random() < 0.3:
        options = {"level": 0.8, "n": 50, "seed": r.seed()}
        return Call(lambda level, n, seed, **own: model.forecast(**own).interval(level, n, seed), given | options)
    if r.random.random() < 0.3 and emission != "Categorical":
        p = r.one(0.5, 0.01, np.float32(0.9))
        return Call(lambda p, **own: model.forecast(**own).observation.quantile(p), given | {"p": p})
    return Call(model.forecast, given)


@function("sample_posterior", 1)
def _(r: Draw) -> Call:
    dynamics, emission, model = _valued(r)
    drive = _drive(r, dynamics, r.batch, r.T)
    return Call(
        model.sample_posterior, {"x": _x(r, emission), "n": 3, "seed": r.seed(), "lengths": r.lengths()} | drive
    )


@function("simulate", 2)
def _(r: Draw) -> Call:
    dynamics, _, model = _valued(r)
    drive = _drive(r, dynamics, r.batch, r.T)
    return Call(model.simulate, {"n_steps": r.T, "batch_shape": r.batch, "seed": r.seed()} | drive)


@function("update", 2)
def _(r: Draw) -> Call:
    dynamics, emission, model = _valued(r)
    drive = {"inputs": r.table(*r.batch, 1)} if dynamics in DRIVEN or r.emission_reads else {}
    x_t = _x(r, emission)[..., 0, :]
    if r.random.random() < 0.5:
        return Call(model.update, {"state": model.start(r.batch), "x_t": x_t} | drive)
    return Call(_from_a_start(model.update), {"batch_shape": r.batch, "x_t": x_t} | drive)


@function("with_values", 4)
def _(r: Draw) -> Call:
    dynamics, emission, moves, made = _parts(r)
    model = sh.SwitchingSSM(moves, made)
    return Call(lambda **values: model.with_values(**values).values, _values(r, dynamics, emission), also=("values",))


@function("with_prior", 1)
def _(r: Draw) -> Call:
    _, _, moves, made = _parts(r)
    model = sh.SwitchingSSM(moves, made)
    names = tuple(model.prior)
    return Call(lambda prior: model.with_prior(prior).prior, {"prior": dict(model.prior)}, also=names)


@function("scaled_to", 1)
def _(r: Draw) -> Call:
    _, emission, moves, made = _parts(r)
    x = _x(r, emission, batch=(2,))
    x = x.nan_to_num(1.0) if bool(x.flatten(0, -2).isnan().all(0).any()) else x  # a prior is scaled to something
    return Call(lambda **given: sh.SwitchingSSM(moves, made).scaled_to(**given).prior, {"x": x})


PLAIN = sh.Bernoulli, sh.Poisson, sh.StudentT, sh.Gamma, sh.Exponential, sh.LogNormal, sh.Beta, sh.VonMises
PLAIN += sh.NegativeBinomial, sh.Geometric


@function("constructors", 6)
def _(r: Draw) -> Call:
    final = r.one((), [max(2, r.K) - 1])
    made = {
        sh.Copy: {
            "n_states": r.K,
            "redraw_prior": (1.0, 2.0),
            "state_prior": r.one(1.0, [1.0] * r.K),
            "inputs": r.one(1, ["dose"]),
        },
        sh.Markov: {
            "n_states": r.K,
            "initial_prior": 1.0,
            "transition_prior": 0.5,
            "sticky": 2.0,
            "inputs": r.one(0, 2, ["dose"]),
            "initial": r.one("free", "stationary", [1.0 / r.K] * r.K),
            "mask": r.one(None, [[True] * r.K] * r.K),
        },
        sh.StickyHDP: {
            "max_states": 1 + r.K,
            "base_prior": r.one((1.0, 1.0), [2.0, 0.5]),
            "row_prior": (1.0, 0.1),
            "sticky_prior": (10.0, 1.0),
        },
        sh.ContinuousMarkov: {
            "n_states": r.K,
            "mask": r.one(None, [[True] * r.K] * r.K),
            "absorbing": (),
            "initial": r.one("free", [1.0 / r.K] * r.K),
            "initial_prior": 1.0,
            "rate_prior": r.one(None, (2.0, 1.0)),
            "inputs": r.one(0, 1, ["dose"]),
        },
        sh.SemiMarkov: {
            "n_states": max(2, r.K),
            "duration": r.one(sh.Poisson(), sh.Geometric(), sh.NegativeBinomial(), sh.Categorical(5)),
            "first_segment": r.one("whole", "cut"),
            "last_segment": "cut" if final else r.one("cut", "whole"),
            "absorbing": final,
            "initial_prior": 1.0,
            "transition_prior": 0.5,
        },
        sh.Normal: {"n_features": 2, "covariance": r.one("diagonal", "spherical")},
        sh.MultivariateNormal: {"n_features": 2, "covariance": r.one("full", "diagonal", "spherical", "tied")},
        **{kind: {"n_features": 2} for kind in PLAIN},
        sh.Categorical: {"n_categories": 3, "prior": r.one(1.0, [1.0, 2.0, 1.0])},
        sh.FactorAnalysis: {"n_features": 3, "n_factors": 1},
        sh.Multinomial: {"n_features": 2, "total": 5},
        sh.ZeroInflated: {"emission": sh.Gamma(1)},
        sh.Mixture: {"emission": sh.Normal(1), "n": 2},
        sh.Joint: {"step": sh.Gamma(1), "angle": sh.VonMises(1)},
        sh.DeviationAR: {"n_states": 2, "order": 2, "switching": r.one((), "scale", ["coefficients", "scale"])},
        sh.AutoRegressive: {
            "order": 2,
            "n_features": r.F,
            "inputs": r.one(0, 1, ["dose"]),
            "lags": r.one("all", "own"),
            "switching": r.one("scale", ["intercept", "coefficients", "scale"]),
        },
        sh.Gated: {"emission": sh.Normal(1), "background": sh.Normal(1)},
        sh.SwitchingSSM: {"dynamics": sh.Copy(2), "emission": sh.Normal(1)},
    }
    kind = r.one(*made)
    return Call(kind, made[kind])


@function("fit", 1.5)
def _(r: Draw) -> Call:
    r.batch = r.one((), (2,))
    dynamics, emission, moves, made = _parts(r)
    x = _x(r, emission, T=12)
    given = {
        "x": torch.where(x.isnan(), x.new_ones(()), x),
        "method": r.one("em", "em", "vmp"),
        "restarts": 1,
        "max_steps": 2,
        "tol": 1e-6,
        "seed": r.seed(),
        "prior": "weak",
        "progress": False,
    }
    model = sh.SwitchingSSM(moves, made)
    if dynamics in DRIVEN or r.emission_reads:
        given["inputs"] = r.table(*r.batch, 12, 1)
    if dynamics in ("DrivenMarkov", "Continuous") or (r.emission_reads and emission != "Normal"):
        given["method"] = "em"
    if r.random.random() < 0.3:
        r.T = 12
        given |= _knowledge(r, emission if given["method"] == "em" else "")
    return Call(_fitted(model), given)


@function("filter_vmp", 2)
def _(r: Draw) -> Call:
    emission = r.one("Normal", *GATED, "Poisson")
    _, emission, _, made = _parts(r, emissions=(emission,))
    model = sh.SwitchingSSM(sh.Copy(r.K), made).with_values(_values(r, "Copy", emission))
    gate = r.one("posterior", "input", torch.rand(*r.batch, r.T, dtype=r.dtype))
    given = {
        "model": model,
        "x": _x(r, emission),
        "gate": gate,
        "sweeps": 2,
        "form": r.one("mean_field", "conditional"),
    }
    return Call(sh.filter_vmp, given | {"lengths": r.lengths()})


@function("fit from a start", 0.7)
def _(r: Draw) -> Call:
    r.batch, r.K = (), 2
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(r.F))
    values = {"loc": r.table(2, r.F), "scale": torch.ones(2, r.F)}
    start = r.one(values, torch.arange(12) % 2, ([0, 1, -1] * 4))
    given = {"x": r.table(12, r.F), "start": start, "restarts": 1, "max_steps": 2, "progress": False}
    if isinstance(start, dict):
        given["fixed"] = r.one(None, {"redraw_prob": 0.3})
    names = ("values", "loc", "scale", "redraw_prob")
    return Call(lambda **given: model.fit(**given).model.values, given, also=names)


_FITS: dict[str, Any] = {}


def _fit(method: str) -> Any:
    """A small fit, made once."""
    if method not in _FITS:
        model, x = sh.SwitchingSSM(sh.Copy(2), sh.Normal()), torch.arange(12.0) % 5
        _FITS[method] = model.fit(x, method=method, restarts=1, max_steps=3, progress=False)
    return _FITS[method]


@function("Fit", 1.5)
def _(r: Draw) -> Call:
    fit, x = _fit(r.one("em", "vmp")), r.table(*r.batch, r.T, 1)
    method = r.one("summary", "forecast", "smooth", "states", "log_evidence", "residuals", "diagnose")
    if method == "summary":
        return Call(lambda level: str(fit.summary(level)), {"level": 0.8})
    if method == "diagnose":
        return Call(lambda seed: str(fit.diagnose(seed=seed)), {"seed": r.seed()})
    if method == "residuals":
        given = {"x": r.one(None, x), "seed": r.seed()}
        return Call(lambda **given: fit.residuals(**given).values.to_numpy(), given)
    return Call(getattr(fit, method), {"x": r.one(None, x)} | ({"horizon": 2} if method == "forecast" else {}))


@function("Fit's tables and verbs", 1)
def _(r: Draw) -> Call:
    fit, x = _fit(r.one("em", "vmp")), r.table(*r.batch, r.T, 1)
    method = r.one("conf_int", "table", "interval", "simulate", "sample_posterior", "viterbi", "durations", "filter")
    if method == "conf_int":
        return Call(lambda level: fit.conf_int(level).to_numpy(), {"level": 0.8})
    if method == "table":
        return Call(lambda x, horizon, level: fit.forecast(x, horizon).table(level).to_numpy(), _ahead(r, x))
    if method == "interval":
        return Call(
            lambda x, horizon, level: fit.forecast(x, horizon).interval(level).to_frame().to_numpy(), _ahead(r, x)
        )
    if method == "simulate":
        return Call(fit.simulate, {"n_steps": r.one(None, 4), "seed": r.seed()}, kept=("n_steps",))
    options = {"n": 3, "seed": r.seed()} if method == "sample_posterior" else {}
    return Call(getattr(fit, method), {"x": r.one(None, x)} | options)


def _ahead(r: Draw, x: Any) -> dict[str, Any]:
    return {"x": r.one(None, x), "horizon": 2, "level": 0.8}


@function("Fit.update", 0.5)
def _(r: Draw) -> Call:
    r.K = 2
    fit, x = _fit(r.one("em", "vmp")), r.table(*r.batch, r.T, 1)
    options = {"exponent": r.one(1.0, 0.6)} if fit.posterior is None else {"max_steps": 2, "tol": 1e-6}
    given = {"x": x, "forgetting": r.one(1.0, 0.5)} | options
    if r.random.random() < 0.3:
        given |= _knowledge(r, "")
    return Call(lambda **given: fit.update(**given).values, given, kept=("max_steps", "tol"))  # None is their default


@function("Residuals", 0.5)
def _(r: Draw) -> Call:
    found = _fit("em").residuals()
    method = r.one("acf", "ljung_box")
    return Call(lambda lags: getattr(found, method)(lags).to_numpy(), {"lags": r.one(1, 4)})


@function("select", 0.3)
def _(r: Draw) -> Call:
    given = {
        "x": r.table(14, 1),
        "candidates": r.one([1, 2], range(1, 3)),
        "criterion": r.one("aic", "bic", "icl", "heldout"),
        "folds": 2,
        "seed": r.seed(),
        "prior": "weak",
        "restarts": 1,
        "max_steps": 2,
    }

    def run(**given: Any) -> Any:
        return sh.select(lambda k: sh.SwitchingSSM(sh.Copy(k), sh.Normal(1)), **given).table.loglik.to_numpy()

    return Call(run, given, also=("n_states",))


@function("backtest", 0.3)
def _(r: Draw) -> Call:
    given = {
        "x": r.table(14, 1),
        "refit_every": r.one(1, 20),
        "horizon": r.one(1, [1, 2], (2,)),
        "window": r.one(None, 10),
        "first": r.one(None, 12),
        "level": 0.8,
        "seed": r.seed(),
        "restarts": 1,
        "max_steps": 2,
    }
    model = sh.SwitchingSSM(sh.Copy(2), r.one(sh.Normal(1), sh.MultivariateNormal(1)))

    def run(**given: Any) -> Any:
        return sh.backtest(model, **given).means.to_numpy()

    return Call(run, given)


@function("fit by draws", 0.15)
def _(r: Draw) -> Call:
    r.batch = r.one((), (2,))
    dynamics, emission, moves, made = _parts(r)
    x, method = _x(r, emission, T=8), r.one("nuts", "svi", "svi", "svi")
    given: dict[str, Any] = {
        "x": torch.where(x.isnan(), x.new_ones(()), x),
        "method": method,
        "restarts": 1,
        **effort(method, 4),
        "seed": r.seed(),
        "prior": "weak",
        "progress": False,
    }
    if dynamics in DRIVEN or r.emission_reads:
        given["inputs"] = r.table(*r.batch, 8, 1)
    return Call(_fitted(sh.SwitchingSSM(moves, made)), given)


@function("posterior", 1.5)
def _(r: Draw) -> Call:
    posterior, x = _fit("vmp").posterior, r.table(*r.batch, r.T, 1)
    method = r.one("sample", "interval", "smooth", "forecast", "log_likelihood")
    own: dict[str, Any] = {
        "sample": {"n": 3, "seed": r.seed()},
        "interval": {"level": 0.8, "n": 20, "seed": r.seed(), "correct": False},
        "smooth": {"x": x},
        "forecast": {"x": x, "horizon": 2, "draws": 3, "seed": r.seed()},
        "log_likelihood": {"x": x, "draws": 3, "seed": r.seed()},
    }[method]
    return Call(getattr(posterior, method), own)


@function("one of a forecast", 0.5)
def _(r: Draw) -> Call:
    r.batch, r.K = r.one((), (2,), (2, 2)), 2
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(r.F)).with_values(_values(r, "Copy", "Normal"))
    x = _x(r, "Normal")
    made = r.one(model.forecast(x, 2), model.read(x))
    return Call(lambda sequence: made.one(sequence) is None, {"sequence": 0})


@function("program", 0.7)
def _(r: Draw) -> Call:
    r.batch = r.one((), (2,))
    dynamics, emission, model = _valued(r)
    given = {"n_steps": r.T, "batch_shape": r.batch} if r.random.random() < 0.5 else {"x": _x(r, emission)}
    return Call(model, given | _drive(r, dynamics, r.batch, r.T), also=("n_steps", "x"), finite=False)


@function("read_panel", 2)
def _(r: Draw) -> Call:
    frame = pd.DataFrame({"who": list("aab"), "t": [0, 1, 0], "u": [0.5, None, 1.5], "v": [1, 2, 3]})
    frame["u"] = r.one(frame["u"], frame["u"].astype("Float64"), frame["v"].astype("Int64"))
    frame = r.one(frame, pl.DataFrame({"who": list("aab"), "t": [0, 1, 0], "u": [0.5, None, 1.5], "v": [1, 2, 3]}))
    given = {"frame": frame, "sequence": "who", "time": r.one("t", None), "columns": r.one(["u"], ["u", "v"])}
    return Call(lambda **given: sh.read_panel(**given).observations.nan_to_num(), given)


@function("open_sequences", 2)
def _(r: Draw) -> Call:
    frame = pd.DataFrame({"who": list("aab"), "t": [0, 1, 0], "u": [0.5, None, 1.5], "v": [1, 2, 3]})
    source = r.one(frame, pl.from_pandas(frame), frame.to_dict("list"))
    if isinstance(source, dict):
        source = [
            {name: column[:2] for name, column in source.items()},
            {n: column[2:] for n, column in source.items()},
        ]
    given = {"source": source, "sequence": "who", "time": r.one("t", None), "columns": r.one(["u"], ["u", "v"])}
    if r.random.random() < 0.4:
        items = [r.table(r.random.randint(1, 4), 2) for _ in range(3)]
        given = {"source": r.one(r.table(5), r.table(4, 2), r.table(2, 3, 2), items, dict(enumerate(items)))}
    return Call(lambda **given: sh.open_sequences(**given).observations.nan_to_num(), given, also=("x", "frame"))


@function("frames", 3)
def _(r: Draw) -> Call:
    r.batch, r.F = (), 2
    r.K = 2
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)).with_values(_values(r, "Copy", "Normal"))
    n = 4
    numbers = np.arange(2.0 * n).reshape(n, 2)
    index = r.one(None, pd.date_range("2020-01-01", periods=n), pd.Index(range(1990, 1990 + n), name="year"))
    frame = pd.DataFrame(numbers, columns=["a", "b"], index=index)
    x: Any = r.one(
        frame,
        frame.astype("Float64"),
        pl.DataFrame(numbers, schema=["a", "b"]),
        [pl.DataFrame(numbers), pl.DataFrame(numbers).to_arrow()],
        [frame, frame.iloc[:2]],
        {"one": frame, "two": frame.iloc[:3]},
        [numbers, numbers[:2]],
        [numbers.tolist(), numbers[:1].tolist()],
        np.ma.array(numbers, mask=numbers > 6),
        frame.set_axis(pd.MultiIndex.from_product([["p", "q"], [0, 1]], names=["who", "t"])),
    )
    return Call(getattr(model, r.one("log_evidence", "states", "smooth")), {"x": x})


# ---- models of several chains ----------------------------------------------------------------------------------------

COUPLED_VERBS = ("log_evidence", "smooth", "filter", "viterbi", "states", "infer", "read")


def _coupled_verb(r: Draw, model: Any, emission: str) -> Call:
    x = _x(r, emission)
    if emission != "Normal" and x.isnan().any():
        x = torch.where(x.isnan().any(-1, keepdim=True), torch.nan, x)
    method = r.one(*COUPLED_VERBS, "simulate", "forecast", "sample_posterior", "bottom_up")
    if method == "bottom_up" and not hasattr(model, "bottom_up"):
        method = "log_evidence"
    own: dict[str, Any] = {"x": x, "lengths": r.lengths()}
    if method == "simulate":
        own = {"n_steps": r.T, "batch_shape": r.batch, "seed": r.seed()}
    elif method == "forecast":
        own |= {"horizon": 2}
    elif method == "sample_posterior":
        own |= {"n": 2, "seed": r.seed()}
    elif method == "infer":
        own |= {"max_steps": 3, "tol": 1e-6}
    elif method == "bottom_up":
        own |= {"passed": r.one("redrawn", "state")}
    return Call(getattr(model, method), own)


def _factorial(r: Draw) -> dict[str, Any]:
    precision = None if r.random.random() < 0.4 else torch.eye(r.F, dtype=r.dtype)
    return {
        "redraw_prob": torch.tensor([0.2, 0.3], dtype=r.dtype),
        "state_probs": [r.probs(2), r.probs(r.K)],
        "loc": [r.table(2, r.F), r.table(r.K, r.F)],
        "precision": precision,
    }


def _layered(r: Draw) -> dict[str, Any]:
    return {
        "emission": sh.Normal(r.F),
        "values": {"loc": r.table(2, r.F), "scale": torch.ones(2, r.F, dtype=r.dtype)},
        "redraw_prob": torch.tensor([0.4, 0.2], dtype=r.dtype),
        "tables": [r.probs(r.K, 2)],
        "state_probs": r.probs(r.K),
    }


@function("FactorialSSM", 2)
def _(r: Draw) -> Call:
    x = torch.ones(2, r.F, dtype=r.dtype)
    model = factorial_of(**_factorial(r))
    return Call(lambda **given: model.with_values(given).log_evidence(x), dict(model.values), also=("loc", "x"))


@function("LayeredSSM", 2)
def _(r: Draw) -> Call:
    x, model = torch.ones(2, r.F, dtype=r.dtype), layered_of(**_layered(r))
    return Call(lambda **given: model.with_values(given).log_evidence(x), dict(model.values), also=("scale", "x"))


@function("FactorialSSM verbs", 3)
def _(r: Draw) -> Call:
    given = _factorial(r)

    def check(asked: Mapping[str, Any], result: Any) -> str | None:
        x = asked["x"]
        if not isinstance(x, Tensor) or x.dtype != r.dtype or x.dim() < 2 or x.isnan().any() or x.abs().gt(1e6).any():
            return None
        if not x.numel() or (asked["lengths"] is not None and x.dim() == 2):
            return None
        total, _ = reference.factorial(given, x.detach(), asked["lengths"])
        return None if close(result, total, 1e-3) else f"log p(x) {result.tolist()} for {total.tolist()}"

    call = _coupled_verb(r, factorial_of(**given), "Poisson" if given["precision"] is None else "Normal")
    if getattr(call.function, "__name__", "") == "log_evidence":
        return Call(call.function, call.arguments, reference=check)
    return call


@function("LayeredSSM verbs", 3)
def _(r: Draw) -> Call:
    return _coupled_verb(r, layered_of(**_layered(r)), "Normal")


@function("coupled fit", 0.5)
def _(r: Draw) -> Call:
    r.batch = r.one((), (2,))
    given = _factorial(r)
    counts = given["precision"] is None
    model = r.one(factorial_of(**given), layered_of(**_layered(r)))
    x = _x(r, "Poisson" if counts and isinstance(model, sh.FactorialSSM) else "Normal", T=12)
    x = torch.where(x.isnan(), x.new_ones(()), x)
    options = {"method": r.one("em", "vmp"), "restarts": 1, "max_steps": 2, "seed": r.seed(), "progress": False}
    options["prior"] = r.one("weak", {"redraw_prob": dist.Beta(1.0, 9.0)})
    return Call(_fitted(model), {"x": x} | options)


@function("with_prior of distributions", 0.5)
def _(r: Draw) -> Call:
    rows, one, inverse = dist.Dirichlet(torch.ones(2)), dist.Gamma(2.0, 1.0), dist.InverseGamma(2.0, 1.0)
    model, priors = r.one(
        (
            sh.SwitchingLinearSSM(2, 1, r.F),
            {"transition_probs": rows, "observation_noise": inverse},
        ),
        (sh.FactorialSSM([2, 2], sh.Poisson(r.F)), {"redraw_prob": dist.Beta(1.0, 9.0), "rate_1": one}),
        (sh.LayeredSSM([2, 2], sh.Normal(r.F)), {"table_1": rows, "precision": one}),
        (sh.LinearSSM(2, r.F), {"emission_offset": dist.Normal(0.0, 1.0)}),
    )
    return Call(lambda prior: repr(model.with_prior(prior)), {"prior": priors}, also=tuple(priors))


# ---- linear models -------------------------------------------------------------------------------------------------


def _structure(r: Draw) -> Any:
    season = r.one(sh.Seasonal(2), sh.Seasonal(4, trigonometric=True))
    forms = sh.LocalLevel(irregular=False), sh.LocalLinearTrend(stochastic_level=False), sh.Cycle(5, damped=True)
    usual = sh.LocalLevel(), sh.LocalLinearTrend(), sh.Autoregression(2), sh.LocalLevel() + season
    return r.one(*usual, *forms, sh.LocalLevel() + sh.Regression(1), sh.Cycle((4, 9)))


def _linear_values(r: Draw, model: Any) -> dict[str, Any]:
    found = {}
    for name, parameter in model.known.items():
        shape = [model.sizes[dim] for dim in parameter.dims]
        square = (len(shape) == 2 and "noise" in name) or name.endswith("covariance")
        size = 0.9 if name == "frequency.cycle" else 0.3
        table = torch.eye(*shape, dtype=r.dtype) if square else torch.full(shape, size, dtype=r.dtype)
        found[name] = table if parameter.dims else r.one(size, table)
    return found


def _linear(r: Draw) -> Any:
    structure = r.random.random() < 0.4
    r.F = 1 if structure else r.F
    model = sh.LinearSSM(_structure(r)) if structure else sh.LinearSSM(r.K, r.F, r.one("diagonal", "full"))
    return model.with_values(_linear_values(r, model))


LINEAR_VERBS = ("log_evidence", "filter", "smooth", "read", "chain", "states", "forecast", "sample_posterior")


@function("LinearSSM verbs", 5)
def _(r: Draw) -> Call:
    model = _linear(r)
    method = r.one(*LINEAR_VERBS, "simulate", "update")
    short = r.lengths() if isinstance(model.dynamics, sh.LinearGaussian) else None  # a structure needs some steps
    own: dict[str, Any] = {"x": r.table(*r.batch, 8, r.F), "lengths": short}
    rows = {"forecast": (10,), "simulate": (r.T,), "update": ()}.get(method, (8,))
    inputs = {"inputs": r.table(*r.batch, *rows, model.n_inputs)} if model.n_inputs else {}
    if method == "simulate":
        own = {"n_steps": r.T, "batch_shape": r.batch, "seed": r.seed()}
    elif method == "forecast":
        own |= {"horizon": 2}
    elif method == "sample_posterior":
        own |= {"n": 2, "seed": r.seed()}
    elif method == "update":
        own = {"batch_shape": r.batch, "x_t": r.table(*r.batch, r.F)} | inputs
        return Call(_from_a_start(model.update), own, finite=False)
    own |= inputs
    return Call(getattr(model, method), own, also=("transition", "x"), finite=False)


@function("LinearSSM values", 3)
def _(r: Draw) -> Call:
    model = r.one(sh.LinearSSM(sh.LocalLevel() + sh.Autoregression(2)), sh.LinearSSM(r.K, r.F))
    values = _linear_values(r, model)
    return Call(lambda **given: model.with_values(given).values, values, also=("values", "sigma2", "ar"))


@function("constructors of linear models", 5)
def _(r: Draw) -> Call:
    either = r.one(False, True)
    made: dict[Any, dict[str, Any]] = {
        sh.LinearSSM: {"n_latent": r.K, "n_features": r.F, "observation_noise": r.one("diagonal", "full")},
        sh.Seasonal: {"period": 6, "trigonometric": either},
        sh.LocalLevel: {"stochastic": either, "irregular": True},
        sh.LocalLinearTrend: {"stochastic_level": either, "stochastic_trend": r.one(False, True), "irregular": True},
        sh.Cycle: {"period": r.one(7.5, (4, 9)), "damped": either, "stochastic": True},
        sh.Regression: {"inputs": r.K, "varying": either},
        sh.Autoregression: {"order": r.K},
        sh.LinearGaussian: {"n_latent": r.K},
    }
    kind = r.one(*made)
    return Call(lambda **given: repr(kind(**given)), made[kind])


@function("linear fit", 0.7)
def _(r: Draw) -> Call:
    r.batch = r.one((), (2,))
    structure = r.random.random() < 0.4
    r.F = 1 if structure else r.F
    model = sh.LinearSSM(r.one(sh.LocalLevel(), sh.Autoregression(1))) if structure else sh.LinearSSM(1, r.F)
    method = "em" if structure else r.one("em", "vmp")
    x = r.table(*r.batch, 12, r.F)
    options = {"method": method, "restarts": 1, "max_steps": 2, "seed": r.seed(), "progress": False}
    return Call(_fitted(model), {"x": x} | options)


def _segments(r: Draw) -> tuple[sh.Segments, Tensor, dict[str, Any]]:
    """A model with values, and observations that it takes."""
    kind = r.one(
        "Normal", "Poisson", "Bernoulli", "Categorical", "Exponential", "MultivariateNormal", "LinearRegression"
    )
    r.F = 1 if kind == "Categorical" else r.F
    arguments = {"Categorical": (3,), "LinearRegression": (r.F, ["a"])}.get(kind, (r.F,))
    emission, shape = getattr(sh, kind)(*arguments), (*r.batch, r.T, r.F)
    x = r.table(*shape)
    if kind in ("Poisson", "Bernoulli", "Categorical"):
        x = torch.randint(2, shape).to(r.dtype)
    x = x.abs() if kind == "Exponential" else x
    inputs = {"inputs": r.table(*r.batch, r.T, 1)} if kind == "LinearRegression" else {}
    law = r.one(0.2, 0.9, dist.Poisson(2.0), ["a"])
    model = sh.Segments(emission, law, tol=r.one(0.0, 1e-3), shared=r.one(False, True))
    chosen: dict[str, Any] = {name: 1.0 for name in model.known if not name.startswith("hazard")}
    special = {"df": r.F + 1.0, "inverse_scale": torch.eye(r.F, dtype=torch.float64)}
    model = model.with_prior(chosen | {name: special[name] for name in special if name in chosen})
    if law == ["a"]:
        model = model.with_values(hazard_intercept=r.one(-1.0, 2.0), hazard_weights=[r.one(0.5, -3.0)])
        inputs = {"inputs": r.table(r.T, 1).expand(*r.batch, r.T, 1).contiguous()}  # alike, if changes are shared
    return model, x, inputs


@function("Segments verbs", 5)
def _(r: Draw) -> Call:
    model, x, inputs = _segments(r)
    verbs = "log_evidence filter smooth viterbi sample_posterior segments states simulate forecast update extend"
    method = r.one(*verbs.split())
    if method == "extend":
        given = {"batch_shape": r.batch, "x": x} | inputs
        return Call(_from_a_start(model.extend), given, also=("prior",), finite=False)
    if method == "update":
        given = {"batch_shape": r.batch, "x_t": x[..., 0, :]}
        given |= {name: table[..., 0, :] for name, table in inputs.items()}
        return Call(_from_a_start(model.update), given, also=("prior", "x"), finite=False)
    own: dict[str, Any] = {"x": x, "lengths": r.lengths()} | inputs
    if method == "sample_posterior":
        own |= {"n": 2, "seed": r.seed()}
    if method == "simulate":
        own = {"n_steps": r.T, "batch_shape": r.batch, "seed": r.seed()} | inputs
    if method == "forecast":
        ahead = {name: torch.cat([table, table], -2) for name, table in inputs.items()}
        own = {"x": x, "horizon": r.T} | ahead
    return Call(getattr(model, method), own, also=("prior",), finite=False)


@function("Segments", 1)
def _(r: Draw) -> Call:
    given = {"emission": sh.Normal(r.F), "hazard": r.one(0.1, dist.Beta(1.0, 9.0), None), "tol": r.one(0.0, 1e-9)}
    return Call(lambda **given: repr(sh.Segments(**given)), given | {"shared": r.one(False, True)})


@function("Segments fit", 0.5)
def _(r: Draw) -> Call:
    r.batch = r.one((), (2,))
    model = sh.Segments(r.one(sh.Normal(r.F), sh.Exponential(r.F)), r.one(0.1, None))
    options = {"restarts": 1, "max_steps": 2, "seed": r.seed(), "progress": False}
    return Call(_fitted(model), {"x": r.table(*r.batch, 6, r.F).abs()} | options)


# ---- figures, files ------------------------------------------------------------------------------------------------


def _painted(figure: Any) -> None:
    """Drawn by Agg, for what only then is computed, and let go."""
    figure.savefig(BytesIO(), format="png", dpi=20)
    figure.clear()


def _some_model(r: Draw) -> tuple[Any, str, dict[str, Any]]:
    """A model with values, its emission, and what drives the steps of x, if anything."""
    kind = r.one("switching", "switching", "factorial", "layered")
    if kind == "switching":
        dynamics, emission, model = _valued(r)
        return model, emission, _drive(r, dynamics, r.batch, r.T)
    if kind == "layered":
        return layered_of(**_layered(r)), "Normal", {}
    given = _factorial(r)
    return factorial_of(**given), "Poisson" if given["precision"] is None else "Normal", {}


def _whole_steps(x: Tensor) -> Tensor:
    return torch.where(x.isnan().any(-1, keepdim=True), torch.nan, x)


@function("figures", 0.3)
def _(r: Draw) -> Call:
    r.batch, r.T = r.one((), (2,), (2, 2)), max(r.T, 2)
    model, emission, drive = _some_model(r)
    given = {"x": _whole_steps(_x(r, emission)), "sequence": 0, "level": 0.8}
    method = r.one("plot", "plot_forecast") if not drive else "plot"
    own = drive if drive else {"lengths": r.lengths()}
    own |= {"horizon": 2} if method == "plot_forecast" else {}
    return Call(lambda **given: _painted(getattr(model, method)(**given)), given | own)


@function("figures of fits", 0.2)
def _(r: Draw) -> Call:
    fit, x = _fit(r.one("em", "vmp")), r.table(*r.one((), (2,)), 4, 1)
    given = {"sequence": 0, "level": 0.8}
    if r.random.random() < 0.5:
        return Call(lambda **given: _painted(fit.plot(**given)), given | {"x": r.one(None, x)})
    made = fit.forecast(x, 2)
    return Call(lambda **given: _painted(made.plot(**given)), given)


@function("figures of stacks", 0.2)
def _(r: Draw) -> Call:
    r.batch = r.one((), (2,))
    kind = r.one("mixture", "automaton", "histories")
    if kind == "automaton":
        made: Any = sh.stacks.PushdownAutomaton(**_automaton(r))
        own: dict[str, Any] = {"steps": r.one(None, [f"step {t}" for t in range(r.T)])}
    else:
        made = sh.stacks.StackMixture(**_mixture(r))
        own = {"steps": r.one(None, [f"step {t}" for t in range(r.T)])}
    if kind == "histories":
        made = made.sample(5, seed=0)
        own = {"step": -1, "names": r.one(None, [f"step {t}" for t in range(r.T)]), "most": 3}
    return Call(lambda **given: _painted(made.plot(**given)), {"sequence": (0,) * len(r.batch)} | own)


@function("figure of a comparison", 0.1)
def _(r: Draw) -> Call:
    model = _symbols(r)
    report = sh.compare(model, sh.as_rnn(model), torch.randint(0, 3, (2, 4, 1)).double())
    return Call(lambda **given: _painted(report.plot(**given)), {"sequence": 0, "steps": r.one(None, slice(1, 3))})


@function("to_arviz", 0.3)
def _(r: Draw) -> Call:
    r.batch = r.one((), (2,), (2, 2))
    if r.random.random() < 0.3:
        source: Any = _fit(r.one("em", "vmp"))
        given = {"x": r.one(None, r.table(*r.batch, r.T, 1)), "predictive": r.one(True, False)}
    else:
        source, emission, given = _some_model(r)
        given = {"x": _whole_steps(_x(r, emission)), "lengths": r.lengths()} | given
    options = {"draws": 4, "seed": r.seed()}
    return Call(lambda **given: list(source.to_arviz(**given).groups()), given | options)


_FOLDER = TemporaryDirectory()


@function("files", 1)
def _(r: Draw) -> Call:
    model, _, _ = _some_model(r)
    folder = Path(_FOLDER.name)
    if r.random.random() < 0.5:
        return Call(_inside(folder, model.save), {"path": folder / r.one("model", "another/model")}, raises=(OSError,))
    model.save(folder / "saved")
    load = r.one(type(model).load, sh.load)
    return Call(_inside(folder, lambda path: load(path).name), {"path": folder / "saved"})


@function("saved fits", 0.3)
def _(r: Draw) -> Call:
    fit, folder = _fit(r.one("em", "vmp")), Path(_FOLDER.name)

    def back(path: Any, data: bool) -> str:
        fit.save(path, data=data)
        return str(sh.load(path).summary())

    return Call(_inside(folder, back), {"path": folder / "fit", "data": r.one(True, False)}, raises=(OSError,))


def _inside(folder: Path, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a folder as the current one, in which there is what is no model."""

    def run(path: Any, **given: Any) -> Any:
        (folder / "empty").mkdir(exist_ok=True)
        (folder / "file").write_bytes(b"no model")
        with chdir(folder):
            return function(path, **given)

    return run


# ---- stacks ----------------------------------------------------------------------------------------------------------


def _mixture(r: Draw) -> dict[str, Any]:
    r.T = min(r.T, 3)
    D = r.one(0, 0, 1, 2)
    return {
        "log_action": r.table(*r.batch, r.T, 3).log_softmax(-1),
        "values": r.table(*r.batch, r.T, r.F),
        "initial": r.table(*r.batch, D, r.F) if D else None,
        "on_empty": "noop" if not D else r.one("noop", "forbid"),
        "capacity": None,
        "lengths": r.lengths(),
    }


@function("StackMixture", 5)
def _(r: Draw) -> Call:
    given = _mixture(r)
    method = r.one(
        "log_normalizer",
        "action_posterior",
        "top",
        "depth_distribution",
        "viterbi",
        "enumerate",
        "superposition",
        "sample",
        "read_likelihood",
        "condition",
    )
    own: dict[str, Any] = {
        "superposition": {"depth": 2},
        "sample": {"n": 2, "seed": r.seed()},
        "read_likelihood": {"reads": r.table(*r.batch, r.T, r.F), "scale": 0.5},
        "condition": {
            "log_likelihood": r.table(
                *r.batch, r.T, r.T + 1 + (0 if given["initial"] is None else given["initial"].shape[-2])
            )
        },
    }.get(method, {})

    def run(**given: Any) -> Any:
        asked = {name: given.pop(name) for name in own}
        found = getattr(sh.stacks.StackMixture(**given), method)(**asked)
        return found.log_normalizer() if method == "condition" else found

    def check(given: Mapping[str, Any], result: Any) -> str | None:
        if given["values"].dim() != 2 or given["lengths"] is not None or method not in ("log_normalizer", "top"):
            return None
        action, initial = given["log_action"].detach().double(), given["initial"]
        if given["capacity"] is not None or len(action) > 4:
            return None
        found = every_history(action, given["values"], initial, given["on_empty"], None)
        expected = found.log_normalizer if method == "log_normalizer" else found.top
        return None if close(result, expected, 1e-4) else f"{method} is not that of all histories"

    return Call(run, given | own, reference=check)


@function("stack_program", 1)
def _(r: Draw) -> Call:
    r.batch = r.batch if 0 not in r.batch else ()
    mixture = sh.stacks.StackMixture(**_mixture(r))
    given = {"mixture": mixture, "reads": r.one(None, torch.zeros_like(mixture.values)), "scale": 0.5}
    return Call(sh.stacks.stack_program, given)


def _automaton(r: Draw) -> dict[str, Any]:
    r.T, Q, G = min(r.T, 3), r.one(1, 2), r.one(1, 2)
    return {
        "log_initial": r.table(*r.batch, Q, G),
        "log_push": r.table(*r.batch, r.T, Q, G, Q, G),
        "log_replace": r.table(*r.batch, r.T, Q, G, Q, G),
        "log_pop": r.table(*r.batch, r.T, Q, G, Q),
        "lengths": r.lengths(),
    }


@function("PushdownAutomaton", 4)
def _(r: Draw) -> Call:
    given = _automaton(r)
    method = r.one("log_normalizer", "reading", "marginals", "top", "transition_posterior", "viterbi", "sample")
    own = {"n": 2, "seed": r.seed()} if method == "sample" else {}

    def run(**given: Any) -> Any:
        asked = {name: given.pop(name) for name in own}
        return getattr(sh.stacks.PushdownAutomaton(**given), method)(**asked)

    def check(given: Mapping[str, Any], result: Any) -> str | None:
        tables = {name: given[name].detach().double() for name in ("log_initial", "log_push", "log_replace", "log_pop")}
        if tables["log_pop"].dim() != 4 or given["lengths"] is not None or method != "log_normalizer":
            return None
        expected = every_run(**tables).log_normalizer
        return None if close(result, expected, 1e-4) else f"log Z {result.tolist()} for {expected}"

    return Call(run, given | own, reference=check)


@function("automaton steps", 2)
def _(r: Draw) -> Call:
    given = _automaton(r) | {"n_steps": 2}
    given.pop("lengths")
    axis = len(r.batch)
    step = {name: given[name].select(axis, 0) for name in ("log_push", "log_replace", "log_pop")}

    def run(log_initial: Any, n_steps: Any, **step: Any) -> Any:
        return advance(start(log_initial, n_steps), **step).reading

    return Call(run, {"log_initial": given["log_initial"], "n_steps": 2} | step)


@function("histories", 1)
def _(r: Draw) -> Call:
    drawn = sh.stacks.StackMixture(**_mixture(r)).viterbi()
    return Call(drawn.cells, {"depth": 2})


# ---- networks --------------------------------------------------------------------------------------------------------


def _layer_options(r: Draw, kind: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"input_size": r.F, "hidden_size": 4, "num_layers": r.one(1, 2), "bias": r.one(True, False)}
    own |= {"batch_first": r.one(True, True, False), "dtype": r.dtype, "bidirectional": r.one(False, False, True)}
    own |= {"dropout": r.one(0.0, 0.5) if own["num_layers"] > 1 else 0.0}
    if kind in (sh.MinGRU, sh.MinLSTM):
        own["candidate"] = r.one("linear", "tanh", "positive", "simplex")
        own["block"] = r.one(None, 2) if own["candidate"] == "simplex" else None
    if kind is sh.QRNN:
        own |= {"pooling": r.one("f", "fo", "ifo"), "window": r.one(1, 2)}
    return own


LAYERS = (sh.MinGRU, sh.MinLSTM, sh.RotatingGRU, sh.QRNN, sh.GRU, sh.LSTM, sh.Elman, sh.PeepholeLSTM, sh.DoublingLSTM)


@function("layers", 4)
def _(r: Draw) -> Call:
    kind = r.one(*LAYERS)
    return Call(lambda **given: len(list(kind(**given).parameters())), _layer_options(r, kind))


@function("networks", 8)
def _(r: Draw) -> Call:
    kind = r.one(*LAYERS)
    options = _layer_options(r, kind)
    torchs = kind in (sh.GRU, sh.LSTM, sh.Elman)
    batch = r.one((), (2,), (0,)) if torchs else r.batch
    layer = kind(**options).requires_grad_(False).eval()
    if r.random.random() < 0.3 and not options["bidirectional"]:
        return Call(layer.step, {"x": r.table(*batch, r.F)}, finite=False)
    x = r.table(*batch, r.T, r.F)
    lengths = r.lengths(batch)
    rows = options["num_layers"] * (1 + options["bidirectional"])
    if kind in (sh.LSTM, sh.PeepholeLSTM, sh.DoublingLSTM):
        hx = tuple(r.table(rows, *batch, 4) for _ in range(2))
    elif kind is sh.QRNN:
        hx = layer.initial_state(*batch)
    else:
        hx = r.table(rows, *batch, 4)
    given = {"x": x if options["batch_first"] else x.movedim(-2, 0), "hx": r.one(None, hx), "lengths": lengths}

    def check(given: Mapping[str, Any], result: Any) -> str | None:
        if 0 in result[0].shape or result[0].isnan().any() or not options["batch_first"] or options["bidirectional"]:
            return None
        state, inside = given["hx"], given["lengths"]
        for t in range(given["x"].shape[-2]):
            out, state = layer.step(given["x"][..., t, :], state)
            if inside is None and not close(result[0][..., t, :], out, 1e-3):
                return f"step {t} of the whole is not that of `step`"
        return None

    return Call(layer, given, finite=False, reference=check)


def _of_centroids(r: Draw, *kinds: Any) -> dict[str, Any]:
    return {
        "cell": r.one(*kinds)(r.F, 4, batch_first=r.one(True, False), dtype=r.dtype).requires_grad_(False),
        "n_states": 3,
        "temperature": r.one(0.5, 1.0, 1e-3),
        "similarity": r.one("dot", "cosine", "l2"),
        "mode": r.one("soft", "sample", "hard"),
        "learn_temperature": r.one(True, False),
    }


@function("StateRegularized", 3)
def _(r: Draw) -> Call:
    given = _of_centroids(r, sh.Elman, sh.GRU, sh.LSTM, sh.PeepholeLSTM, sh.MinGRU, sh.MinLSTM)
    if r.random.random() < 0.3:
        return Call(lambda **given: len(list(sh.StateRegularized(**given).parameters())), given)
    layer = sh.StateRegularized(**given).requires_grad_(False)
    if r.random.random() < 0.3:
        return Call(layer.step, {"x": r.table(*r.batch, r.F), "h": None}, finite=False)
    x = r.table(*r.batch, r.T, r.F)
    given = {"x": x if layer.batch_first else x.movedim(-2, 0), "hx": None, "lengths": r.lengths()}
    given |= {"mode": r.one("soft", "sample", "hard"), "seed": r.seed()}
    return Call(layer.run, given, finite=False)


@function("gated_scan", 2)
def _(r: Draw) -> Call:
    gate = r.one("redraw", "hold", "ratio", "free")
    given = {
        "pre": r.table(*r.batch, r.T, 4 * (2 if gate in ("redraw", "hold") else 3)),
        "h0": r.table(*r.batch, 4),
        "gate": gate,
        "candidate": r.one("linear", "tanh", "positive", "simplex"),
    }
    given["block"] = 2 if given["candidate"] == "simplex" else None
    return Call(gated_scan, given, finite=False)


@function("stack layers", 2)
def _(r: Draw) -> Call:
    options = {
        sh.stacks.SuperpositionStackRNN: {
            "value_size": 2,
            "stacks": 1,
            "n_read": 1,
            "most_pops": 1,
            "empty": 0.0,
            "capacity": r.one(None, 3),
        },
        sh.stacks.StratificationStackRNN: {"value_size": 2, "stacks": 2},
        sh.stacks.NondeterministicStackRNN: {
            "states": 1,
            "symbols": 2,
            "value_size": r.one(0, 2),
            "normalized": True,
            "reading": r.one("configuration", "symbol"),
            "stacks": r.one(1, 2),
        },
    }
    kind = r.one(*options)
    given = {"input_size": 2, "hidden_size": 3, "num_layers": r.one(1, 2), "bias": True, "batch_first": True}
    given |= {"dropout": 0.0, "dtype": r.dtype}
    return Call(lambda **given: len(list(kind(**given).parameters())), given | options[kind])


@function("stack networks", 3)
def _(r: Draw) -> Call:
    kind = r.one(sh.stacks.SuperpositionStackRNN, sh.stacks.StratificationStackRNN, sh.stacks.NondeterministicStackRNN)
    layer = kind(r.F, 3, value_size=r.one(1, 2)).to(r.dtype).requires_grad_(False)
    x = r.table(*r.batch, r.T, r.F)
    method = r.one("forward", "step", "run", "mixture", "strengths")
    if method == "step":
        return Call(layer.step, {"x": r.table(*r.batch, r.F), "h": None}, finite=False)
    if method == "mixture" and hasattr(layer, "mixture"):
        return Call(layer.mixture, {"x": x, "lengths": r.lengths()}, finite=False)
    if method == "strengths" and hasattr(layer, "strengths"):
        return Call(layer.strengths, {"x": x, "lengths": r.lengths()}, finite=False)
    given = {"x": x, "hx": None, "lengths": r.lengths()}
    return Call(layer if method == "forward" else layer.run, given, finite=False)


# ---- bridge ----------------------------------------------------------------------------------------------------------


def _minimal(r: Draw, n_tokens: int, units: int = 2) -> Any:
    kind = r.one(sh.MinGRU, sh.MinLSTM)
    return kind(
        n_tokens, units, candidate=r.one("linear", "tanh", "positive", "simplex"), dtype=r.dtype
    ).requires_grad_(False)


def _tokens(r: Draw, n: int) -> Any:
    tokens = torch.randint(0, n, (*r.batch, r.T))
    return r.one(tokens, tokens.tolist() if tokens.numel() else tokens, tokens.double())


@function("as_ssm", 2)
def _(r: Draw) -> Call:
    given = {"layer": _minimal(r, 3), "token_probs": r.one(None, [0.2, 0.3, 0.5], torch.ones(3)), "inputs": "tokens"}
    return Call(lambda **given: sh.as_ssm(**given).hidden([0, 1, 2]), given)


@function("as_ssm of gaussian inputs", 1)
def _(r: Draw) -> Call:
    layer = sh.MinGRU(3, 2, candidate=r.one("linear", "tanh"), dtype=r.dtype).requires_grad_(False)
    method = r.one("candidate", "gate_log_odds", "gap")

    def run(x: Any, **given: Any) -> Any:
        return getattr(sh.as_ssm(**given), method)(x)

    return Call(run, {"layer": layer, "inputs": "gaussian", "x": r.table(*r.batch, r.T, 3)}, finite=False)


@function("LiftedNetwork", 3)
def _(r: Draw) -> Call:
    layers, F = r.one(1, 2), r.F
    layer = r.one(
        lambda: sh.MinGRU(F, 4, layers, candidate=r.one("linear", "tanh", "positive", "simplex"), dtype=r.dtype),
        lambda: sh.MinLSTM(F, 4, layers, candidate=r.one("linear", "simplex"), dtype=r.dtype),
        lambda: sh.QRNN(F, 4, layers, pooling=r.one("f", "fo"), window=r.one(1, 2), dtype=r.dtype),
    )().requires_grad_(False)
    lifted = sh.as_ssm(layer, inputs="given")
    given = {"x": r.table(*r.batch, r.T, F), "lengths": r.lengths()}
    if r.random.random() < 0.5:
        return Call(lifted.hidden, given)
    given["step"] = r.one(None, r.T - 1)
    return Call(lambda step, **given: [part.last_draw(step) for part in lifted.layers(**given)], given)


@function("LiftedStates", 2)
def _(r: Draw) -> Call:
    layer = sh.StateRegularized(**_of_centroids(r, sh.Elman, sh.GRU, sh.MinGRU)).requires_grad_(False)
    x = r.table(*r.batch, r.T, r.F)
    given = {"x": x if layer.batch_first else x.movedim(-2, 0), "lengths": r.lengths()}
    if r.random.random() < 0.5:
        return Call(
            lambda **given: sh.compare(sh.as_ssm(layer), layer, **given).network.divergence, given, finite=False
        )
    given |= {"labels": r.one(None, torch.randint(0, 3, (*r.batch, r.T)))}
    given |= {"log_likelihood": r.one(None, r.table(*r.batch, r.T, 3))}
    return Call(lambda **given: sh.as_ssm(layer).chain(**given).smooth(), given, finite=False)


@function("Lifted", 3)
def _(r: Draw) -> Call:
    lifted = sh.as_ssm(_minimal(r, 3))
    method = r.one("hidden", "hidden", "log_evidence", "sample", "spanning")
    if method == "sample":
        return Call(lifted.sample, {"n_steps": r.T, "batch_shape": r.batch, "seed": r.seed()})
    h0 = torch.rand(1, *r.batch, 2, dtype=r.dtype) if r.random.random() < 0.5 else None
    if method == "spanning":
        return Call(lambda h0: lifted.spanning(h0).levels, {"h0": h0})
    given = {"tokens": _tokens(r, 3), "lengths": r.lengths()} | ({"h0": h0} if method == "hidden" else {})
    return Call(getattr(lifted, method), given)


def _symbols(r: Draw) -> Any:
    values = {"redraw_prob": 0.3, "state_probs": r.probs(2), "probs": r.probs(2, 3), "background_probs": r.probs(1, 3)}
    return sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Categorical(3), sh.Categorical(3))).with_values(values)


@function("as_rnn", 1)
def _(r: Draw) -> Call:
    given = {"model": _symbols(r), "space": r.one("probability", "logit"), "gate": r.one("exact", "linear")}
    return Call(lambda **given: sh.as_rnn(**given)(torch.eye(3, dtype=r.dtype)), given, finite=False)


@function("as_rnn of linear emissions", 1)
def _(r: Draw) -> Call:
    emission, own = r.one(
        (sh.Bernoulli(3), {"probs": r.probs(2, 3)}),
        (sh.Poisson(3), {"rate": 5 * r.probs(2, 3)}),
        (sh.Normal(3), {"loc": r.table(2, 3), "scale": torch.ones(2, 3)}),
    )
    background = {f"background_{name}": table[:1] for name, table in own.items()}
    values = {"redraw_prob": 0.3, "state_probs": r.probs(2)} | own | background
    model = sh.SwitchingSSM(sh.Copy(2), sh.Gated(emission, emission)).with_values(values)
    form = {"space": r.one("probability", "logit"), "gate": r.one("exact", "linear")}
    if r.one(True, False):
        model = sh.SwitchingSSM(sh.Copy(2), emission).with_values(
            {name: table for name, table in values.items() if not name.startswith("background_")}
        )
        form = {"space": "logit", "gate": "exact"}  # held steps emit from their state
    given = {"model": model} | form
    return Call(lambda **given: sh.as_rnn(**given).double()(torch.ones(4, 3).double()), given, finite=False)


@function("EvidenceGRU", 1)
def _(r: Draw) -> Call:
    layer = sh.EvidenceGRU(r.F, 2, dtype=r.dtype).requires_grad_(False)
    return Call(layer, {"x": r.table(*r.batch, r.T, r.F), "lengths": r.lengths()}, finite=False)


@function("LogitGRU", 1)
def _(r: Draw) -> Call:
    layer = sh.LogitGRU(r.F, 2, dtype=r.dtype).requires_grad_(False)
    return Call(layer, {"x": r.table(*r.batch, r.T, r.F), "lengths": r.lengths()}, finite=False)


@function("token_marginal", 0.5)
def _(r: Draw) -> Call:
    return Call(sh.token_marginal, {"model": _symbols(r)})


@function("one_hot", 2)
def _(r: Draw) -> Call:
    return Call(sh.one_hot, {"tokens": _tokens(r, 3), "n_tokens": 3, "lengths": r.lengths(), "dtype": r.dtype})


@function("redrawn_start", 1)
def _(r: Draw) -> Call:
    return Call(sh.redrawn_start, {"layer": _minimal(r, r.F), "x": r.table(*r.batch, r.T, r.F)}, finite=False)


@function("compare", 0.7)
def _(r: Draw) -> Call:
    model = _symbols(r)
    layer = r.one(sh.as_rnn(model), sh.MinGRU(3, 2, candidate="simplex"), sh.GRU(3, 4))
    x = torch.randint(0, 3, (2, 12, 1)).double()
    return Call(
        lambda **given: sh.compare(**given).summary().to_numpy(),
        {"model": model, "layer": layer, "x": x, "reads": None, "inputs": r.one(None, sh.one_hot(x.squeeze(-1), 3))},
        finite=False,
    )


@function("compare_layers", 0.5)
def _(r: Draw) -> Call:
    values = {"probs": r.probs(2, 3), "background_probs": r.probs(1, 3)}
    emission = sh.Gated(sh.Categorical(3), sh.Categorical(3))
    model = layered_of(emission, values, torch.tensor([0.4, 0.2], dtype=r.dtype), [r.probs(2, 2)], r.probs(2))
    given = {
        "model": model,
        "network": sh.as_rnn(model),
        "x": torch.randint(0, 3, (*r.batch, r.T, 1)).double(),
        "lengths": r.lengths(),
    }
    return Call(sh.compare_layers, given)


@function("fit_probe", 0.5)
def _(r: Draw) -> Call:
    batch, T = r.one((), (3,)), 12
    given = {"state": r.table(*batch, T, 2), "belief": r.probs(*batch, T, 2), "inputs": r.table(*batch, T, 1)}
    return Call(sh.fit_probe, given | {"inside": r.one(None, torch.ones(*batch, T, dtype=torch.bool))}, also=("x",))


# ---- studies ---------------------------------------------------------------------------------------------------------


@function("forgetting", 2)
def _(r: Draw) -> Call:
    kind = r.one(sh.MinGRU, sh.MinLSTM, sh.QRNN, sh.GRU, sh.LSTM, sh.Elman)
    batch = r.one((), (2,))
    layer, x = kind(r.F, 3).to(r.dtype).requires_grad_(False), r.table(*batch, r.T, r.F)
    if r.random.random() < 0.3:
        return Call(
            sh.studies.truncation_bound, {"layer": layer, "x": x, "window": 2}, also=("layer_or_model",), finite=False
        )
    return Call(sh.studies.forgetting, {"layer_or_model": layer, "x": x, "tol": 0.1}, also=("layer",), finite=False)


@function("forgetting of a model", 1)
def _(r: Draw) -> Call:
    r.K = 2
    if r.random.random() < 0.5:
        emission = sh.Gated(sh.Bernoulli(r.F), sh.Bernoulli(r.F))
        model = sh.SwitchingSSM(sh.Copy(2), emission).with_values(
            redraw_prob=0.2, state_probs=[0.5, 0.5], probs=[[0.2] * r.F, [0.9] * r.F], background_probs=[[0.5] * r.F]
        )
        return Call(
            sh.studies.forgetting, {"layer_or_model": model, "x": _x(r, "Bernoulli"), "tol": 0.1}, also=("layer",)
        )
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(r.F)).with_values(_values(r, "Copy", "Normal"))
    return Call(sh.studies.forgetting, {"layer_or_model": model, "x": _x(r, "Normal"), "tol": 0.1}, also=("layer",))


@function("truncate", 1)
def _(r: Draw) -> Call:
    layer = r.one(*LAYERS)(r.F, 4).to(r.dtype).requires_grad_(False)
    x = r.table(*r.one((), (2,)), r.T, r.F)
    return Call(lambda x, **given: sh.truncate(**given)(x), {"layer": layer, "window": 2, "x": x}, finite=False)


@function("saturated", 1)
def _(r: Draw) -> Call:
    kinds = [kind for kind in LAYERS if kind not in (sh.PeepholeLSTM, sh.RotatingGRU)]
    network = r.one(*kinds)(r.F, 4).to(r.dtype).requires_grad_(False)
    if r.random.random() < 0.3:
        return Call(sh.automata.state_box, {"network": network, "lowest": -1.0, "highest": 2.0}, finite=False)
    return Call(
        sh.automata.counter_machine, {"network": network, "x": r.table(*r.one((), (2,)), r.T, r.F)}, finite=False
    )


@function("counters", 1)
def _(r: Draw) -> Call:
    if r.random.random() < 0.3:
        given = {"kinds": r.one(1, 2), "words": ["".join(r.random.choices("()", k=r.T))]}
        makers = (sh.automata.dyck_lstm, sh.automata.shuffle_dyck_lstm, sh.automata.shuffle_dyck_elman)
        make_brackets = r.one(*makers)
        if r.random.random() < 0.3:
            network = make_brackets(1)
            return Call(sh.automata.count_states, {"network": network, "longest": r.one(0, 3)})
        return Call(lambda kinds, words: make_brackets(kinds).accepts(words), given)
    make, language = r.one(
        (sh.automata.counting_lstm, "anbnw"), (sh.automata.counting_lstm, "anbn"), (sh.automata.counting_qrnn, "anbn")
    )
    given = {"language": language, "words": ["".join(r.random.choices("ab", k=r.T))]}
    return Call(lambda language, words: make(language).accepts(words), given)


@function("machines", 2)
def _(r: Draw) -> Call:
    transitions = {
        "go": {"0": ("go", "1", "R"), "1": ("go", "0", "R"), ".": ("back", ".", "L")},
        "back": {"0": ("back", "0", "L"), "1": ("back", "1", "L"), ".": ("yes", ".", "R")},
    }
    given = {"transitions": transitions, "start": "go", "accept": "yes"}
    given |= {"word": "".join(r.random.choices("01", k=r.T))}

    def run(word: Any, **given: Any) -> Any:
        network = sh.as_rnn(sh.automata.TuringMachine(**given))
        *_, end = network.run(word)
        return network.configuration(end).tape

    return Call(run, given, also=("reject", "blank", "most"))


@function("stacks in a number", 1)
def _(r: Draw) -> Call:
    given = {"value": r.one(0.0, 0.25, 0.75), "n_symbols": r.one(2, 3), "symbol": r.one(0, 1)}
    return Call(lambda value, n_symbols, symbol: sh.automata.FractionStack(value, n_symbols).push(symbol).top, given)


@function("stability", 1)
def _(r: Draw) -> Call:
    network = r.one(sh.GRU, sh.LSTM, sh.Elman)(2, 3)
    if r.random.random() < 0.5:
        return Call(
            lambda **given: len(list(sh.studies.stabilize(**given).parameters())),
            {"network": network, "input_bound": 1.0, "slack": 0.01},
        )
    return Call(sh.studies.stability, {"network": network, "input_bound": 1.0})


@function("stable", 1)
def _(r: Draw) -> Call:
    kind = r.one(sh.Elman, sh.LSTM, sh.GRU, sh.MinGRU, sh.QRNN)
    x = r.table(*r.one((), (2,)), r.T, 2)
    given = {"network": kind(2, 3).to(r.dtype), "norm": "inf", "lipschitz": 0.9, "input_bound": 1.0}
    return Call(lambda **given: sh.stable(**given)(x)[0].detach(), given, finite=False)


@function("gradient_memory", 0.5)
def _(r: Draw) -> Call:
    kind = r.one(sh.MinGRU, sh.MinLSTM, sh.QRNN, sh.GRU, sh.LSTM, sh.Elman)
    layer, x = kind(r.F, 3).to(r.dtype).requires_grad_(False), r.table(*r.one((), (2,)), r.T, r.F)
    ages = r.one(None, [1], sorted({1, r.T}))
    return Call(sh.studies.gradient_memory, {"layer": layer, "x": x, "ages": ages}, also=("layer_or_model",))


@function("past_in_gates", 0.5)
def _(r: Draw) -> Call:
    layer = r.one(sh.MinGRU, sh.MinLSTM, sh.QRNN)(r.F, 3, num_layers=2).to(r.dtype).requires_grad_(False)
    given = {"network": layer, "x": r.table(*r.one((), (2,)), r.T, r.F)}
    return Call(sh.studies.past_in_gates, given, also=("layer", "x"))


@function("information_sweep", 0.2)
def _(r: Draw) -> Call:
    given = {
        "separations": [0.5, 2.0],
        "spread": 2.0,
        "redraw_prob": 0.2,
        "n_sequences": 2,
        "n_steps": 20,
        "seed": r.seed(),
    }
    return Call(sh.studies.information_sweep, given)


@function("price_of_exactness", 0.05)
def _(r: Draw) -> Call:
    given = {"redraw_probs": [0.3], "overlaps": [0.5], "n_units": 2, "n_steps": 2, "seed": r.seed(), "n_sequences": 4}
    return Call(sh.studies.price_of_exactness, given)


@function("train_next_token", 0.5)
def _(r: Draw) -> Call:
    x = torch.eye(3)[torch.randint(0, 3, (4, 5))]
    given = {"layer": sh.MinGRU(3, 2), "x": x, "n_steps": 2, "rate": 0.01, "seed": r.seed()}
    return Call(lambda **given: sh.studies.train_next_token(**given).loss, given, finite=False)


# ---- machines --------------------------------------------------------------------------------------------------------


def _acceptor(r: Draw, *kinds: Any) -> sh.automata.Acceptor:
    start, kind = r.one(0, 1), r.one(*(kinds or (sh.GRU, sh.LSTM, sh.Elman, sh.MinGRU, sh.QRNN)))
    return sh.automata.Acceptor(kind(2 + start, 3), nn.Linear(3, 1), "ab").to(r.dtype)


@function("Acceptor", 1)
def _(r: Draw) -> Call:
    network, words = _acceptor(r), ["", "a", "abba", "b"]
    if r.random.random() < 0.5:
        verb = r.one(network.forward, network.prefixes, network.accepts, network.states)
        return Call(lambda **given: verb(**given).detach(), {"words": words[: r.random.randint(1, 4)]})
    given = {"layer": network.layer, "readout": network.readout, "alphabet": r.one("ab", ["a", "b"])}
    return Call(
        lambda **given: sh.automata.Acceptor(**given)(["b"]).detach(), given, also=("layer.input_size", "words")
    )


@function("extract_automaton", 0.5)
def _(r: Draw) -> Call:
    given: dict[str, Any] = {"network": _acceptor(r, sh.GRU), "method": r.one("lstar", "clusters"), "n_clusters": 2}
    given |= {"alphabet": r.one(None, "a", ["b", "a"]), "max_queries": 300, "seed": 0}
    return Call(lambda **given: sh.automata.extract_automaton(**given).states, given)


@function("distances of machines", 0.5)
def _(r: Draw) -> Call:
    machine = random_machine(r.random.randint(1, 4), "ab", r.random.randint(0, 99))
    if r.random.random() < 0.6:
        other = random_machine(3, "ab", 5)
        return Call(
            lambda **given: sh.automata.distance(**given).share, {"dfa": machine, "target": other, "longest": 5}
        )
    given = {"machine": machine, "network": _acceptor(r, sh.GRU), "longest": None, "lengths": [4, 0], "n_words": 3}
    return Call(lambda **given: sh.automata.faithfulness(**given).lower, given | {"seed": r.seed()})


@function("plot_automaton", 0.1)
def _(r: Draw) -> Call:
    return Call(sh.automata.plot_automaton, {"machine": random_machine(2, "ab", 1), "ax": None})


@function("WeightedAutomaton", 1)
def _(r: Draw) -> Call:
    tables = {symbol: r.table(r.K, r.K) for symbol in "ab"}
    given = {"initial": r.table(r.K), "transitions": tables, "final": r.table(r.K)}
    if r.random.random() < 0.5:
        return Call(lambda **given: sh.automata.WeightedAutomaton(**given).values([""]), given, finite=False)
    automaton = sh.automata.WeightedAutomaton(**given)
    if r.random.random() < 0.5:
        return Call(automaton.values, {"words": ["", "ba", "a"]})
    return Call(automaton.totals, {"longest": 3})


@function("as_weighted_automaton", 0.5)
def _(r: Draw) -> Call:
    model = sh.SwitchingSSM(sh.Copy(2), sh.Categorical(2)).with_values(
        redraw_prob=0.3, state_probs=r.probs(2), probs=r.probs(2, 2)
    )
    given = r.one({"network": _acceptor(r, sh.MinGRU, sh.QRNN, sh.MinLSTM)}, {"network": model, "alphabet": "ab"})
    convert = sh.automata.as_weighted_automaton
    if r.random.random() < 0.5:
        return Call(lambda **given: sh.automata.as_second_order(convert(**given))(["", ""]), given)
    return Call(lambda **given: convert(**given).totals(2), given)


@function("spectral", 1)
def _(r: Draw) -> Call:
    exact = {"": 1.0, "a": 0.5, "aa": 0.25, "aaa": 0.125}
    given = r.one({"values": exact, "longest": None}, {"values": ["a", "", "aba", "b", "a"], "longest": None})
    given |= {"rank": 1, "alphabet": r.one(None, sorted({x for word in given["values"] for x in word}))}
    return Call(lambda **given: sh.automata.spectral(**given).values(["", "a"]), given | {"count": "words"})


@function("SweepNetwork", 0.7)
def _(r: Draw) -> Call:
    model = layered_of(
        sh.Gated(sh.Categorical(3), sh.Categorical(3)),
        {"probs": r.probs(2, 3), "background_probs": r.probs(1, 3)},
        torch.tensor([0.4, 0.2], dtype=r.dtype),
        [r.probs(2, 2)],
        r.probs(2),
    )
    x = torch.eye(3, dtype=r.dtype)[torch.randint(0, 3, (*r.batch, r.T))]
    return Call(sh.as_rnn(model), {"x": x, "between": r.one("softmax", "none")}, finite=False)


@function("regressions", 1)
def _(r: Draw) -> Call:
    regression = sh.studies.SoftmaxRegression(r.table(2, 3), r.table(2))
    method = r.one("from_logistic", "gaussian_classes", "categorical_classes")
    own = {
        "from_logistic": {"weight": r.table(3), "bias": r.table()},
        "gaussian_classes": {"covariance": torch.eye(3, dtype=r.dtype), "shift": r.one(None, r.table(3))},
        "categorical_classes": {"sizes": r.one((3,), [1, 2]), "shift": r.one(None, r.table(3))},
    }[method]
    return Call(getattr(regression, method), own)


@function("loglinear", 2)
def _(r: Draw) -> Call:
    kind = r.one("gaussian", "categorical", "softmax")
    if kind == "gaussian":
        given = {"log_prior": r.probs(2).log(), "mean": r.table(2, r.F), "covariance": torch.eye(r.F, dtype=r.dtype)}
        x = r.table(*r.batch, r.F)
        return Call(lambda x, **own: sh.studies.GaussianClasses(**own).log_posterior(x), given | {"x": x})
    if kind == "categorical":
        given = {"log_prior": r.probs(2).log(), "log_table": r.probs(2, 3).log(), "sizes": (3,)}
        x = torch.eye(3, dtype=r.dtype)[torch.randint(0, 3, r.batch)]
        return Call(lambda x, **own: sh.studies.CategoricalClasses(**own).log_posterior(x), given | {"x": x})
    given = {"weight": r.table(2, r.F), "bias": r.table(2), "x": r.table(*r.batch, r.F)}
    return Call(lambda x, **own: sh.studies.SoftmaxRegression(**own).log_posterior(x), given)


@function("layouts", 3)
def _(r: Draw) -> Call:
    cell = r.one("lstm", "gru", "elman")
    module = {"lstm": nn.LSTM, "gru": nn.GRU, "elman": nn.RNN}[cell](2, 3)
    weights = sh.layouts.from_torch(module)
    if r.random.random() < 0.3:
        return Call(lambda **given: sh.layouts.from_torch(**given).bias, {"module": module, "layer": 0})
    if r.random.random() < 0.3:
        given = {name: getattr(weights, name) for name in ("cell", "input", "hidden", "input_bias", "hidden_bias")}
        return Call(lambda **given: sh.layouts.RecurrentWeights(**given).bias, given)
    if r.random.random() < 0.4:
        return Call(
            lambda **given: sh.layouts.from_flax(**given).bias, {"cell": cell, "params": sh.layouts.to_flax(weights)}
        )
    if r.random.random() < 0.5 or cell == "gru":
        names = ("kernel", "recurrent_kernel", "bias")
        given = {"cell": cell, **dict(zip(names, sh.layouts.to_keras(weights), strict=True)), "reset_after": True}
        return Call(lambda **given: sh.layouts.from_keras(**given).bias, given)
    kernel, bias = sh.layouts.to_joined(weights)
    given = {"cell": cell, "kernel": kernel, "bias": bias, "hidden_size": 3}
    if r.random.random() < 0.5:
        return Call(lambda **given: sh.layouts.from_tf1(**given).bias, given | {"forget_bias": 1.0})
    return Call(lambda **given: sh.layouts.from_joined(**given).bias, given)
