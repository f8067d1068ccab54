"""Recurrent networks as their papers and frameworks write them: one sequence, one step, one equation at a time."""

import numpy as np
import torch
from torch import Tensor


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def with_normal_weights(layer, seed=0, scale=1.0):
    """The layer with normal weights of this scale, and the generator that drew them."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=random).mul_(scale)
    return layer, random


def stepped(layer, x: Tensor, h):
    """A call of a layer, step by step."""
    rows = []
    for x_t in x.unbind(1):
        out, h = layer.step(x_t, h)
        rows.append(out)
    return torch.stack(rows, 1), h


# --- minimal networks, in torch so that they can be differentiated -------------------------------------------------


def candidate_of(c: Tensor, kind: str, block: int) -> Tensor:
    if kind == "linear":
        return c
    if kind == "tanh":
        return torch.tanh(c)
    if kind == "positive":
        return torch.stack([u + 0.5 if u >= 0 else torch.sigmoid(u) for u in c])
    return torch.cat([torch.softmax(c[k : k + block], 0) for k in range(0, len(c), block)])


def min_gru(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, kind: str, block: int) -> list[Tensor]:
    """All states of one layer over one sequence x [T, F]."""
    states, D = [], len(h)
    for x_t in x:
        g = torch.sigmoid(weight[:D] @ x_t + bias[:D])
        v = candidate_of(weight[D:] @ x_t + bias[D:], kind, block)
        h = (1 - g) * h + g * v
        states.append(h)
    return states


def log_space_min_gru(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """minGRU as published (Feng et al. 2024, appendix B), positive candidate and h > 0, by cumulative sums of logs."""
    gate, c = (x @ weight.T + bias).chunk(2, -1)
    log_g = torch.where(c >= 0, (c.relu() + 0.5).log(), -torch.log1p((-c).exp()))
    log_hold, log_draw = torch.nn.functional.logsigmoid(-gate), torch.nn.functional.logsigmoid(gate)
    log_kept = torch.cat([torch.zeros_like(h)[None], log_hold.cumsum(0)])
    log_values = torch.cat([h.log()[None], log_draw + log_g])
    return (log_kept + (log_values - log_kept).logcumsumexp(0)).exp()[1:]


def min_lstm(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, kind: str, block: int) -> list[Tensor]:
    states, D = [], len(h)
    for x_t in x:
        f = torch.sigmoid(weight[:D] @ x_t + bias[:D])
        i = torch.sigmoid(weight[D : 2 * D] @ x_t + bias[D : 2 * D])
        v = candidate_of(weight[2 * D :] @ x_t + bias[2 * D :], kind, block)
        h = f / (f + i) * h + i / (f + i) * v
        states.append(h)
    return states


def qrnn(x: Tensor, c: Tensor, past: list[Tensor], weight: Tensor, bias: Tensor, pooling: str):
    """Outputs of one layer over x [T, F], its last cell and last inputs; past is a list of window - 1 inputs."""
    D, window = len(c), weight.shape[2]
    outputs = []
    for x_t in x:
        seen = [*past, x_t]
        pre = bias + sum(weight[:, :, j] @ seen[j] for j in range(window))
        past = seen[1:]
        parts = pre.split(D)
        if pooling == "ifo":
            f, i, z, o = torch.sigmoid(parts[0]), torch.sigmoid(parts[1]), torch.tanh(parts[2]), torch.sigmoid(parts[3])
            c = f * c + i * z
        else:
            f, z = torch.sigmoid(parts[0]), torch.tanh(parts[1])
            o = torch.sigmoid(parts[2]) if pooling == "fo" else torch.ones(D, dtype=x.dtype)
            c = f * c + (1 - f) * z
        outputs.append(o * c)
    return outputs, c, past


# --- cells of other frameworks, numpy, one step: x [I], h [H] -----------------------------------------------------


def keras_lstm(x, h, c, kernel, recurrent_kernel, bias):
    i, f, g, o = np.split(x @ kernel + h @ recurrent_kernel + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def keras_gru(x, h, kernel, recurrent_kernel, bias, reset_after=True):
    if reset_after:
        xz, xr, xh = np.split(x @ kernel + bias[0], 3)
        hz, hr, hh = np.split(h @ recurrent_kernel + bias[1], 3)
        z, r = sigmoid(xz + hz), sigmoid(xr + hr)
        return z * h + (1 - z) * np.tanh(xh + r * hh)
    xz, xr, xh = np.split(x @ kernel + bias, 3)
    uz, ur, uh = np.split(recurrent_kernel, 3, axis=1)
    z, r = sigmoid(xz + h @ uz), sigmoid(xr + h @ ur)
    return z * h + (1 - z) * np.tanh(xh + (r * h) @ uh)


def keras_simple_rnn(x, h, kernel, recurrent_kernel, bias):
    return np.tanh(x @ kernel + h @ recurrent_kernel + bias)


def tf1_lstm(x, h, c, kernel, bias, forget_bias=1.0):
    i, j, f, o = np.split(np.concatenate([x, h]) @ kernel + bias, 4)
    c = sigmoid(f + forget_bias) * c + sigmoid(i) * np.tanh(j)
    return sigmoid(o) * np.tanh(c), c


def tf1_rnn(x, h, kernel, bias):
    return np.tanh(np.concatenate([x, h]) @ kernel + bias)


def flax_lstm(x, h, c, params):
    def gate(name):
        recurrent = params["h" + name]
        return x @ params["i" + name]["kernel"] + h @ recurrent["kernel"] + recurrent["bias"]

    c = sigmoid(gate("f")) * c + sigmoid(gate("i")) * np.tanh(gate("g"))
    return sigmoid(gate("o")) * np.tanh(c), c


def flax_gru(x, h, params):
    def read(name):
        return x @ params[name]["kernel"] + params[name]["bias"]

    r = sigmoid(read("ir") + h @ params["hr"]["kernel"])
    z = sigmoid(read("iz") + h @ params["hz"]["kernel"])
    n = np.tanh(read("in") + r * (h @ params["hn"]["kernel"] + params["hn"]["bias"]))
    return (1 - z) * n + z * h


def flax_simple_rnn(x, h, params):
    return np.tanh(x @ params["i"]["kernel"] + params["i"]["bias"] + h @ params["h"]["kernel"])
