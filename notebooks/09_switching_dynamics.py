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
# # Switching dynamics
#
# A level that jumps, a level that drifts, and both; chains of which a switch shows one; and a point that runs through a
# track whose parts it chooses itself. The states are real vectors now, and the exact posterior is a mixture of $K^T$
# normals, so what is approximate is measured beside what is true.

# %%
# %matplotlib inline
import math
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # a progress bar that this notebook does not show

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import samplehold as sh
import torch
from IPython.display import display

plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
plt.rcParams.update({"axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False})
BLUE, RED, GREY = "#1f77b4", "#de4968", "#999999"

# %% [markdown]
# ## The Nile, three ways
#
# The flow of the Nile fell in 1899. A copy model says that the level *jumps*: it is held, and redrawn now and then. A
# local level says that it *drifts*, a random walk under noise. A switching linear model says both: the state moves all
# the time, and where it is drawn to depends on the regime.

# %%
nile = pd.read_csv("data/nile.csv", index_col="year")
jumps = sh.SwitchingSSM(sh.Copy(2), sh.Normal()).fit(nile, progress=False).model
drifts = sh.LinearSSM(sh.LocalLevel()).fit(nile, prior=None, progress=False)
both = sh.SwitchingLinearSSM(2, 1, common_emission=True).fit(nile, "vmp", progress=False).model
print(drifts.model, both, sep="\n\n")
assert abs(float(drifts.objective[-1]) + 633.4646) < 0.01  # exact diffuse, as in the literature

# %% [markdown]
# What each makes of the level, given the whole series. The first knows two levels and nothing between them; the second
# takes some years to fall, and falls and rises elsewhere; the third falls at once. What its years have beyond the level
# at which a regime rests (dotted) it takes for a state that is soon forgotten more than for noise, which a hundred
# years can hardly tell apart.

# %%
jumped, drifted, moved = jumps.smooth(nile), drifts.model.smooth(nile), both.smooth(nile)
levels = {
    "jumps: Copy(2), Normal()": (jumped.state @ jumps.values["loc"].to(jumped.state)).flatten(),
    "drifts: LocalLevel()": drifted.mean.flatten(),
    "both: SwitchingLinearSSM(2, 1)": (
        moved.mean[0] @ both.values["emission"].mT.to(moved.mean) + both.values["emission_offset"].to(moved.mean)
    ).flatten(),
}
fig, axes = plt.subplots(3, 1, figsize=(7.5, 5), sharex=True, sharey=True, layout="constrained")
for axis, (title, level) in zip(axes, levels.items(), strict=True):
    axis.plot(nile.index, nile["volume"], color=GREY, linewidth=0.8)
    axis.plot(nile.index, level, color=BLUE, linewidth=1.8)
    axis.axvline(1898.5, color=RED, linestyle="--", linewidth=0.9)
    axis.set_title(title)
regime, own = moved.state.argmax(-1), both.values
rests = (
    own["transition_offset"].flatten() / (1 - own["transition"].flatten()) * own["emission"] + own["emission_offset"]
)
axes[-1].plot(nile.index, rests.flatten()[regime], color="black", linestyle=":", linewidth=1.2)
fig.supylabel("volume")
plt.show()

# %%
before, after = nile.index < 1895, nile.index > 1905
rows = []
for title, level in levels.items():
    level = level.numpy()
    fall = float(level[nile.index == 1898][0] - level[nile.index == 1899][0])
    rows.append(
        {
            "level": title,
            "mean to 1894": level[before].mean(),
            "mean from 1906": level[after].mean(),
            "fall from 1898 to 1899": fall,
        }
    )
table = pd.DataFrame(rows).set_index("level")
display(table.round(0))
fall = table["fall from 1898 to 1899"]
assert (table["mean to 1894"] - table["mean from 1906"] > 150).all()
assert fall.iloc[0] > 150
assert fall.iloc[1] < 100
assert fall.iloc[2] > 100
assert [int(nile.index[t]) for t in range(1, len(nile)) if regime[t] != regime[t - 1]] == [1899]

# %% [markdown]
# Which is better? `log_evidence` of the switching model is that of GPB(6), which keeps all of the last five regimes
# apart. The three have unlike numbers of parameters, and the local level's evidence is that of an exact diffuse start,
# so that this is a look and no test.

# %%
evidence = {
    "jumps": float(jumps.filter(nile).log_normalizer),
    "drifts": float(drifts.objective[-1]),
    "both, GPB(6)": float(both.log_evidence(nile, 6)),
    "both, GPB(2)": float(both.log_evidence(nile, 2)),
    "both, bound of smooth": float(moved.elbo),
}
display(pd.Series(evidence, name="log evidence").round(2).to_frame())
assert evidence["both, bound of smooth"] < evidence["both, GPB(6)"]
assert abs(evidence["both, GPB(6)"] - evidence["both, GPB(2)"]) < 1

# %% [markdown]
# ## A chain for each regime
#
# Ghahramani & Hinton (2000): two chains move all the time, and a switch shows one. They differ in memory and noise
# alone, and both have mean 0, so that no single observation tells the regime. Here are some of the sequences of their
# first experiment, with the parameters known.

# %%
one = torch.ones(2, 1, 1, dtype=torch.float64)
noise = torch.tensor([1.0, 10.0], dtype=torch.float64).reshape(2, 1, 1)
chains = sh.SwitchingLinearSSM(n_regimes=2, n_latent=1, shared="chain per regime").with_values(
    initial_probs=[0.5, 0.5],
    transition_probs=[[0.95, 0.05], [0.05, 0.95]],
    initial_mean=[[0.0], [0.0]],
    initial_covariance=noise,
    transition=[[[0.99]], [[0.9]]],
    transition_offset=[[0.0], [0.0]],
    state_noise=noise,
    emission=one,
    emission_offset=[[0.0], [0.0]],
    observation_noise=[[0.1], [0.1]],
)
drawn = chains.simulate(200, (60,), seed=0)
found = {kind: chains.smooth(drawn.x, starts=[kind]) for kind in ("random", "annealed", "interpolated")}
found["the better of both"] = chains.smooth(drawn.x)


def share(state: torch.Tensor) -> np.ndarray:
    return (state.argmax(-1) == drawn.path).double().mean(-1).numpy()


shares = {kind: share(paths.state) for kind, paths in found.items()}
shares["GPB(2), by the past alone"] = share(chains.filter(drawn.x, order=2).state)
shares["GPB(8), 7 steps later"] = share(chains.filter(drawn.x, order=8).lagged_state)
bounds = {kind: float(paths.elbo.mean()) for kind, paths in found.items()}
display(
    pd.DataFrame(
        {
            "steps in the right regime, %": {kind: 100 * part.mean() for kind, part in shares.items()},
            "bound": bounds,
            "log evidence": {
                "GPB(2), by the past alone": float(chains.log_evidence(drawn.x, 2).mean()),
                "GPB(8), 7 steps later": float(chains.log_evidence(drawn.x, 8).mean()),
            },
        }
    )
    .reindex(shares)
    .round(1)
)

# %% [markdown]
# The bound has many optima and the ascent ends in one near its start: with random ones it ends low. `smooth` starts
# from what each chain, had it made the whole series, tells of each observation from all others, and from an annealed
# start; each sequence keeps the higher bound, which is not always the more truthful one. GPB(8), which keeps histories
# apart and tells of a step when it has seen seven more, is closest to the truth; it costs $2^8$ densities a step, and
# has neither a bound nor states given the whole series.

# %%
fig, axes = plt.subplots(len(shares), 1, figsize=(7, 7.5), sharex=True, layout="constrained")
bins = np.linspace(0.3, 1, 36)
for axis, (kind, part) in zip(axes, shares.items(), strict=True):
    axis.hist(part, bins, color=BLUE if kind in found else RED)
    axis.axvline(part.mean(), color="black", linewidth=0.9)
    axis.set_title(kind)
axes[-1].set_xlabel("share of steps in the right regime, one of 60 sequences each")
plt.show()
assert shares["the better of both"].mean() > shares["random"].mean() + 0.05
assert shares["GPB(8), 7 steps later"].mean() > shares["GPB(2), by the past alone"].mean() + 0.01
assert bounds["the better of both"] >= max(bounds["annealed"], bounds["interpolated"]) - 1e-6

# %%
chains.plot(drawn.x, sequence=0)

# %% [markdown]
# ## A state that chooses its regime
#
# A point runs through a track (after Linderman et al. 2017). Beyond $|s_0| = 2$ it turns about (2, 0) or (-2, 0);
# between them it drifts to the right below and to the left above. What is seen are ten numbers, linear in the two of
# the point, under noise. In the recurrent model each next regime hangs on where the point is.

# %%
unit = torch.eye(2, dtype=torch.float64)
turns = torch.tensor(
    [[[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]] for a in (math.pi / 24, math.pi / 48)],
    dtype=torch.float64,
)
transition = torch.cat([turns, unit.expand(2, 2, 2)])
centers = torch.tensor([[2.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
turned = ((unit - turns) @ centers.unsqueeze(-1)).squeeze(-1)
kind = sh.SwitchingLinearSSM(4, 2, 10, recurrent=True, common_emission=True)
track = kind.with_values(
    initial_probs=[0.25] * 4,
    recurrence=[[100.0, 0.0], [-100.0, 0.0], [0.0, 100.0]],
    recurrence_offset=[[-200.0, -200.0, 0.0]] * 4,
    initial_mean=[0.0, 1.0],
    initial_covariance=0.01 * unit,
    transition=transition,
    transition_offset=torch.cat([turned, torch.tensor([[-0.25, 0.0], [0.1, 0.0]], dtype=torch.float64)]),
    state_noise=(1e-4 * unit).expand(4, 2, 2),
    emission=np.random.default_rng(0).normal(size=(10, 2)),
    emission_offset=[0.0] * 10,
    observation_noise=[0.01] * 10,
)
laps = track.simulate(2000, seed=1)
fit = kind.fit(laps.x, "vmp", restarts=2, max_steps=200, seed=0, progress=False)
print(fit.reason)

# %% [markdown]
# Labels and the basis of the states are anybody's: the table counts on how many steps a learned regime meets a true
# one, and R2 is that of the true states given the best affine map of the learned ones.

# %%
smoothed = fit.model.smooth(laps.x)
names = ["turns right", "turns left", "drifts left", "drifts right"]
regime = pd.Series(smoothed.state.argmax(-1).numpy(), name="learned regime")
counts = pd.crosstab(regime, pd.Categorical.from_codes(laps.path.numpy(), names))
display(counts)
inputs = torch.cat([smoothed.mean[0], torch.ones(2000, 1, dtype=torch.float64)], -1)
fitted = inputs @ torch.linalg.lstsq(inputs, laps.latent).solution
r2 = 1 - float((laps.latent - fitted).square().sum() / (laps.latent - laps.latent.mean(0)).square().sum())
right = counts.to_numpy().max(1).sum() / 2000
print(f"{100 * right:.1f} % of the steps in the right regime, R2 {r2:.4f}")
assert right > 0.8
assert r2 > 0.98

# %%
display(track.plot_flow(laps.x))
display(fit.model.plot_flow(laps.x))

# %% [markdown]
# The first figure is the true flow, the second the learned one, in a basis of its own: the same track up to a linear
# map. Because the regressions say where each regime takes over, the model goes on by itself, here from where the data
# (grey) end. Its laps widen, because small errors of the turns add up.

# %%
last = {"initial_probs": smoothed.state[-1], "initial_mean": smoothed.mean[0, -1], "initial_covariance": 1e-4 * unit}
ahead = fit.model.with_values(fit.model.values | last).simulate(1000, seed=3)
fig, axis = plt.subplots(figsize=(4.5, 4), layout="constrained")
axis.plot(*smoothed.mean[0].T, color=GREY, linewidth=0.5)
axis.scatter(*ahead.latent.T, c=ahead.path, cmap="viridis", s=3)
axis.set(xlabel="latent 0", ylabel="latent 1", title="A thousand steps of the fitted model")
plt.show()
