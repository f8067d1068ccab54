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
# # Stack superposition
#
# A stack RNN does not push or pop. It says "push with probability 0.7" and keeps an *average* stack. Is that a trick
# to make a stack differentiable, or is it an answer to a question? This notebook shows that it is exact inference in
# a model, asks that model things which the average alone cannot tell, and finds where the equality ends.
#
# The model: at every step an action is drawn, and the stack follows it.
#
# $$a_t \sim \text{Categorical}(\text{push}_t, \text{pop}_t, \text{no-op}_t), \qquad
#   \text{stack}_t = \text{push}(\text{stack}_{t-1}, v_t)\ \text{or}\ \text{pop}(\text{stack}_{t-1})\ \text{or}\
#   \text{stack}_{t-1}.$$
#
# After $T$ steps there are $3^T$ histories. Their mean stack follows a recursion that is linear, because each of the
# three moves is linear in the stack, and so costs $O(T)$ a step:
#
# $$\begin{gathered}
# S_t[0] = \text{push}_t\, v_t + \text{pop}_t\, S_{t-1}[1] + \text{noop}_t\, S_{t-1}[0], \\[4pt]
# S_t[i] = \text{push}_t\, S_{t-1}[i-1] + \text{pop}_t\, S_{t-1}[i+1] + \text{noop}_t\, S_{t-1}[i].
# \end{gathered}$$

# %%
# %matplotlib inline
import random
import warnings
from dataclasses import replace

warnings.filterwarnings("ignore", message="IProgress not found")  # a progress bar that this notebook does not show

import matplotlib.pyplot as plt
import pandas as pd
import samplehold as sh
import torch
from IPython.display import display
from samplehold.inference.stacks.stratification.op import strengths, visible
from samplehold.switching.stacks.automaton import advance, start
from torch import nn
from torch.nn.functional import cross_entropy, one_hot, pad

generator = torch.Generator().manual_seed(0)

# %% [markdown]
# ## All 2187 histories, or seven steps of a recursion
#
# `StackMixture` is the model. It can list its histories one by one, and it can average them without listing them.
# Both agree to the last digits, for any action probabilities and any pushed values:

# %%
log_action = torch.randn(7, 3, dtype=torch.float64, generator=generator).log_softmax(-1)
values = torch.randn(7, 2, dtype=torch.float64, generator=generator)
small = sh.stacks.StackMixture(log_action, values)
every = small.enumerate()
listed = (every.weight[:, None, None, None] * every.cells(depth=4)).sum(0)
gap = float((listed - small.superposition(depth=4)).abs().max())
print(f"{len(every.weight)} histories; the two mean stacks differ by {gap:.0e}")
assert gap < 1e-14

# %% [markdown]
# ## A network reads brackets
#
# Words over two kinds of brackets, properly nested, of which each next symbol opens or closes with probability
# $\frac{1}{2}$ where both are possible. To name the next closing bracket one has to remember the brackets that are
# open, in order. An LSTM of 12 units with one superposition stack learns it in seconds.
#
# Its actions here depend on the symbols alone (`feedback=False`); why that matters is the last section. A new layer has
# eight stacks, of which one soon finds its use; here one has to learn it all, and starts with a push still more likely.

# %%
OPEN, CLOSE = "([", ")]"
ALPHABET = OPEN + CLOSE + "$"  # $ ends a word


def draw_word(length: int, rng: random.Random) -> str:
    """A nested word that opens and closes at random until it has to close, and the sign that ends it."""
    word, due = "", []
    while len(word) + len(due) < length:
        if due and rng.random() < 0.5:
            word += due.pop()
        else:
            kind = rng.randrange(2)
            word, due = word + OPEN[kind], [*due, CLOSE[kind]]
    return word + "".join(reversed(due)) + "$"


def encode(word: str) -> torch.Tensor:
    return one_hot(torch.tensor([ALPHABET.index(symbol) for symbol in word]), len(ALPHABET)).float()


class Reader(nn.Module):
    """Logits of the next symbol from the controller's state and what it read off the stack."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        self.readout = nn.Linear(layer.hidden_size + layer.reading_size, len(ALPHABET))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        run = self.layer.run(x)
        return self.readout(torch.cat([run.output, run.reading], -1))


def train(reader: Reader, updates: int, rng: random.Random) -> list[float]:
    """Adam on fresh batches of 16 words of 2 to 24 brackets; the cross-entropy in nats per symbol, as it falls."""
    optimizer = torch.optim.Adam(reader.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=updates)
    losses = []
    for _ in range(updates):
        words = [encode(draw_word(rng.randrange(2, 25, 2), rng)) for _ in range(16)]
        x = nn.utils.rnn.pad_sequence(words, batch_first=True)
        follows = nn.utils.rnn.pad_sequence([word.argmax(-1)[1:] for word in words], True, -1)
        loss = cross_entropy(reader(x[:, :-1]).flatten(0, 1), follows.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses


with torch.random.fork_rng():
    torch.manual_seed(1)
    layer = sh.stacks.SuperpositionStackRNN(len(ALPHABET), 12, value_size=3, stacks=1, feedback=False)
    reader = Reader(layer)
with torch.no_grad():
    layer.to_actions.bias[0] += 1  # push
losses = train(reader, 400, random.Random(1))
print(f"nats per symbol: {sum(losses[:20]) / 20:.2f} at first, {sum(losses[-20:]) / 20:.2f} at last")
assert sum(losses[-20:]) < 0.75 * sum(losses[:20])

# %% [markdown]
# `layer.mixture(x)` is the model whose mean stack the network held while it read. Its most probable history pushes
# every opening bracket and pops at every closing one, and its depth is that of the word:

# %%
WORD = "([()])[][(())]"


def height(word: str) -> list[int]:
    return [sum(1 if symbol in OPEN else -1 for symbol in word[: t + 1]) for t in range(len(word))]


x = encode(WORD)
with torch.no_grad():
    mixture = layer.mixture(x)
    certain = mixture.action_posterior()[0].amax(-1)
best = mixture.viterbi()
assert best.action[0, 0].tolist() == [0 if symbol in OPEN else 1 for symbol in WORD]
assert best.depth[0, 0].tolist() == height(WORD)
print(f"the least certain action has probability {float(certain.min()):.3f}")
mixture.plot(0, steps=list(WORD))

# %% [markdown]
# What is on top after each closing bracket is the bracket that is open, wherever it was pushed: the rows of the last
# panel are taken up again after the elements above them are gone.
#
# ## Three brackets are smudged
#
# Now the word is damaged: three of its symbols cannot be read. The network is given the mean of the four brackets in
# their place, and is not sure what to do.

# %%
SMUDGED = [1, 4, 9]
damaged = x.clone()
damaged[SMUDGED] = torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0])
shown = "".join("?" if t in SMUDGED else symbol for t, symbol in enumerate(WORD))
with torch.no_grad():
    guess = layer.mixture(damaged)
before = guess.action_posterior()[0, SMUDGED]
pd.DataFrame(before.numpy().round(3), [f"symbol {t}" for t in SMUDGED], ["push", "pop", "no-op"])

# %% [markdown]
# The recursion for the mean stack has nothing more to say. The model has: we know that the word is balanced, so that
# no pop met an empty stack and that the stack is empty at the end. That is evidence, and `condition` takes it.
# Histories are then weighed by what they explain, the actions of different steps depend on each other, and the
# mixture becomes a weighted pushdown automaton whose $O(T^3)$ recursion the same methods now use.

# %%
T = len(WORD)
evidence = torch.zeros(1, T, T + 1)
evidence[:, -1, :-1] = -torch.inf  # after the last step no element is on top
known = replace(guess, on_empty="forbid", capacity=None).condition(evidence)
after = known.action_posterior()[0, SMUDGED]
known.plot(0, steps=list(shown))

# %%
columns = pd.MultiIndex.from_product([["network alone", "word is balanced"], ["push", "pop", "no-op"]])
table = pd.DataFrame(torch.cat([before, after], 1).numpy().round(3), [f"symbol {t}" for t in SMUDGED], columns)
ways = known.sample(1000, torch.Generator().manual_seed(0))
found, counts = torch.unique(ways.action[:, 0, SMUDGED], dim=0, return_counts=True)
for actions, count in sorted(zip(found.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1]):
    print(f"{count / 1000:.2f}  " + ", ".join(("push", "pop", "no-op")[a] for a in actions))
assert bool((ways.depth[:, 0, -1] == 0).all())
assert float(after[2, 0]) > 0.9 > 0.6 > float(after[0, 0]) > 0.4
assert ways.action[:, 0, SMUDGED].sum(-1).mode().values == 1  # one pop, two pushes
display(table)

# %% [markdown]
# The network thought a pop, a second pop and a push probable. As a whole this is impossible: it would end one level
# off. Two readings are left, and they are about equally probable. The evidence settles the third symbol. About the
# first two it says only that they are opposite. No table of probabilities by step can say that. Whole histories do, and
# so do whole stacks: here is what may lie on the stack after the third symbol.

# %%
ways.plot(step=2, sequence=(0,), names=list(shown))

# %% [markdown]
# ## Three stacks side by side
#
# Three ideas of what an uncertain push is. Give them the same numbers, 0.8 for a push while a word opens and 0.8 for
# a pop while it closes, and ask how much of each pushed element is in a read:
#
# * **superposition** (Joulin & Mikolov 2015): the mean over histories; popping an empty stack does nothing;
# * **nondeterministic** (DuSell & Chiang 2020): the same histories, but those that ever pop an empty stack are
#   dropped, as by conditioning, which couples the steps;
# * **stratification** (Grefenstette et al. 2015): layers of fluid; a step drains 0.8 from the top and reads the topmost
#   unit. This is a mean over the depth at which one looks, and not over histories.

# %%
word = "((()()))"
opens = torch.tensor([symbol == "(" for symbol in word])
pushing = torch.where(opens, 0.8, 0.1).double()
popping = torch.where(opens, 0.1, 0.8).double()
actions = torch.stack([pushing, popping, 1 - pushing - popping], -1).log()
elements = torch.eye(len(word), dtype=torch.float64)
mean = sh.stacks.StackMixture(actions, elements)
fluid = visible(strengths(pushing, popping))

state, rows = start(torch.zeros(1, 1, dtype=torch.float64)), []
for push, pop, hold in actions:  # one state, one symbol
    state = advance(state, push.reshape(1, 1, 1, 1), hold.reshape(1, 1, 1, 1), pop.reshape(1, 1, 1))
    rows.append(pad(state.pushed[:-1, 0, 0], (0, len(word) - len(rows) - 1)))
reads = {
    "superposition": mean.superposition(1)[:, 0],
    "nondeterministic": torch.stack(rows),
    "stratification": fluid,
}
legal = replace(mean, on_empty="forbid")
torch.testing.assert_close(rows[-1], legal.top()[-1, :-1])  # the same histories, dropped by the same rule
assert bool((reads["nondeterministic"].sum(1) > reads["superposition"].sum(1)).all())  # fewer of them are empty

figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, layout="constrained")
for axis, (name, read) in zip(axes, reads.items(), strict=True):
    image = axis.imshow(read.T, origin="lower", cmap="Blues", vmin=0, vmax=1)
    axis.set(title=name, xlabel="read after", xticks=range(len(word)), xticklabels=list(word))
    axis.spines[["top", "right"]].set_visible(False)
axes[0].set(ylabel="pushed at step")
figure.colorbar(image, ax=axes, label="share of the read", shrink=0.8)
plt.show()

# %% [markdown]
# The diagonal is the element pushed at this step. Each row is taken up again when the elements above it are gone.
# Superposition loses weight on the way: in part of its histories the stack is empty too early. Stratification blurs in
# its own way: with 0.8 of a layer on top, a fifth of every read comes from the layer below.
#
# ## Where superposition stops being exact
#
# In the model the actions do not depend on the stack. In most stack networks they do: the controller reads the stack
# and then decides. In each history it would read *that history's* top; in the network it reads the *mean* top, once,
# for all of them. This is a mean-field step, and it costs exactness. How much? For six steps all 729 histories can be
# run through the network, each with its own certain actions and its own stack, and weighed by the probability that
# the controller then gave to these actions. We turn up how strongly the controller looks at what it reads:

# %%
steps = 6
histories = torch.cartesian_prod(*[torch.arange(3)] * steps)
forced = one_hot(histories, 3).double().log()[:, :, None]
with torch.random.fork_rng():
    torch.manual_seed(2)
    network = sh.stacks.SuperpositionStackRNN(4, 5, value_size=3, stacks=1, controller=nn.RNNCell).double()
    series = torch.randn(steps, 4, dtype=torch.float64)
looking = network.controller.weight_ih.detach()[:, 4:].clone()


@torch.no_grad()
def mean_field_error(gain: float) -> float:
    """Largest difference between the network's read and the mean read of histories that each read their own stack."""
    network.controller.weight_ih[:, 4:] = gain * looking
    run = network.run(series.expand(len(histories), -1, -1), log_action=forced)
    taken = run.actions.log_action[:, :, 0].gather(-1, histories[..., None])[..., 0].sum(1).exp()
    torch.testing.assert_close(taken.sum(), torch.ones((), dtype=torch.float64))
    exact = (taken[:, None] * run.reading[:, -1]).sum(0)
    return float((network.run(series).reading[-1] - exact).abs().max())


gains = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
errors = [mean_field_error(gain) for gain in gains]
assert errors[0] < 1e-14  # a controller that looks away is exact inference
assert errors[-1] > 10 * errors[2] > 0

figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
axis.plot(gains, errors, "o-", color="#262626", linewidth=1, markersize=4)
axis.set(xlabel="how strongly the controller looks at the stack", ylabel="error of the mean read")
axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# **Answer.** The superposed stack is the exact mean over all $3^T$ histories, as long as what is done does not depend
# on what was read. Within that model one can ask for what the mean has lost: the depth, whole histories and whole
# stacks, and what the actions must have been given what came of them. With a controller that reads its own stack the
# network is a mean-field approximation of that model, with an error that starts at zero and grows with the weight of
# the read.
