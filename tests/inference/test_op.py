"""Operators: which implementation serves, and that their derivatives are right to any order, whichever served."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from oracles.operator_calls import CALLS, Size
from oracles.operators import without_kernels
from samplehold import kernels
from samplehold.inference.numerics.op import Call, Op, _defined, blank
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

pytestmark = pytest.mark.cpu("it registers kernels there")

called: list[str] = []


def power(x: Tensor, weight: Tensor | None, exponent: int) -> tuple[Tensor, Tensor]:
    """weight x ** exponent, which is differentiable, and the sign of x, which is not."""
    called.append("plain")
    return (x if weight is None else weight * x) ** exponent, x.sign().long()


def fake(x: Tensor, weight: Tensor | None, exponent: int) -> tuple[Tensor, Tensor]:
    return blank(x), blank(x, dtype=torch.int64)


SCHEMA = "(Tensor x, Tensor? weight, int exponent) -> (Tensor, Tensor)"
plain, compiled, with_adjoint = (Op(f"test_power_{n}{SCHEMA}", power, fake) for n in ("plain", "kernel", "adjoint"))


def kernel(x: Tensor, weight: Tensor | None, exponent: int) -> tuple[Tensor, Tensor]:
    called.append("kernel")
    return (x if weight is None else weight * x).pow(exponent), x.sign().long()


def is_weighted(x: Tensor, weight: Tensor | None, exponent: int) -> bool:
    return weight is not None


for operator in (compiled, with_adjoint):
    operator.kernel("cpu", takes=is_weighted)(kernel)


@with_adjoint.adjoint("cpu", takes=is_weighted)
def adjoint(call: Call, d_out: Tensor, d_sign: None) -> list[Tensor]:
    called.append("adjoint")
    (x, weight, exponent), (out, _) = call.inputs, call.outputs
    return [d_out * exponent * out / x, d_out * exponent * out / weight]


@pytest.fixture
def tables():
    called.clear()
    generator = torch.Generator().manual_seed(0)
    x, weight = (0.5 + torch.rand(4, generator=generator, dtype=torch.float64) for _ in range(2))
    return x.requires_grad_(), weight.requires_grad_()


def test_the_plain_implementation_serves_until_there_is_a_kernel_that_takes_the_arguments(tables):
    x, weight = (table.detach() for table in tables)
    for operator, given, server in ((plain, weight, "plain"), (compiled, weight, "kernel"), (compiled, None, "plain")):
        called.clear()
        value, sign = operator(x, given, 3)
        assert called == [server]
        assert_close(value, (x if given is None else given * x) ** 3)
        assert_close(sign, x.sign().long())


@pytest.mark.parametrize("operator", [plain, compiled, with_adjoint])
def test_first_and_second_derivatives_are_right_whatever_served(operator, tables):
    assert gradcheck(lambda x, w: operator(x, w, 3)[0], tables)
    assert gradgradcheck(lambda x, w: operator(x, w, 3)[0], tables)
    assert gradcheck(lambda x: operator(x, None, 3)[0], tables[:1])
    torch.library.opcheck(operator.overload, (*tables, 3))


def test_an_adjoint_serves_first_derivatives_and_the_plain_implementation_all_others(tables):
    value = with_adjoint(*tables, 3)[0].sum()
    torch.autograd.grad(value, tables, retain_graph=True)
    assert called == ["kernel", "adjoint"]
    torch.autograd.grad(value, tables, create_graph=True)
    assert called == ["kernel", "adjoint", "plain"]
    called.clear()
    torch.autograd.grad(with_adjoint(tables[0], None, 3)[0].sum(), tables[0])
    assert called == ["plain", "plain"]


def test_transforms_of_torch_func_map_and_differentiate_an_operator(tables):
    x, weight = (table.detach() for table in tables)
    expected = 3 * (weight**3).outer(x**2)
    for operator in (plain, compiled, with_adjoint):
        value = lambda x, w, operator=operator: operator(x, w, 3)[0].sum()
        found = torch.vmap(torch.func.grad(value), (None, 0))(x, weight[:, None].expand(4, 4))
        assert_close(found, expected)


def test_an_operator_on_sequences_maps_them_by_its_kernel():
    def gradient(call: Call, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = call.inputs
        return grad * weight, grad * x

    times = Op("test_times(Tensor x, Tensor w) -> Tensor", torch.mul, lambda x, w: blank(x), gradient, by_sequence=True)
    shapes: list[torch.Size] = []
    times.kernel("cpu")(lambda x, w: shapes.append(x.shape) or x * w)
    x, weight = torch.randn(3, 5, 2, dtype=torch.float64), torch.randn(5, 4, 2, dtype=torch.float64)
    expected = x[:, None] * weight.movedim(1, 0)
    both = torch.vmap(torch.vmap(times, (None, 1)), (0, None))
    assert_close(both(x, weight), expected)
    assert shapes == [torch.Size([60, 2])]
    slope = torch.func.grad(lambda w: both(x, w).square().sum())
    assert_close(slope(weight), 2 * (expected * x[:, None]).sum(0).movedim(0, 1))
    curvature = torch.func.grad(lambda w: slope(w).sum())(weight)
    assert_close(curvature, (2 * x.square().sum(0))[:, None].expand(5, 4, 2))
    leaf = weight.clone().requires_grad_()
    (many,) = torch.autograd.grad(
        times(x[0], leaf[:, 0]), leaf, torch.eye(10).double().view(10, 5, 2), is_grads_batched=True
    )
    assert_close(many.sum(0)[:, 0], x[0])


def test_an_input_that_was_computed_from_another_one_counts_once(tables):
    x, _ = tables
    for operator in (plain, compiled, with_adjoint):
        (first,) = torch.autograd.grad(operator(x, 2 * x, 2)[0].sum(), x, create_graph=True)
        assert_close(first, 16 * x**3)
        assert_close(torch.autograd.grad(first.sum(), x)[0], 48 * x**2)


def test_a_result_that_is_no_real_number_has_no_derivative(tables):
    value, sign = compiled(*tables, 2)
    assert value.requires_grad
    assert not sign.requires_grad


def test_the_first_call_does_not_wait_for_the_compiler_of_torch():
    code = """
import sys, torch
from samplehold.inference.chains.copy.chain import CopyChain
from samplehold.inference.scans.linear.op import linear_scan
a = torch.rand(2, 3, 4, requires_grad=True)
linear_scan(a, a).sum().backward()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_of_operators_can_be_loaded_again():
    for _ in range(2):
        again = Op("test_power_again" + SCHEMA, power, fake)
        again.kernel("cpu")(kernel)
        again.adjoint("cpu")(adjoint)
        assert_close(again(torch.ones(2), torch.ones(2), 2)[0], torch.ones(2))


@pytest.fixture
def served():
    """An operator with a kernel and an adjoint."""
    operator = Op("test_power_served" + SCHEMA, power, fake)
    operator.kernel("cpu", takes=is_weighted)(kernel)
    operator.adjoint("cpu", takes=is_weighted)(adjoint)
    called.clear()
    return operator


@pytest.mark.parametrize(("mode", "server"), [("native", "kernel"), ("plain", "plain")])
def test_a_user_says_whether_kernels_serve(served, tables, mode, server):
    x, weight = (table.detach() for table in tables)
    with kernels("native"):
        with kernels(mode):
            served(x, weight, 3)
        assert called == [server]
        served(x, weight, 3)
        assert called[1:] == ["kernel"]  # the mode before is back


def test_a_derivative_has_the_form_of_its_value(served, tables):
    with kernels("plain"):
        value = served(*tables, 3)[0].sum()
        kernels("native")
        torch.autograd.grad(value, tables)
        assert called == ["plain", "plain"]
        called.clear()
        value = served(*tables, 3)[0].sum()
        kernels("plain")
        torch.autograd.grad(value, tables)
        assert called == ["kernel", "adjoint"]


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match=r"mode: got 'sometimes', expected one of 'native', 'plain'"):
        kernels("sometimes")


@pytest.mark.slow
def test_the_environment_says_the_mode_of_a_process():
    code = "from samplehold.inference.numerics import forms; print(forms.mode())"
    for mode, status in (("plain", 0), ("sometimes", 1)):
        environment = os.environ | {"SAMPLEHOLD_KERNELS": mode}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert done.returncode == status
        assert mode in (done.stderr if status else done.stdout)


OF_TORCH = {name for name, call in CALLS.items() if isinstance(call(Size(1, 1, 1, torch.float64, 0))[0], Op)}
OF_TORCH -= {"semi-markov filter", "semi-markov posterior"}  # these and the next look sizes up in a set
OF_TORCH -= {"linear evidence", "linear filter", "linear smooth", "linear_sample"}


@pytest.mark.slow
@pytest.mark.cpu("torch's checks know few devices")
@pytest.mark.parametrize(
    ("served", "seed"), [(lambda operator: operator, 2), (without_kernels, 3)], ids=["with kernels", "without"]
)  # an odd seed gives a table for each step, an even one shares them
@pytest.mark.parametrize("name", sorted(OF_TORCH))
def test_operators_of_any_size_pass_torchs_own_checks(name, served, seed):
    operator, arguments = CALLS[name](Size(2, 3, 3, torch.float64, seed))
    if not name.endswith("viterbi"):
        arguments = [x.requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in arguments]
    torch.library.opcheck(served(operator).overload, arguments)


def test_every_operator_of_the_package_has_a_native_kernel():
    import samplehold.inference.chains.copy.chain
    import samplehold.inference.chains.linear_gaussian.chain
    import samplehold.inference.chains.markov.chain
    import samplehold.inference.scans.gated.op  # noqa: F401

    rooms = {name: operator.plain.__module__.rpartition(".")[0] for name, operator in _defined.items()}
    ours = {room for room in rooms.values() if room.startswith("samplehold")}
    assert len(ours) > 4
    assert {room for room in ours if find_spec(f"{room}.native") is None} == set()
