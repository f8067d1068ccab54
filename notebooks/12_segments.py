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
# # Segments
#
# Notebook 03 asked when a gated recurrence is the exact filter of a model that either draws its state afresh or holds
# it. There the state was one of K. Here it is a parameter $\theta$, such as a rate, with a conjugate prior:
#
# $$z_t \sim \text{Bernoulli}(h), \qquad \theta_t = \theta_{t-1} \text{ if } z_t = 0, \qquad
#   \theta_t \sim p(\theta) \text{ if } z_t = 1, \qquad x_t \sim p(x \mid \theta_t).$$
#
# `sh.Segments` integrates out all parameters and all segmentations. Its filter keeps a belief for each possible
# beginning of the present segment. A recurrent network keeps one number. What does it lose?

# %%
# %matplotlib inline
import warnings
from pathlib import Path

warnings.filterwarnings("ignore", message="IProgress not found")  # a progress bar that this notebook does not show

import matplotlib.pyplot as plt
import pandas as pd
import pyro.distributions as dist
import samplehold as sh
import torch
from IPython.display import display
from torch import Tensor

plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
plt.rcParams.update({"axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False})
INK, BLUE, RED, GREY = "#262626", "#1f77b4", "#de4968", "#8c8c8c"

# %% [markdown]
# ## One change in the Nile
#
# The annual flow fell in 1899. Mean and standard deviation of each segment are unknown, with a normal-gamma prior. The
# evidence sums over all $2^{99}$ segmentations.

# %%
nile = pd.read_csv(Path(sh.__file__).parent / "notebooks" / "data" / "nile.csv", index_col="year")
prior = {"loc": 900.0, "count": 0.1, "shape": 2.0, "rate": 2 * 120.0**2}
model = sh.Segments(sh.Normal(), hazard=0.02).with_prior(prior)
smoothed, best = model.smooth(nile), model.viterbi(nile)
print(f"log evidence {float(model.log_evidence(nile)):.10f}")
print(f"expected changes {float(smoothed.n_changes):.10f}")
print(f"log joint of the best segmentation {float(best.log_probability):.10f}")
display(model.segments(nile).round(1))
model.plot(nile)

# %% [markdown]
# ## The filter as a gated recurrence
#
# Let the belief before step t be one member of the conjugate family with mean $m$ and count $n$, here
# $\text{Gamma}(mn, n)$ for the rate of counts, and the prior the member with $m_0, n_0$. Bayes' theorem opens the gate
# with probability
#
# $$q_t = \frac{h\, p_0(x_t)}{h\, p_0(x_t) + (1 - h)\, p(x_t \mid m, n)},$$
#
# where $p$ are predictive densities. The mean is $(n_0 m_0 + x_t) / (n_0 + 1)$ behind an open gate, and
# $(n m + x_t)/(n + 1)$ behind a closed one. So the mean of the belief is
#
# $$\begin{gathered}
# m_t = (1 - g_t)\, m_{t-1} + g_t v_t, \qquad 1 - g_t = (1 - q_t) \frac{n}{n+1}, \\[4pt]
# g_t v_t = \Big(\frac{q_t}{n_0 + 1} + \frac{1 - q_t}{n + 1}\Big) x_t + q_t \frac{n_0}{n_0 + 1} m_0.
# \end{gathered}$$
#
# This is a minGRU step, if its gate reads the evidence and the count beside $x_t$. With a vague prior ($n_0 \to 0$) the
# candidate $v_t$ is $x_t$ itself. The belief afterwards has two members. If they are merged to one, with the expected
# count $n_t = q_t (n_0 + 1) + (1 - q_t)(n + 1)$, the recurrence goes on. The exact filter never merges.


# %%
def log_predictive(x: Tensor, mean: Tensor, count: Tensor) -> Tensor:
    """log p(x) of a count whose rate is Gamma(mean * count, count): negative binomial."""
    shape = mean * count
    ratio = torch.lgamma(shape + x) - torch.lgamma(shape) - torch.lgamma(x + 1)
    return ratio + shape * (count / (count + 1)).log() - x * (count + 1).log()


def merged(x: Tensor, hazard: Tensor, mean_0: Tensor, count_0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gates, candidates, counts and log p(x_t | x_1..t-1) of the filter whose run lengths are merged to one."""
    mean, count, steps = mean_0, count_0, []
    for t, x_t in enumerate(x):
        fresh, held = log_predictive(x_t, mean_0, count_0), log_predictive(x_t, mean, count)
        evidence = torch.logaddexp(hazard.log() + fresh, torch.log1p(-hazard) + held) if t else fresh
        q = (hazard.log() + fresh - evidence).exp() if t else torch.ones_like(hazard)
        gate = 1 - (1 - q) * count / (count + 1)
        seen = q / (count_0 + 1) + (1 - q) / (count + 1)
        value = (seen * x_t + q * count_0 / (count_0 + 1) * mean_0) / gate
        mean, count = (1 - gate) * mean + gate * value, q * (count_0 + 1) + (1 - q) * (count + 1)
        steps.append((gate, value, count, evidence))
    return tuple(torch.stack(table) for table in zip(*steps, strict=True))


hazard, mean_0, count_0 = (torch.tensor(v, dtype=torch.float64) for v in (0.01, 10.0, 0.2))
counts = sh.Segments(sh.Poisson(prior={"rate": dist.Gamma(mean_0 * count_0, count_0)}), hazard=float(hazard))
drawn = counts.simulate(1500, seed=1)
x, rate = drawn.x[:, 0], drawn.parameters["rate"][:, 0]
filtered = counts.filter(x)
exact = filtered.mean["rate"][:, 0]
gate, value, count, increments = merged(x, hazard, mean_0, count_0)
recurrence = sh.lerp_scan(gate.unsqueeze(-1), value.unsqueeze(-1))[:, 0]  # the update of a minGRU
print(f"{int(drawn.redraw.sum())} segments in {len(x)} steps")

# %% [markdown]
# Until the second segment can have begun, there is nothing to merge, and the two are equal. The first two means are so
# by Bayes' theorem, to rounding:

# %%
print("largest difference in the first two steps:", float((recurrence - exact)[:2].abs().max()))
assert float((recurrence - exact)[:2].abs().max()) < 1e-10

# %% [markdown]
# ## What merging loses, and what a gate that reads $x_t$ alone loses
#
# Two networks with less: a constant gate, which is an exponential average, and a minGRU gate
# $\sigma(w_0 + w_1 x_t + w_2 x_t^2)$ that reads the observation, but neither the state nor the count. Their weights are
# fitted to the *true* rates, which no filter knows, so they are the best of their kind.


# %%
def error(mean: Tensor) -> float:
    """The root mean square distance to the true rates."""
    return float((mean - rate).square().mean().sqrt())


def best_gate(columns: Tensor) -> Tensor:
    """The means of the best minGRU whose gate is a logistic function of these columns."""
    weights = torch.zeros(columns.shape[-1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def means() -> Tensor:
        return sh.lerp_scan(torch.sigmoid(columns @ weights).unsqueeze(-1), x.unsqueeze(-1), x[:1])[:, 0]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (means() - rate).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return means().detach()


standard = (x - x.mean()) / x.std()
columns = torch.stack([torch.ones_like(x), standard, standard**2], -1)
means = {
    "exact filter": exact,
    "run lengths merged to one": recurrence,
    "minGRU, gate of x_t alone": best_gate(columns),
    "constant gate": best_gate(columns[:, :1]),
}
losses = pd.DataFrame({"error of the mean": {name: error(mean) for name, mean in means.items()}})
losses["times the exact one"] = losses["error of the mean"] / losses["error of the mean"].iloc[0]
losses.round(3)

# %% [markdown]
# The exact filter is best, as it must be. Most of the way from a constant gate to the exact filter is that the gate
# *adapts*: it opens where $x_t$ surprises the present state, and closes as the count grows. A gate that reads $x_t$
# alone cannot do either, and gains almost nothing. Merging the run lengths loses the rest: after a change that is not
# certain yet, one member has a mean between the two candidates and the wrong count. In nats of evidence:

# %%
lost = filtered.log_increment - increments
print(f"log evidence {float(filtered.log_normalizer):.1f}, merged {float(increments.sum()):.1f}")
assert float(lost.sum()) > 0
assert error(exact) < error(recurrence) < error(means["minGRU, gate of x_t alone"])

# %%
after = drawn.redraw.long().cumsum(0)
run = torch.arange(len(x)) - torch.nonzero(drawn.redraw).flatten()[after - 1]
by_run = pd.DataFrame(
    {"run": run.clamp(max=30).numpy(), **{name: (mean - rate).square().numpy() for name, mean in means.items()}}
)
curves = by_run.groupby("run").mean() ** 0.5
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.plot(x, ".", color=GREY, markersize=1, alpha=0.5, label="counts")
left.plot(rate, color=INK, linewidth=1, label="rate")
left.plot(exact, color=BLUE, linewidth=1, label="exact filter")
left.plot(recurrence, color=RED, linewidth=1, label="merged")
left.legend(ncols=2)
left.set(title="Filtered means", xlabel="step")
for name, color in zip(curves, (BLUE, RED, INK, GREY), strict=True):
    right.plot(curves.index, curves[name], color=color, label=name)
right.legend()
right.set(title="Error by the steps since the last change", xlabel="steps", ylim=(0, None))
plt.show()

# %% [markdown]
# Right after a change nobody knows the new rate. The exact filter learns it fastest. The merged one sees the change as
# soon, but takes some tens of steps for the rest of the way, because it gave the new segment a part of the old mean and
# of the old count. The networks without an adaptive gate find the new rate late, and then stay where they are: a gate
# that is open enough after a change is too open within a segment.
