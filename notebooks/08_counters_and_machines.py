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
# # Counters and machines
#
# What can a recurrent network *be*? Here are answers that run: a counter, a stack in one number, and a Turing machine.
# Each is a network with weights that we set by hand, and each claim is checked by a number.

# %%
# %matplotlib inline
import itertools
import sys
import warnings
from fractions import Fraction

warnings.filterwarnings("ignore", message="IProgress not found")  # a progress bar that this notebook does not show
sys.path.append("../docs/replications")  # scripts of a checkout

import matplotlib.pyplot as plt
import pandas as pd
import samplehold as sh
import torch
from IPython.display import display
from turing import (
    binary_increment,
    busy_beaver,
    departures,
    draw_tape,
    library_configurations,
    palindromes,
    unary_multiplication,
)

plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
plt.rcParams.update({"axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False})

# %% [markdown]
# ## A counter by hand
#
# An LSTM's cell is $c' = f \odot c + i \odot g$: f and i are free of each other, so both can be 1, and then the cell
# counts. `counting_lstm` has one cell that goes up at a and down at b, one that remembers b, and one that is 0 as long
# as no a comes after a b.

# %%
acceptor = sh.automata.counting_lstm("anbn")
words = ["".join(w) for n in range(1, 11) for w in itertools.product("ab", repeat=n)]
told = acceptor.accepts(words).tolist()
assert told == [w == "a" * (len(w) // 2) + "b" * (len(w) // 2) for w in words]
print(f"{len(words)} words told rightly, {sum(told)} of them accepted")
print("n = 1000:", acceptor.accepts(["a" * 1000 + "b" * n for n in (999, 1000, 1001)]).tolist())

# %% [markdown]
# ## Gates at their limits
#
# Make all weights larger and larger: gates become steps, and what is left is a machine that holds or resets each cell
# and adds to it. `counter_machine` gives its instructions as it reads.

# %%
machine = sh.automata.counter_machine(acceptor.layer, acceptor.inputs(["aaaabbbb"])[0])
display(
    pd.DataFrame(
        {"hold": machine.hold[:, 0], "add": machine.add[:, 0], "cell": machine.cells[:, 0]}, index=list("aaaabbbb")
    ).T.astype(int)
)
assert machine.cells[:, 0].tolist() == [1, 2, 3, 4, 3, 2, 1, 0]

# %% [markdown]
# Which layers can? Where hold and draw sum to 1, as in a GRU or a minGRU, the new state lies between the old one and
# the candidate, so that all states stay in a box that `state_box` gives, whatever is read. We draw layers at random,
# saturate them, and look for cells that are held whole and changed at once.

# %%
kinds = {
    "LSTM": sh.LSTM,
    "QRNN, ifo": lambda *sizes, **more: sh.QRNN(*sizes, pooling="ifo", **more),
    "QRNN, fo": sh.QRNN,
    "GRU": sh.GRU,
    "MinGRU": sh.MinGRU,
    "MinLSTM": sh.MinLSTM,
    "Elman": sh.Elman,
}
random, rows = torch.Generator().manual_seed(0), []
x = torch.eye(3, dtype=torch.float64)[torch.randint(3, (4, 500), generator=random)]
for name, kind in kinds.items():
    counters, largest = 0, 0.0
    for _ in range(20):
        layer = kind(3, 5, dtype=torch.float64).requires_grad_(False)
        for parameter in layer.parameters():
            parameter.normal_(generator=random)
        found, box = sh.automata.counter_machine(layer, x), sh.automata.state_box(layer)
        counters += int(found.counts.sum())
        largest = max(largest, float(found.cells.abs().max()))
    bound = "a box" if box.highest.isfinite().all() else "none"
    rows.append(
        {"layer": name, "counters, of 100 cells": counters, "largest cell in 500 steps": largest, "bound": bound}
    )
table = pd.DataFrame(rows).set_index("layer")
assert ((table["counters, of 100 cells"] > 0) == (table["bound"] == "none")).all()
display(table.round(1))

# %% [markdown]
# ## What one layer of QRNN cannot do
#
# A QRNN of ifo-pooling counts, but its gates read a window of inputs, and so cannot know that the count is over. For
# $a^n b^n w$ the layer must distinguish the two words below. They have the same windows, each as often, so any
# saturated layer ends in the same state. An LSTM, whose gates read h, distinguishes them.

# %%
end = "aaabaabbabbbbaba"
yes, no = (f"{'a' * 7}{'b' * p}{'a' * 5}{'b' * r}{end}" for p, r in ((7, 4), (4, 7)))
x = acceptor.inputs([yes, no])
for _ in range(100):
    layer = sh.QRNN(2, 8, pooling="ifo", window=2, dtype=torch.float64).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.normal_(generator=random)
    out = sh.automata.saturated(layer)(x)[0][:, -1]
    assert torch.equal(out[0], out[1])
lstm = sh.automata.counting_lstm("anbnw")
told = lstm.accepts([yes, no]).tolist()
print("LSTM:", told, "- QRNN: the same state, 100 times of 100")
assert told == [True, False]

# %% [markdown]
# ## A stack in one number
#
# Bits $z_1 z_2 \dots$ from the top, as $q = \sum_i (2 z_i + 1) / 4^i$. Push, pop and top are linear maps and a clipped
# ReLU. With base 4 a top of 1 and a top of 0 are at least 1/4 apart, however deep the stack; with base 2 they touch.

# %%
by_top = {0: [], 1: []}
for word in itertools.product((0, 1), repeat=7):
    stack = sh.automata.FractionStack()
    for z in word:
        stack = stack.push(z)
    assert stack.symbols() == list(word)[::-1]
    by_top[stack.top].append((float(stack.value), sum(z / 2 ** (i + 1) for i, z in enumerate(reversed(word)))))
fig, axes = plt.subplots(2, 1, figsize=(7, 2.6), layout="constrained", sharex=True)
for axis, base in zip(axes, (4, 2), strict=True):
    for z, color in ((0, "#1f77b4"), (1, "#de4968")):
        points = [pair[0 if base == 4 else 1] for pair in by_top[z]]
        axis.plot(points, [0] * len(points), "|", color=color, markersize=18, label=f"top {z}")
    axis.set(title=f"stacks of seven bits in base {base}", yticks=[], xlim=(0, 1))
axes[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
plt.show()

# %% [markdown]
# In fractions there is no bottom. In floats of p binary digits a stack holds p / 2 bits, and where p is odd one more if
# that is a 0.

# %%
rows = []
for dtype, digits in ((torch.bfloat16, 8), (torch.float16, 11), (torch.float32, 24), (torch.float64, 53)):
    held, whole = 0, True
    while whole:
        word = [k % 2 for k in range(held + 1)]
        stack = sh.automata.FractionStack(torch.tensor(0.0, dtype=dtype))
        for z in word:
            stack = stack.push(z)
        whole = stack.symbols(len(word) + 2) == word[::-1]
        held += whole
    rows.append({"floats": str(dtype), "digits": digits, "bits held": held, "p // 2": digits // 2})
    assert digits // 2 <= held <= (digits + 1) // 2
display(pd.DataFrame(rows))

# %% [markdown]
# ## A Turing machine as a recurrent network
#
# Two such stacks are a tape. `as_rnn` makes of a machine an Elman network $h' = \sigma(U h + b)$ with a clipped ReLU,
# whose weights are rational numbers, and two steps of which are one of the machine (Siegelmann & Sontag 1992). In
# `fractions.Fraction` it is the machine, at every configuration; the judge is `automata-lib`.

# %%
rows = []
for machine, word in (
    (binary_increment(), "1011"),
    (palindromes(), "abbabba"),
    (unary_multiplication(), "111x1111="),
    (busy_beaver(3), ""),
    (busy_beaver(4), ""),
):
    network, expected = sh.as_rnn(machine), library_configurations(machine, word)
    found = [network.configuration(units) for units in network.run(word)]
    assert found == expected
    row = {"word": word, "steps": len(found) - 1, "units": len(network.units), "tape at the end": found[-1].tape}
    for name, dtype in (("float64", torch.float64), ("float32", torch.float32), ("float16", torch.float16)):
        inexact, astray = departures(network, word, dtype)
        row |= {
            f"{name} inexact": "never" if inexact is None else inexact,
            "astray": "never" if astray is None else astray,
        }
        row[f"{name} astray"] = row.pop("astray")
    rows.append(row)
display(pd.DataFrame(rows))

# %% [markdown]
# The tape of three times four, decoded from two units of the network at every step. The marks A are what the machine
# leaves to know what it has copied.

# %%
network = sh.as_rnn(unary_multiplication())
display(draw_tape(network, "111x1111="))
*_, last = network.run("111x1111=")
assert network.configuration(last).tape == "111x1111=" + "1" * 12
assert all(isinstance(value, Fraction) for value in last)

# %% [markdown]
# Floats end where their digits do: in float32 the nine symbols of this word, in base 16, are more than 24 binary
# digits, and the machine is lost as soon as it comes to those that were rounded away. What a recurrent network of
# finite precision can be is a finite automaton or, with an LSTM's cell, a counter; the stack and the machine need
# numbers without end.
