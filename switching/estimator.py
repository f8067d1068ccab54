"""Models as estimators of scikit-learn, for `Pipeline`, `GridSearchCV`, `clone` and joblib.

Rows of X are the steps of one sequence, or of several:

    groups    the sequence of each row, any label. Cross-validation splits it together with X, so that each fold of
              `GroupKFold` holds whole sequences. Rows of a sequence are in the order of time; others may lie between.
    lengths   the numbers of rows of the sequences, which follow one another. Cross-validation does not split it.

Without either, all rows are one sequence.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from ..inference.numerics.checks import naming
from ..inference.numerics.scalars import check_flag, check_integer, check_kind
from .data.frames import is_foreign, plain, to_tensor
from .dynamics.contract import Dynamics
from .dynamics.markov import Markov
from .emissions.contract import Emission
from .emissions.normal import Normal
from .fit import Fit
from .model import SwitchingSSM
from .peers import Explaining

Rows = NDArray[np.intp]
STEP = re.compile(r"(?:sequence (\d+), )?step (\d+)(?:, feature (\d+)( \([^)]*\))?)?")  # a place in an error


class SwitchingEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, metaclass=Explaining):
    """A `SwitchingSSM` as an estimator of scikit-learn.

    Arguments:
        model: a `SwitchingSSM` without inputs.
        method, restarts, max_steps, tol, prior: as in `SwitchingSSM.fit`.
        random_state: the seed of fits; None: another one for each fit.

    Attributes:
        fit_: the `Fit`, with its diagnostics.
        model_: the model with the values of the fit.
        n_features_in_, feature_names_in_: as of every estimator.

    Arguments of methods:
        X: rows `[n, F]`, with NaN where missing.
        y: ignored.
        groups: the name of the sequence of each row; None: one sequence.
        lengths: the number of rows of each sequence, one after another, in place of groups.

    Raises:
        TypeError: from `fit`, a model that is not a `SwitchingSSM`.
        ValueError: from `fit`, as `SwitchingSSM.fit`.

    See Also:
        `HMM`, for searches over the number of states; `SwitchingSSM`, its model; docs/guides/scikit_learn.md.

    Example:
        >>> import numpy as np
        >>> import samplehold as sh
        >>> X = np.array([[0.1], [-0.1], [0.2], [5.1], [4.9], [5.0]])
        >>> estimator = sh.sklearn.SwitchingEstimator(sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)), restarts=2)
        >>> estimator.fit(X).predict(X)
        array([0, 0, 0, 1, 1, 1])
    """

    def __init__(
        self,
        model: SwitchingSSM | None = None,
        *,
        method: str = "em",
        restarts: int = 8,
        max_steps: int = 500,
        tol: float = 1e-6,
        prior: Any = "weak",
        random_state: Any = 0,
    ) -> None:
        self.model = model
        self.method = method
        self.restarts = restarts
        self.max_steps = max_steps
        self.tol = tol
        self.prior = prior
        self.random_state = random_state

    def _model_for(self, X: NDArray[Any]) -> SwitchingSSM:
        """The model to fit to rows X."""
        check_kind("model", self.model, SwitchingSSM, "a SwitchingSSM, such as SwitchingSSM(Markov(2), Normal(1))")
        assert self.model is not None
        if self.model.inputs:
            raise ValueError(
                f"model: got {self.model!r}, which reads inputs, but an estimator accepts X alone; use its own fit."
            )
        return self.model

    def fit(self, X: ArrayLike, y: Any = None, *, groups: Any = None, lengths: Any = None) -> "SwitchingEstimator":
        """Fit the model to rows `[n, F]`, with NaN where missing; y is ignored.

        Raises:
            ValueError: rows of another form, or groups or lengths that do not fit them; see `SwitchingSSM.fit` too.
        """
        rows = self._read(X, reset=True, ensure_min_samples=2)
        _check_y(y, len(rows))
        model = self._model_for(rows)
        sequences = sequences_of(len(rows), groups, lengths)
        x = _split(rows[:, self._places(model)], sequences)
        options = {name: getattr(self, name) for name in ("method", "restarts", "max_steps", "tol", "prior")}
        with self._by_row(sequences, groups, self._places(model)):
            self.fit_: Fit[SwitchingSSM] = model.fit(x, seed=self._seed(), progress=False, **options)
        self.model_: SwitchingSSM = self.fit_.model
        return self

    def fit_transform(self, X: ArrayLike, y: Any = None, *, groups: Any = None, lengths: Any = None) -> NDArray[Any]:  # type: ignore[override]
        """`fit`, then `transform` of the same rows."""
        return self.fit(X, y, groups=groups, lengths=lengths).transform(X, groups=groups, lengths=lengths)

    def predict(
        self, X: ArrayLike, *, filtered: bool = True, groups: Any = None, lengths: Any = None
    ) -> NDArray[np.int64]:
        """The state of each row `[n]`.

        Arguments:
            filtered: True: the most probable state given this row and earlier ones, which looks at no later row. False:
                that of the most probable path given all rows of a sequence.
        """
        if check_flag("filtered", filtered):
            return self.predict_proba(X, groups=groups, lengths=lengths).argmax(-1)
        return self._each(X, groups, lengths, lambda model, x: [v.path for v in model.viterbi(x, ragged=True)])

    def predict_proba(
        self, X: ArrayLike, *, filtered: bool = True, groups: Any = None, lengths: Any = None
    ) -> NDArray[Any]:
        """The probabilities of the states at each row `[n, K]`.

        Arguments:
            filtered: True: given this row and earlier ones. False: given all rows of a sequence.
        """
        filtered = check_flag("filtered", filtered)

        def probabilities(model: SwitchingSSM, x: list[torch.Tensor]) -> list[torch.Tensor]:
            beliefs = model.filter(x, ragged=True) if filtered else model.smooth(x, ragged=True)
            return [belief.state for belief in beliefs]

        return self._each(X, groups, lengths, probabilities)

    def transform(self, X: ArrayLike, *, groups: Any = None, lengths: Any = None) -> NDArray[Any]:
        """`predict_proba`, as features for another estimator: no feature looks at a later row."""
        return self.predict_proba(X, groups=groups, lengths=lengths)

    def score_samples(self, X: ArrayLike, *, groups: Any = None, lengths: Any = None) -> NDArray[Any]:
        """log p(row | earlier rows of its sequence) `[n]`, in nats."""
        return self._each(
            X, groups, lengths, lambda model, x: [belief.log_increment for belief in model.filter(x, ragged=True)]
        )

    def score(self, X: ArrayLike, y: Any = None, *, groups: Any = None, lengths: Any = None) -> float:
        """The log evidence of X over its number of rows, in nats, so that folds of any size compare."""
        scores = self.score_samples(X, groups=groups, lengths=lengths)
        _check_y(y, len(scores))
        return float(scores.mean())

    def sample(self, n_samples: int = 1) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """One sequence from the fitted model: its rows `[n, F]` and states `[n]`.

        Arguments:
            n_samples: the number of rows.
        """
        check_is_fitted(self)
        drawn = self.model_.simulate(check_integer("n_samples", n_samples), seed=self._seed())
        rows = np.empty(drawn.x.shape, drawn.x.numpy().dtype)
        rows[:, self._places(self.model_)] = drawn.x.numpy()
        return rows, drawn.path.numpy()

    def _each(
        self,
        X: ArrayLike,
        groups: Any,
        lengths: Any,
        of: Callable[[SwitchingSSM, list[torch.Tensor]], list[torch.Tensor]],
    ) -> NDArray[Any]:
        """What a method gives for the rows of each sequence, in the order of the rows of X."""
        check_is_fitted(self)
        rows = self._read(X, reset=False)
        sequences = sequences_of(len(rows), groups, lengths)
        places = self._places(self.model_)
        with self._by_row(sequences, groups, places):
            tables = torch.cat(of(self.model_, _split(rows[:, places], sequences))).numpy()
        ordered = np.empty_like(tables)
        ordered[np.concatenate(sequences)] = tables
        return ordered

    @contextmanager
    def _by_row(self, sequences: Sequence[Rows], groups: Any, places: Rows) -> Iterator[None]:
        """Inside, errors about x name rows of X, with their groups, and its columns."""

        def place(step: re.Match[str]) -> str:
            sequence, number, feature, called = step.groups()
            row = sequences[int(sequence or 0)][int(number)]
            group = "" if groups is None else f" of group {np.asarray(groups).ravel()[row]}"
            if feature is None:
                return f"row {row}{group}"
            column = places[int(feature)]
            names = vars(self).get("feature_names_in_")
            called = called or "" if names is None else f" ({names[column]})"
            return f"row {row}{group}, feature {column}{called}"

        try:
            yield
        except ValueError as error:
            text = str(error)
            if text.startswith("x:"):
                error.args = ("X:" + STEP.sub(place, text, count=1).removeprefix("x:"),)
            raise

    def _read(self, X: Any, **how: Any) -> NDArray[Any]:
        foreign = is_foreign(X)
        X = plain(X, "X")
        if foreign and isinstance(X, pd.Series):
            raise ValueError(
                "X: got one column, expected a frame with a column for each feature; give it by to_frame()."
            )
        if isinstance(X, pd.DataFrame) and not len(X.columns):
            raise ValueError("X: got a frame without columns; give one for each feature.")
        if isinstance(X, pd.DataFrame):
            X = pd.DataFrame(to_tensor(X, "X").numpy(), columns=X.columns)
        rows: Any = validate_data(self, X, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan", **how)
        return rows

    def _places(self, model: SwitchingSSM) -> Rows:
        """The column of X of each feature of the model. A `Joint` names its columns."""
        known = vars(self)
        numbers = np.arange(known["n_features_in_"])
        if "feature_names_in_" not in known:
            return numbers
        frame = pd.DataFrame(numbers[np.newaxis].astype(float), columns=known["feature_names_in_"])
        with naming("X", "x"):
            return np.asarray(model.emission.arranged(frame))[0].astype(np.intp)

    def _seed(self) -> int:
        if isinstance(self.random_state, int):
            return self.random_state
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    @property
    def _n_features_out(self) -> int:
        return self.model_.n_states

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class HMM(SwitchingEstimator):
    """A hidden Markov model as an estimator of scikit-learn. Its number of states and parts are parameters, for
    searches.

    Arguments:
        n_states: K.
        emission: the class of the emission, whose size follows from X, or an emission.
        dynamics: the class of the dynamics: `Markov` or `Copy`.
        method, restarts, max_steps, tol, prior, random_state: as in `SwitchingEstimator`.

    Raises:
        TypeError, ValueError: from `fit`, as its model and `SwitchingSSM.fit`.

    See Also:
        `SwitchingEstimator`, for a given model; `select`, without scikit-learn; docs/guides/scikit_learn.md.

    Example:
        >>> import numpy as np
        >>> import samplehold as sh
        >>> from sklearn.model_selection import GridSearchCV, GroupKFold
        >>> X, day = np.random.default_rng(0).normal(size=(60, 1)), np.arange(60) // 10
        >>> search = GridSearchCV(sh.sklearn.HMM(restarts=2), {"n_states": [1, 2]}, cv=GroupKFold(3))
        >>> search.fit(X, groups=day).best_params_
        {'n_states': 1}
    """

    def __init__(
        self,
        n_states: int = 2,
        *,
        emission: type[Emission] | Emission = Normal,
        dynamics: type[Dynamics] = Markov,
        method: str = "em",
        restarts: int = 8,
        max_steps: int = 500,
        tol: float = 1e-6,
        prior: Any = "weak",
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            method=method, restarts=restarts, max_steps=max_steps, tol=tol, prior=prior, random_state=random_state
        )
        self.n_states = n_states
        self.emission = emission
        self.dynamics = dynamics

    def _model_for(self, X: NDArray[Any]) -> SwitchingSSM:
        emission = self.emission
        if isinstance(emission, type) and issubclass(emission, Emission):
            emission = emission.sized_to(X)
        check_kind("emission", emission, Emission, "the class of an emission, such as Normal, or an emission")
        if not (isinstance(self.dynamics, type) and issubclass(self.dynamics, Dynamics)):
            raise TypeError(f"dynamics: got {self.dynamics!r}, expected a class of dynamics: Markov or Copy.")
        return SwitchingSSM(self.dynamics(self.n_states), emission)  # pyright: ignore[reportCallIssue]


def sequences_of(n_rows: int, groups: Any, lengths: Any) -> Sequence[Rows]:
    """The numbers of the rows of each sequence, in the order of the sequences' first rows.

    Raises:
        ValueError: both groups and lengths, groups of another number, or lengths with another sum.
    """
    if groups is not None and lengths is not None:
        raise ValueError("groups: was given together with lengths; give only one of them.")
    if lengths is not None:
        sizes = [check_integer("lengths", size) for size in np.asarray(lengths).ravel()]
        if sum(sizes) != n_rows:
            raise ValueError(f"lengths: got sizes with the sum {sum(sizes)}, but X has {n_rows} rows.")
        return np.split(np.arange(n_rows), np.cumsum(sizes)[:-1])
    if groups is None:
        return [np.arange(n_rows)]
    labels = np.asarray(plain(groups, "groups"))
    labels = labels.ravel() if labels.shape == (n_rows, 1) else labels
    if labels.ndim != 1:
        raise ValueError(f"groups: got shape {labels.shape}, but X has {n_rows} rows; give one label for each row.")
    if len(labels) != n_rows:
        raise ValueError(f"groups: got {len(labels)} labels, but X has {n_rows} rows; give one for each row.")
    try:
        number, _ = pd.factorize(labels)  # in the order of first rows, -1 where missing
    except TypeError:
        row = next(row for row, label in enumerate(labels) if type(label).__hash__ is None)
        raise TypeError(
            f"groups: got {type(labels[row]).__name__} at row {row}, expected a label for each row: text or a number."
        ) from None
    if (number < 0).any():
        raise ValueError(f"groups: row {number.argmin()} has no label; give each row the label of its sequence.")
    return np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])


def _check_y(y: Any, n_rows: int) -> None:
    if y is not None and len(labels := np.atleast_1d(np.asarray(y))) != n_rows:
        raise ValueError(f"y: got {len(labels)} values for {n_rows} rows of X; to name sequences, write lengths=.")


def _split(rows: NDArray[Any], sequences: Sequence[Rows]) -> list[torch.Tensor]:
    return [torch.from_numpy(rows[numbers]) for numbers in sequences]
