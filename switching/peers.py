"""The words of other libraries, and ours for the same: in errors, and on the page docs/coming_from/index.md."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import NamedTuple, ParamSpec, TypeVar, get_args

Arguments = ParamSpec("Arguments")
Fitted = TypeVar("Fitted")


class Word(NamedTuple):
    """A word of other libraries."""

    theirs: str
    ours: str
    of: str  # the libraries

    def __str__(self) -> str:
        return self.ours if self.ours.startswith("not there") else f"here it is {self.ours}"


def _by_name(*words: Word) -> dict[str, Word]:
    return {word.theirs: word for word in words}


OPTIONS = _by_name(
    Word("n_iter", "max_steps", "hmmlearn"),
    Word("num_iters", "max_steps", "ssm, dynamax"),
    Word("maxiter", "max_steps", "statsmodels"),
    Word("max_iter", "max_steps", "scikit-learn"),
    Word("num_steps", "max_steps", "Pyro"),
    Word("n_init", "restarts", "scikit-learn"),
    Word("search_reps", "restarts", "statsmodels"),
    Word("random_state", "seed", "hmmlearn, scikit-learn"),
    Word("verbose", "progress", "hmmlearn, scikit-learn"),
    Word("disp", "progress", "statsmodels"),
    Word("exog", "inputs", "statsmodels"),
    Word("exog_tvtp", "inputs", "statsmodels"),
    Word("start_params", "start", "statsmodels"),
    Word("masks", "NaN in x where a value is missing", "ssm"),
)
"""Options of fits."""

MEMBERS = _by_name(
    Word("predict", "viterbi(x) for the best path, states(x) for the best state of each step", "hmmlearn"),
    Word("predict_proba", "smooth(x).state", "hmmlearn"),
    Word("decode", "viterbi(x)", "hmmlearn"),
    Word("score", "log_evidence(x)", "hmmlearn"),
    Word("sample", "simulate(n_steps)", "hmmlearn, ssm, dynamax"),
    Word("most_likely_states", "viterbi(x)", "ssm, dynamax"),
    Word("expected_states", "smooth(x).state", "ssm"),
    Word("log_likelihood", "log_evidence(x)", "ssm"),
    Word("marginal_log_prob", "log_evidence(x)", "dynamax"),
    Word("smoother", "smooth(x)", "dynamax"),
    Word("params", "values, or describe() for a displayed form", "statsmodels, dynamax, ssm"),
    Word("transmat_", "values['transition_probs'] of Markov dynamics", "hmmlearn"),
    Word("startprob_", "values['initial_probs'] of Markov dynamics", "hmmlearn"),
    Word("means_", "values['loc']", "hmmlearn"),
    Word("covars_", "describe()['covariance'], or ['scale'] of independent features", "hmmlearn"),
    Word("llf", "log_evidence(x); fit.loglik", "statsmodels"),
    Word("bse", "summary().parameters of a fit", "statsmodels"),
    Word("get_forecast", "forecast(horizon)", "statsmodels"),
    Word("fittedvalues", "to_arviz(x).posterior_predictive: x_t given the steps before it", "statsmodels"),
    Word("resid", "residuals() of a fit, as normal scores", "statsmodels"),
    Word("smoothed_marginal_probabilities", "smooth(x).state", "statsmodels"),
    Word("filtered_marginal_probabilities", "filter(x).state", "statsmodels"),
    Word("expected_durations", "durations(x)", "statsmodels"),
)
"""Attributes and methods of models and fits."""

CLASSES = _by_name(
    Word("GaussianHMM", "SwitchingSSM(Markov(K), MultivariateNormal(F)), or Normal(F)", "hmmlearn, dynamax"),
    Word("CategoricalHMM", "SwitchingSSM(Markov(K), Categorical(n))", "hmmlearn, dynamax"),
    Word("PoissonHMM", "SwitchingSSM(Markov(K), Poisson(F))", "hmmlearn, dynamax"),
    Word("MultinomialHMM", "SwitchingSSM(Markov(K), Multinomial(F, n))", "hmmlearn, dynamax"),
    Word("GMMHMM", "SwitchingSSM(Markov(K), Mixture(MultivariateNormal(F), n))", "hmmlearn"),
    Word("GaussianMixtureHMM", "SwitchingSSM(Markov(K), Mixture(MultivariateNormal(F), n))", "dynamax"),
    Word("GammaHMM", "SwitchingSSM(Markov(K), Gamma(F))", "dynamax"),
    Word("HMM", "SwitchingSSM(Markov(K), an emission)", "ssm"),
    Word("SLDS", "SwitchingLinearSSM(K, L, F)", "ssm"),
    Word("LDS", "LinearSSM(L, F)", "ssm"),
    Word("LinearGaussianSSM", "LinearSSM(L, F)", "dynamax"),
    Word("KalmanFilter", "LinearSSM(L, F)", "pykalman"),
    Word("UnobservedComponents", "LinearSSM(LocalLevel()) and other structures", "statsmodels"),
    Word("ARHMM", "SwitchingSSM(Markov(K), AutoRegressive(order=n, n_features=F))", "pyhsmm-autoregressive"),
    Word("LinearAutoregressiveHMM", "SwitchingSSM(Markov(K), AutoRegressive(order=n, n_features=F))", "dynamax"),
    Word("HSMM", "SwitchingSSM(SemiMarkov(K, NegativeBinomial()), an emission)", "ssm, pyhsmm"),
    Word(
        "MarkovAutoregression", "DeviationAR(K, n), or AutoRegressive(n) with an intercept that switches", "statsmodels"
    ),
    Word(
        "MarkovRegression",
        'SwitchingSSM(Markov(K, initial="stationary"), LinearRegression(F, inputs=["name"])), or Normal(F)',
        "statsmodels",
    ),
)
"""Classes."""


def missing_member(kind: str, name: str, of: str = "") -> AttributeError:
    """The error if an object of this kind has no such attribute; `of`: where ours are, if not all are its own."""
    word = MEMBERS.get(name)
    return AttributeError(f"{kind!r} object has no attribute {name!r}{f'; {word}{of}' if word else ''}")


def missing_class(name: str) -> AttributeError:
    """The error if the package has no such name."""
    word = CLASSES.get(name)
    return AttributeError(f"module 'samplehold' has no attribute {name!r}{f'; {word}' if word else ''}")


def unknown_option(name: str, known: list[str]) -> TypeError:
    """The error if `fit` has no such option; the nearest of its options comes first."""
    word = OPTIONS.get(name)
    near = get_close_matches(name, known, n=len(known), cutoff=0.5) if word is None else [word.ours]
    ordered = sorted(known, key=lambda option: near.index(option) if option in near else len(near))
    instead = f" ({word})" if word and not word.ours.isidentifier() else ""
    return TypeError(f"fit: has no option {name!r}{instead}; it has {', '.join(ordered)}.")


def explains_options(fit: Callable[Arguments, Fitted]) -> Callable[Arguments, Fitted]:
    """Make a method `fit(x, method, ...)` name its options if it gets another one, or lengths as its method."""
    known: list[str] = []
    for one in list(signature(fit).parameters.values())[1:]:
        others = one.kind is Parameter.VAR_KEYWORD  # whose annotation is Unpack[a dictionary with these keys]
        known += get_args(one.annotation)[0].__annotations__ if others else [one.name]

    @wraps(fit)
    def explained(*arguments: Arguments.args, **options: Arguments.kwargs) -> Fitted:
        if len(arguments) > 2 and not isinstance(arguments[2], str):
            raise TypeError(
                f"method: got {type(arguments[2]).__name__}, expected the name of one; give lengths by name, "
                "fit(x, lengths=...)."
            )
        for name in options:
            if name not in known:
                raise unknown_option(name, known[1:])
        return fit(*arguments, **options)

    return explained
