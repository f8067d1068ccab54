"""MinGRU against torch.nn.GRU, the published log-space scan and a loop; prints a markdown table.

    python tests/benchmarks/bench_networks.py

All layers of a size run in turn, for several rounds. So other work on the machine affects all of them equally. The
table shows the shortest time of each.
"""

from collections.abc import Callable
from time import perf_counter

import torch
from samplehold import MinGRU
from samplehold.inference.scans.gated.op import gated_scan
from torch import Tensor, nn
from torch.nn.functional import linear, pad, softplus

SIZES = [(16, 1024, 256), (64, 512, 64), (4, 8192, 256)]


def shortest(contenders: dict[str, Callable[[], object]], rounds: dict[str, int]) -> dict[str, float]:
    """Seconds of the shortest run of each contender, run in turn, after one run each to warm up."""
    best = {}
    for name, run in contenders.items():
        run()
        best[name] = float("inf")
    for n in range(max(rounds.values())):
        for name, run in contenders.items():
            if n < rounds[name]:
                start = perf_counter()
                run()
                best[name] = min(best[name], perf_counter() - start)
    return best


def log_of_positive(x: Tensor) -> Tensor:
    """log g(x) of the positive candidate g(x) = x + 1/2 for x >= 0, sigmoid(x) below."""
    return torch.where(x >= 0, (x.relu() + 0.5).log(), -softplus(-x))


def log_space_layer(layer: MinGRU, x: Tensor) -> Tensor:
    """minGRU as published (Feng et al. 2024, appendix B): a scan of logarithms by cumulative log-sum-exp."""
    gate, candidate = linear(x, layer.get_parameter("weight_l0"), layer.get_parameter("bias_l0")).chunk(2, -1)
    log_hold, log_draw = -softplus(gate), -softplus(-gate)
    log_h0 = log_of_positive(x.new_zeros(x.shape[0], 1, layer.hidden_size))
    log_values = torch.cat([log_h0, log_draw + log_of_positive(candidate)], 1)
    log_kept = pad(log_hold.cumsum(1), (0, 0, 1, 0))
    return (log_kept + (log_values - log_kept).logcumsumexp(1)).exp()[:, 1:]


def loop_layer(layer: MinGRU, x: Tensor) -> Tensor:
    """minGRU as a loop over time in torch."""
    gate, candidate = linear(x, layer.get_parameter("weight_l0"), layer.get_parameter("bias_l0")).chunk(2, -1)
    h, states = x.new_zeros(x.shape[0], layer.hidden_size), []
    for g, v in zip(gate.sigmoid().unbind(1), candidate.unbind(1), strict=True):
        h = torch.lerp(h, v, g)
        states.append(h)
    return torch.stack(states, 1)


def layers(B: int, T: int, D: int) -> list[str]:
    x, seed = torch.randn(B, T, D), torch.randn(B, T, D)
    layer, gru = MinGRU(D, D), nn.GRU(D, D, batch_first=True)
    forms = {
        "MinGRU": lambda: layer(x)[0],
        "nn.GRU": lambda: gru(x)[0],
        "log-space scan": lambda: log_space_layer(layer, x),
        "torch loop": lambda: loop_layer(layer, x),
    }

    def alone(form: Callable[[], Tensor]) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return form()

        return run

    rounds = {"MinGRU": 12, "nn.GRU": 3, "log-space scan": 3, "torch loop": 2}
    forward = shortest({name: alone(form) for name, form in forms.items()}, rounds)
    both = shortest({name: lambda form=form: form().backward(seed) for name, form in forms.items()}, rounds)
    return [
        f"| {(B, T, D)} | {name} | {forward[name] * 1e3:.1f} | {both[name] * 1e3:.1f} "
        f"| {forward[name] / forward['MinGRU']:.1f} | {both[name] / both['MinGRU']:.1f} |"
        for name in forms
    ]


def parts(B: int, T: int, D: int) -> list[str]:
    """The scan against copying what it reads and writes; the layer against its matrix products."""
    x, seed = torch.randn(B, T, D), torch.randn(B, T, D)
    layer = MinGRU(D, D)
    weight, bias = layer.get_parameter("weight_l0"), layer.get_parameter("bias_l0")
    with torch.no_grad():
        pre = linear(x, weight, bias)
    pre.requires_grad_()
    h0, seed2 = torch.zeros(B, D), torch.randn(B, T, 2 * D)
    h = gated_scan(pre, h0)
    # forward reads pre (2) and writes h (1); backward reads pre (2), h (1), its gradient (1) and writes pre's (2)
    once, both = torch.randn(3 * B * T * D // 2), torch.randn(6 * B * T * D // 2)

    def forward(function: Callable[[], Tensor]) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return function()

        return run

    best = shortest(
        {
            "scan": forward(lambda: gated_scan(pre, h0)),
            "copy": once.clone,
            "scan back": lambda: torch.autograd.grad(h, pre, seed, retain_graph=True),
            "copy back": both.clone,
            "layer": forward(lambda: layer(x)[0]),
            "product": forward(lambda: linear(x, weight, bias)),
            "layer both": lambda: layer(x)[0].backward(seed),
            "product both": lambda: linear(x, weight, bias).backward(seed2),
        },
        dict.fromkeys(("scan", "copy", "scan back", "copy back", "layer", "product", "layer both", "product both"), 15),
    )
    return [
        f"| {(B, T, D)} | {name} | {best[ours] * 1e3:.2f} | {best[theirs] * 1e3:.2f} "
        f"| {best[ours] / best[theirs]:.2f} |"
        for name, ours, theirs in (
            ("scan, copying its bytes", "scan", "copy"),
            ("its backward pass, copying its bytes", "scan back", "copy back"),
            ("layer, its matrix products", "layer", "product"),
            ("layer forward + backward, its matrix products", "layer both", "product both"),
        )
    ]


def lengths() -> list[str]:
    layer = MinGRU(16, 16)
    rows = []
    for T in (1_000, 10_000, 100_000, 1_000_000):
        x = torch.randn(1, T, 16)
        best = shortest({"layer": lambda x=x: layer(x)[0].sum().backward()}, {"layer": 5})["layer"]
        rows.append(f"| {T} | {best * 1e3:.2f} | {best / T * 1e9:.0f} |")
    return rows


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32\n")
    print("| size (B, T, D) | layer | forward ms | forward + backward ms | forward / MinGRU | both / MinGRU |")
    print("|---|---|---|---|---|---|")
    for size in SIZES:
        print("\n".join(layers(*size)))
    print("\n| size | what, against | ms | against ms | ratio |\n|---|---|---|---|---|")
    for size in SIZES:
        print("\n".join(parts(*size)))
    print("\n| T (B = 1, D = 16) | forward + backward ms | ns a step |\n|---|---|---|")
    print("\n".join(lengths()))


if __name__ == "__main__":
    main()
