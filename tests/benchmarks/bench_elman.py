"""An Elman network with one matrix on [x, h], or with two whose products are added: a markdown table.

    python tests/benchmarks/bench_elman.py

$W x + U h + b$ and $[W, U] [x, h] + b$ are the same map with equally many numbers; only the order of the work differs.
There are four forms, all of them loops in torch:

- "one": at each step a product with x and h, concatenated;
- "two": a product with h at each step, and one product with the inputs of all steps before the loop;
- "two, each step": both products at each step;
- `Elman`: the loop of torch itself.

Times are medians over turns in which every form runs once. Ratios are medians of the ratios within a turn. If a ratio
is above 1, the form is faster than "one".
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from samplehold import Elman
from torch import Tensor
from torch.nn.functional import linear

SIZES = [(16, 128, 64, 64), (16, 128, 256, 256), (64, 128, 16, 256)]
TURNS = 15


def one(layer: Elman, x: Tensor) -> Tensor:
    """The states [B, T, D] by one matrix."""
    weight = torch.cat([layer.get_parameter("weight_ih_l0"), layer.get_parameter("weight_hh_l0")], 1)
    bias, h, states = layer.get_parameter("bias_ih_l0"), x.new_zeros(x.shape[0], layer.hidden_size), []
    for x_t in x.unbind(1):
        h = linear(torch.cat([x_t, h], -1), weight, bias).tanh()
        states.append(h)
    return torch.stack(states, 1)


def two(layer: Elman, x: Tensor, each_step: bool = False) -> Tensor:
    """The same by two matrices."""
    of_x, of_h = layer.get_parameter("weight_ih_l0"), layer.get_parameter("weight_hh_l0")
    bias, h, states = layer.get_parameter("bias_ih_l0"), x.new_zeros(x.shape[0], layer.hidden_size), []
    for x_t in (x if each_step else linear(x, of_x, bias)).unbind(1):
        h = ((linear(x_t, of_x, bias) if each_step else x_t) + linear(h, of_h)).tanh()
        states.append(h)
    return torch.stack(states, 1)


def seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def rows(size: tuple[int, int, int, int], threads: int) -> list[str]:
    """A line of the table for each form."""
    B, T, F, D = size
    torch.set_num_threads(threads)
    layer, x, seed = Elman(F, D), torch.randn(B, T, F), torch.randn(B, T, D)
    forms: dict[str, Callable[[], Tensor]] = {
        "one": lambda: one(layer, x),
        "two, each step": lambda: two(layer, x, each_step=True),
        "two": lambda: two(layer, x),
        "`Elman`": lambda: layer(x)[0],
    }

    def turn() -> dict[str, tuple[float, float]]:
        times = {}
        for name, form in forms.items():
            with torch.no_grad():
                forward = seconds(form)
            times[name] = forward, seconds(lambda form=form: form().backward(seed))
        return times

    turn()
    turns = [turn() for _ in range(TURNS)]
    lines = []
    for name in forms:
        ms = [median(times[name][k] for times in turns) * 1e3 for k in (0, 1)]
        ratios = [median(times["one"][k] / times[name][k] for times in turns) for k in (0, 1)]
        lines.append(f"| {size} | {threads} | {name} | {ms[0]:.1f} | {ms[1]:.1f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return lines


def main() -> None:
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, float32, no GPU\n")
    print("| (B, T, F, D) | threads | form | forward ms | forward + backward ms | one / form | both, one / form |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for size in SIZES:
        for threads in (1, 2):
            print("\n".join(rows(size, threads)))


if __name__ == "__main__":
    main()
