r"""Exponential families in natural parameters, batched over any plates.

A family is the set of densities

$$p(x \mid \eta) = h(x) \exp(\langle \eta, t(x) \rangle - A(\eta)), \qquad
  \nabla A(\eta) = E[t(x)], \qquad
  KL(\eta \| \eta_0) = \langle E_\eta[t], \eta - \eta_0 \rangle - A(\eta) + A(\eta_0).$$

So a posterior is a prior plus messages, $\eta = \eta_0 + \sum_f m_f$, and a message has the shape of $\eta$. Natural
parameters $\eta$ and statistics $t$ are single tensors `[*plates, P]`, matrices flattened:

    family          t(x)                          eta                                       h(x)
    Beta            log p, log(1-p)               a, b                                      1/(p (1-p))
    Dirichlet       log p_k                       alpha_k                                   1/prod_k p_k
    Gamma           log l, l                      shape, -rate                              1/l
    NormalGamma     l u, l u^2, log l, l          k m, -k/2, shape, -rate - k m^2/2         l^(-1/2)
    NormalWishart   L u, u'L u, log|L|, L         k m, -k/2, df/2, -(inv(W) + k m m')/2     |L|^(-D/2)
    Wishart         log|L|, L                     df/2, -inv(W)/2                           |L|^(-(D+1)/2)
    Bernoulli       z                             logit                                     1
    Categorical     one-hot of s                  log weights, up to a constant             1
    Gaussian        x, x x'                       L m, -L/2                                 1
    Degrees         log n, n, -delta(n/2)         a, -b, c                                  1/n

Further families are `Tailed`, a NormalGamma beside the degrees of freedom of Student's t distribution; the coefficients
of a regression, `MatrixNormalWishart`, which generalises NormalWishart to several inputs; several locations with one
precision, `SharedPrecision`; the paths of the two discrete chains, whose parameters are a named tuple of tables, see
`paths`; and the paths of chains of real vectors, see `gaussian_paths`. If a part of the point is known, the rest is in
a smaller family: see `restricted`, and for single entries `entries` and `pieces`.

Here u is a location with prior location m and the weight of k (`kappa`) observations; l and L are precisions. The
powers in h leave concentrations and shapes unchanged in $\eta$, so tiny ones lose no digits. A NormalWishart of one
dimension is a NormalGamma with `shape = df/2`, `rate = 1/(2W)`, in the same order. These two subtract $k m^2$ from a
second moment, so center data whose mean is many standard deviations from 0.

Families have no state. They compute in the dtype and on the device of their arguments, differentiably. Only `check` and
`mode` raise errors.

References: Wainwright & Jordan 2008, section 3; Bishop 2006, appendix B, for the closed forms.
"""

from .degrees import Degrees, DegreesParameters, LocPrecisionDf, Tailed, TailedParameters
from .discrete import Bernoulli, BernoulliParameters, Categorical, CategoricalParameters
from .family import Family, Stats, VectorFamily, tree_map, tree_parts
from .gaussian_paths import GaussianPaths, GaussianTables
from .matched import matched as matched
from .normal import (
    Gaussian,
    GaussianParameters,
    LocPrecision,
    NormalGamma,
    NormalGammaParameters,
    NormalWishart,
    NormalWishartParameters,
)
from .paths import (
    CopyPaths,
    CopyTables,
    FactoredCopyPaths,
    FactoredTables,
    MarkovPaths,
    MarkovTables,
    PathTables,
    SemiMarkovPaths,
    SemiMarkovTables,
)
from .pieces import InPieces, columns_apart, given_entries, given_in_part
from .point import Held, Point
from .positive import Beta, BetaParameters, Dirichlet, DirichletParameters, Gamma, GammaParameters
from .regression import MatrixNormalWishart, MatrixNormalWishartParameters
from .restricted import Restricted, given
from .shared import SharedPrecision, SharedPrecisionParameters
from .wishart import Wishart, WishartParameters

__all__ = [
    "Bernoulli",
    "BernoulliParameters",
    "Beta",
    "BetaParameters",
    "Categorical",
    "CategoricalParameters",
    "CopyPaths",
    "CopyTables",
    "Degrees",
    "DegreesParameters",
    "Dirichlet",
    "DirichletParameters",
    "FactoredCopyPaths",
    "FactoredTables",
    "Family",
    "Gamma",
    "GammaParameters",
    "Gaussian",
    "GaussianParameters",
    "GaussianPaths",
    "GaussianTables",
    "Held",
    "InPieces",
    "LocPrecision",
    "LocPrecisionDf",
    "MarkovPaths",
    "MarkovTables",
    "MatrixNormalWishart",
    "MatrixNormalWishartParameters",
    "NormalGamma",
    "NormalGammaParameters",
    "NormalWishart",
    "NormalWishartParameters",
    "PathTables",
    "Point",
    "Restricted",
    "SemiMarkovPaths",
    "SemiMarkovTables",
    "SharedPrecision",
    "SharedPrecisionParameters",
    "Stats",
    "Tailed",
    "TailedParameters",
    "VectorFamily",
    "Wishart",
    "WishartParameters",
    "columns_apart",
    "given",
    "given_entries",
    "given_in_part",
    "tree_map",
    "tree_parts",
]
