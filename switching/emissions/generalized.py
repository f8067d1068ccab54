r"""Generalised linear emissions: a parameter of a plain emission is linear in inputs, through a link.

$$g(\theta_t) = g(\theta_s) + \beta_s^\top u_t + \gamma^\top v_t$$

| plain emission | parameter | link g |
|---|---|---|
| Poisson | `rate` | log |
| Bernoulli | `probs` | logit |
| Categorical | `probs` | logits of the categories after the first one, relative to that |
| Normal, with shared coefficients | `loc` | identity |

$\theta_s$ is the parameter where all inputs are 0. At the means of the inputs it has the prior of the plain emission.
$\beta_s$ are the coefficients of the state, and $\gamma$ coefficients that all states share, both with normal priors of
scale 2.5 for inputs of unit variance (Gelman et al. 2008), to which a fit scales them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.scalars import check_kind
from ...inference.numerics.user_warnings import warn_user
from ..inputs import COEFFICIENT_SCALE, Inputs, count_inputs, named_or_counted
from ..parameters import Parameter, Parameters
from ..priors import Site
from ..responses import Response
from .contract import Emission, Maximized
from .driven import DrivenEmission
from .links import Identity, Link, Log, Logit, Logits
from .scoring import Curve, Scoring
from .spread import spread

COEFFICIENTS = ("coefficients", "shared_coefficients")
SEPARATED = 10.0  # the effect of a standard deviation of an input on a predictor, beyond which there is no maximum


MOST_OUTPUTS = 8  # of one block, for scoring: its curvature is a matrix of all of them at every step


@dataclass(frozen=True, repr=False)
class GeneralizedLinear(DrivenEmission):
    """A generalized linear model in each state: the main parameter of a plain emission depends on inputs. It is made by
    `Poisson(1, inputs=[...])` and its like.

    Parameters are those of the plain emission, where all inputs are 0, `coefficients [K, F, C]` and, with shared
    inputs, `shared_coefficients [1, F, S]`. For categories there is a row of coefficients for each category after the
    first one, in place of each feature.

    Arguments:
        plain_emission: the emission without inputs.
        inputs: the names of C inputs with coefficients of each state, or their number.
        shared: the names of S of these inputs whose coefficients all states share.

    Raises:
        TypeError: a plain emission that is no emission; inputs that are neither names nor a number.
        ValueError: an emission that supports no inputs; no inputs; shared inputs that are not among the inputs.

    See Also:
        `Poisson` and `Categorical`, which make it; `LinearRegression`, for normal features; docs/guides/inputs.md.

    Example:
        >>> import torch
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.Poisson(1, inputs=["dose"]))
        >>> model = model.with_values(
        ...     redraw_prob=0.1, state_probs=[0.5, 0.5], rate=[[2.0], [9.0]], coefficients=[[[0.0]], [[0.7]]]
        ... )
        >>> model.smooth([2, 1, 3, 8, 20, 17], inputs={"dose": [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]}).state.argmax(-1)
        tensor([0, 0, 0, 1, 1, 1])
    """

    plain_emission: Emission
    inputs: Inputs | Sequence[str] = 0
    shared: Sequence[str] = ()
    links: ClassVar[dict[str, Link]] = {
        "Poisson": Log(),
        "Bernoulli": Logit(),
        "Categorical": Logits(),
        "Normal": Identity(),
    }

    def __post_init__(self) -> None:
        check_kind("plain_emission", self.plain_emission, Emission, "an emission such as Poisson(n_features)")
        if self.plain_emission.name not in self.links:
            raise ValueError(
                f"plain_emission: got {self.plain_emission!r}, which supports no inputs; expected "
                f"{', '.join(self.links)}."
            )
        if self.link.size(self.plain_emission) < 1:
            raise ValueError(
                f"inputs: {self.plain_emission!r} has one category, which no input changes; leave them out."
            )
        object.__setattr__(self, "inputs", named_or_counted(self.inputs, least=1))
        object.__setattr__(self, "shared", tuple((self.shared,) if isinstance(self.shared, str) else self.shared))
        names = () if isinstance(self.inputs, int) else tuple(self.inputs)
        for name in self.shared:
            if name not in names:
                raise ValueError(
                    f"shared: got {name!r}, expected names among inputs, {list(names)}; name it there too."
                )
        object.__setattr__(self, "n_features", self.plain_emission.n_features)

    def __repr__(self) -> str:
        shared = f", shared={self.shared!r}" if self.shared else ""
        plain = repr(self.plain_emission).replace("Normal(", "LinearRegression(", 1)
        return f"{plain[:-1]}, inputs={self.inputs!r}{shared})"

    @property
    def link(self) -> Link:
        """How the main parameter depends on inputs."""
        return self.links[self.plain_emission.name]

    @property
    def plain(self) -> Emission:
        return self.plain_emission

    @property
    def have_unit(self) -> bool:  # type: ignore[override]
        return self.plain_emission.have_unit

    @property
    def _by_state(self) -> list[int]:
        """The columns of inputs whose coefficients depend on the state."""
        if isinstance(self.inputs, int):
            return list(range(self.inputs))
        return [place for place, name in enumerate(self.inputs) if name not in self.shared]

    @property
    def _by_all(self) -> list[int]:
        return [tuple(self.inputs).index(name) for name in self.shared] if self.shared else []  # type: ignore[arg-type]

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        """The axes, support and displayed form of each parameter."""
        known = dict(self.plain_emission.parameters)
        if self._by_state:
            known["coefficients"] = Parameter(("state", self.link.axis, "regressor"))
        if self.shared:
            known["shared_coefficients"] = Parameter(("shared", self.link.axis, "shared_regressor"))
        return known

    @property
    def sizes(self) -> dict[str, int]:
        sizes = {"regressor": len(self._by_state), "shared_regressor": len(self._by_all)}
        return super().sizes | sizes | {self.link.axis: self.link.size(self.plain_emission)}

    @property
    def inputs_of(self) -> dict[str, Inputs]:
        if isinstance(self.inputs, int):
            return {"regressor": self.inputs}
        return {"regressor": tuple(self.inputs[c] for c in self._by_state), "shared_regressor": tuple(self.shared)}

    @property
    def responses(self) -> tuple[Response, ...]:
        by_axis, coefficients = self.inputs_of, {}
        for name in (name for name in COEFFICIENTS if name in self.parameters):
            coefficients[name] = by_axis[self.parameters[name].dims[-1]]
        main = self.link.parameter
        chosen = main in self.plain_emission.user_priors
        return (Response(main, self.link.range, coefficients, self.link.stated_by, user_stated=chosen),)

    def respond(self, values: Parameters, inputs: Tensor, for_density: bool = False) -> Parameters:
        """The parameters of the emission without inputs at each step.

        Arguments:
            for_density: only those that its density reads.
        """
        predictor: Tensor | float = 0.0
        for name, columns in (("coefficients", self._by_state), ("shared_coefficients", self._by_all)):
            for place, column in enumerate(columns):
                predictor = predictor + values[name][..., place] * inputs[..., column].unsqueeze(-1)
        of_plain = {name: values[name] for name in self.plain_emission.parameters if name in values}
        main = self.link.parameter
        assert isinstance(predictor, Tensor)
        return of_plain | self.link.moved(values[main], predictor, for_density)

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        observed, inputs = self.split(x)
        return self.plain_emission.log_prob(observed, self.respond(values, inputs, for_density=True))

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        scaled = self.plain_emission.in_units(table, unit)
        if not self.have_unit:
            return scaled
        names = [name for name in table if name.removesuffix("_scale") in COEFFICIENTS]
        return scaled | {name: table[name] / unit.unsqueeze(-1) for name in names}

    # ---- the prior -------------------------------------------------------------------------------------------------

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """That of the plain emission; coefficients have scale 2.5, in units of the spread of x if it has units."""
        prior = self.plain_emission.prior_scaled(n_states, x)
        like = next(iter(prior.values()))
        unit = like.new_ones(self.link.size(self.plain_emission))
        if self.have_unit:
            unit = spread(x, 1, self.n_features).scale.to(like)
        sizes = self.sizes | {"state": n_states, "shared": 1}
        shapes = {n: [sizes[dim] for dim in p.dims] for n, p in self.parameters.items() if n in COEFFICIENTS}
        scales = {f"{n}_scale": (COEFFICIENT_SCALE * unit).unsqueeze(-1).expand(s) for n, s in shapes.items()}
        return prior | scales

    def sites(self, prior: Parameters) -> list[Site]:
        sites = self.plain_emission.sites(prior)
        for name in (name for name in COEFFICIENTS if name in self.parameters):
            scale = prior[f"{name}_scale"]
            distribution: Any = dist.Normal(torch.zeros_like(scale), scale).to_event(3)
            sites.append(Site(name, lambda values, one=distribution: one))
        return sites

    def with_user_priors(self, prior: Mapping[str, Any]) -> Emission:
        """The same emission with these priors of the plain emission's parameters."""
        if self.have_unit or not set(prior) <= set(self.plain_emission.parameters):
            return super().with_user_priors(prior)
        return replace(self, plain_emission=self.plain_emission.with_user_priors(prior))

    def check_fitted(self, values: Parameters, rows: Tensor) -> None:
        """Warn if coefficients of maximum likelihood are infinite."""
        inputs = self.split(rows)[1]
        spread_of = inputs.std(0, correction=0)
        for name, columns in (("coefficients", self._by_state), ("shared_coefficients", self._by_all)):
            if columns and not self.have_unit:
                reach = (values[name] * spread_of[columns]).abs().flatten(1).amax(-1)
                if float(reach.max()) > SEPARATED:
                    state = "all states" if name.startswith("shared") else f"state {int(reach.argmax())}"
                    warn_user(
                        f"{name}: inputs separate the observations of {state} completely, so the likelihood has no "
                        f"maximum and coefficients grow without end, to {float(values[name].abs().max()):.3g} so far. "
                        "Fit with prior='weak', which keeps them finite."
                    )

    # ---- the M-step ------------------------------------------------------------------------------------------------

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        default = prior is None or self.plain_emission.is_conjugate
        if default and (self.link.independent or self.link.size(self.plain_emission) <= MOST_OUTPUTS):
            wide = None if prior is None else _double(prior)
            best = self._scored(x.double(), weights.double(), _double(near), wide, floor.double())
            return replace(best, values={name: value.to(near[name]) for name, value in best.values.items()})
        return self.maximize_beside({}, x, weights, near, prior, floor)

    def _scored(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        """Fisher scoring, of float64. A normal emission's precision is that of the step before, then the best beside
        the coefficients."""
        observed, inputs = self.split(x)
        design = self.design(inputs)
        weighted = weights.mT.unsqueeze(-3).contiguous() * (~torch.isnan(observed)).mT.unsqueeze(-2)  # [*r, B, K, N]
        unscaled = weighted
        if self.have_unit:
            weighted = weighted * near["precision"].mT.unsqueeze(-1)
            if prior is not None:
                prior = prior | {"count": prior["count"] * near["precision"]}
        begin = self.stacked(near)
        scoring = Scoring(
            self.link.likelihood,
            observed,
            self.link.prior(prior) if prior is not None else _flat,
            design,
            weighted,
            self.ridge(prior, near[self.link.parameter].shape[-2], x),
            1 if self.link.independent else self.link.size(self.plain_emission),
            len(self._by_all),
            not self.have_unit,
        )
        flat = scoring.climbed(begin)
        values = {name: near[name] for name in self.parameters} | self.unstacked(flat)
        if self.have_unit:
            return self._with_precision(rows=x, weighted=unscaled, values=values, prior=prior, floor=floor)
        return Maximized(values)

    def _with_precision(
        self, rows: Tensor, weighted: Tensor, values: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        """The best precisions of a normal emission beside its coefficients."""
        observed, inputs = self.split(rows)
        residual = (observed.nan_to_num(0.0).unsqueeze(-2) - self.at(values, inputs)["loc"]).transpose(-3, -1)
        square, count = (weighted * residual.square()).sum(-1).mT, weighted.sum(-1).mT
        if prior is not None:  # the prior of each location has the precision count times that of the observations
            square = square + prior["count"] / values["precision"] * (values["loc"] - prior["loc"]).square()
            count = count + 1
        if values["precision"].shape[-2] < square.shape[-2]:
            square, count = square.sum(-2, keepdim=True), count.sum(-2, keepdim=True)
        if prior is not None:
            square, count = square + 2 * prior["rate"], count + 2 * prior["shape"] - 2
        variance = square / count
        return Maximized(values | {"precision": 1 / variance.maximum(floor)})

    # ---- the numbers of predictors ---------------------------------------------------------------------------------

    def design(self, inputs: Float[Tensor, "*n C"]) -> Float[Tensor, "*n D"]:
        """What the numbers of a predictor multiply: 1, the inputs of each state, those of all states."""
        of_inputs = inputs[..., [*self._by_state, *self._by_all]]
        return torch.nn.functional.pad(of_inputs, (1, 0), value=1.0)

    def ridge(self, prior: Parameters | None, n_states: int, like: Tensor) -> Float[Tensor, "B P"]:
        """The precision of the normal prior of each of the `stacked` numbers; 0 for the constants.

        Arguments:
            like: a tensor with the dtype and the device.
        """
        n = self.link.size(self.plain_emission)
        scales = {} if prior is None else {name: prior.get(f"{name}_scale") for name in COEFFICIENTS}

        def precision(name: str, rows: int, columns: list[int]) -> Tensor:
            scale = scales.get(name)
            flat = like.new_zeros(rows, n, len(columns)) if scale is None else scale**-2
            return flat.expand(rows, n, len(columns))

        alone = [like.new_zeros(n_states, n, 1), precision("coefficients", n_states, self._by_state)]
        parts = [self.link.blocks(torch.cat(alone, -1)).flatten(-3)]
        if self.shared:
            parts.append(self.link.blocks(precision("shared_coefficients", 1, self._by_all)).flatten(-3))
        return torch.cat(parts, -1)

    def stacked(self, values: Parameters) -> Float[Tensor, "*r B P"]:
        """The constants and coefficients of all states, then those that all states share, in the blocks of the link."""
        alone = [self.link.constant(values[self.link.parameter]).unsqueeze(-1)]
        alone += [values["coefficients"]] if self._by_state else []
        parts = [self.link.blocks(torch.cat(alone, -1)).flatten(-3)]
        if self.shared:
            parts.append(self.link.blocks(values["shared_coefficients"]).flatten(-3))
        return torch.cat(parts, -1)

    def unstacked(self, flat: Float[Tensor, "*r B P"]) -> Parameters:
        """The main parameter and the coefficients, from `stacked` numbers.

        Arguments:
            flat: what `stacked` returned.
        """
        j = 1 if self.link.independent else self.link.size(self.plain_emission)
        size = flat.shape[-1] - j * len(self._by_all)
        k = size // (j * (1 + len(self._by_state)))
        alone = self.link.joined(flat[..., :size].unflatten(-1, (k, j, -1)))
        values = {self.link.parameter: self.link.back(alone[..., 0])}
        if self._by_state:
            values["coefficients"] = alone[..., 1:]
        if self.shared:
            values["shared_coefficients"] = self.link.joined(flat[..., size:].unflatten(-1, (1, j, -1)))
        return values


def _flat(constant: Tensor) -> Curve:
    """No prior."""
    zero = torch.zeros_like(constant)
    return Curve(lambda: zero.sum(-2), lambda: (zero, torch.diag_embed(zero.mT, dim1=-3, dim2=-2)))


class TakesInputs:
    """Makes an emission with inputs from the arguments of a plain one: `Poisson(1, inputs=["dose"])`."""

    def __new__(cls, *arguments: Any, inputs: Any = 0, shared: Any = (), **named: Any) -> Any:
        if count_inputs(named_or_counted(inputs)):
            return GeneralizedLinear(cls(*arguments, **named), inputs, shared)  # type: ignore[arg-type]
        if len(shared):
            raise ValueError(f"shared: got {shared!r} without inputs; name them among inputs=[...] too.")
        return super().__new__(cls)


def _double(table: Parameters) -> Parameters:
    return {name: value.double() for name, value in table.items()}
