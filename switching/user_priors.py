r"""User priors: a distribution of Pyro replaces the default prior of a parameter.

The numbers of a table are independent under it, and independent of the other parameters. The prior is for values in the
units of the data. It may be for the displayed form, such as a scale instead of a precision. If $y = g(v)$ are these
values and v those inside a fit, the density of v is $p(g(v))\, |g'(v)|$.

A covariance matrix may also have a prior of its standard deviations and another one of its correlations.

Some distributions have the form of the default prior: a Beta for a probability, a Gamma for a rate or a precision, a
Wishart for a precision matrix, a Dirichlet for rows of probabilities. They become hyperparameters, so message passing
takes them too.
"""

import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, Transform, biject_to, constraints
from torch.distributions.constraints import MixtureSameFamilyConstraint
from torch.distributions.transforms import AffineTransform, PowerTransform

from .definite import Congruence, Inversion, ScaledCorrelation, definite
from .entries import Entries
from .parameters import Parameter, Parameters, is_simplex
from .priors import Site

COVARIANCE, SCALE, CORRELATION = "covariance", "scale", "correlation"
ALTERNATIVES = (  # of one argument of a distribution
    ("covariance_matrix", "precision_matrix", "scale_tril"),
    ("probs", "logits"),
    ("gate", "gate_logits"),
)


@dataclass(frozen=True, eq=False)
class UserPrior:
    """The prior of one parameter.

    Attributes:
        name: of the parameter in the program.
        distribution: of its values, or of their displayed form if `shown`.
        shown: whether the distribution is that of the displayed form.
        called: the name under which the user gave it.
        n_axes: the number of axes of the parameter.
    """

    name: str
    distribution: Distribution
    shown: bool
    called: str
    n_axes: int

    def site(self, like: Tensor, factor: Tensor | None = None, about: Tensor | None = None) -> Site:
        """The prior of a table inside a fit: `factor` times the values in the data's units, less `about`."""
        law = self._law(like, factor, about)
        placed = law.to_event(len(law.batch_shape))
        return Site(self.name, lambda values: placed)

    def log_prob(self, table: Float[Tensor, "*table"]) -> Float[Tensor, "*plates"]:
        """The log density of each number, row or matrix of tables in the data's units."""
        return _plain_law(self, table.shape[table.ndim - self.n_axes :], table.dtype, table.device).log_prob(table)

    def numbers(self, names: Collection[str]) -> Parameters:
        """The hyperparameters of the default prior, of these names, that give this distribution; empty if none do."""
        for form in () if self.shown else FORMS:
            if form.has(self.name, names) and isinstance(self.distribution, form.kind):
                return {name: getattr(self.distribution, of_kind) for name, of_kind in form.numbers.items()}
        return {}

    def _law(self, like: Tensor, factor: Tensor | None = None, about: Tensor | None = None) -> Any:
        base, shape = on(self.distribution, like), like.shape
        n = len(base.event_shape)
        try:
            base = base.expand(shape[: len(shape) - n])
        except (RuntimeError, ValueError):
            base = None
        if base is None or base.event_shape != shape[len(shape) - n :]:
            raise _of_another_shape(self.called, self.distribution.batch_shape + self.distribution.event_shape, shape)
        if _is_matrix(base.support):
            sizes = torch.ones_like(like[..., 0]) if factor is None else factor.diagonal(dim1=-2, dim2=-1).sqrt()
            steps: list[Transform] = [*[Inversion()] * self.shown, Congruence(sizes)]
        else:
            steps = [PowerTransform(torch.tensor(-2.0).to(like))] if self.shown else []
        if factor is not None and not _is_matrix(base.support):
            shift = torch.zeros_like(factor) if about is None else -about * factor
            steps.append(AffineTransform(shift, factor, event_dim=n))
        return Transformed(base, steps) if steps else base


@lru_cache(maxsize=64)
def _plain_law(prior: UserPrior, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Any:
    """The prior of a table of this shape in the data's units; optimizers ask for its density many times."""
    return prior._law(torch.zeros(shape, dtype=dtype, device=device))


@biject_to.register(MixtureSameFamilyConstraint)
def _(support: MixtureSameFamilyConstraint) -> Transform:
    """Free coordinates of a mixture are those of its components."""
    return biject_to(support.base_constraint)


NEAR_END = 1e-8, 1e-15  # distances from the end of a range, in widths
RISE = 1.0  # change of a log density between two such places, above which it has no finite limit


def limit(distribution: Distribution, near: Tensor, nearer: Tensor) -> Tensor:
    """The limits of the log density from some numbers or rows to others nearer to an end: finite, or infinite."""
    law = on(distribution, near)
    before, there = (law.log_prob(place).nan_to_num(-torch.inf, torch.inf) for place in (near, nearer))
    still = (there == before) | ((there - before).abs() < RISE)
    return torch.where(still, there, torch.where(there > before, torch.inf, -torch.inf))


def is_distribution(value: Any) -> bool:
    """Whether an entry of a prior is a distribution, or a class of them, not a table of hyperparameters."""
    return isinstance(value, Distribution) or (isinstance(value, type) and issubclass(value, Distribution))


def as_text(prior: Any) -> str:
    """Distributions by name on one line, as an argument of a constructor; empty if there are none."""
    if not isinstance(prior, Mapping) or not prior:
        return ""
    shown = (f"{name!r}: {shortly(one)}" for name, one in prior.items())
    return f"prior={{{', '.join(shown)}}}"


def shortly(distribution: Any) -> str:
    """A distribution on one line; a transformed one with what is transformed."""
    if isinstance(distribution, torch.distributions.TransformedDistribution):
        return f"{type(distribution).__name__}({shortly(distribution.base_dist)})"
    if repr(distribution).endswith("()") and (numbers := arguments(distribution)):  # as of a Beta
        shown = (f"{name}: {value.tolist() if isinstance(value, Tensor) else value}" for name, value in numbers.items())
        return f"{type(distribution).__name__}({', '.join(shown)})"
    text = re.sub(r"tensor\((\[.*?\])[^()]*\)", r"\1", repr(distribution))
    return " ".join(text.split())


def kind_of(value: Any) -> str:
    """What an entry of a prior is, for errors."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def read(
    prior: Any,
    parameters: Mapping[str, Parameter],
    of: str,
    sizes: Mapping[str, int] | None = None,
    narrower: bool = False,
) -> dict[str, UserPrior]:
    """Priors by the names of parameters or of their displayed forms.

    Arguments:
        sizes: the lengths of the parameters' axes, if they are known.
        narrower: whether the support of a prior of a probability may be a part of the unit interval.

    Raises:
        TypeError: not a mapping of names to distributions.
        ValueError: an unknown name, or one twice; a distribution of another support or shape.
    """
    if not isinstance(prior, Mapping):
        raise TypeError(f"prior: got {type(prior).__name__}, expected distributions by name of a parameter.")
    known: dict[str, tuple[str, Any, bool]] = {n: (n, p.support, False) for n, p in parameters.items()}
    known |= {p.shown.name: (n, p.shown.support, True) for n, p in parameters.items() if p.shown}
    priors: dict[str, UserPrior] = {}
    for name, distribution in _with_covariance(prior, known).items():
        if name not in known:
            raise ValueError(f"prior: got {name!r}, expected some of {', '.join(known)}, the parameters of {of}.")
        place, support, shown = known[name]
        if not isinstance(distribution, Distribution):
            raise TypeError(
                f"prior[{name!r}]: got {kind_of(distribution)}, expected a distribution of Pyro, such as "
                f"dist.{_typical(support)}; hyperparameters go into model.with_prior(...)."
            )
        if isinstance(distribution, dist.Delta):
            raise ValueError(f"prior[{name!r}]: got Delta, which has no density; hold the parameter with `fixed`.")
        if not _fits(support_of(distribution), support, narrower):
            raise ValueError(
                f"prior[{name!r}]: got {type(distribution).__name__}, whose support does not fit {name}; give a "
                f"distribution such as dist.{_typical(support)}."
            )
        if place in priors:
            raise ValueError(f"prior: got {place} twice, in two forms; give one.")
        called = CORRELATION if isinstance(distribution, ScaledCorrelation) else name
        dims = parameters[place].dims
        priors[place] = UserPrior(place, distribution, shown, called, len(dims))
        if sizes is not None:  # raises an error for another shape
            _plain_law(priors[place], torch.Size(sizes[dim] for dim in dims), torch.float64, torch.device("cpu"))
    return priors


def log_density(priors: Mapping[str, UserPrior], values: Parameters) -> Float[Tensor, "*r"]:
    """The sum of the log densities of priors at parameters `[*r, ...]` in the units of the data; 0 without priors."""
    total = next(iter(values.values())).new_zeros(())
    for name, one in priors.items():
        total = total + summed(one.log_prob(values[name]), values[name].ndim - one.n_axes)
    return total


def summed(values: Tensor, n_axes: int) -> Tensor:
    """Sums over all axes after the first ones."""
    return values.flatten(n_axes).sum(-1) if values.ndim > n_axes else values


def check_possible(
    priors: Mapping[str, UserPrior], values: Parameters, argument: str, besides: Collection[str] = ()
) -> None:
    """Raise ValueError if a prior excludes values of an argument, `fixed` or `start`, besides those of some names."""
    for name in [name for name in priors if name in values and name not in besides]:
        if not bool(priors[name].log_prob(values[name].double()).isfinite().all()):
            raise excluded(argument, name, values[name], type(priors[name].distribution).__name__)


def excluded(argument: str, name: str, table: Tensor, kind: str) -> ValueError:
    """The error for values of an argument that a prior excludes."""
    shown, other = (table.tolist(), "other numbers") if table.ndim else (f"{float(table):g}", "another number")
    return ValueError(
        f"{argument}[{name!r}]: got {shown}, which its prior of {kind} excludes; give {other}, or another prior."
    )


def merged(prior: Mapping[str, Any], by: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Priors by name and others, which replace those of the same parameters, also in other forms."""
    places = {p.shown.name: name for name, p in parameters.items() if p.shown}
    if COVARIANCE in places:
        places = dict.fromkeys((SCALE, CORRELATION), places[COVARIANCE]) | places
    new = {places.get(name, name) for name in by}
    return {name: one for name, one in prior.items() if places.get(name, name) not in new} | dict(by)


def _with_covariance(prior: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Priors with that of a covariance instead of those of its standard deviations and correlations."""
    some = [name for name in (SCALE, CORRELATION) if name in prior and name not in known]
    if COVARIANCE not in known or not some:
        return dict(prior)
    if COVARIANCE in prior:
        raise ValueError(
            f"prior: got {COVARIANCE!r} and {', '.join(map(repr, some))}, two forms of one parameter; give one."
        )
    if len(some) == 1:
        raise ValueError(
            f"prior: got {some[0]!r} alone, expected {SCALE!r}, of the standard deviations, and {CORRELATION!r}, such "
            f"as dist.LKJ(2, 2.0); or {COVARIANCE!r}."
        )
    scale, correlation = prior[SCALE], prior[CORRELATION]
    if not isinstance(scale, Distribution) or not _is_positive(support_of(scale)) or scale.event_shape:
        raise ValueError(
            f"prior[{SCALE!r}]: got {type(scale).__name__}, expected a distribution of positive numbers, such as "
            "dist.HalfNormal(1.0)."
        )
    if not isinstance(correlation, Distribution) or correlation.support is not dist.constraints.corr_matrix:
        raise ValueError(
            f"prior[{CORRELATION!r}]: got {type(correlation).__name__}, expected a distribution of correlation "
            "matrices, such as dist.LKJ(2, 2.0)."
        )
    rest = {name: one for name, one in prior.items() if name not in some}
    n = correlation.event_shape[-1]
    try:
        return rest | {COVARIANCE: ScaledCorrelation(scale.expand([*scale.batch_shape[:-1], n]), correlation)}
    except (RuntimeError, ValueError):
        shape = list(correlation.batch_shape + correlation.event_shape)
        raise ValueError(
            f"prior[{SCALE!r}]: got a distribution of shape {list(scale.batch_shape)}, expected one number's, or one "
            f"for each of the {n} features of prior[{CORRELATION!r}], which has the shape {shape}."
        ) from None


def hyperparameters(prior: UserPrior, default: Parameters) -> Parameters:
    """The default prior's hyperparameters that give this distribution; empty if there are none."""
    return {name: expanded(prior.called, table, default[name]) for name, table in prior.numbers(default).items()}


class Form(NamedTuple):
    """The distribution that the default priors of some parameters have.

    Attributes:
        kind: of the distribution.
        parameters: the names of the parameters.
        numbers: the hyperparameters, and the attributes of the distribution that give them.
    """

    kind: type[Distribution]
    parameters: tuple[str, ...]
    numbers: Mapping[str, str]

    def has(self, parameter: str, names: Collection[str]) -> bool:
        """Whether a parameter has such a prior, with hyperparameters of these names among others."""
        return parameter in self.parameters and set(self.numbers) <= set(names)


FORMS = (
    Form(torch.distributions.Beta, ("probs",), {"successes": "concentration1", "failures": "concentration0"}),
    Form(torch.distributions.Gamma, ("rate", "precision"), {"shape": "concentration", "rate": "rate"}),
    Form(torch.distributions.Gamma, ("df",), {"df_shape": "concentration", "df_rate": "rate"}),
    Form(torch.distributions.Dirichlet, ("probs",), {"concentration": "concentration"}),
    Form(torch.distributions.Wishart, ("precision",), {"df": "df", "inverse_scale": "precision_matrix"}),
)


def default_kinds(parameters: Iterable[str], names: Collection[str]) -> dict[str, type[Distribution]]:
    """The distributions that hyperparameters of these names are of, by parameter."""
    return {one: form.kind for one in parameters for form in FORMS if form.has(one, names)}


def on(distribution: Any, like: Tensor) -> Any:
    """The distribution with its numbers in the dtype and on the device of `like`, if it is made of numbers."""
    if isinstance(distribution, ScaledCorrelation):
        return ScaledCorrelation(on(distribution.scale, like), on(distribution.correlation, like))
    if _is_rescaled(distribution):
        steps = [AffineTransform(_on(t.loc, like), _on(t.scale, like), t.event_dim) for t in distribution.transforms]
        return Transformed(on(distribution.base_dist, like), steps, validate_args=False)
    numbers = arguments(distribution)
    if numbers is None:
        return distribution
    placed = {name: value.to(like) if isinstance(value, Tensor) else value for name, value in numbers.items()}
    kind: Any = type(distribution)
    return kind(**placed, validate_args=False)


def _on(number: Any, like: Tensor) -> Any:
    return number.to(like) if isinstance(number, Tensor) else number


def _is_rescaled(distribution: Any) -> bool:
    """Whether a distribution is another one after affine transforms."""
    steps = getattr(distribution, "transforms", ())
    return (
        isinstance(distribution, torch.distributions.TransformedDistribution)
        and bool(steps)
        and all(isinstance(step, AffineTransform) for step in steps)
    )


def arguments(distribution: Distribution) -> dict[str, Any] | None:
    """The numbers that make a distribution of Pyro; None if numbers do not."""
    kind: Any = type(distribution)
    if getattr(dist, kind.__name__, None) is not kind:
        return None
    names = [name for name in inspect.signature(kind.__init__).parameters if name in distribution.arg_constraints]
    for forms in ALTERNATIVES:  # a distribution keeps the one that was given, and then those that were asked for
        kept = next((name for name in vars(distribution) if name in forms), None)
        names = [name for name in names if name not in forms or kept in (None, name)]
    own = [name for name in names if name in vars(distribution)]
    sizes: dict[str, Any] = {"dim": distribution.event_shape[-1]} if isinstance(distribution, dist.LKJ) else {}
    for some in (names, own):
        numbers = sizes | {name: getattr(distribution, name) for name in some}
        try:
            kind(**numbers, validate_args=False)
        except (TypeError, ValueError, RuntimeError, AssertionError):
            continue
        return numbers or None
    return None


def distribution_of(name: str, numbers: Mapping[str, Tensor]) -> Distribution:
    """The distribution of Pyro with these numbers; ValueError if there is none."""
    kind: Any = getattr(dist, name, None) if isinstance(name, str) else None
    if not (isinstance(kind, type) and issubclass(kind, Distribution)):
        raise ValueError(f"prior: got {name!r}, which is no distribution of Pyro.")
    made: Any = kind
    return made(**{key: int(value) if key == "dim" else value.double() for key, value in numbers.items()})


def natural(prior: UserPrior, like: Tensor) -> Tensor:
    """Natural parameters of a Beta, a Dirichlet or a Gamma, in the shape of `like`.

    Raises:
        ValueError: the shape does not fit.
    """
    d: Any = prior.distribution
    if isinstance(d, torch.distributions.Dirichlet):
        return expanded(prior.called, d.concentration, like)
    pair = (
        (d.concentration1, d.concentration0) if isinstance(d, torch.distributions.Beta) else (d.concentration, -d.rate)
    )
    return torch.stack([expanded(prior.called, number, like[..., 0]) for number in pair], -1)


def expanded(name: str, table: Tensor, like: Tensor) -> Tensor:
    """A distribution's numbers in the shape of `like`; ValueError, which names the prior, if they do not fit."""
    try:
        return table.to(like).expand_as(like)
    except RuntimeError:
        raise _of_another_shape(name, table.shape, like.shape) from None


def _of_another_shape(name: str, got: torch.Size, table: torch.Size) -> ValueError:
    return ValueError(
        f"prior[{name!r}]: got a distribution of shape {list(got)}, expected one number's, or a table {list(table)}."
    )


def support_of(distribution: Distribution) -> Any:
    """The support of each number, row or matrix of a distribution."""
    if _is_rescaled(distribution):
        distribution = Transformed(distribution.base_dist, distribution.transforms)  # type: ignore[attr-defined]
    support: Any = distribution.support
    while hasattr(support, "base_constraint"):  # of independent numbers, and of mixtures
        support = support.base_constraint
    return support


class Transformed(dist.TransformedDistribution):
    """A transformed distribution whose support is that of its values after affine transforms too.

    Torch's support is then all real numbers.
    """

    @constraints.dependent_property(is_discrete=False)  # pyright: ignore[reportArgumentType]
    def support(self) -> Any:
        support: Any = support_of(self.base_dist)
        for step in self.transforms:
            support = _image(support, step) if isinstance(step, AffineTransform) else step.codomain
        while hasattr(support, "base_constraint"):
            support = support.base_constraint
        n = len(self.event_shape) - support.event_dim
        return constraints.independent(support, n) if n else support


def _image(support: Any, step: AffineTransform) -> Any:
    """The image of a support of numbers under an affine transform."""
    ends = getattr(support, "lower_bound", -torch.inf), getattr(support, "upper_bound", torch.inf)
    moved = torch.broadcast_tensors(*(step.loc + step.scale * torch.as_tensor(end) for end in ends))
    low, high = torch.minimum(*moved), torch.maximum(*moved)
    if not bool(high.isinf().all()):
        return constraints.interval(low, high) if bool(low.isfinite().all()) else constraints.less_than(high)
    if bool(low.isinf().all()):
        return support
    return constraints.greater_than(low) if bool(low.any()) else constraints.positive


def _fits(given: Any, expected: Any, narrower: bool = False) -> bool:
    for is_kind in (_is_positive, is_simplex, _is_matrix):
        if is_kind(expected):
            return is_kind(given)
    if expected is constraints.unit_interval:
        bounds = getattr(given, "lower_bound", None), getattr(given, "upper_bound", None)
        if any(bound is None for bound in bounds):
            return False
        low, high = (float(torch.as_tensor(bound).max()) for bound in bounds)
        return 0.0 <= low < high <= 1.0 if narrower else (low, high) == (0.0, 1.0)
    if isinstance(expected, constraints.interval):
        return given is constraints.real or (isinstance(given, constraints.interval) and _overlap(given, expected))
    if isinstance(expected, Entries):
        return given is constraints.real
    return type(given) is type(expected)


def _overlap(one: Any, other: Any) -> bool:
    return max(float(one.lower_bound), float(other.lower_bound)) < min(float(one.upper_bound), float(other.upper_bound))


def _is_matrix(support: Any) -> bool:
    return isinstance(support, type(constraints.positive_definite) | type(definite))


def _is_positive(support: Any) -> bool:
    kinds = type(constraints.positive), type(constraints.nonnegative)
    return isinstance(support, kinds) and not bool(torch.as_tensor(support.lower_bound).any())


def _typical(support: Any) -> str:
    if _is_positive(support):
        return "HalfNormal(1.0)"
    if support is constraints.unit_interval:
        return "Beta(2.0, 2.0)"
    if is_simplex(support):
        return "Dirichlet(torch.ones(3))"
    if _is_matrix(support):
        return "Wishart(torch.tensor(4.0), covariance_matrix=torch.eye(2))"
    if isinstance(support, constraints.interval):
        return f"Uniform({support.lower_bound:g}, {support.upper_bound:g})"
    return "Normal(0.0, 1.0)"
