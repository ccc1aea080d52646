"""Operators on booleans: what TVM's code generation does not take is spelt out, and computes what PyTorch does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tcl_core.compat import load_tvm, make_target, quiet_compiler
from tcl_core.programs.booleans import spell_out_booleans
from tcl_core.programs.graph import PREPARED, fuse
from tcl_core.programs.network_files import relax_from_exported
from tcl_core.programs.tasks import EXTRACTION_TARGET

CASES = {
    "cumsum": lambda x: (x > 0).cumsum(-1).float(),
    "cumsum to float32": lambda x: (x > 0).cumsum(-1, dtype=torch.float32) * x,
    "cumsum to int32": lambda x: (x > 0).cumsum(-1, dtype=torch.int32),
    "cumprod": lambda x: (x > 0).cumprod(-1, dtype=torch.float32),
    "sum": lambda x: (x > 0).sum(-1).float(),
    "add": lambda x: ((x > 0) + (x > 1)).float(),
    "multiply": lambda x: ((x > 0) * (x < 1)).float(),
    "equal": lambda x: ((x > 0) == (x > 1)).float(),
    "mask": lambda x: ((x > 0).cumsum(-1).unsqueeze(-1) == (x > 0).cumsum(-1).unsqueeze(-2)).float(),
}


class Case(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("name", CASES)
def test_booleans_compute_what_they_do_in_pytorch(name):
    x = torch.tensor([[1.5, -1.0, 0.5, 2.0], [0.5, 3.0, -2.0, 0.0]])
    with quiet_compiler():
        module = relax_from_exported(torch.export.export(Case(CASES[name]), (x,)), name)
        tvm, target = load_tvm(), make_target(EXTRACTION_TARGET)
        machine = tvm.relax.VirtualMachine(tvm.compile(fuse(module, target, PREPARED), target), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(x.numpy()))
    np.testing.assert_array_equal((found if hasattr(found, "numpy") else found[0]).numpy(), CASES[name](x).numpy(), strict=True)


def test_a_network_without_them_stays_as_it_is():
    """Else its tasks would have other keys, which nothing was measured of."""
    module = relax_from_exported(torch.export.export(torch.nn.Linear(4, 2), (torch.ones(1, 4),)), "linear")
    assert spell_out_booleans(module) is module
