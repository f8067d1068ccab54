"""Triton's kernels without a GPU: interpreted on the CPU, and compiled for a GPU that is not there."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from samplehold.inference.numerics.op import stand_in
from torch import Tensor

POINTERS = {
    "float64": "*fp64",
    "float32": "*fp32",
    "bfloat16": "*bf16",
    "float16": "*fp16",
    "int64": "*i64",
    "int32": "*i32",
    "int8": "*i8",
    "uint8": "*u8",
    "bool": "*i1",
}
TARGET = ("cuda", 90, 32)  # a Hopper card
OPTIONS = "num_warps", "num_stages", "enable_fp_fusion"


class Launch(NamedTuple):
    """What Triton compiles for one launch."""

    module: str
    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]


@contextmanager
def gpu_kernels() -> Iterator[list[Launch]]:
    """Within, kernels for a GPU serve the tensors of a test: interpreted on the CPU, or compiled if tests run on a GPU.

    Yields what is launched, each kind once.
    """
    launches: list[Launch] = []
    with ExitStack() as stack:
        if os.environ.get("TRITON_INTERPRET") == "1":
            function = pytest.importorskip("triton.runtime.interpreter").InterpretedFunction
            stack.enter_context(stand_in("cuda", for_tensors_on="cpu"))
        elif torch.empty(0).is_cuda:
            function = pytest.importorskip("triton.runtime.jit").JITFunction
        else:
            pytest.skip("this process compiles kernels, for a GPU that this test does not use")
        run = function.run

        def recorded(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            launch = _launch(self, arguments, options)
            if launch not in launches:
                launches.append(launch)
            return run(self, *arguments, grid=grid, warmup=warmup, **options)

        stack.enter_context(pytest.MonkeyPatch.context()).setattr(function, "run", recorded)
        yield launches


def _launch(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Launch:
    given = dict(zip(function.arg_names, arguments, strict=False)) | options
    signature, constants = {}, {name: options[name] for name in OPTIONS if name in options}
    for name, kind in function.fn.__annotations__.items():
        if getattr(kind, "__name__", kind) == "constexpr":
            signature[name], constants[name] = "constexpr", _plain(given[name])
    for name in function.arg_names:
        value = given[name]
        if name in signature:
            continue
        if isinstance(value, Tensor):
            signature[name] = POINTERS[str(value.dtype).removeprefix("torch.")]
        elif value is None:
            signature[name], constants[name] = "constexpr", None
        else:
            signature[name] = {bool: "i1", int: "i32", float: "fp32"}[type(value)]
    return Launch(function.fn.__module__, function.fn.__name__, signature, constants)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else f"dtype {value}"


def compile_for_gpu(launches: list[Launch]) -> list[dict[str, Any]]:
    """Compile what was launched, in a process whose Triton compiles; of each its registers, spills, shared memory.

    Triton takes an integer that is 1 for a constant, which has no dtype: kernels must read in that form as well. It
    takes a number in a call for float32, unless an operand tells another dtype: nothing computed in float64 may have
    such a number, if float32 has to round it.
    """
    assert launches
    script = [sys.executable, "-W", "ignore", __file__]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    given = json.dumps([launch._asdict() for launch in launches])
    done = subprocess.run(script, input=given, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = json.loads(done.stdout.splitlines()[-1])
    assert not any(kernel["rounded"] for kernel in compiled), compiled
    return compiled


def _main() -> None:
    import re
    import tempfile
    from ctypes import c_float as Float32
    from pathlib import Path

    import triton
    import triton.language as tl
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.code_generator import ast_to_ttir
    from triton.compiler.compiler import make_backend

    target = GPUTarget(*TARGET)
    backend = make_backend(target)

    def read(source: Any, options: dict[str, Any]) -> list[str]:
        """The constants that float32 rounds and float64 uses."""
        context, parsed = ir.context(), backend.parse_options(dict(options))
        ir.load_dialects(context)
        backend.load_dialects(context)
        functions, modules = backend.get_codegen_implementation(parsed), backend.get_module_map()
        text = str(ast_to_ttir(source.fn, source, context, parsed, functions, modules))
        found = []
        for function in text.split("tt.func ")[1:]:
            constants = dict(re.findall(r"(%\w+) = arith.constant (-?[\d.]+(?:e[-+]?\d+)?) : f32", function))
            widened = [constants.get(name) for name in re.findall(r"arith.extf (%\w+) : f32 to f64", function)]
            found += [number for number in widened if number and float(number) != Float32(float(number)).value]
        return found

    found = []
    for launch in (Launch(**given) for given in json.load(sys.stdin)):
        kernel = getattr(importlib.import_module(launch.module), launch.kernel)
        constants = {
            name: getattr(tl, {"fp32": "float32", "fp64": "float64"}[value.removeprefix("dtype ")])
            if isinstance(value, str) and value.startswith("dtype ")
            else value
            for name, value in launch.constants.items()
        }
        options = {name: constants.pop(name) for name in OPTIONS if name in constants}
        pointers = [i for i, name in enumerate(kernel.arg_names) if launch.signature[name].startswith("*")]
        aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
        source = ASTSource(kernel, launch.signature, constants, aligned)
        compiled = triton.compile(source, target=target, options=options)
        special = {param.name for param in kernel.params if not param.do_not_specialize}
        ones = [name for name, kind in launch.signature.items() if kind == "i32" and name in special]
        signature = launch.signature | dict.fromkeys(ones, "constexpr")
        rounded = read(ASTSource(kernel, signature, constants | dict.fromkeys(ones, 1)), options)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
            usage = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
        resources = {name.lower(): int(number) for name, number in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
        kinds = {"signature": launch.signature, "constants": launch.constants}
        found.append({"kernel": launch.kernel, "rounded": rounded, **kinds, **resources})
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
