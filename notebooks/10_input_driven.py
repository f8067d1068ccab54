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
# # Input-driven models
#
# A subject chooses left or right on every trial. Its strategy is hidden: it follows the stimulus, or prefers one side.
# A cue now and then makes it draw a new strategy. This is a switching model with two sets of inputs: the cue drives the
# **gate**, and the stimulus drives the **choice**. A minGRU on the same trials has input-driven gates too. The
# distance between the two is measured here in nats.

# %%
# %matplotlib inline
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # a progress bar that this notebook does not show

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import samplehold as sh
import torch
from IPython.display import display
from torch import nn

plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
plt.rcParams.update({"axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False})
BLUE, RED, GREY = "#1f77b4", "#de4968", "#999999"
COLORS = [RED, BLUE, "#2ca02c"]

# %% [markdown]
# ## The trials
#
# 40 sessions of 150 trials, and 40 more to judge. The stimulus is standard normal; a tenth of the trials have a cue.

# %%
NAMES = ["cue", "stimulus"]


def trials(seed: int, sessions: int = 40, n: int = 150) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    cue = (torch.rand(sessions, n, generator=generator, dtype=torch.float64) < 0.1).double()
    return {"cue": cue, "stimulus": torch.randn(sessions, n, generator=generator, dtype=torch.float64)}


model = sh.SwitchingSSM(sh.Copy(3, inputs=["cue"]), sh.Bernoulli(1, inputs=["stimulus"]))
truth = model.with_values(
    redraw_intercept=-5.0,
    redraw_weights=[6.0],  # a redraw with probability 0.007 without a cue, and 0.73 with one
    state_probs=[0.4, 0.3, 0.3],
    probs=[[0.5], [0.85], [0.15]],  # of choosing right where the stimulus is 0
    coefficients=[[[3.0]], [[0.4]], [[0.4]]],
)
inputs, coming = trials(0), trials(1)
drawn = truth.simulate(150, (40,), seed=0, inputs=inputs)
judged = truth.simulate(150, (40,), seed=1, inputs=coming).x

# %% [markdown]
# ## The fit
#
# Inputs are read by name: the gate reads `cue`, the choice reads `stimulus`. The table has the estimates beside the
# truth, states in the order of their slope.

# %%
fit = model.fit(drawn.x, inputs=inputs, progress=False)
order = fit.model.values["probs"][:, 0].sub(0.5).abs().argsort()  # the state that follows the stimulus first
order = torch.cat([order[:1], order[1:][fit.model.values["probs"][order[1:], 0].argsort(descending=True)]])
table = pd.DataFrame(
    {
        "probs, truth": truth.values["probs"][:, 0],
        "probs, fit": fit.model.values["probs"][order, 0],
        "slope, truth": truth.values["coefficients"].flatten(),
        "slope, fit": fit.model.values["coefficients"][order].flatten(),
    }
).round(2)
display(table)
gate = {name: float(fit.model.values[name].flatten()[0]) for name in ("redraw_intercept", "redraw_weights")}
print({name: round(value, 2) for name, value in gate.items()}, "where the truth has -5 and 6")
print(
    "log evidence, fit and truth:",
    *(round(float(m.log_evidence(drawn.x, inputs=inputs).sum()), 1) for m in (fit.model, truth)),
)
assert abs(gate["redraw_weights"] - 6) < 2.5
assert (table["slope, fit"] - table["slope, truth"]).abs().max() < 1

# %%
figure, (curves, session) = plt.subplots(1, 2, figsize=(11, 3.2), layout="constrained", width_ratios=(1, 2.2))
at = torch.linspace(-2.5, 2.5, 101, dtype=torch.float64)
for k, state in enumerate(order.tolist()):
    logit = torch.logit(fit.model.values["probs"][state, 0]) + fit.model.values["coefficients"][state, 0, 0] * at
    curves.plot(at, logit.sigmoid(), color=COLORS[k], label=("follows", "right", "left")[k])
curves.set(xlabel="stimulus", ylabel="P(right)", title="What each strategy does")
curves.legend()
smoothed = fit.model.smooth(drawn.x[:1], inputs={name: column[:1] for name, column in inputs.items()})
for k, state in enumerate(order.tolist()):
    session.plot(smoothed.state[0, :, state], color=COLORS[k])
    right = np.flatnonzero(drawn.path[0] == k)
    session.plot(right, np.full(len(right), -0.08), "|", color=COLORS[k], markersize=6)
for step in inputs["cue"][0].nonzero().flatten().tolist():
    session.axvline(step, color=GREY, linewidth=0.6, linestyle=":")
session.set(
    xlabel="trial", title="Posterior of the strategy in the first session; below, the true one; dotted, the cues"
)
plt.show()

# %% [markdown]
# ## What the next choice costs
#
# Every predictor sees the cue and the stimulus of a trial, and all trials before it. Its loss is the mean of
# $-\log p(\text{choice})$ on the 40 sessions that no fit has seen.


# %%
def loss_of(beliefs: torch.Tensor, model: sh.SwitchingSSM) -> float:
    """Nats a trial of the predictions that follow from beliefs [S, T, K] about the strategy after each trial."""
    values, cue = model.values, coming["cue"][:, 1:, None]
    redraw = (values["redraw_intercept"] + values["redraw_weights"] * cue).sigmoid()
    ahead = redraw * values["state_probs"] + (1 - redraw) * beliefs[:, :-1]
    logit = torch.logit(values["probs"][:, 0]) + values["coefficients"][:, 0, 0] * coming["stimulus"][:, 1:, None]
    choice = torch.where(judged[:, 1:] == 1, logit, -logit).sigmoid()
    return -float((ahead * choice).sum(-1).log().mean())


losses = {"exact filter, truth": loss_of(truth.filter(judged, inputs=coming).state, truth)}
losses["exact filter, fit"] = loss_of(fit.model.filter(judged, inputs=coming).state, fit.model)
for name, beliefs in sh.studies.input_gate_updates(fit.model, judged, inputs=coming).items():
    losses[f"gate of the input alone, on {name}"] = loss_of(beliefs, fit.model)

one = sh.SwitchingSSM(sh.Copy(1), sh.Bernoulli(1, inputs=["stimulus"])).fit(drawn.x, inputs=inputs, progress=False)
logit = torch.logit(one.model.values["probs"][0, 0]) + one.model.values["coefficients"][0, 0, 0] * coming["stimulus"]
losses["one strategy (logistic regression)"] = -float(
    torch.where(judged[..., 0] == 1, logit, -logit)[:, 1:].sigmoid().log().mean()
)

# %% [markdown]
# ## A minGRU on the same trials
#
# It reads, at trial t, the cue and the stimulus of t and the stimulus and choice of t - 1. Its gates depend on these
# inputs alone, as the redraw probability of the model does. One and two layers of 32 units, 1500 updates of Adam.


# %%
def rows(x: torch.Tensor, columns: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the network reads, [S, T - 1, 5]: cue and stimulus, those of the trial before, and its choice."""
    now = torch.stack([columns[name][:, 1:] for name in NAMES], -1)
    before = torch.stack([columns[name][:, :-1] for name in NAMES], -1)
    return torch.cat([now, before, 2 * x[:, :-1] - 1], -1).float()


class Predictor(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layer = sh.MinGRU(5, 32, num_layers=layers)
        self.head = nn.Sequential(nn.Linear(32 + 5, 32), nn.ReLU(), nn.Linear(32, 1))  # what a state says of a choice

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.layer(read)[0], read], -1))[..., 0]


def trained(layers: int, updates: int = 1500) -> float:
    torch.manual_seed(0)
    network, read, target = Predictor(layers), rows(drawn.x, inputs), drawn.x[:, 1:, 0].float()
    optimizer = torch.optim.Adam(network.parameters(), 3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    generator, best = torch.Generator().manual_seed(0), np.inf
    for update in range(updates):
        some = torch.randint(32, (16,), generator=generator)  # the last 8 sessions say when to stop
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(network(read[some]), target[some]).backward()
        optimizer.step()
        schedule.step()
        if update % 50 == 49:
            with torch.no_grad():
                kept = float(nn.functional.binary_cross_entropy_with_logits(network(read[32:]), target[32:]))
                test = float(
                    nn.functional.binary_cross_entropy_with_logits(
                        network(rows(judged, coming)), judged[:, 1:, 0].float()
                    )
                )
            best, loss = (kept, test) if kept < best else (best, loss)
    return loss


torch.set_num_threads(1)  # small tables
for layers in (1, 2):
    losses[f"minGRU, trained, {layers} layer(s)"] = trained(layers)

# %%
summary = pd.Series(losses, name="nats a trial").to_frame()
summary["lost to the exact filter of the truth"] = summary["nats a trial"] - losses["exact filter, truth"]
display(summary.round(4))

figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
shown = summary["lost to the exact filter of the truth"].iloc[1:][::-1]
axes.barh(shown.index, shown, color=[GREY if "minGRU" in name else BLUE for name in shown.index])
axes.set(xlabel="nats a trial, lost to the exact filter of the true model")
plt.show()

# %% [markdown]
# - The fit recovers both sets of coefficients, and its filter loses next to nothing.
# - The three updates whose gate sees the inputs and choice of one trial alone are minGRUs with weights set by hand. A
#   choice speaks of a held strategy too, so the update on logits with the evidence of held steps is much nearer to the
#   exact filter than those without it.
# - A trained minGRU ends beside the best of them. What it still loses to the exact filter is the price of gates that do
#   not read the state, and of learning from 32 sessions what the model knows by its structure.

# %%
assert losses["exact filter, fit"] - losses["exact filter, truth"] < 0.01
assert losses["gate of the input alone, on logits, held evidence"] < losses["gate of the input alone, on probabilities"]
assert losses["exact filter, fit"] < min(value for name, value in losses.items() if "minGRU" in name)
