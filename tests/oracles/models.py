"""Small models of every kind with random parameters, and the plain enumeration of all their paths."""

import itertools

import pyro
import pyro.infer
import torch
from samplehold import (
    Bernoulli,
    Categorical,
    Copy,
    Gated,
    Markov,
    MultivariateNormal,
    Normal,
    Poisson,
    StickyHDP,
    SwitchingSSM,
)
from torch import Tensor

SCALE, COVARIANCE = {"scale": "all states"}, {"covariance": "all states"}
EMISSIONS = {
    "normal": Normal(2),
    "full": MultivariateNormal(2),
    "spherical": Normal(2, covariance="spherical"),
    "bernoulli": Bernoulli(2),
    "poisson": Poisson(2),
    "categorical": Categorical(3),
    "gated": Gated(Normal(2), Normal(2)),
    "gated_symbols": Gated(Categorical(3), Categorical(3)),
    "gated_by_state": Gated(Normal(2), Normal(2), by_state=True),
    "tied": Normal(2, tied=SCALE),
    "tied_full": MultivariateNormal(2, tied=COVARIANCE),
    "gated_tied": Gated(Normal(2), Normal(2), tied=SCALE),
    "gated_tied_full": Gated(MultivariateNormal(2), MultivariateNormal(2), tied=COVARIANCE),
    "gated_tied_by_state": Gated(Normal(2), Normal(2), by_state=True, tied=SCALE),
    "tied_spherical": Normal(2, tied=SCALE, covariance="spherical"),
    "gated_tied_spherical": Gated(
        Normal(2, covariance="spherical"), Normal(2, covariance="spherical"), by_state=True, tied=SCALE
    ),
}
DYNAMICS = {
    "copy": Copy(2, redraw_prior=(2.0, 3.0), state_prior=1.5),
    "inputs": Copy(2, redraw_prior=(2.0, 3.0), state_prior=1.5, inputs=2),
    "markov": Markov(2, initial_prior=1.5, transition_prior=2.0, sticky=1.0),
    "driven": Markov(2, initial_prior=1.5, transition_prior=2.0, inputs=2),
    "hdp": StickyHDP(2, (3.0, 1.0), (6.0, 1.0), (3.0, 2.0)),
    "driven start": Markov(3, initial_prior=1.5, transition_prior=2.0, sticky=1.0, inputs=2, initial_inputs=2),
}
KINDS = [
    (dynamics, emission)
    for dynamics in DYNAMICS
    for emission in EMISSIONS
    if not (dynamics == "markov" and emission.startswith("gated"))
    and "tied" not in emission
    and emission != "spherical"
    and not dynamics.startswith(("driven", "hdp"))
]
KINDS += [("markov", "tied"), ("inputs", "gated_tied")]
KINDS += [("copy", name) for name in ("tied_full", "gated_tied_full", "gated_tied_by_state")]
KINDS += [("markov", "spherical"), ("copy", "gated_tied_spherical")]
KINDS += [("driven", name) for name in ("normal", "full", "poisson", "categorical")]
PLACES = {name: place for names in (DYNAMICS, EMISSIONS) for place, name in enumerate(names)}
ALTERNATE = [  # every dynamics and every emission, of the pairs of both every second one
    (dynamics, emission)
    for dynamics, emission in KINDS
    if "tied" in emission or emission == "spherical" or (PLACES[dynamics] + PLACES[emission]) % 2 == 0
]
CONJUGATE = (*KINDS, ("driven start", "normal"))  # those that message passing takes


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_model(dynamics: str, emission: str, seed: int = 0) -> SwitchingSSM:
    """A model whose parameters are a draw from its own prior, with scales around 1."""
    model = SwitchingSSM(DYNAMICS[dynamics], EMISSIONS[emission])
    if emission == "normal" or "spherical" in emission or ("tied" in emission and "full" not in emission):
        like = model.prior["shape"]
        model = model.with_prior({"shape": torch.full_like(like, 1.5), "rate": torch.full_like(like, 0.5)})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        trace = pyro.poutine.trace(model).get_trace(n_steps=1, **drive(dynamics, (), 1))
    names = model.dynamics.sites(model.prior) + model.emission.sites(model.prior)
    return model.with_values({site.name: trace.nodes[site.name]["value"] for site in names})


def drive(dynamics: str, batch: tuple[int, ...], n_steps: int, seed: int = 0) -> dict[str, Tensor]:
    """Inputs, and gaps for the kind of dynamics that takes them."""
    generator = torch.Generator().manual_seed(seed)
    if dynamics not in ("inputs", "driven", "driven start"):
        return {}
    inputs = torch.randn(*batch, n_steps, 2, generator=generator, dtype=torch.float64)
    if dynamics.startswith("driven"):
        return {"inputs": inputs}
    dt = 0.5 + 2 * torch.rand(*batch, n_steps, generator=generator, dtype=torch.float64)
    return {"inputs": inputs, "dt": dt}


def trace_log_prob(program, *args, data=None, **keywords) -> Tensor:
    """Log density of a Pyro program's trace with the given sites fixed."""
    conditioned = pyro.condition(program, data=data or {})
    return pyro.poutine.trace(conditioned).get_trace(*args, **keywords).log_prob_sum()


def every_path(model: SwitchingSSM, x: Tensor, power: Tensor | None = None, **keywords) -> tuple[Tensor, Tensor]:
    """Every path of states of one sequence `[P, T]`, once for each path of gates, and the log of its joint density with
    x `[P]`; log p(x_t | s_t, z_t) enters with its `power` `[T]`."""
    n_steps, copies = x.shape[0], isinstance(model.dynamics, Copy)
    gates = list(itertools.product((0.0, 1.0), repeat=n_steps - 1)) if copies else [()]
    paths, terms = [], []
    for states in itertools.product(range(model.n_states), repeat=n_steps):
        for redraws in gates:
            if any(z == 0 and states[t] != states[t + 1] for t, z in enumerate(redraws)):
                continue  # a held state that moves has probability 0
            data = {f"s_{t + 1}": torch.tensor(s) for t, s in enumerate(states)}
            data |= {f"z_{t + 2}": torch.tensor(z, dtype=x.dtype) for t, z in enumerate(redraws)}
            trace = pyro.poutine.trace(pyro.condition(model, data=data)).get_trace(x, **keywords)
            trace.compute_log_prob()
            total = trace.log_prob_sum()
            if power is not None:
                seen = torch.stack([trace.nodes[f"x_{t + 1}"]["log_prob"] for t in range(n_steps)])
                total = total + ((power - 1) * seen).sum()
            paths.append(states)
            terms.append(total)
    return torch.tensor(paths), torch.stack(terms)


def enumerated_by_pyro(model: SwitchingSSM, x: Tensor, **keywords) -> Tensor:
    """log p(x) of all sequences by the explicit program, whose paths Pyro itself sums out."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(x.dtype)  # which Pyro mixes into masked sums
    try:
        elbo = pyro.infer.TraceEnum_ELBO(max_plate_nesting=x.ndim - 2)
        return torch.tensor(-elbo.loss(model, lambda *args, **kw: None, x, **keywords), dtype=x.dtype)
    finally:
        torch.set_default_dtype(before)


def enumerate_evidence(model: SwitchingSSM, x: Tensor, **keywords) -> Tensor:
    """log p(x) of one sequence: the Pyro program's joint density summed over every path of states and gates."""
    return every_path(model, x, **keywords)[1].logsumexp(0)
