# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Choosing a model
#
# A fit finds the best parameters of a model. It does not say how many states the model should have, whether the model
# describes the data, or whether it would have forecast anything. This notebook asks the three questions of 50 years of
# the American economy.

# %%
# %matplotlib inline
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # a progress bar that this notebook does not show

import numpy as np
import pandas as pd
import samplehold as sh

macro = pd.read_csv("data/us_macro.csv", index_col="quarter")
growth = 100 * np.log(macro["realgdp"]).diff()
x = pd.DataFrame({"growth": growth, "unemployment": macro["unemp"].diff()}).iloc[1:]  # in percent a quarter
x.describe().round(2)


# %% [markdown]
# ## How many states?
#
# `select` fits a model for each number of states. Bic charges $\log n$ for two parameters. The held-out likelihood
# needs no theory: the model is fitted to the first half of the series and more, and predicts the block of quarters
# that comes next.


# %%
def regimes(k: int) -> sh.SwitchingSSM:
    """k regimes of growth and unemployment, with a covariance each."""
    return sh.SwitchingSSM(sh.Markov(k), sh.MultivariateNormal(2))


chosen = sh.select(regimes, x, range(1, 4), criterion="heldout", folds=4, restarts=2)
chosen.table.round(2)

# %%
chosen.plot()

# %% [markdown]
# One state is far too few, by every criterion. After two the held-out likelihood gains nothing, and bic rises. Aic
# likes three, as it often likes more.

# %%
assert chosen.best == 2
assert chosen.table["bic"].idxmin() == 1
fit = chosen.fit
fit.model.describe()["loc"]

# %% [markdown]
# ## Does it describe the data?
#
# `diagnose` looks where a careful statistician would. A "!" asks for attention.

# %%
fit.diagnose()

# %% [markdown]
# A residual is the normal score of an observation under its distribution given all quarters before it. Residuals of a
# true model are standard normal and independent. Here the changes of unemployment are followed by more of the same:

# %%
residuals = fit.residuals()
residuals.plot()

# %%
residuals.ljung_box(lags=4).round(4)

# %% [markdown]
# So a quarter depends on the quarter before it beyond its regime. An autoregression in each regime takes care of this:

# %%
lagged = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(1, 2))
fitted = lagged.fit(x, restarts=2, progress=False)
both = pd.DataFrame(
    {
        "regimes": residuals.ljung_box(lags=4)["p_value"],
        "regimes and a lag": fitted.residuals().ljung_box(lags=4)["p_value"],
    }
)
assert (both["regimes and a lag"] > 0.01).all()
assert both["regimes"].min() < 0.01
both.round(4)

# %% [markdown]
# ## Would it have forecast?
#
# `backtest` walks through the series from 1989 on. It fits the model again every ten years, to the quarters up to
# then. States are *filtered*: they know nothing later. Forecasts are scored by their log density (higher is better) and
# by the continuous ranked probability score (lower is better).

# %%
given = {"refit_every": 40, "horizon": [1, 4], "first": 120, "restarts": 1}
walks = {
    "one state": sh.backtest(regimes(1), x, **given),
    "two regimes": sh.backtest(regimes(2), x, **given),
    "regimes and a lag": sh.backtest(lagged, x, **given),
}
scores = pd.concat({name: walk.means for name, walk in walks.items()})
scores[["log_score", "crps_growth", "crps_unemployment", "covered_growth", "covered_unemployment"]].round(3)

# %%
walks["two regimes"].plot()

# %% [markdown]
# Regimes forecast better than one state does, a quarter ahead and a year ahead. The lag helps a quarter ahead, most of
# all for unemployment; after a year nothing is left of it.

# %%
log_score = scores["log_score"].unstack()
assert (log_score.loc["two regimes"] > log_score.loc["one state"]).all()
crps = scores["crps_unemployment"].unstack()
assert crps.loc["regimes and a lag", 1] < crps.loc["two regimes", 1]

# %% [markdown]
# Filtered states are what one knew at the time. Smoothed states know the whole series: today the recession seems to
# begin a half-year before anyone could have seen it. A strategy that trades on smoothed states knows the future.

# %%
walk = walks["two regimes"]
known = walk.states[f"state_{int(walk.fits[0].model.loc[:, 0].argmin())}"]  # the regime of low growth
smoothed = fit.smooth().state[:, int(fit.model.loc[:, 0].argmin())]
later = pd.Series(smoothed.numpy(), index=x.index).loc[known.index]
pd.DataFrame({"known at the time": known, "known now": later}).loc["2007Q1":"2009Q2"].round(2)

# %% [markdown]
# ## Columns of different kinds
#
# The rate of unemployment is published to a tenth of a percent, so its change is more a direction than a number: it
# falls, stays or rises. `Joint` gives each column its own family, by name. A value may be missing in one column alone.
# Without the growth of the worst two quarters of 1974-75, the direction still tells the regime.

# %%
direction = 1 + np.sign(x["unemployment"].round(3))  # 0 falls, 1 stays, 2 rises
mixed = pd.DataFrame({"growth": x["growth"], "direction": direction})
mixed.loc["1974Q4":"1975Q1", "growth"] = np.nan


def kinds(k: int) -> sh.SwitchingSSM:
    """k regimes of growth, and of the direction of unemployment."""
    return sh.SwitchingSSM(sh.Markov(k), sh.Joint(growth=sh.Normal(), direction=sh.Categorical(3)))


by_kind = sh.select(kinds, mixed, range(1, 4), restarts=2)
assert by_kind.best == 2
by_kind.table[["candidate", "loglik", "bic"]].round(1)

# %%
both = by_kind.fit
low = int(both.values["growth_loc"][:, 0].argmin())
states = both.states()
assert (states.loc["1974Q4":"1975Q1", f"state_{low}"] > 0.9).all()
pd.DataFrame(
    both.model.describe()["direction_probs"].numpy(),
    index=both.model.describe()["growth_loc"][:, 0].round(decimals=2).tolist(),
    columns=["falls", "stays", "rises"],
).rename_axis("mean growth").round(2)

# %% [markdown]
# Residuals are there for both columns. Those of a category are randomised within its probability.

# %%
both.residuals().ljung_box(lags=4).round(3)

# %% [markdown]
# **Answer.** Two regimes are enough for these data: a third gains nothing on quarters that were left out. They do not
# describe everything, because unemployment also depends on its own last change. And they would have helped: forecasts
# with regimes beat those without, even though each was made from its past alone.
