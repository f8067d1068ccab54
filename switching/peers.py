"""The words of other libraries, and ours for the same: in errors, and on the page docs/coming_from/index.md."""

import re
from abc import ABCMeta
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args

from ..inference.numerics.docstrings import share_arguments

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Made = TypeVar("Made")
NEAR = 0.7  # likeness of a misspelt name
FEW = 10  # names that an error lists
UNEXPECTED = re.compile(r"(\w+)\.__(?:init|new)__\(\) got an unexpected keyword argument '(\w+)'")
MAKERS = ("__new__", "__init__")
PIPELINE = "sh.sklearn.SwitchingEstimator(model), an estimator of scikit-learn"


class Word(NamedTuple):
    """A word of other libraries.

    Attributes:
        theirs: the word.
        ours: what to write here. Methods that a fit and a model share are written `{it}.smooth({x})`.
        of: the libraries.
    """

    theirs: str
    ours: str
    of: str

    @property
    def is_advice(self) -> bool:
        """Whether `ours` is a sentence, not a name or names."""
        return not all(name.split(" (")[0].isidentifier() for name in self.ours.split(" or "))

    def said(self, kind: str) -> str:
        """What to write for an object called `kind`; a fit has its series, so its methods need no x."""
        alone = kind == "fit"
        return self.ours.format(it=kind, x="" if alone else "x", first="" if alone else "x, ")


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
    Word("masks", "NaN in x marks a missing value", "ssm"),
    Word("device", "a fit runs where x is, as in fit(x.to(device))", "torch"),
    Word("dtype", "a fit has the dtype of x, as in fit(x.double())", "torch"),
    Word("steps", "horizon", "statsmodels"),
    Word("n_periods", "horizon", "pmdarima"),
    Word("alpha", "level (1 - alpha)", "statsmodels"),
    Word("n_samples", "n_steps", "hmmlearn"),
    Word("num_timesteps", "n_steps", "dynamax"),
    Word("nsimulations", "n_steps", "statsmodels"),
    Word("n_components", "n_states", "hmmlearn"),
    Word("num_states", "n_states", "dynamax"),
    Word("k_regimes", "n_states or n_regimes", "statsmodels"),
    Word("K", "n_states or n_regimes or max_states", "ssm"),
    Word("emission_dim", "n_features", "dynamax"),
    Word("num_lags", "order", "dynamax"),
    Word("covariance_type", "covariance", "hmmlearn"),
    Word("kappa", "sticky or sticky_prior", "ssm, pyhsmm"),
    Word("durations", "duration", "pyhsmm"),
)
"""Options of fits, forecasts and draws, and arguments of models and their parts."""

MEMBERS = _by_name(
    Word(
        "predict", "{it}.viterbi({x}) for the best path, {it}.states({x}) for the best state of each step", "hmmlearn"
    ),
    Word("predict_proba", "{it}.smooth({x}).state", "hmmlearn"),
    Word("decode", "{it}.viterbi({x})", "hmmlearn"),
    Word("score", "{it}.log_evidence({x})", "hmmlearn"),
    Word("sample", "{it}.simulate(n_steps)", "hmmlearn, ssm, dynamax"),
    Word("most_likely_states", "{it}.viterbi({x})", "ssm, dynamax"),
    Word("expected_states", "{it}.smooth({x}).state", "ssm"),
    Word("log_likelihood", "{it}.log_evidence({x})", "ssm"),
    Word("marginal_log_prob", "{it}.log_evidence({x})", "dynamax"),
    Word("smoother", "{it}.smooth({x})", "dynamax"),
    Word("params", "{it}.values, or {it}.describe() for displayed forms", "statsmodels, dynamax, ssm"),
    Word("transmat_", "{it}.values['transition_probs'], of Markov dynamics", "hmmlearn"),
    Word("startprob_", "{it}.values['initial_probs'], of Markov dynamics", "hmmlearn"),
    Word("means_", "{it}.values['loc']", "hmmlearn"),
    Word("covars_", "{it}.describe()['covariance'], or ['scale'] of independent features", "hmmlearn"),
    Word("llf", "fit.loglik, or model.log_evidence(x)", "statsmodels"),
    Word("bse", "fit.summary().parameters['standard error']", "statsmodels"),
    Word("pvalues", "fit.summary().parameters['p'], of coefficients", "statsmodels"),
    Word("tvalues", "fit.summary().parameters['z'], of coefficients", "statsmodels"),
    Word("get_forecast", "{it}.forecast({first}horizon)", "statsmodels"),
    Word("fittedvalues", "{it}.to_arviz({x}).posterior_predictive: x_t given the steps before it", "statsmodels"),
    Word("resid", "fit.residuals(), which are normal scores", "statsmodels"),
    Word("plot_diagnostics", "fit.diagnose(), or fit.residuals().plot()", "statsmodels"),
    Word("smoothed_marginal_probabilities", "{it}.smooth({x}).state", "statsmodels"),
    Word("filtered_marginal_probabilities", "{it}.filter({x}).state", "statsmodels"),
    Word("expected_durations", "{it}.durations({x})", "statsmodels"),
    Word("get_params", PIPELINE, "scikit-learn"),
    Word("set_params", PIPELINE, "scikit-learn"),
    Word("fit_predict", PIPELINE, "scikit-learn"),
    Word("fit_transform", PIPELINE, "scikit-learn"),
    Word("transform", PIPELINE, "scikit-learn"),
    Word("__sklearn_tags__", PIPELINE, "scikit-learn"),
    Word("cuda", "fit(x.cuda()): a model computes where x is", "torch"),
    Word("to", "fit(x.to(device)): a model computes where x is", "torch"),
    Word("parameters", "{it}.values", "torch"),
)
"""Attributes and methods of models and fits."""

FORECASTS = _by_name(
    Word("predicted_mean", "forecast.mean", "statsmodels"),
    Word("var_pred_mean", "forecast.variance", "statsmodels"),
    Word("conf_int", "forecast.interval(level)", "statsmodels"),
    Word("summary_frame", "forecast.table(level)", "statsmodels"),
)
"""Attributes and methods of forecasts."""

CLASSES = _by_name(
    Word("GaussianHMM", "SwitchingSSM(Markov(K), MultivariateNormal(F)), or Normal(F)", "hmmlearn, dynamax"),
    Word("CategoricalHMM", "SwitchingSSM(Markov(K), Categorical(n))", "hmmlearn, dynamax"),
    Word("PoissonHMM", "SwitchingSSM(Markov(K), Poisson(F))", "hmmlearn, dynamax"),
    Word("MultinomialHMM", "SwitchingSSM(Markov(K), Multinomial(F, n))", "hmmlearn, dynamax"),
    Word("GMMHMM", "SwitchingSSM(Markov(K), Mixture(MultivariateNormal(F), n))", "hmmlearn"),
    Word("GaussianMixtureHMM", "SwitchingSSM(Markov(K), Mixture(MultivariateNormal(F), n))", "dynamax"),
    Word("GammaHMM", "SwitchingSSM(Markov(K), Gamma(F))", "dynamax"),
    Word("HMM", "SwitchingSSM(Markov(K), an emission)", "ssm"),
    Word("GLMHMM", 'SwitchingSSM(Markov(K), Bernoulli(1, inputs=["name"])), or another emission with inputs', "glmhmm"),
    Word("TVTP", 'SwitchingSSM(Markov(K, inputs=["name"]), an emission)', "statsmodels"),
    Word("SLDS", "SwitchingLinearSSM(K, L, F)", "ssm"),
    Word("rSLDS", "SwitchingLinearSSM(K, L, F, recurrent=True)", "ssm"),
    Word("LDS", "LinearSSM(L, F)", "ssm"),
    Word("LinearGaussianSSM", "LinearSSM(L, F)", "dynamax"),
    Word("KalmanFilter", "LinearSSM(L, F)", "pykalman"),
    Word("UnobservedComponents", "LinearSSM(LocalLevel()) and other structures", "statsmodels"),
    Word("ARHMM", "SwitchingSSM(Markov(K), AutoRegressive(order=n, n_features=F))", "ssm, pyhsmm-autoregressive"),
    Word("LinearAutoregressiveHMM", "SwitchingSSM(Markov(K), AutoRegressive(order=n, n_features=F))", "dynamax"),
    Word("VAR", 'SwitchingSSM(Markov(1), AutoRegressive(order=n, n_features=F, covariance="full"))', "statsmodels"),
    Word("HSMM", "SwitchingSSM(SemiMarkov(K, NegativeBinomial()), an emission)", "ssm, pyhsmm"),
    Word("HDPHMM", "SwitchingSSM(StickyHDP(K), an emission)", "bnpy, pyhsmm"),
    Word("Changepoints", "Segments(an emission)", "ruptures"),
    Word(
        "MarkovAutoregression", "DeviationAR(K, n), or AutoRegressive(n) with an intercept that switches", "statsmodels"
    ),
    Word(
        "MarkovRegression",
        'SwitchingSSM(Markov(K, initial="stationary"), LinearRegression(F, inputs=["name"])), or Normal(F)',
        "statsmodels",
    ),
    Word("StackRNN", "stacks.SuperpositionStackRNN(F, L, n), or another network of sh.stacks", "stacknn"),
    Word("DFA", "automata.extract_automaton(network), which returns one of automata-lib", "automata-lib"),
)
"""Classes."""

SPELT = {name.lower(): word for name, word in CLASSES.items()}
"""Classes by their names without capitals."""


# ---- names that do not exist -----------------------------------------------------------------------------------------


def missing_member(of: Any, name: str, kind: str = "", elsewhere: str = "") -> AttributeError:
    """The error if an object has no such attribute.

    Arguments:
        of: the object.
        name: the attribute.
        kind: "fit", "model" or "forecast", which hints are about; empty: none.
        elsewhere: where the attribute is.
    """
    word = (FORECASTS if kind == "forecast" else MEMBERS).get(name) if kind else None
    use = word.said(kind) if word else elsewhere
    return AttributeError(f"{type(of).__name__!r} object has no attribute {name!r}{f'; use {use}.' if use else ''}")


def missing_class(name: str) -> AttributeError:
    """The error if the package has no such name."""
    word = SPELT.get(name.lower().replace("_", ""))
    plural = SPELT.get(name.lower().replace("_", "") + "s")
    use = word or plural
    return AttributeError(f"module 'samplehold' has no attribute {name!r}{f'; use {use.ours}.' if use else ''}")


def unknown_option(callee: str, name: str, known: Collection[str]) -> TypeError:
    """The error if a function or a class has no such argument, in one sentence: our word for it, the nearest of its
    arguments, or all if they are few.

    Arguments:
        callee: the function or the class.
        name: what it got.
        known: the names of its arguments.
    """
    word, near = OPTIONS.get(name), get_close_matches(name, known, n=1, cutoff=NEAR)
    for ours in [] if word is None else word.ours.split(" or "):
        if ours.split(" (")[0] in known:
            return TypeError(f"{callee}: {name} is {ours} here.")
    if word is not None and word.is_advice:
        return TypeError(f"{callee}: has no option {name!r}; {word.ours}.")
    if near:
        return TypeError(f"{callee}: has no option {name!r}; did you mean {near[0]!r}?")
    listed = f"; it has {', '.join(known)}" if len(known) <= FEW else ""
    return TypeError(f"{callee}: has no option {name!r}{listed}.")


# ---- arguments that do not exist -------------------------------------------------------------------------------------


def explains_options(verb: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Make a method answer an argument that it has not by ours; and `fit(x, method, ...)` another object in place of
    its method."""
    known: list[str] = []
    for one in list(signature(verb).parameters.values())[1:]:
        others = one.kind is Parameter.VAR_KEYWORD  # whose annotation is Unpack[a dictionary with these keys]
        known += get_args(one.annotation)[0].__annotations__ if others else [one.name]
    of_fit = "method" in known

    @wraps(verb)
    def explained(*arguments: Arguments.args, **options: Arguments.kwargs) -> Returned:
        if of_fit and len(arguments) > 2 and not isinstance(arguments[2], str):
            raise TypeError(
                f"method: got {type(arguments[2]).__name__}, expected the name of one; give lengths by name, "
                f"fit(x, lengths=...). In a pipeline, use {PIPELINE}."
            )
        for name in options:
            if name not in known:
                raise unknown_option(verb.__name__, name, [other for other in known if other != "x"])
        return verb(*arguments, **options)

    return explained


def _nothing(_: Any) -> None:
    """The maker of a class without one."""


class Explaining(ABCMeta):
    """The type of classes that answer an argument that they have not by ours, and whose methods share descriptions of
    arguments."""

    def __init__(cls, *parts: Any, **keywords: Any) -> None:
        super().__init__(*parts, **keywords)
        share_arguments(cls)

    @property
    def __signature__(cls) -> Signature:
        """That of its own `__new__` or `__init__`, or of the nearest class above that has one."""
        makers = (getattr(cls, name) for kind in cls.__mro__[:-1] for name in MAKERS if name in vars(kind))
        plain = signature(next(makers, _nothing))
        return plain.replace(parameters=list(plain.parameters.values())[1:])

    def __call__(cls: type[Made], *arguments: Any, **named: Any) -> Made:
        try:
            return super().__call__(*arguments, **named)
        except TypeError as error:
            found = UNEXPECTED.match(str(error))
            if found is None or found[2] not in named:
                raise
            known = list(signature(cls).parameters)
        raise unknown_option(cls.__name__, found[2], known)
