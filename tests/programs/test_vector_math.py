"""Exponentials as arithmetic: the values of the C library to float32's precision, and no call of it is left."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import output
from torch.nn import functional

from tcl_core.compat import load_tvm, make_target, quiet_compiler
from tcl_core.programs import vector_math
from tcl_core.programs.graph import AS_GIVEN, PREPARED, fuse
from tcl_core.programs.network_files import relax_from_exported

TARGET = {"kind": "llvm", "num-cores": 1}
LIBRARY_CALLS = ("T.exp", "T.erf", "T.tanh", "T.sigmoid")
X = np.concatenate([np.linspace(-12, 12, 4001), [0.0, -0.0, 1e-30, -1e-30]]).astype(np.float32)


def computed(function, x: np.ndarray) -> np.ndarray:
    tvm = load_tvm()
    given = tvm.te.placeholder(x.shape, name="x")
    made = tvm.te.compute(x.shape, lambda *at: function(given[at]))
    library = tvm.compile(tvm.te.create_prim_func([given, made]), make_target(TARGET))
    found = tvm.runtime.tensor(np.full_like(x, np.nan))
    library["main"](tvm.runtime.tensor(x), found)
    return found.numpy()


@pytest.mark.parametrize(
    "name, exactly, units",
    [("exp", math.exp, 2), ("erf", math.erf, 8), ("tanh", math.tanh, 8), ("sigmoid", lambda x: 1 / (1 + math.exp(-x)), 3)],
)
def test_values_are_within_units_in_the_last_place(name, exactly, units):
    expected = np.array([exactly(float(x)) for x in X])
    found = computed(getattr(vector_math, name), X).astype(np.float64)
    assert (np.abs(found - expected) / np.spacing(np.abs(expected).astype(np.float32))).max() <= units


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
def test_activations_are_pytorchs(name):
    exactly = {
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
    }[name](torch.from_numpy(X.astype(np.float64)))  # fmt: skip
    assert np.abs(computed(getattr(vector_math, name), X) - exactly.numpy()).max() < 2e-6


def test_far_out_all_stays_finite_and_in_bounds():
    far = np.array([-np.inf, -3e38, -1e4, -89.0, 89.0, 1e4, 3e38, np.inf], dtype=np.float32)
    assert computed(vector_math.erf, far).tolist() == [-1] * 4 + [1] * 4
    assert computed(vector_math.tanh, far) == pytest.approx([-1] * 4 + [1] * 4)
    powers = computed(vector_math.exp, far)
    assert (powers[:4] < 1.2e-38).all() and (powers[:4] >= 0).all()
    assert (powers[4:] > 2e38).all()
    assert computed(vector_math.sigmoid, far) == pytest.approx([0] * 4 + [1] * 4)


def test_a_power_of_which_a_logarithm_may_be_taken_is_zero_far_down():
    down = np.array([-np.inf, -3e38, -104.0, -88.0, -87.8, -87.3, -80.0], dtype=np.float32)
    powers = computed(vector_math.exp_to_zero, down)
    assert (powers[:5] == 0).all() and powers[5:] == pytest.approx(np.exp(down[5:].astype(np.float64)), rel=1e-6)


def test_an_error_function_of_which_a_root_may_be_taken_stays_within_one():
    x = np.linspace(3.2, 4.2, 200_001, dtype=np.float32)
    found = computed(vector_math.erf_within_one, np.concatenate([x, -x]))
    assert found.max() <= 1 and found.min() >= -1


class LogSpace(torch.nn.Module):
    """A step of a hidden Markov model, from states of which some cannot be reached."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        peak = x.max(-1, keepdim=True).values.clamp(min=-1e30)
        return peak + torch.log(torch.exp(x - peak).sum(-1, keepdim=True)) + torch.sqrt(1 - torch.erf(x) ** 2).nan_to_num(9.0)


def test_logarithms_of_sums_are_pytorchs():
    x = torch.full((3, 4), -np.inf)
    x[1, 0], x[2] = 2.0, torch.linspace(-3.9, 3.9, 4)
    model = LogSpace().eval()
    with quiet_compiler():
        module = relax_from_exported(torch.export.export(model, (x,)), "network")
    found, expected = output(fuse(module, make_target(TARGET), PREPARED), x.numpy()), model(x).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


class Activations(torch.nn.Module):
    """Every operator that becomes arithmetic, softmax along two axes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.gelu(x) + functional.gelu(x, approximate="tanh") + functional.silu(x)
        x = torch.sigmoid(x) + torch.tanh(x) + torch.erf(x) + torch.exp(0.1 * x)
        return functional.softmax(x, dim=1) * functional.softmax(3 * x, dim=-1)


def activations(dtype: torch.dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 7, dtype=dtype)
    model = Activations().eval()
    with quiet_compiler():
        return relax_from_exported(torch.export.export(model, (x,)), "network"), x.numpy(), model(x).numpy()


def calls(module) -> list[str]:
    printed = "\n".join(str(f) for f in module.functions.values() if isinstance(f, load_tvm().tirx.PrimFunc))
    return [name for name in LIBRARY_CALLS if f"{name}(" in printed]


def test_a_network_without_calls_of_the_library_gives_the_same():
    module, x, expected = activations(torch.float32)
    given, fused = (fuse(module, make_target(TARGET), graph) for graph in (AS_GIVEN, PREPARED))
    assert calls(given) == list(LIBRARY_CALLS)
    assert calls(fused) == []
    for each in (given, fused):
        assert np.abs(output(each, x) - expected).max() < 1e-6


def test_other_types_stay_as_they_are():
    module, x, expected = activations(torch.float64)
    fused = fuse(module, make_target(TARGET), PREPARED)
    assert calls(fused) == list(LIBRARY_CALLS)
    assert np.abs(output(fused, x) - expected).max() < 1e-12
