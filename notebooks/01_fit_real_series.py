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
# # Fit real series
#
# A river loses a fifth of its water from one year to the next; the sun falls quiet for decades; an economy enters a
# decade in which prices and unemployment rise together. In each case the question is the same: *when did the process
# move to another regime, and how sure can we be?*
#
# The model of this notebook answers with a coin. At every step a latent gate $z_t$ is tossed. If it says **hold**, the
# hidden state stays what it was; if it says **redraw**, the state is drawn afresh from one distribution $\pi$:
#
# $$z_t \sim \text{Bernoulli}(\rho), \qquad
#   s_t = s_{t-1} \text{ if } z_t = 0, \qquad s_t \sim \text{Categorical}(\pi) \text{ if } z_t = 1,
#   \qquad x_t \sim p(x \mid s_t).$$
#
# Everything that follows is exact given the parameters: sums over all $2^T K^T$ paths, in $O(TK)$ operations.

# %%
# %matplotlib inline
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # a progress bar that this notebook does not show

import arviz as az
import numpy as np
import pandas as pd
import samplehold as sh
import torch
from IPython.display import display

# %% [markdown]
# ## The Nile at Aswan, 1871–1970
#
# One number a year: the annual flow, in units of $10^8$ cubic metres. A CSV file, a pandas frame, a fit.

# %%
nile = pd.read_csv("data/nile.csv", index_col="year")
model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal(n_features=1))
fit = model.fit(nile, progress=False)
fit.model.describe()

# %% [markdown]
# The fit is the mode of the posterior of the parameters, found by expectation-maximisation from starts of several kinds
# that run as one batch. The objective never falls, and starts of most kinds lead to the same end:

# %%
assert fit.converged
assert bool((fit.objective.diff() >= -1e-9).all())
print(f"{fit.steps} steps, objective {float(fit.objective[-1]):.3f}")
fit.restarts.groupby("start").objective.max().round(3)

# %%
fit.plot(nile)

# %% [markdown]
# **When?** The redraw probability $P(z_t = 1 \mid x_{1:T})$ has one peak. It is *not* the probability that the state
# changed: a redraw may land on the state that it left, so a quiet year has a small redraw probability and no change.

# %%
smoothed = fit.model.smooth(nile)
peak = 1 + int(smoothed.redraw[1:].argmax())
year, probability = int(nile.index[peak]), float(smoothed.redraw[peak])
high, low = sorted(fit.model.loc.flatten().tolist(), reverse=True)
print(f"a redraw in {year} with probability {probability:.2f}; mean flow {high:.0f} before and {low:.0f} after")
assert year == 1899
assert probability > 0.5
assert abs(high - 1100) < 20
assert abs(low - 850) < 20

# %% [markdown]
# A path that is most probable as a whole (Viterbi) and paths drawn from the posterior say the same in their own ways.
# The draws give the uncertainty of anything that is a function of the path, such as the year of the last change:

# %%
path = fit.model.viterbi(nile).path
draws = fit.model.sample_posterior(nile, 4000, seed=0).path
changed = draws[:, 1:] != draws[:, :-1]
last = nile.index.to_numpy()[1:][changed.shape[1] - 1 - changed.flip(1).int().argmax(1).numpy()]
years, counts = np.unique(last[changed.any(1).numpy()], return_counts=True)
shown = pd.Series(counts / 4000, index=years, name="P(year of the last change)").sort_values(ascending=False)
assert [int(nile.index[t]) for t in range(1, 100) if path[t] != path[t - 1]] == [1899]
assert shown.index[0] == 1899
shown.head(5)

# %% [markdown]
# ### Forecasts
#
# For the copy model the forecast at any horizon is in closed form, because $h$ steps of it are one step with a smaller
# probability of holding: $P(s_{T+h}) = (1-\rho)^h P(s_T) + (1 - (1-\rho)^h)\,\pi$.

# %%
forecast = fit.model.forecast(nile, horizon=10)
lower, upper = forecast.interval(0.9)
rho, pi = float(fit.model.redraw_prob), fit.model.state_probs
now = fit.model.filter(nile).state[-1]
by_hand = (1 - rho) ** 10 * now + (1 - (1 - rho) ** 10) * pi
torch.testing.assert_close(forecast.state[-1], by_hand)
pd.DataFrame(
    {"mean": forecast.mean[:, 0], "5%": lower[:, 0], "95%": upper[:, 0], "P(redraw)": forecast.redraw},
    index=pd.RangeIndex(1971, 1981, name="year"),
).round(2)

# %% [markdown]
# ### In ArviZ
#
# `fit.to_arviz` hands the fit to the tools that statisticians know. A fit by EM enters by draws from a normal around
# its estimates, with the curvature of the log posterior. A model without a fit is a point. Its `log_density` is that
# of each year given the years before.

# %%
data = fit.to_arviz(nile)
display(az.summary(data, var_names=["redraw_prob", "state_probs", "loc", "scale"], kind="stats"))
one_step = fit.model.to_arviz(nile).log_density["x"].values
np.testing.assert_allclose(one_step.sum(), float(fit.model.log_evidence(nile)), rtol=1e-10)

# %% [markdown]
# ## Sunspots, 1700–2008
#
# Yearly counts, three states, and a choice of what a state emits. A Poisson count has a variance equal to its mean,
# which
# sunspots do not respect; a normal state has a variance of its own. One step ahead, which predicts better?

# %%
spots = pd.read_csv("data/sunspots.csv", index_col="year")
counts = spots.round()
fits = {
    "Poisson, copy": sh.SwitchingSSM(sh.Copy(3), sh.Poisson(1)).fit(counts, progress=False),
    "Normal, copy": sh.SwitchingSSM(sh.Copy(3), sh.Normal(1)).fit(counts, progress=False),
    "Normal, Markov": sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)).fit(counts, progress=False),
}
evidence = pd.Series({name: float(f.model.log_evidence(counts)) for name, f in fits.items()}, name="log p(x), nats")
evidence.round(1)

# %%
assert all(f.converged for f in fits.values())
assert evidence["Normal, Markov"] > evidence["Normal, copy"] > evidence["Poisson, copy"]
fits["Normal, Markov"].plot(counts)

# %% [markdown]
# The general Markov chain wins, and its transition matrix shows why. The sun does not jump from quiet to busy at
# random: it rises and falls through the middle. A copy chain cannot say that, because the state after a redraw does not
# depend on the state before.

# %%
chain = fits["Normal, Markov"].model
order = chain.loc.flatten().argsort()
pd.DataFrame(
    chain.transition_probs[order][:, order].numpy(), ["quiet", "middle", "busy"], ["quiet", "middle", "busy"]
).round(3)

# %% [markdown]
# ## US inflation and unemployment, 1959–2009
#
# Two numbers a quarter whose covariance is part of the regime: a full-covariance normal in each of three states.

# %%
macro = pd.read_csv("data/us_macro.csv", index_col="quarter")[["infl", "unemp"]]
economy = sh.SwitchingSSM(sh.Copy(3), sh.MultivariateNormal(2)).fit(macro, progress=False)
economy.plot(macro)

# %%
assert economy.converged
means = pd.DataFrame(economy.model.loc.numpy(), columns=macro.columns).round(2)
stagflation = int(means["infl"].argmax())
state = pd.Series(economy.model.smooth(macro).state[:, stagflation].numpy(), index=macro.index)
oil = state[state.index.str.startswith(("1974", "1980"))].mean()
print(means, f"\nP(the state of highest inflation) in 1974 and 1980: {oil:.2f}")
assert means["infl"].max() > 5
assert oil > 0.8

# %% [markdown]
# Values may be missing, a whole step or a single feature: the full covariance then carries what was seen over to what
# was
# not. Here every fourth value of unemployment is hidden from the fit:

# %%
holes = macro.astype(float).copy()
holes.iloc[::4, 1] = np.nan
patched = sh.SwitchingSSM(sh.Copy(3), sh.MultivariateNormal(2)).fit(holes, progress=False)
agreement = (patched.model.viterbi(holes).path == patched.model.viterbi(macro).path).double().mean()
print(f"{float(agreement):.0%} of the quarters have the same state in the best path with and without the hidden values")
assert float(agreement) > 0.9

# %% [markdown]
# ## Keep it
#
# A model is a folder with one safetensors file: numbers, and a description to read in its metadata.

# %%
import tempfile

with tempfile.TemporaryDirectory() as folder:
    fit.model.save(folder)
    again = sh.SwitchingSSM.load(folder)
assert torch.equal(again.log_evidence(nile), fit.model.log_evidence(nile))

# %% [markdown]
# **Answer.** The Nile changed between 1898 and 1899, in one step and for good. The sun passes through a middle state
# rather than jumping from quiet to busy. The American economy of 1974 and 1980 was in a regime of high inflation and
# high unemployment. It came back to this regime for a while around 1991 and again in 2008. Each statement is a
# posterior probability, computed exactly given the fitted parameters.
