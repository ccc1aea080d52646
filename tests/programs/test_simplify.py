"""What exporters write down and no program needs: gone, and the outputs as PyTorch's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from conftest import output
from torch.nn import functional

from tcl_core.compat import load_tvm, make_target, meta_schedule, quiet_compiler
from tcl_core.programs.graph import AS_GIVEN, PREPARED, fuse
from tcl_core.programs.network_files import relax_from_exported
from tcl_core.programs.simplify import simplify

TARGET = {"kind": "llvm", "num-cores": 1}
WORDS, WIDTH, HEADS = 6, 16, 2


class Layer(torch.nn.Module):
    """A transformer's layer as its users write one; ``mask`` is added to the scores."""

    def __init__(self, mask: torch.Tensor | None = None) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.register_buffer("mask", mask)
        torch.nn.init.zeros_(self.up.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.view(1, WORDS, HEADS, WIDTH // HEADS).transpose(1, 2)

        parts = (heads(each(x)) for each in (self.query, self.key, self.value))
        y = functional.scaled_dot_product_attention(*parts, attn_mask=self.mask)
        x = self.first(x + self.out(y.transpose(1, 2).reshape(1, WORDS, WIDTH)))
        return self.second(x + self.down(functional.gelu(self.up(x))))


def imported(model: torch.nn.Module, x: torch.Tensor):
    """The Relax module, the input, and PyTorch's output."""
    with torch.no_grad():
        expected = model.eval()(x).numpy()
    with quiet_compiler():
        return relax_from_exported(torch.export.export(model, (x,)), "network"), x.numpy(), expected


def layer(mask: torch.Tensor | None = None):
    torch.manual_seed(0)
    return imported(Layer(mask), torch.randn(1, WORDS, WIDTH))


def operators(module) -> Counter:
    relax = load_tvm().relax
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    return Counter(b.value.op.name.removeprefix("relax.") for b in bindings if isinstance(b.value, relax.Call))


def kernels(module, graph) -> list[str]:
    with quiet_compiler():
        fused = fuse(module, make_target(TARGET), graph)
        extracted = meta_schedule().relax_integration.extract_tasks(fused, make_target(TARGET), {})
    return [task.task_name for task in extracted for _ in range(int(task.weight))]


ROW_MASKED = torch.zeros(WORDS, WORDS)
ROW_MASKED[2] = -torch.inf
CAUSAL = torch.full((WORDS, WORDS), -torch.inf).triu(1)


@pytest.mark.parametrize("mask", [None, torch.zeros(WORDS, WORDS), CAUSAL, ROW_MASKED], ids=["none", "zeros", "causal", "a row"])
def test_the_outputs_are_pytorchs(mask):
    module, x, expected = layer(mask)
    for graph in (AS_GIVEN, PREPARED):
        assert np.abs(output(fuse(module, make_target(TARGET), graph), x) - expected).max() < 1e-5


def test_no_mask_of_zeros_is_added_or_checked():
    for mask in (None, torch.zeros(WORDS, WORDS)):
        module, _, _ = layer(mask)
        given, simple = operators(module), operators(simplify(module))
        assert given["equal"] == given["max"] == 1
        assert simple["equal"] == simple["where"] == simple["max"] == 0 and simple["nn.softmax"] == 1
        assert simple["add"] == 4 + 2  # a bias of zeros stays: a trained network has another one


def test_a_mask_that_leaves_a_score_in_each_row_stays_without_its_check():
    none, causal = (operators(simplify(layer(mask)[0])) for mask in (None, CAUSAL))
    assert causal["equal"] == 0 and causal["add"] == none["add"] + 1


def test_a_row_without_a_score_keeps_its_check():
    assert operators(simplify(layer(ROW_MASKED)[0]))["equal"] == 1


class Checked(torch.nn.Module):
    """Attention whose rows with nothing but ``score`` get ``filling``."""

    def __init__(self, score: float, filling: float) -> None:
        super().__init__()
        self.score, self.filling = score, filling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ x.transpose(-1, -2)
        shares = functional.softmax(scores, dim=-1)
        return torch.where((scores == self.score).all(-1, keepdim=True), torch.full_like(shares, self.filling), shares)


@pytest.mark.parametrize("score, filling, checks", [(-np.inf, 0.0, 0), (0.0, 0.0, 1), (-np.inf, 0.5, 1)])
def test_a_check_for_anything_else_stays(score, filling, checks):
    """Such as one for padded rows, whose scores are zeros."""
    torch.manual_seed(0)
    x = torch.randn(1, WORDS, WIDTH)
    x[:, -1] = 0.0
    module, given, expected = imported(Checked(score, filling), x)
    assert operators(simplify(module))["where"] == checks
    assert np.abs(output(fuse(module, make_target(TARGET), PREPARED), given) - expected).max() < 1e-6


def test_three_products_of_one_matrix_are_one():
    module, _, _ = layer()
    given, simple = operators(module), operators(simplify(module))
    assert (given["matmul"], simple["matmul"], simple["strided_slice"]) == (8, 6, 3)


def test_what_follows_a_product_is_part_of_it():
    """The bias, the activation and what goes round the layer: no kernel of their own."""
    names = kernels(layer()[0], PREPARED)
    assert len(names) == 15 < len(kernels(layer()[0], AS_GIVEN))
    assert sum("matmul" in name for name in names) == 6 and any("matmul" in name and "gelu" in name for name in names)
    assert sum(name.startswith("reshape") for name in names) == 2  # of what comes in and what goes out
    assert not any(name.startswith(("gelu", "add", "fused_reshape_add", "fused_reshape_gelu")) for name in names)


class Shapes(torch.nn.Module):
    """Leading ones where they matter: a reduction over them, a broadcast along them, another axis's softmax."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh((x @ x.T).reshape(1, 4, 4) * torch.arange(4.0).reshape(4, 1))
        z = torch.softmax(y, 1) + torch.arange(8.0).reshape(2, 1, 4)
        return (z - y).sum(0) / (1 + torch.relu(y.reshape(4, 4)) + torch.relu(y.reshape(1, 1, 4, 4)).sum(0))


def test_leading_ones_that_matter_stay():
    torch.manual_seed(0)
    module, x, expected = imported(Shapes(), torch.randn(4, 3))
    assert output(simplify(module), x).shape == expected.shape
    assert np.abs(output(fuse(module, make_target(TARGET), PREPARED), x) - expected).max() < 1e-5
