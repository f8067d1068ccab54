"""The bytes and operations of each GPU kernel: `python tests/benchmarks/bench_gpu_kernels.py`.

Triton's interpreter runs every kernel on the CPU and counts each load, store and operation. Bytes are those within the
mask. Operations are those on floating-point numbers in all lanes; a reduction of n numbers counts as n. Both are
divided by the entries of the table, sequences x steps x columns, in float64. "Many" sequences keep a device busy. With
"one" sequence, the kernel cuts time into chunks if it can. "At least both" are the bytes that a call must move: its
inputs once and its results once. The ratio shows how often a call passes through memory. Times are for one call on a
GPU, in float32. "Of copying" is the share of the bandwidth of a copy in the same run. Without a GPU, times are not
measured.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

TIMES = "--times" in sys.argv
if not TIMES:
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from samplehold import MinGRU, lerp_scan, linear_scan  # noqa: E402
from samplehold.face.chains import CopyChain, FactoredCopyChain, LinearGaussianChain, MarkovChain  # noqa: E402
from samplehold.inference.numerics.op import stand_in  # noqa: E402
from torch import Tensor  # noqa: E402

COUNTED = {"many": (8, 9, 16), "one": (1, 24, 16)}  # sequences, steps and states that are counted
TIMED = 256, 4096, 16
COLUMNS = 128  # of the scans, in the place of the states
Call = Callable[[], Any]


class Table(NamedTuple):
    """A call, and the tables that go in, the last of which has as many entries as what is computed."""

    run: Call
    inputs: tuple[Tensor, ...]


def calls(size: tuple[int, int, int], device: str, dtype: torch.dtype) -> dict[str, Table]:
    generator = torch.Generator().manual_seed(0)

    def table(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    B, T, K = size
    a, b = table(B, T, COLUMNS).sigmoid(), table(B, T, COLUMNS)
    leaves = [x.clone().requires_grad_() for x in (a, b)]
    fresh, held, narrow = table(B, T, K), table(B, T, K), table(B, T, 1)
    initial, moves = table(K), table(K, K)
    copy, alike, markov = (
        CopyChain(None, fresh, held),
        CopyChain(None, fresh, narrow),
        MarkovChain(initial, moves, fresh),
    )
    factored = FactoredCopyChain(table(1), table(1), initial, fresh)
    layer = MinGRU(COLUMNS, COLUMNS).to(device, dtype)
    eye, x = torch.eye(K, device=device, dtype=dtype), table(B, T, K)
    kalman = LinearGaussianChain(x, 0.9 * eye, eye, eye, eye, initial_covariance=eye)
    found = {
        "linear_scan": Table(lambda: linear_scan(a, b), (a, b)),
        "linear_scan and its gradient": Table(lambda: linear_scan(*leaves).sum().backward(), (a, b)),
        "lerp_scan": Table(lambda: lerp_scan(a, b), (a, b)),
        "MinGRU": Table(lambda: layer(b)[0], (b,)),
        "MinGRU and its gradient": Table(lambda: layer(b)[0].sum().backward(), (b,)),
    }
    for name, chain, inputs in (
        ("CopyChain", copy, (held, fresh)),
        ("CopyChain, held alike", alike, (narrow, fresh)),
        ("FactoredCopyChain", factored, (fresh,)),
        ("MarkovChain", markov, (fresh,)),
    ):
        for verb in ("log_normalizer", "filter", "smooth", "marginals", "viterbi"):
            found[f"{name}.{verb}"] = Table(getattr(chain, verb), inputs)
        found[f"{name}.sample"] = Table(lambda chain=chain: chain.sample(1, 0), inputs)
    for verb in ("log_normalizer", "filter", "smooth"):
        found[f"LinearGaussianChain.{verb}"] = Table(getattr(kalman, verb), (x,))
    return found


# ---- counting --------------------------------------------------------------------------------------------------------


@contextmanager
def counted() -> Iterator[dict[str, Counter]]:
    """By kernel: its launches, bytes read and written, operations."""
    from triton.runtime import interpreter

    found: dict[str, Counter] = {}
    running: list[Counter] = []
    builder, reduce = interpreter.InterpreterBuilder, interpreter.ReduceOps
    kept = [
        (owner, name, getattr(owner, name))
        for owner, name in (
            (interpreter.InterpretedFunction, "run"),
            (builder, "create_masked_load"),
            (builder, "create_masked_store"),
            (builder, "binary_op"),
            (builder, "unary_op"),
            (builder, "create_fma"),
            (reduce, "apply_impl"),
        )
    ]
    usual = {name: function for _, name, function in kept}

    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        running.append(found.setdefault(self.fn.__name__, Counter()))
        running[-1]["launches"] += 1
        try:
            return usual["run"](self, *arguments, **options)
        finally:
            running.pop()

    def load(self: Any, ptrs: Any, mask: Any, *others: Any) -> Any:
        loaded = usual["create_masked_load"](self, ptrs, mask, *others)
        running[-1]["read"] += int(np.sum(mask.data)) * loaded.data.dtype.itemsize
        return loaded

    def store(self: Any, ptrs: Any, value: Any, mask: Any, *others: Any) -> Any:
        running[-1]["written"] += int(np.sum(mask.data)) * value.data.dtype.itemsize
        return usual["create_masked_store"](self, ptrs, value, mask, *others)

    def operation(name: str, each: int = 1) -> Callable[..., Any]:
        def noted(self: Any, *given: Any) -> Any:
            result = usual[name](self, *given)
            if given[0].data.dtype.kind == "f":
                running[-1]["operations"] += each * max(given[0].data.size, result.data.size)
            return result

        return noted

    def reduced(self: Any, given: Any) -> Any:
        for part in given:
            data = np.asarray(part.handle.data)
            running[-1]["operations"] += data.size * (data.dtype.kind == "f")
        return usual["apply_impl"](self, given)

    new = {"run": run, "create_masked_load": load, "create_masked_store": store, "apply_impl": reduced}
    new |= {name: operation(name) for name in ("binary_op", "unary_op")} | {"create_fma": operation("create_fma", 2)}
    try:
        for owner, name, _ in kept:
            setattr(owner, name, new[name])
        yield found
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def bytes_of(found: Any) -> int:
    """Of all tensors in a result."""
    if isinstance(found, Tensor):
        return found.numel() * found.element_size()
    parts = vars(found).values() if hasattr(found, "__dataclass_fields__") else found
    return sum(map(bytes_of, parts)) if isinstance(found, tuple) or hasattr(found, "__dataclass_fields__") else 0


def kernels() -> Iterator[list[str]]:
    times = timed()
    for label, size in COUNTED.items():
        for name, call in calls(size, "cpu", torch.float64).items():
            with counted() as found, stand_in("cuda", for_tensors_on="cpu"):
                result = call.run()
            taken = [times.get(name, "not measured"), times.get(name + " share", "")] if label == "many" else ["", ""]
            if not found and label == "one":
                continue
            if not found:
                yield [f"`{name}`", label, "plain torch", "", "", "", "", *taken]
                continue
            total, entries = sum(found.values(), Counter()), call.inputs[-1].numel()
            # a gradient returns nothing here: what must be moved for it depends on what the forward pass keeps
            least = "" if result is None else f"{(sum(map(bytes_of, call.inputs)) + bytes_of(result)) / entries:.1f}"
            numbers = [f"{total[what] / entries:.1f}" for what in ("read", "written")]
            launches = ", ".join(f"{kernel.strip('_')} x {own['launches']}" for kernel, own in found.items())
            operations = f"{total['operations'] / entries:.1f}"
            yield [f"`{name}`", label, launches, *numbers, least, operations, *taken]


# ---- timing ----------------------------------------------------------------------------------------------------------


def timed() -> dict[str, str]:
    """Milliseconds of each call at the large size, and its share of the bandwidth of copying; nothing without a GPU."""
    if not torch.cuda.is_available():
        return {}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-W", "ignore", __file__, "--times"], env=environment, capture_output=True)
    return json.loads(done.stdout) if not done.returncode else {}


def _milliseconds(run: Call) -> float:
    for _ in range(3):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found = []
    for _ in range(20):
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return min(found)


def time_all() -> None:
    given = torch.rand(2**28, device="cuda")
    bandwidth = 2 * given.numel() * given.element_size() / _milliseconds(given.clone)
    del given
    found = {}
    for name, call in calls(TIMED, "cuda", torch.float32).items():
        ms, moved = _milliseconds(call.run), sum(map(bytes_of, call.inputs)) + bytes_of(call.run())
        found[name], found[name + " share"] = f"{ms:.3g}", f"{moved / ms / bandwidth:.2f}"
    print(json.dumps(found))


def main() -> None:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    sizes = ", ".join(f"{name}: {' x '.join(map(str, size))}" for name, size in COUNTED.items())
    print(f"Sequences x steps x states, {sizes}; timed at {' x '.join(map(str, TIMED))}: {gpu}.")
    print(f"Scans have {COLUMNS} columns.\n")
    columns = (
        "call",
        "sequences",
        "launches",
        "bytes read",
        "written",
        "at least both",
        "operations",
        "ms",
        "of copying",
    )
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---:|---:|---:|---:|---:|---:|")
    for row in kernels():
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    time_all() if TIMES else main()
