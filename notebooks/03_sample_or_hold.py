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
# # Sample or hold
#
# A minGRU has a state $h$ and a gate $g$ that depends on the input alone:
#
# $$h_t = (1 - g(x_t))\, h_{t-1} + g(x_t)\, v(x_t).$$
#
# It reads like an average over a coin: with probability $g$ the state is drawn afresh, else it is held. *Is* it one, of
# which model, and what does that model believe about the world? This notebook answers with numbers, in both directions,
# and then asks what is lost.
#
# The coin is the latent gate $z_t$ of the copy model:
#
# $$z_t \sim \text{Bernoulli}(\rho), \qquad
#   s_t = s_{t-1} \text{ if } z_t = 0, \qquad s_t \sim \text{Categorical}(\pi) \text{ if } z_t = 1.$$

# %%
# %matplotlib inline
import shutil
import warnings
from importlib.util import find_spec

warnings.filterwarnings("ignore", message="IProgress not found")  # a progress bar that this notebook does not show

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro
import samplehold as sh
import torch
from IPython.display import display
from samplehold.inference.families import Bernoulli, Categorical
from samplehold.inference.message_passing.engine import VMP, Block, Factor
from samplehold.inference.message_passing.stepwise.op import filter_steps

plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
plt.rcParams.update({"axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False})
INK, BLUE, RED, STATES = "#262626", "#1f77b4", "#de4968", ["#20068f", "#b12a90", "#fca636"]

# %% [markdown]
# ## When may the state be ignored?
#
# A minGRU's gate reads $x_t$ alone. The exact posterior of the coin also depends on the state: it is $P(z_t \mid
# x_{1:t})$, not $P(z_t \mid x_t)$. When does this not matter? It depends on two things: whether *held* steps emit from
# their state, and whether the network's units are probabilities or logits. Here are two states, one feature that tells
# the gate (at a distance $\mu$), and one that tells the state. In the first model held steps are silent: they ignore
# the state. In the second they emit from it.

# %%
sweep = sh.studies.information_sweep((0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0), n_sequences=4, n_steps=500)
sweep.plot()

# %%
tv = {
    (held, name): sweep.of(held, name)["TV"]
    for held in ("silent", "emitting")
    for name in sweep.table["update"].unique()
}
assert tv["silent", "probabilities"].max() < 1e-12  # exact at any I(x; z)
assert tv["emitting", "probabilities"].iloc[-1] > 0.1  # never exact, however well x tells the gate
assert tv["emitting", "logits"].iloc[-1] > 0.1
assert tv["emitting", "logits, held evidence"].iloc[-1] < 1e-3  # exact where x tells the gate
display(sweep.summary().round(4))

# %% [markdown]
# - **Silent held steps**: a minGRU on probabilities with the gate $P(z_t \mid x_t)$ is exact, everywhere. The state may
#   always be ignored.
# - **Emitting held steps**: on probabilities a minGRU stays wrong even if $x$ tells the gate completely. A held state
#   gathers evidence, which multiplies its probability, and $(1-g)\,h_{t-1} + g\,v$ cannot multiply. On *logits* this
#   evidence is a sum, and the candidate $v = \log \pi + \log p(x \mid s, 1) + \frac{1-g}{g} \log p(x \mid s, 0)$ adds
#   it. Then the error falls to nothing as $I(x; z) \to H(z)$.
#
# `sh.as_rnn(model, space="logit")` makes that network, and `sh.studies.input_gate_bound` bounds its distance from the
# exact filter at every step: the errors of single steps, forgotten at the rate of the gates.

# %%
speaking_gates = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Normal(2), sh.Normal(2), by_state=True)).with_values(
    redraw_prob=0.2,
    state_probs=[0.5, 0.5],
    loc=[[4.0, -1.0], [4.0, 1.0]],
    scale=torch.ones(2, 2, dtype=torch.float64),
    background_loc=[[0.0, -1.0], [0.0, 1.0]],
    background_scale=torch.ones(2, 2, dtype=torch.float64),
)
x = speaking_gates.simulate(2000, seed=0).x
report = sh.compare(speaking_gates, sh.as_rnn(speaking_gates, space="logit"), x)
bound = sh.studies.input_gate_bound(speaking_gates, x).total_variation
assert bool((report.network.total_variation <= bound + 1e-12).all())
print(f"mean distance {float(report.network.total_variation.mean()):.4f}, mean of its bound {float(bound.mean()):.3f}")
report.plot(steps=slice(0, 80))

# %% [markdown]
# ## The claim in one cell
#
# We describe one step by two functions of $z$ and $s$. A message-passing engine that knows nothing of networks does the
# rest. With probability $\rho$ the state is drawn, and $s$ has the log-weight $v(s)$. Otherwise it is held and keeps
# its log-weight $h(s)$. Each function is the expectation of a log-factor; the engine differentiates it for its
# messages.


# %%
def one_step(v: torch.Tensor, h: torch.Tensor, log_odds: torch.Tensor, gate: torch.Tensor) -> VMP:
    """q(z) q(s) of one step, before any update, for any number of models and sequences; `gate` is where q(z) starts."""

    def drawn(z: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return z[..., 0] * (s * v).sum(-1)

    def held(z: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return (1 - z[..., 0]) * (s * h).sum(-1)

    blocks = [Block("z", Bernoulli(), prior=log_odds, eta=torch.logit(gate)), Block("s", Categorical(), eta=h)]
    return VMP(blocks, [Factor(drawn, ("z", "s")), Factor(held, ("z", "s"))])


# %% [markdown]
# **The gate is given.** Then only $s$ is updated, once. The log-weights of $q(s_t)$ are the state of a minGRU with
# linear candidates and one gate, for all weights. Below, one side is the forward pass of `torch` code, and the other
# side is an inference engine.

# %%
random = torch.Generator().manual_seed(0)
worst = 0.0
for _ in range(50):
    layer = sh.MinGRU(6, 4, dtype=torch.float64).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.uniform_(-4, 4, generator=random)
    layer.weight_l0[:4], layer.bias_l0[:4] = layer.weight_l0[0].clone(), layer.bias_l0[0].clone()  # one gate
    rows = torch.randn(8, 40, 6, generator=random, dtype=torch.float64)
    now, states, h = layer.activations(rows), [], torch.zeros(8, 4, dtype=torch.float64)
    for t in range(40):
        gate = now.draw[:, t, :1]
        engine = one_step(now.value[:, t], h, torch.zeros_like(gate), gate)
        engine.update("s")
        h = engine.blocks["s"].eta
        states.append(h)
    worst = max(worst, float((torch.stack(states, 1) - layer(rows)[0]).abs().max()))
print(f"50 random minGRUs, 8 sequences of 40 steps: engine - forward pass {worst:.0e} at most")
assert worst < 1e-12

# %% [markdown]
# **The gate is inferred.** Now $q(z)$ and $q(s)$ are updated in turn; $v(s) = \log \pi(s) + \log p(x_t \mid s, z{=}1)$,
# and $h(s)$ is the belief before. That is `filter_vmp`, which a native kernel computes. From the exact chain it
# differs, since given $x_t$ gate and state are not independent; how much, is measured, here for 500 random models of
# three states and six tokens at once. Sweeps start from the exact posterior of the gate, and lead away from it.

# %%
N, T = 500, 20


def weights(*shape: int) -> torch.Tensor:
    return (2 * torch.randn(*shape, generator=random, dtype=torch.float64)).log_softmax(-1)


log_pi, log_drawn, log_background = weights(N, 3), weights(N, 3, 6), weights(N, 1, 6)
log_rho, log_hold = weights(N, 2).unsqueeze(-1).unbind(1)
seen = torch.randint(6, (N, 1, T), generator=random)
fresh, held = (table.gather(-1, seen.expand(-1, table.shape[1], -1)).mT for table in (log_drawn, log_background))
exact = (
    sh.chains.CopyChain(None, log_rho[..., None] + log_pi[:, None] + fresh, log_hold[..., None] + held).filter().state
)
found = {}
for sweeps in (1, 2, 7, 40):
    expected = filter_steps(fresh, held, log_pi, (log_rho - log_hold).expand(-1, T), sweeps=sweeps).state
    belief, apart, away = log_pi + fresh[:, 0], 0.0, []
    for t in range(1, T):  # the first step redraws
        belief = belief.log_softmax(-1)
        v, h = log_pi + fresh[:, t], belief + held[:, t]
        start = torch.sigmoid(log_rho - log_hold + v.logsumexp(-1, True) - h.logsumexp(-1, True))
        engine = one_step(v, h, log_rho - log_hold, start)
        engine.update("s")
        for _ in range(sweeps):
            engine.step()
        belief, q = engine.blocks["s"].eta, engine.stats("s")
        apart = max(apart, float((q - expected[:, t]).abs().max()))
        away.append((q - exact[:, t]).abs().sum(-1) / 2)
    found[sweeps] = apart, float(torch.stack(away).mean())
    assert apart < 1e-12
    assert found[sweeps][1] > 0.01
pd.DataFrame(found, ["engine - filter_vmp, at most", "total variation from the chain"]).rename_axis(columns="sweeps")

# %% [markdown]
# Nothing here is of the CPU: tensors on a GPU take the same lines there. The rest of this notebook asks where the
# network's own gate, which reads $x_t$ alone, makes it the *exact* filter, of which model, and what is lost elsewhere.
#
# ## Two models, one sentence apart
#
# When the gate opens, the fresh state emits a token from its own distribution. What is emitted while the state is
# *held*? Two answers make two models:
#
# - **silent**: a background that says nothing of the state, $p(x \mid s, z{=}0) = p_0(x)$;
# - **speaking**: the state goes on emitting, $p(x \mid s, z{=}0) = p(x \mid s, z{=}1)$.
#
# Three states announce themselves by the tokens a, b and c; the tokens `.` and `!` are mostly background.

# %%
TOKENS = list("abc.!")
coin = {"redraw_prob": 0.15, "state_probs": [0.4, 0.35, 0.25]}
drawn = [[0.58, 0.02, 0.02, 0.25, 0.13], [0.02, 0.58, 0.02, 0.13, 0.25], [0.02, 0.02, 0.58, 0.19, 0.19]]
background = [[0.02, 0.02, 0.02, 0.57, 0.37]]

silent = sh.SwitchingSSM(sh.Copy(3), sh.Gated(sh.Categorical(5), sh.Categorical(5)))
silent = silent.with_values(**coin, probs=drawn, background_probs=background)
speaking = sh.SwitchingSSM(sh.Copy(3), sh.Categorical(5)).with_values(**coin, probs=drawn)
pd.DataFrame([*drawn, *background], ["state A", "state B", "state C", "background"], TOKENS)

# %% [markdown]
# Each is a Pyro program. Pyro draws it where Graphviz is installed; else a few lines of matplotlib do. Shaded nodes
# are observed.


# %%
def draw_graph(panel: plt.Axes, gated: bool, title: str) -> None:
    """Three steps of a copy model; in a gated one the coin decides who emits."""
    heights = {"z": 2.0, "s": 1.0, "x": 0.0}
    arrow = {"arrowstyle": "-|>", "color": INK, "shrinkA": 12, "shrinkB": 13.5, "linewidth": 0.9, "mutation_scale": 9}
    for t in (1, 2, 3):
        for name, y in heights.items():
            shade = "#d0d0d0" if name == "x" else "white"
            panel.add_patch(plt.Circle((t, y), 0.2, facecolor=shade, edgecolor=INK, linewidth=0.9, zorder=2))
            panel.text(t, y - 0.015, f"${name}_{t}$", ha="center", va="center", zorder=3)
        ends = [((t, 2), (t, 1), 0), ((t, 1), (t, 0), 0)]
        ends += [((t - 1, 1), (t, 1), 0)] if t > 1 else []
        ends += [((t, 2), (t, 0), -0.55)] if gated else []
        for start, end, bend in ends:
            style = arrow | {"connectionstyle": f"arc3,rad={bend}"}
            panel.annotate("", end, start, arrowprops=style, zorder=1)
    panel.set(xlim=(0.5, 3.75), ylim=(-0.35, 2.35), aspect="equal", title=title)
    panel.axis("off")


if shutil.which("dot") and find_spec("graphviz"):  # every site is handed z_t, and so has an arrow from it
    for model in (silent, speaking):
        display(pyro.render_model(model, model_args=(torch.zeros(3),)))
else:
    figure, panels = plt.subplots(1, 2, figsize=(7.5, 2.7), layout="constrained")
    draw_graph(panels[0], True, "silent: a held state emits background")
    draw_graph(panels[1], False, "speaking: a held state emits, too")

# %% [markdown]
# ## Sampled, filtered, smoothed
#
# From each model one sequence of 60 tokens; then what is known of the state with the tokens up to $t$ (the filter), and
# with all of them (the smoother).

# %%
STEPS = 60
draws = {"silent": (silent, silent.simulate(STEPS, seed=7)), "speaking": (speaking, speaking.simulate(STEPS, seed=7))}


def strip(panel: plt.Axes, belief: torch.Tensor, name: str) -> None:
    """A distribution over states at each step, as stacked shares."""
    edges, top = np.arange(len(belief) + 1) + 0.5, belief.cumsum(-1).numpy()
    for k, color in enumerate(STATES):
        panel.stairs(top[:, k], edges, baseline=top[:, k] - belief[:, k].numpy(), fill=True, color=color)
    panel.set(xlim=(0.5, len(belief) + 0.5), ylim=(0, 1), yticks=[0, 1])
    panel.set_ylabel(name, rotation=0, ha="right", va="center")


figure, panels = plt.subplots(
    8, 1, figsize=(9, 6.8), sharex=True, height_ratios=[1, 1, 1, 1.3] * 2, layout="constrained"
)
for part, (name, (model, draw)) in zip((panels[:4], panels[4:]), draws.items(), strict=True):
    filtered, smoothed = model.filter(draw.x), model.smooth(draw.x)
    strip(part[0], torch.eye(3)[draw.path], "true state")
    strip(part[1], filtered.state, "filtered")
    strip(part[2], smoothed.state, "smoothed")
    part[0].set_title(name, pad=16, fontweight="bold")
    for t, (token, redraw) in enumerate(zip(draw.x[:, 0].long().tolist(), draw.redraw.tolist(), strict=True)):
        style = {"color": INK, "fontweight": "bold"} if redraw else {"color": "#9a9a9a"}
        part[0].text(t + 1, 1.12, TOKENS[token], ha="center", va="bottom", fontsize=8, **style)
    at = np.arange(1, STEPS + 1)
    part[3].plot(at, filtered.redraw, color=BLUE, lw=1.2)
    part[3].plot(at, smoothed.redraw, color=RED, lw=1.2, ls="--")
    part[3].set(ylim=(-0.05, 1.05), yticks=[0, 1])
    part[3].set_ylabel("P(redraw)", rotation=0, ha="right", va="center")
keys = [plt.Rectangle((0, 0), 1, 1, color=color) for color in STATES] + panels[3].get_lines()
names = ["state A", "state B", "state C", "redraw, filtered", "redraw, smoothed"]
figure.legend(keys, names, loc="outside upper center", ncols=5)
panels[7].set_xlabel("step; a token in bold was emitted by a redraw")
plt.show()

# %% [markdown]
# In the silent model the two rows are the same, and so are the two curves: the future adds **nothing**. The next token
# is background or comes from a fresh state, and neither depends on $s_t$. In the speaking model the tokens that follow
# a change date it.

# %%
gained = {}
for name, (model, draw) in draws.items():
    gained[name] = float((model.smooth(draw.x).state - model.filter(draw.x).state).abs().max())
    print(f"{name:9s} largest change of a belief by the future: {gained[name]:.1e}")
assert gained["silent"] < 1e-12
assert gained["speaking"] > 0.3

# %% [markdown]
# ## From the model to a minGRU
#
# In the silent model, let $q(x) = P(z_t{=}1 \mid x_t{=}x)$ and $r(x) = P(s_t \mid x_t{=}x, z_t{=}1)$, both by Bayes'
# rule. The filter is then
#
# $$a_t = (1 - q(x_t))\, a_{t-1} + q(x_t)\, r(x_t),$$
#
# a minGRU of one gate and three units that are a distribution. `as_rnn` writes its weights down; none is learned. The
# models begin with a redraw, and `redrawn_start` gives the $h_0$ that makes the network do the same.

# %%
x = silent.simulate(2000, (8,), seed=1).x
layer = sh.as_rnn(silent)
rows = sh.one_hot(x[..., 0], 5)
with torch.no_grad():
    states, _ = layer(rows, sh.redrawn_start(layer, rows))
error = float((states - silent.filter(x).state).abs().max())
print(f"{layer}\nnetwork - exact filter: {error:.1e} over {states.shape[0]} x {states.shape[1]} steps")
assert error < 1e-13

now = layer.activations(torch.eye(5, dtype=torch.float64))
table = torch.cat([now.draw[:, :1], now.value], -1).detach()
pd.DataFrame(table.T.numpy(), ["gate q(x)", "to A", "to B", "to C"], TOKENS).round(3)

# %% [markdown]
# The gate is almost closed for the tokens of the background. A minGRU's weights over tokens are log-likelihoods, its
# biases the prior: $W_g$ holds $\log p(x \mid z{=}1)/p_0(x)$, and $b_g$ is $\text{logit}\,\rho$.

# %%
fresh = silent.state_probs @ silent.probs
ratio = (fresh / silent.background_probs[0]).log()
torch.testing.assert_close(layer.weight_l0[0].detach(), ratio)
torch.testing.assert_close(layer.bias_l0[0].detach(), torch.logit(silent.redraw_prob))

# %% [markdown]
# Back again: with the probabilities of the tokens, the network gives back the model, and the same likelihood of any
# sequence.

# %%
(again,) = sh.as_ssm(layer, token_probs=sh.token_marginal(silent)).models
change = float((again.log_evidence(x) / silent.log_evidence(x) - 1).abs().max())
print(f"redraw probability {float(again.redraw_prob):.6f}; log-likelihoods change by a factor of 1 + {change:.0e}")
assert change < 1e-12
torch.testing.assert_close(again.probs, silent.probs)

# %% [markdown]
# ## From any minGRU to a model
#
# That network was made to be a filter. Here is one that was not: four linear units, trained for a few seconds to
# predict the next token of the *speaking* model. Over a finite set of tokens **every** minGRU, whatever its weights, is
# the exact filter of one two-state chain for each unit:
#
# $$h_t = lo + (hi - lo)\, P(s_t = 1 \mid x_{1:t}).$$
#
# `as_ssm` builds the chains. `hidden` runs their filters and never the network.

# %%
data = speaking.simulate(64, (1024,), seed=2).x
with torch.random.fork_rng():
    torch.manual_seed(0)
    network = sh.MinGRU(5, 4, dtype=torch.float64)
trained = sh.studies.train_next_token(network, sh.one_hot(data[..., 0], 5), n_steps=500, rate=0.03)
frequency = torch.bincount(data.long().flatten(), minlength=5)
lifted = sh.as_ssm(network, token_probs=frequency)

tokens = draws["speaking"][1].x[:, 0]
with torch.no_grad():
    states, _ = network(sh.one_hot(tokens, 5))
width = (lifted.levels[:, 1] - lifted.levels[:, 0]).flatten()
error = float(((states - lifted.hidden(tokens)).abs() / width).max())
print(f"loss fell from {trained.loss[:10].mean():.3f} to {trained.loss[-50:].mean():.3f} nats a token")
print(f"network - filter of its chains, of the range of each unit: {error:.1e}")
assert error < 1e-13

# %% [markdown]
# So the trained network has posteriors: gates and states that are most probable together (Viterbi), and draws of whole
# paths. They tell which past token a unit remembers. By the model, the state at $t$ was drawn at $\tau$ with the
# probability
#
# $$w_{t\tau} = P(\text{last redraw at } \tau \mid x_{1:t}) = g(x_\tau) \prod_{\tau < k \le t} (1 - g(x_k)),$$
#
# and so $h_t = \sum_\tau w_{t\tau}\, v(x_\tau)$, plus what is left of $h_0$: attention over the past, as a posterior.

# %%
now = network.activations(sh.one_hot(tokens, 5))
unit = int(now.draw.std(0).argmax())  # the unit with the most decided gate
gate, value = now.draw[:, unit].detach(), now.value[:, unit].detach()
log_kept = torch.log1p(-gate).cumsum(0)
attention = (gate * (log_kept[:, None] - log_kept).exp()).tril()
assert float((attention @ value - states[:, unit]).abs().max()) < 1e-13  # h_0 is 0

chain = lifted.chain(tokens)
best, smooth = chain.viterbi(), chain.smooth()
redraws = chain.sample(20_000, torch.Generator().manual_seed(0)).redraw[:, unit]
last = STEPS - 1 - redraws.flip(-1).int().argmax(-1)[redraws.any(-1)]
frequencies = torch.bincount(last, minlength=STEPS) / len(redraws)
print(
    f"20,000 sampled paths - closed form at t = {STEPS}: {float((frequencies - attention[-1]).abs().max()):.4f} at most"
)
assert float((frequencies - attention[-1]).abs().max()) < 0.015

# %%
figure, (above, below) = plt.subplots(2, 1, figsize=(9, 4.6), sharex=True, height_ratios=[2, 1.3], layout="constrained")
low, high = lifted.levels[unit].flatten().tolist()
level = torch.tensor([low, high])[best.path[unit]]
above.step(at, level, where="mid", color=RED, lw=1.4, label="most probable path of the chain")
above.plot(at, states[:, unit], "o-", color=INK, ms=3, lw=0.8, label="network $h_t$ = filter")
above.set(ylabel=f"unit {unit + 1}", yticks=[low, high], yticklabels=[f"lo = {low:.2f}", f"hi = {high:.2f}"])
above.set_ylim(low - 0.12 * (high - low), high + 0.12 * (high - low))
for t, token in enumerate(tokens.long().tolist()):
    above.text(t + 1, high + 0.14 * (high - low), TOKENS[token], ha="center", fontsize=8, color=INK)
above.legend(loc="lower left", bbox_to_anchor=(0.0, 1.1), ncols=2)
AGES = 10
by_age = torch.stack([torch.nn.functional.pad(attention.diagonal(-age), (age, 0)) for age in range(AGES)])
image = below.pcolormesh(np.arange(STEPS + 1) + 0.5, np.arange(AGES + 1) - 0.5, by_age, cmap="Blues", vmin=0, vmax=1)
below.set(
    xlabel="step $t$", ylabel="age of the token\n$t - \\tau$, steps", xlim=(0.5, STEPS + 0.5), yticks=[0, 3, 6, 9]
)
figure.colorbar(image, ax=below, label="$w_{t\\tau}$", pad=0.01)
plt.show()

# %% [markdown]
# ## The price: tokens without a past
#
# The lifted model is silent, and so its smoother equals its filter. And whatever the weights,
#
# $$p(x_t \mid x_{1:t-1}) = p(x_t).$$
#
# In the model whose exact filter a minGRU is, the tokens that it reads are independent over time. The network was
# trained to predict tokens, and *its own* model says that there is nothing to predict. Sampled from that model, with
# the token frequencies of the data, neighbors tell nothing about each other:

# %%
LAGS = range(1, 21)


def information_at(sequence: torch.Tensor, lag: int) -> float:
    """Mutual information of tokens `lag` steps apart, nats, from their joint frequencies."""
    pairs = (sequence[..., :-lag] * 5 + sequence[..., lag:]).long().flatten()
    joint = torch.bincount(pairs, minlength=25).double().reshape(5, 5) / len(pairs)
    expected = joint.sum(1, keepdim=True) * joint.sum(0)
    return float(torch.special.xlogy(joint, joint / expected).sum())


real = speaking.simulate(2000, (100,), seed=3).x[..., 0]
dreamed = lifted.sample(2000, (100,), seed=3).tokens
curves = {"speaking model": [information_at(real, lag) for lag in LAGS]}
curves["model of the minGRU trained on it"] = [information_at(dreamed, lag) for lag in LAGS]
floor = 16 / (2 * dreamed.numel())  # what independent tokens show on average, for 16 degrees of freedom

assert float((smooth.state - chain.filter().state).abs().max()) < 1e-12
evidence = float(lifted.log_evidence(tokens))
by_token = float((frequency / frequency.sum()).double().log()[tokens.long()].sum())
print(f"log p(60 tokens) in the lifted model {evidence:.6f}, as independent tokens {by_token:.6f}")
assert abs(evidence - by_token) < 1e-9
assert max(curves["model of the minGRU trained on it"]) < 4 * floor
assert curves["speaking model"][0] > 1000 * floor

# %%
figure, panel = plt.subplots(figsize=(6.5, 3.3), layout="constrained")
for (name, curve), color in zip(curves.items(), (INK, RED), strict=True):
    panel.semilogy(LAGS, curve, "o-", color=color, ms=3.5, lw=1, label=name)
panel.axhline(floor, color="#8c8c8c", lw=0.8, ls=":", label="independent tokens, by chance")
panel.set(xlabel="lag, steps", ylabel="I(x$_t$; x$_{t+lag}$), nats", xticks=[1, 5, 10, 15, 20])
panel.legend(loc="lower left", bbox_to_anchor=(0.0, 0.22))
plt.show()

# %% [markdown]
# ## What a held emission buys
#
# If the exact filters of minGRUs know no future, predicting needs held states that emit, and there the filter
#
# $$a_t(s) \propto p(x_t \mid s)\, \big((1 - \rho)\, a_{t-1}(s) + \rho\, \pi(s)\big)$$
#
# weighs every unit by its own likelihood. No minGRU of probabilities does this; a minGRU of logits does, as the first
# section shows, and is exact only where $x$ tells the gate. How much is at stake for a network that is trained? Models
# with three states and three tokens, $p(x \mid s) = (1 - o)\,[x = s] + o/3$, in nats a token:
#
# - *no memory* loses what a held emission buys: the exact filter against the marginal $p(x)$;
# - a *minGRU* of 16 units, trained on the model's data, loses what is left when the update must be a minGRU's.

# %%
price = sh.studies.price_of_exactness(redraw_probs=(0.02, 0.05, 0.1, 0.3, 1.0), n_steps=150)
summary = price.summary()
summary["share recovered"] = 1 - summary.iloc[:, 0] / summary.iloc[:, 1].where(summary.iloc[:, 1] > 1e-6)
display(summary.round(4))
price.plot()

# %%
assert bool((price.network[:, 0] > 5e-3).all())  # where states last, the minGRU loses
assert bool((price.network[:, :-1] < price.no_memory[:, :-1]).all())
assert bool((price.network[:, -1].abs() < 2e-3).all())  # independent tokens: nothing to lose
assert bool((summary["share recovered"].dropna() > 0.75).all())
assert bool((price.no_memory[:, -1].abs() < 1e-6).all())

# %% [markdown]
# **Answer.** A minGRU over tokens *is* Bayes' rule, to rounding, in both directions, in a model that draws or holds and
# is silent while it holds. That model gives a network's unit a most probable path and weights over its past, but it
# takes the tokens to be independent. Memory that pays in prediction needs held states that speak. Their exact filter is
# a minGRU of logits where the tokens tell the gate, and no minGRU elsewhere. A trained minGRU still recovers 77 to 99%
# of what such memory is worth, by no exact identity. Whether its states then hold the posterior is the question of
# `04_trained_networks`.
