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
# # Trained networks
#
# A recurrent network is trained to predict the next token, and on nothing else. The data come from a model that we
# know, so the best possible state of mind is known too: the posterior $a_t = P(s_t \mid x_{1:t})$. Does the
# network find it?
#
# The model is one for which no minGRU is exact (`03_sample_or_hold`), since its held states go on emitting:
#
# $$z_t \sim \text{Bernoulli}(\rho), \qquad
#   s_t = s_{t-1} \text{ if } z_t = 0, \qquad s_t \sim \text{Categorical}(\pi) \text{ if } z_t = 1,
#   \qquad x_t \sim p(x \mid s_t),$$
#
# $$a_t(s) \propto p(x_t \mid s)\, \big((1 - \rho)\, a_{t-1}(s) + \rho\, \pi(s)\big).$$

# %%
# %matplotlib inline
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # a progress bar that this notebook does not show

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import samplehold as sh
import torch
from IPython.display import display
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch.nn.functional import cross_entropy

plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
plt.rcParams.update({"axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False})
INK, FAINT = "#262626", "#8c8c8c"
COLORS = {"MinGRU": "#1f77b4", "MinLSTM": "#17a08c", "GRU": "#de4968", "LSTM": "#8c2981"}
DASHES = {"MinGRU": "-", "MinLSTM": "--", "GRU": "-", "LSTM": "-"}

# %% [markdown]
# Three states last 17 steps on average. Each prefers one of four tokens, and the fourth tells nothing:

# %%
probs = [[0.55, 0.15, 0.15, 0.15], [0.15, 0.55, 0.15, 0.15], [0.15, 0.15, 0.55, 0.15]]
model = sh.SwitchingSSM(sh.Copy(3), sh.Categorical(4))
model = model.with_values(redraw_prob=0.06, state_probs=[1 / 3, 1 / 3, 1 / 3], probs=probs)

train = sh.one_hot(model.simulate(64, (2048,), seed=0).x[..., 0], 4, dtype=torch.float32)
test = model.simulate(200, (40,), seed=1).x
rows = sh.one_hot(test[..., 0], 4, dtype=torch.float32)

exact = model.filter(test)
best = -float(exact.log_increment[:, 1:].mean())
marginal = (model.state_probs @ model.probs).log()
worst = -float((rows[:, 1:].double() @ marginal).mean())
print(f"nats a token: {best:.4f} with the posterior, {worst:.4f} without memory; {worst - best:.4f} to be won")
assert worst - best > 0.08

# %% [markdown]
# ## Four networks learn to predict
#
# Sixteen units each, a linear readout, 250 steps of Adam.


# %%
def random_layer(kind: type) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(4, 16)


kinds = {"MinGRU": sh.MinGRU, "MinLSTM": sh.MinLSTM, "GRU": sh.GRU, "LSTM": sh.LSTM}
trained = {
    name: sh.studies.train_next_token(random_layer(kind), train, n_steps=250, rate=0.02) for name, kind in kinds.items()
}
lost = pd.Series({name: -float(net.log_probs(rows).mean()) - best for name, net in trained.items()})
won = 1 - lost / (worst - best)
pd.DataFrame({"nats lost to the posterior": lost.round(4), "share of the memory's worth": won.round(3)})

# %%
figure, panel = plt.subplots(figsize=(7, 3.2), layout="constrained")
WINDOW = 20
for name, net in trained.items():
    smooth = net.loss.unfold(0, WINDOW, 1).mean(-1)
    panel.plot(np.arange(len(smooth)) + WINDOW, smooth, DASHES[name], color=COLORS[name], lw=1.3, label=name)
for level, text in ((worst, "no memory"), (best, "exact filter")):
    panel.axhline(level, color=INK, lw=0.8, ls=":")
    panel.text(250, level + 0.002, text, ha="right", va="bottom", color=INK)
panel.set(xlabel="step of training", ylabel=f"nats a token, mean of {WINDOW} steps", xlim=(WINDOW, 250))
panel.legend(loc="upper right", bbox_to_anchor=(1.0, 0.85), ncols=2)
plt.show()

# %%
assert bool((lost > 0).all())  # no network beats the posterior
assert bool((won > 0.88).all())
assert max(lost["GRU"], lost["LSTM"]) < min(lost["MinGRU"], lost["MinLSTM"])

# %% [markdown]
# All four win some 90% or more of what memory is worth. The two whose gates read their own state come closest: the
# exact update weighs a token against the belief that it meets, and gates that read the token alone cannot.
#
# ## Is the posterior in the state?
#
# `compare` fits two probes from the 16 units to $a_t$ on half of the sequences and judges them on the others. Least
# squares asks whether the *probabilities* are linear in the state, logistic regression whether the *log-odds* are. Its
# log-loss, $-\sum_s a_t(s) \log \hat a_t(s)$, is at least the entropy of $a_t$. A probe needs baselines: the same one
# on the input alone, and on the same network **before** training.


# %%
def read(report: sh.Comparison) -> dict[str, float]:
    """What the two probes find in a network's states, on held-out sequences."""
    kept = report.probe.held_out
    belief, found = report.exact.state[kept], report.network.state[kept]  # by logistic regression
    r2 = 1 - float(((belief - found) ** 2).sum() / ((belief - belief.mean(0)) ** 2).sum())
    return {"R2, linear": report.probe.r2["network"], "R2, logistic": r2, "log-loss": report.probe.log_loss["network"]}


reports = {name: sh.compare(model, net.layer, test, reads="probe") for name, net in trained.items()}
untrained = {name: sh.compare(model, random_layer(kind), test, reads="probe") for name, kind in kinds.items()}
table = pd.DataFrame({name: read(report) for name, report in reports.items()}).T
before = pd.DataFrame({name: read(report) for name, report in untrained.items()}).T
baseline = reports["LSTM"].probe
display(pd.concat({"trained": table, "before training": before}, axis=1).round(3))
display(baseline.summary().loc[["input", "marginal", "belief"]].round(3))

# %%
assert bool((table > before)[["R2, linear", "R2, logistic"]].all().all())
assert bool((table["R2, logistic"] > 0.97).all())
assert bool((before["R2, logistic"] < 0.95).all())
assert bool((table.loc[["MinGRU", "MinLSTM"], "R2, linear"] < 0.93).all())
assert table.loc["LSTM", "R2, linear"] > 0.98
assert baseline.r2["input"] < 0.4
assert bool((table["log-loss"] - baseline.log_loss["belief"] < 0.02).all())

# %%
figure, panels = plt.subplots(1, 3, figsize=(9.5, 2.7), sharey=True, layout="constrained")
height = np.arange(len(table))[::-1]
labels = ["R$^2$, probabilities linear", "R$^2$, log-odds linear", "log-loss, nats"]
for panel, column, label in zip(panels, table, labels, strict=True):
    panel.hlines(height, before[column], table[column], color=FAINT, lw=1)
    panel.plot(before[column], height, "o", color="white", markeredgecolor=INK, ms=6, label="before training")
    panel.scatter(table[column], height, color=list(COLORS.values()), s=42, zorder=3, label="after training")
    panel.set(xlabel=label, yticks=height, yticklabels=table.index, ylim=(-0.6, 3.6))
for panel in panels[:2]:
    panel.set(xlim=(0.8, 1.01), xticks=[0.85, 0.9, 0.95, 1.0])
    panel.axvline(1.0, color=INK, ls=":", lw=1)
panels[2].axvline(baseline.log_loss["belief"], color=INK, ls=":", lw=1, label="best possible")
handles, names = panels[2].get_legend_handles_labels()
handles[1] = plt.Line2D([], [], marker="o", ls="", color=INK, ms=6)
figure.legend(handles, names, loc="outside upper center", ncols=3)
plt.show()

# %% [markdown]
# Three things to read here. A *random* recurrence already carries much: a decaying average of past tokens is a fair
# statistic of this model, and its $R^2$ of 0.85 would pass for understanding. Training moves every network toward the
# posterior by either probe. And the two kinds of network keep it differently: in the minGRU and the minLSTM it is the
# log-odds that are linear in the state, as in the network of `as_rnn(model, space="logit")`; in the LSTM the
# probabilities are, too. Is that a lack of training? Six times as many steps for the minGRU:

# %%
longer = sh.studies.train_next_token(random_layer(sh.MinGRU), train, n_steps=1500, rate=0.02)
longer_lost = -float(longer.log_probs(rows).mean()) - best
longer_read = read(sh.compare(model, longer.layer, test, reads="probe"))
print(f"lost {longer_lost:.4f} nats a token, {longer_lost / (worst - best):.0%} of the memory's worth")
print({name: round(value, 3) for name, value in longer_read.items()})
assert 0.004 < longer_lost < lost["MinGRU"]
assert longer_read["R2, linear"] < 0.97
assert abs(longer_read["R2, logistic"] - table.loc["MinGRU", "R2, logistic"]) < 0.01

# %% [markdown]
# Both gaps narrow, and neither closes. The posteriors of one held-out sequence, exact and as logistic regression reads
# them:

# %%
held_out = baseline.held_out.any(-1).nonzero().flatten()
sequence = int(held_out[5])
at, steps = np.arange(1, 131), slice(0, 130)
figure, panels = plt.subplots(4, 1, figsize=(9, 4.8), sharex=True, sharey=True, layout="constrained")
for panel, (name, report) in zip(panels, reports.items(), strict=True):
    panel.plot(at, exact.state[sequence, steps, 0], color=INK, lw=3.5, alpha=0.25, label="exact")
    panel.plot(at, report.network.state[sequence, steps, 0], color=COLORS[name], lw=1.2)
    panel.set_ylabel(name, rotation=0, ha="right", va="center", color=COLORS[name])
    panel.set(ylim=(-0.03, 1.03), yticks=[0, 1], xlim=(1, 130))
panels[0].set_title("P(state 1 | tokens so far): gray exact, colored read from the network")
panels[-1].set_xlabel("step")
plt.show()

# %% [markdown]
# ## How much of the past is in use?
#
# A minGRU's state is linear in the state before, so what a state keeps of the state $w$ steps back is the product of
# $1 - g$, unit by unit. That product certifies a window: `forgetting` finds for each step the least $w$ for which the
# last $w$ inputs fix all units to within a tolerance, and `truncate` is the feed-forward network
# of that window. For GRU and LSTM a certificate has to come from Lipschitz constants. The exact filter is run from
# certainty of each state: no belief that it may come with leads to more, and the tolerance is one of total variation.

# %%
few = rows[:8]
windows = {}
for name, net in trained.items():
    found = sh.studies.forgetting(net.layer, few, tol=0.1)
    windows[name] = {"mean window": float(found.window.float().mean()), "longest window": found.longest}
    if name in ("GRU", "LSTM"):
        windows[name]["Lipschitz rate"] = sh.studies.stability(net.layer, 1.0).rate
windows = pd.DataFrame(windows).T
filtered = sh.studies.forgetting(model, test[:8], tol=0.1)
windows.loc["exact filter", ["mean window", "longest window"]] = float(filtered.window.float().mean()), filtered.longest
display(windows.round(1))
assert bool((windows.loc[["MinGRU", "MinLSTM"], "longest window"] < 30).all())
assert bool((windows.loc[["GRU", "LSTM"], "longest window"] == 200).all())
assert bool((windows.loc[["GRU", "LSTM"], "Lipschitz rate"] > 1).all())
assert windows.loc["exact filter", "mean window"] < 12
assert 25 < windows.loc["exact filter", "longest window"] < 35

# %% [markdown]
# For the minGRU and the minLSTM it is *proved* that some twenty tokens are enough. The exact filter needs eleven on
# average, and up to thirty. Its window ends where the tokens determine the state, and grows where they leave it open. A
# gate that reads one token forgets at its own pace. (A unit is no probability, so the lines do not rank.)
# For the GRU and the LSTM nothing is proved. Their worst-case rates are above one, and the only certified window is the
# whole past. Yet they forget as well, as cutting them shows:

# %%
LENGTHS = [1, 2, 3, 4, 6, 8, 10, 12, 15, 20, 25, 30]
layer = trained["MinGRU"].layer
proved, actual = [], []
nats = {name: [] for name in trained}
with torch.no_grad():
    whole = layer(few)[0]
    for window in LENGTHS:
        proved.append(float(sh.studies.truncation_bound(layer, few, window).max()))
        actual.append(float((sh.truncate(layer, window)(few) - whole).abs().max()))
        for name, net in trained.items():
            out = sh.truncate(net.layer, window)(rows[:, :-1])
            log_probs = (net.head(out).log_softmax(-1) * rows[:, 1:]).sum(-1)
            nats[name].append(-float(log_probs.mean()) - best)
assert all(a <= p for a, p in zip(actual, proved, strict=True))  # in float32: its rounding is part of the bound
print("proved / actual:", [round(p / a, 1) for a, p in zip(actual, proved, strict=True)])

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.semilogy(LENGTHS, proved, "o-", color=INK, ms=3.5, lw=1.1, label="proved")
left.semilogy(LENGTHS, actual, "o-", color=COLORS["MinGRU"], ms=3.5, lw=1.1, label="actual")
left.set(xlabel="window, tokens", ylabel="greatest error of any unit", title="minGRU, cut to a window")
left.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
left.minorticks_off()
left.legend(loc="lower left")
for name, curve in nats.items():
    right.plot(LENGTHS, curve, "o" + DASHES[name], color=COLORS[name], ms=3.5, lw=1.1, label=name)
right.axhline(worst - best, color=INK, lw=0.8, ls=":")
right.text(30, worst - best + 0.001, "no memory", ha="right", va="bottom")
right.set(xlabel="window, tokens", ylabel="nats a token lost to the posterior", title="all four", ylim=(0, None))
right.legend(loc="upper right", bbox_to_anchor=(1.0, 0.85))
plt.show()

# %%
cut = {name: float(curve[LENGTHS.index(15)] - lost[name]) for name, curve in nats.items()}
print("lost by a window of 15 tokens, beyond what the whole network loses:")
print({name: round(value, 5) for name, value in cut.items()})
assert all(abs(value) < 1e-3 for value in cut.values())
assert all(p / a < 1.5 for a, p in zip(actual, proved, strict=True))

# %% [markdown]
# ## When data are few: a network with a posterior of its own
#
# The networks above saw 131,000 tokens. Of 2,000, such training makes a network that is too sure of what it has seen.
# To Pyro the layers are modules as torch's are: give the weights a prior (`PyroSample`), and stochastic variational
# inference finds how much the tokens say of them. The prediction is then an average over networks.


# %%
class Predictor(PyroModule):
    """Probabilities of the next token, from a minGRU of eight units."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.readout = sh.MinGRU(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, following: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.readout(self.layer(x)[0])
        pyro.sample("following", dist.Categorical(logits=logits).to_event(2), obs=following)
        return logits.log_softmax(-1)


few = model.simulate(100, (20,), seed=2).x[..., 0].long()
seen, following = sh.one_hot(few[:, :-1], 4, dtype=torch.float32), few[:, 1:]
with torch.random.fork_rng():
    torch.manual_seed(0)
    point = Predictor()
    optimiser = torch.optim.Adam(point.parameters(), 0.03)
    for _ in range(800):
        optimiser.zero_grad()
        loss = cross_entropy(point(seen).flatten(0, 1), following.flatten())
        loss.backward()
        optimiser.step()

    bayesian = Predictor()
    to_pyro_module_(bayesian)
    for module in (bayesian.layer, bayesian.readout):
        for name, weight in list(module.named_parameters()):
            prior = dist.Normal(0.0, 0.7).expand(weight.shape).to_event(weight.dim())
            setattr(module, name, PyroSample(prior))
    with pyro.get_param_store().scope():
        guide = AutoNormal(bayesian, init_scale=0.05)
        inference = SVI(bayesian, guide, pyro.optim.ClippedAdam({"lr": 0.03, "lrd": 0.1 ** (1 / 1000)}), Trace_ELBO())
        for _ in range(1000):
            inference.step(seen, following)
        with torch.no_grad():
            draws = Predictive(bayesian, guide=guide, num_samples=200, return_sites=("_RETURN",))(rows)["_RETURN"]

# %%
belief = exact.state.float()
rho, fresh = float(model.redraw_prob), model.state_probs.float()
ahead = {
    "exact filter": (((1 - rho) * belief + rho * fresh) @ model.probs.float()).log(),
    "average over the posterior": draws.logsumexp(0) - np.log(len(draws)),
    "one network, trained on 2,000 tokens": point(rows).detach(),
    "token frequencies": (torch.bincount(few.flatten(), minlength=4) / few.numel()).log().expand(*belief.shape[:-1], 4),
}
future = test[:, 1:, 0].long().unsqueeze(-1)
cost = {name: -float(table[:, :-1].gather(-1, future).mean()) for name, table in ahead.items()}
won = {name: cost["token frequencies"] - nats for name, nats in cost.items()}
assert won["average over the posterior"] > won["one network, trained on 2,000 tokens"]
assert won["average over the posterior"] > 0.6 * won["exact filter"]
display(pd.Series(cost, name="nats a token").to_frame().round(3))

figure, panel = plt.subplots(figsize=(9, 2.8), layout="constrained")
at, low, high = np.arange(2, 82), *draws[:, 0, :80, 0].exp().quantile(torch.tensor([0.05, 0.95]), 0).numpy()
panel.fill_between(at, low, high, color="#cfe3f3", lw=0, label="networks of the posterior, 90%")
styles = (("exact filter", INK, 1.4), ("average over the posterior", "#1f77b4", 1.2), (list(ahead)[2], "#de4968", 0.8))
for name, color, width in styles:
    panel.plot(at, ahead[name][0, :80, 0].exp(), color=color, lw=width, label=name)
panel.set(xlabel="step $t$", ylabel="P($x_t$ = a | $x_{1:t-1}$)", ylim=(0, 0.7), xlim=(2, 81))
panel.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
plt.show()

# %% [markdown]
# The average over the posterior keeps most of what memory is worth here, and the band says where the tokens left the
# networks in doubt; the single network pays for the chance patterns that it has learnt.
#
# ## Layers: what the softmax between them does
#
# Stack the models: the state of each layer says which state the layer below it will draw. `LayeredSSM` is that model,
# and `as_rnn` makes a network of one bottom-up sweep through it, in which every layer filters exactly what it hears
# from the layer below. Each layer is linear in its input, and the softmax between two layers turns a state into the
# belief that the layer above reads:
#
# $$a^{l}_t = \text{softmax}\big(\log B_l\, a^{l-1}_t + \log((1 - \rho_l)\, a^{l}_{t-1} + \rho_l\, \pi_l)\big).$$

# %%
table_of = {
    "emission": [[0.75, 0.1, 0.05, 0.1], [0.1, 0.75, 0.05, 0.1], [0.05, 0.1, 0.75, 0.1]],
    "middle": [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]],
    "top": [[0.8, 0.15, 0.05], [0.05, 0.15, 0.8]],
}
probs, middle, top = (torch.tensor(rows, dtype=torch.float64) for rows in table_of.values())
layered = sh.LayeredSSM([3, 3, 2], sh.Categorical(4)).with_values(
    redraw_prob=[0.4, 0.15, 0.05], table_1=middle, table_2=top, state_probs=[0.5, 0.5], probs=probs
)
network = sh.as_rnn(layered)
draw = layered.simulate(300, (8,), seed=0)
report = sh.compare_layers(layered, network, draw.x)
layers = report.summary()


def distance(beliefs: list[torch.Tensor]) -> list[float]:
    """Mean total variation of beliefs about each layer from the exact ones."""
    return [float(0.5 * (b - a).abs().sum(-1).mean()) for b, a in zip(beliefs, report.exact, strict=True)]


layers["prior - exact, mean"] = distance(layered.fresh_probs)
messages = layered.bottom_up(draw.x, passed="redrawn")
layers["sweep of redraws - exact, mean"] = distance([found.state for found in messages])
layers.T.map(lambda value: f"{value:.3f}" if value > 1e-6 else f"{value:.0e}")

# %%
assert bool((layers["network - sweep, max"] < 1e-13).all())
assert bool((layers["without softmax - sweep, mean"].iloc[1:] > 0.05).all())
gap = layers["without softmax - exact, mean"] - layers["sweep - exact, mean"]
assert abs(gap.iloc[0]) < 1e-12
assert bool((gap.iloc[1:] > 0.02).all())
assert layers["without softmax - exact, mean"].iloc[2] > layers["prior - exact, mean"].iloc[2]
assert bool((layers["sweep of redraws - exact, mean"] <= layers["sweep - exact, mean"] + 1e-12).all())
assert layers["sweep of redraws - exact, mean"].iloc[2] < 0.65 * layers["sweep - exact, mean"].iloc[2]

# %%
figure, panels = plt.subplots(3, 1, figsize=(9, 4.6), sharex=True, sharey=True, layout="constrained")
at, steps = np.arange(1, 151), slice(0, 150)
for layer_index, panel in zip((2, 1, 0), panels, strict=True):
    true = draw.path[0, steps, layer_index] == 0
    panel.fill_between(at, 0, true.double(), step="mid", color="#e6e6e6", lw=0, label="true state is 1")
    for name, color, style in (
        ("exact", INK, {"lw": 1.3}),
        ("network", "#1f77b4", {"lw": 1.1}),
        ("without_softmax", "#de4968", {"lw": 1.1, "ls": "--"}),
    ):
        belief = getattr(report, name)[layer_index][0, steps, 0]
        panel.plot(at, belief, color=color, label=name.replace("_", " "), **style)
    panel.set(ylim=(-0.03, 1.03), yticks=[0, 1], xlim=(1, 150))
    panel.set_ylabel(f"layer {layer_index + 1}", rotation=0, ha="right", va="center")
handles, labels = panels[0].get_legend_handles_labels()
labels = ["true state is 1", "exact", "network, softmax between layers", "network without it"]
figure.legend(handles, labels, loc="outside upper center", ncols=4)
panels[-1].set_xlabel("step")
plt.show()

# %% [markdown]
# With the softmax the network *is* the sweep, to rounding. Without it the upper layers hear logits, which are no
# beliefs, and the top layer ends no nearer to the exact posterior than its prior is.
#
# One sweep is no exact inference either: the upper layers are too sure. A state that is held below is heard above at
# every step, as if it were new evidence each time. The model itself would pass up the belief that a state holds
# *and* that it was drawn at this step. The row "sweep of redraws" does that, and cuts the error at the top by more than
# a third.
#
# **Answer.** Networks trained on tokens alone come to hold the posterior of the model that made them. On held-out
# sequences, logistic regression reads it from their states with an $R^2$ of 0.98 or more, against 0.94 at most before
# training. A minGRU, whose gate does not read its state, keeps the posterior as log-odds. It loses a tenth of the
# memory's worth, or 7% with six times the training. The end of its memory can be proved, like that of the exact filter.
# A stack of layers has to pass beliefs as beliefs.
