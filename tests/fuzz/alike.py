"""Calls whose answer is known from another call: other forms of the same data, and data on which fits end badly."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import samplehold as sh
import torch
from calls import Call, Draw, function
from reference import close

QUICK = {"restarts": 1, "max_steps": 3, "progress": False}


def _alike(pair: Callable[..., tuple[Any, Any]], arguments: dict[str, Any], tol: float = 1e-6) -> Call:
    """A call that returns an answer and what it must be."""

    def check(given: Mapping[str, Any], result: Any) -> str | None:
        got, expected = (torch.as_tensor(table).double() for table in result)
        same = got.shape == expected.shape and close(got, expected, tol)
        return None if same else f"{got.flatten().tolist()[:3]} for {expected.flatten().tolist()[:3]}"

    return Call(pair, arguments, kept=tuple(arguments), finite=False, reference=check)


def _two_levels(r: Draw, n: int) -> np.ndarray:
    return 4.0 * (np.arange(n) // 6 % 2) + torch.randn(n, dtype=torch.float64).numpy()


def _model(r: Draw) -> sh.SwitchingSSM:
    return sh.SwitchingSSM(r.one(sh.Copy(2), sh.Markov(2)), sh.Normal(1))


def _fitted(r: Draw, method: str = "em") -> Any:
    return _model(r).fit(_two_levels(r, 24), method=method, **QUICK)


# ---- inputs ----------------------------------------------------------------------------------------------------------


@function("a fit at other inputs", 0.3)
def _(r: Draw) -> Call:
    z, normal = torch.randn(24, dtype=torch.float64).numpy(), sh.Normal(1)
    model = r.one(
        sh.SwitchingSSM(sh.Markov(2), sh.LinearRegression(1, ["u"])),
        sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(1, 1, inputs=["u"])),
        sh.SwitchingSSM(sh.Markov(2, inputs=["u"]), normal),
        sh.SwitchingSSM(sh.Copy(2, inputs=["u"]), normal),
        sh.Segments(sh.LinearRegression(1, ["u"])),
        sh.Segments(normal, ["u"]),
    )
    scale, origin = r.one((10.0, 2000.0), (1e-3, 0.0), (1e3, -3e3), (1.0, 1e6))

    def run(x: Any, z: Any) -> Any:
        return tuple(model.fit(x, inputs={"u": u}, **QUICK).loglik for u in (origin + scale * z, z))

    return _alike(run, {"x": _two_levels(r, 24), "z": z})


@function("inputs in another order", 1)
def _(r: Draw) -> Call:
    model = sh.SwitchingSSM(sh.Markov(2), sh.Bernoulli(1, inputs=["u"])).with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.9, 0.1], [0.2, 0.8]],
        probs=[[0.2], [0.7]],
        coefficients=[[[1.0]]] * 2,
    )
    days = pd.date_range("2020-01-01", periods=9)
    x = pd.Series(torch.randint(2, (9,)).double().numpy(), days)
    u = pd.DataFrame({"u": torch.randn(9, dtype=torch.float64).numpy()}, days)
    order = torch.randperm(9).numpy()
    return _alike(
        lambda x, inputs: (model.log_evidence(x, inputs=inputs.iloc[order]), model.log_evidence(x, inputs=inputs)),
        {"x": x, "inputs": u},
    )


# ---- forms of the same data ------------------------------------------------------------------------------------------


@function("sequences of unequal lengths", 0.5)
def _(r: Draw) -> Call:
    fit, verb = _fitted(r, "vmp"), r.one("log_evidence", "smooth", "viterbi", "forecast", "posterior")
    x = [_two_levels(r, n) for n in (r.one(40, 80), 1, 3, 2, 1)]
    verbs = {
        "log_evidence": lambda x: fit.model.log_evidence(x),
        "smooth": lambda x: fit.model.smooth(x),
        "viterbi": lambda x: fit.model.viterbi(x),
        "forecast": lambda x: fit.model.forecast(x, 2).mean,
        "posterior": lambda x: fit.posterior.smooth(x),
    }

    def numbers(result: Any) -> Any:
        return result if isinstance(result, torch.Tensor) else getattr(result, "state", getattr(result, "path", None))

    def run(x: Any) -> Any:
        every, alone = verbs[verb](x), [numbers(verbs[verb](part)) for part in x]
        every = [numbers(one) for one in every] if isinstance(every, list) else list(every)
        return torch.cat([t.flatten() for t in every]), torch.cat([t.flatten() for t in alone])

    return _alike(run, {"x": x})


@function("None in a list", 0.5)
def _(r: Draw) -> Call:
    fit, x = _fitted(r), _two_levels(r, 8).tolist()
    x[r.random.randrange(8)] = None
    known = [np.nan if number is None else number for number in x]
    form = r.one(list, lambda x: np.array(x, dtype=object), pd.Series)
    return _alike(lambda x: (fit.model.log_evidence(form(x)), fit.model.log_evidence(known)), {"x": x})


@function("tensors in other forms", 1)
def _(r: Draw) -> Call:
    x = r.table(7, 1)
    form = r.one(
        lambda x: torch.complex(x, -x).conj().imag,  # has the negative bit
        lambda x: torch.complex(x, x).conj().real,
        lambda x: x.half().float().to(x),
        lambda x: torch.cat([x, x], -1)[:, :1],
    )
    plain = form(x).resolve_neg().resolve_conj().clone()
    if r.random.random() < 0.5:
        fit = _fitted(r)
        return _alike(lambda x: (fit.model.smooth(form(x)).state, fit.model.smooth(plain).state), {"x": x})

    def chain(table: torch.Tensor) -> torch.Tensor:
        moves = torch.full((2, 2), 0.5, dtype=table.dtype).log()
        return sh.chains.MarkovChain(moves[0], moves, torch.cat([table, -table], -1)).smooth().state

    return _alike(lambda x: (chain(form(x)), chain(plain)), {"x": x})


# ---- fits that may end badly -----------------------------------------------------------------------------------------


@function("maximum likelihood that collapses", 0.15)
def _(r: Draw) -> Call:
    """Two equal rows, or a floor: the fit says so, or it is no worse than that under the weak prior."""
    x = _two_levels(r, 24)
    x = np.maximum(x, r.one(0.0, 1.0)) if r.random.random() < 0.5 else np.where(np.arange(24) == 5, x[4], x)
    model, seed = _model(r), r.random.randrange(9)

    def run(x: Any) -> Any:
        plain, weak = (model.fit(x, prior=prior, restarts=2, seed=seed, progress=False) for prior in (None, "weak"))
        said = bool(plain.collapsed_states.any()) or not plain.converged
        return max(plain.loglik - weak.loglik, 0.0 if said else -np.inf) > -1e-3, True

    return _alike(run, {"x": x})


@function("one step in each sequence", 0.3)
def _(r: Draw) -> Call:
    x, model = r.table(r.one(8, 12), 1, 1), _model(r)

    def run(x: Any) -> Any:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model.fit(x, **QUICK)
        return any("step" in str(one.message) for one in said), True

    return _alike(run, {"x": x})


@function("a semi-Markov chain that ends", 0.2)
def _(r: Draw) -> Call:
    model = sh.SwitchingSSM(sh.SemiMarkov(3, r.one(sh.Poisson(), sh.NegativeBinomial()), absorbing=[2]), sh.Normal(1))
    x = np.repeat([0.0, 4.0, 9.0], 8) + torch.randn(24, dtype=torch.float64).numpy()
    return _alike(lambda x: (np.isfinite(model.fit(x, **QUICK).loglik), True), {"x": x})


@function("subjects of whom one differs", 0.1)
def _(r: Draw) -> Call:
    model, x = _model(r), [_two_levels(r, 18) for _ in range(3)]
    x[0] = x[0] + r.one(20.0, -50.0)

    def run(x: Any) -> Any:
        options = {"restarts": 2, "prior": None, "progress": False}
        pooled = model.fit(x, subjects=list("abc"), pooled="none", **options)
        return pooled.loglik > sum(model.fit(part, **options).loglik for part in x) - 0.1, True

    return _alike(run, {"x": x})
