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
# # Automata
#
# A recurrent network that tells the words of a regular language from others has done something that a finite
# automaton does. Is it one? This notebook reads automata off trained networks in three ways, counts how faithful each
# is, and ends with networks that *are* automata, if weighted ones, to the last digit.
#
# The language: no odd run of 1s has an odd run of 0s right after it, the third of Tomita's seven. Its least automaton
# has five states. Two circles: a word that ends here is accepted. Grey: nothing is accepted any more.

# %%
# %matplotlib inline
import random
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # a progress bar that this notebook does not show

import matplotlib.pyplot as plt
import pandas as pd
import samplehold as sh
import torch
from IPython.display import display
from samplehold.models.automata.tomita import labelled_words, tomita
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

target = tomita(3)
sh.automata.plot_automaton(target)

# %% [markdown]
# ## A network learns the language from words
#
# `Acceptor` is a recurrent layer that reads a word's symbols as one-hot rows, and a readout: the log-odds that the
# word is accepted. Layer and readout are any; here a GRU of 10 units. It learns from 40 words of each length up to
# 15.


# %%
def train(layer, language, n_steps=700, cooling=0):
    """An acceptor trained by Adam; over `cooling` steps the temperature of its layer falls to 0.03."""
    words, labels = zip(*labelled_words(language, range(16), each=40, seed=0), strict=True)
    labels = torch.tensor(labels, dtype=torch.float32)
    network, draw = sh.automata.Acceptor(layer, nn.Linear(layer.hidden_size, 1), "01"), random.Random(0)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for step in range(n_steps):
        if cooling:
            layer.temperature = 0.03 ** min(1.0, step / cooling)
        some = draw.choices(range(len(words)), k=64)
        loss = binary_cross_entropy_with_logits(network([words[i] for i in some]), labels[some])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return network.requires_grad_(False)


torch.manual_seed(0)
gru = train(sh.GRU(2, 10), target)
for word in ("", "1001", "10", "0110110"):
    odds = float(gru([word])[0])
    print(f"{word!r:>10}: log-odds {odds:6.2f}, in the language: {target.accepts_input(word)}")
accuracy = sh.automata.faithfulness(target, gru)
accuracy.summary()

# %% [markdown]
# `faithfulness` of the *target* to the network is the network's accuracy: exact over all 4,095 words of up to 11
# symbols, with an interval of 95% over random words of 20, 50 and 100.

# %%
assert accuracy.agreeing > 0.95 * accuracy.words

# %% [markdown]
# ## Angluin's L*, with the network as its teacher
#
# L* asks whether words are accepted, proposes a machine, and wants a counterexample, if there is one. Two searches
# look for it: random words, and a partition of the network's *states* into cells, which is refined wherever the
# machine says that one cell holds two states (Weiss, Goldberg & Yahav 2018).

# %%
found = sh.automata.extract_automaton(gru, method="lstar", max_queries=5000)
apart = sh.automata.distance(found.automaton, target)
print(f"{found.states} states from {found.queries} words; counterexamples on the way: {found.counterexamples}")
print(f"the same language as the target: {apart.equal}")
assert found.faithfulness.agreeing > 0.95 * found.faithfulness.words

# %% [markdown]
# ## Three methods, two distances
#
# k-means of visited states is the oldest method. The successor of a cluster is found by a step from its *centre*, and
# its members may go elsewhere. A state-regularised layer (Wang & Niepert 2019) has centroids of its own, and its
# machine is its hard step, no word read at all. For each we ask: how far is the machine from the *network*, and how far
# from the *language*? These are two questions: a machine may well be right where its network is wrong.

# %%
torch.manual_seed(0)
regular = train(sh.StateRegularized(sh.GRU(2, 10), n_states=10, similarity="l2"), target, cooling=600)
rows, machines = [], {}
for name, network in {"GRU": gru, "state-regularised GRU": regular}.items():
    for method in ("lstar", "clusters", "centroids"):
        if method == "centroids" and network is gru:
            continue
        result = sh.automata.extract_automaton(network, method=method, max_queries=5000)
        machines[name, method] = result
        told, difference = result.faithfulness, sh.automata.distance(result.automaton, target, longest=30)
        rows.append(
            {
                "network": name,
                "method": method,
                "states": result.states,
                "found": result.found,
                "faithful to 11": told.agreeing / told.words,
                "at 100": float(told.share[-1]),
                "no less than": float(told.lower[-1]),
                "is the language": difference.equal,
                "words of 30 that differ": float(difference.share[-1]),
                "first of them": difference.counterexample or "",
            }
        )
table = pd.DataFrame(rows).set_index(["network", "method"])
display(table.round(4))
assert table["faithful to 11"].max() > 0.95

# %% [markdown]
# In the run shown all machines agree with their network on every word that was tried. So the table tells what each
# network learned: the GRU the language, the state-regularised one a smaller machine, right about most words, and the
# shortest word that it gets wrong.

# %%
extracted = machines["state-regularised GRU", "centroids"]
sh.automata.plot_automaton(extracted.automaton)

# %% [markdown]
# ### Soft, and hard
#
# In mode "hard" the layer is at a centroid after each step, and the machine is the network: they agree on all words,
# not by luck. In mode "soft" its states are means of centroids, and nothing keeps it from storing in the shares what
# no centroid says: then the machine is another one than the network, until the temperature is low.

# %%
regular.layer.mode = "hard"
hard = sh.automata.extract_automaton(regular, method="centroids").faithfulness
regular.layer.mode = "soft"
assert hard.exact
assert bool((hard.share == 1).all())
temperatures, agreement = [1.0, 0.6, 0.3, 0.2, 0.1, 0.06, 0.03, 0.015], []
for temperature in temperatures:
    regular.layer.temperature = temperature
    told = sh.automata.extract_automaton(regular, method="centroids").faithfulness
    agreement.append([told.agreeing / told.words, float(told.share[-1])])
regular.layer.temperature = 0.03

fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
for values, label in zip(zip(*agreement, strict=True), ("all words to 11", "random words of 100"), strict=True):
    ax.plot(temperatures, values, "o-", label=label)
ax.axvline(0.03, color="#8c8c8c", linestyle=":", label="trained at")
ax.set_xscale("log")
ax.set_xlabel("temperature of the soft network")
ax.set_ylabel("agreement with its hard machine")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Networks that are automata: weighted ones
#
# A minGRU's gates read the symbol alone. Given the symbol its step is affine in the state, so that $f(x_1 \dots x_T)
# = \alpha^\top A_{x_1} \cdots A_{x_T} \beta$ with one matrix a symbol: a weighted automaton, exactly.

# %%
torch.manual_seed(1)
linear = sh.automata.Acceptor(sh.MinGRU(2, 3, dtype=torch.float64), nn.Linear(3, 1, dtype=torch.float64), "01")
weighted = sh.automata.as_weighted_automaton(linear)
print(pd.DataFrame(weighted.transitions["1"].numpy()).round(3).to_string(header=False, index=False))
words = ["", "0", "10" * 7, "".join(random.Random(0).choices("01", k=1000))]
gap = float((weighted.values(words) - linear(words).detach()).abs().max())
print(f"{weighted.n_states} states; network and automaton differ by {gap:.0e}, words of 1000 symbols included")
assert gap < 1e-10

# %% [markdown]
# A GRU's gates read its own state, and no matrix does what it does:

# %%
try:
    sh.automata.as_weighted_automaton(gru)
except ValueError as error:
    print(error)

# %% [markdown]
# ## Learning one by an SVD
#
# A hidden Markov chain over symbols is a weighted automaton too, whose values are the probabilities of words. From
# the probabilities of short words alone, arranged as a Hankel matrix $H[p, s] = f(ps)$, an SVD gives back an
# automaton that is right about *all* words. From samples it is right as far as shares are.

# %%
chain = sh.SwitchingSSM(sh.Markov(2), sh.Categorical(2)).with_values(
    initial_probs=[0.5, 0.5], transition_probs=[[0.9, 0.1], [0.2, 0.8]], probs=[[0.9, 0.1], [0.1, 0.9]]
)
exact = sh.automata.as_weighted_automaton(chain)
evidence = float(chain.log_evidence([0, 1, 1, 0, 1]).exp())
print(f"P(01101): {float(exact.values(['01101'])[0]):.15f} by matrices, {evidence:.15f} by the filter")
assert abs(float(exact.values(["01101"])[0]) - evidence) < 1e-12

short = [format(i, f"0{n}b") if n else "" for n in range(4) for i in range(2**n)]
learned = sh.automata.spectral(dict(zip(short, exact.values(short).tolist(), strict=True)), rank=2)
longer = [format(i, "012b") for i in range(2**12)]
error = float((learned.values(longer) - exact.values(longer)).abs().max())
print(f"from words of up to 3 symbols: all probabilities of 12 symbols to {error:.0e}")
assert error < 1e-10

# %%
samples = ["".join(map(str, row)) for row in chain.simulate(8, (100_000,), seed=0).x[..., 0].long().tolist()]
sizes, errors = [100, 1000, 10_000, 100_000], []
fives = [format(i, "05b") for i in range(32)]
for size in sizes:
    approximate = sh.automata.spectral(samples[:size], rank=2, count="prefixes")
    errors.append(float((approximate.values(fives) - exact.values(fives)).abs().max()))

fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
ax.loglog(sizes, errors, "o-", label="learned by SVD, rank 2")
ax.loglog(
    sizes, [errors[0] * (sizes[0] / size) ** 0.5 for size in sizes], ":", color="#8c8c8c", label="one over a root"
)
ax.set_xlabel("sampled series")
ax.set_ylabel("greatest error of a word of 5 symbols")
ax.legend(frameon=False)
plt.show()
assert errors[-1] < 0.02
