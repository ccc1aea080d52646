"""What is done to a network's graph before its tasks are cut: the same outputs, fewer and better tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from conftest import output
from torch.nn import functional

from tcl_core.compat import load_tvm, make_target, meta_schedule, quiet_compiler
from tcl_core.programs.graph import AS_GIVEN, PREPARED, Graph, apply_database, fuse
from tcl_core.programs.network_files import relax_from_exported
from tcl_core.programs.packing import packed
from tcl_core.programs.sketches import DesignSpace
from tcl_core.programs.tasks import argument_types, describe, fused_tasks

TARGET = {"kind": "llvm", "num-cores": 1}
WAYS = [Graph(*way) for way in product((False, True), ("NCHW", "NHWC"), (False, True), (False, True), (True,), (True,), (True,))] + [
    AS_GIVEN
]


class Network(torch.nn.Module):
    """What stands in the way of a layout: padding by hand, bounds, scales, permutations, several kinds of convolution, a mean over one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, stride=2, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.grouped = torch.nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.upward = torch.nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.scale = torch.nn.Parameter(torch.rand(8))
        self.layer_norm = torch.nn.LayerNorm(8)
        self.group_norm = torch.nn.GroupNorm(2, 8)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu6(self.norm(self.first(functional.pad(x, (0, 1, 0, 1)))))
        x = self.group_norm(x)
        x = x + self.scale.unsqueeze(-1).unsqueeze(-1) * self.depthwise(x)
        y = self.grouped(x).permute(0, 2, 3, 1)
        x = x + self.layer_norm(y).permute(0, 3, 1, 2)
        return self.linear(functional.adaptive_avg_pool1d(self.upward(x).flatten(2), 1).flatten(1))


@pytest.fixture(scope="module")
def network() -> tuple[object, np.ndarray, np.ndarray]:
    """The Relax module, an input, and PyTorch's output."""
    torch.manual_seed(0)
    model, x = Network(), torch.randn(1, 3, 16, 16)
    for _ in range(3):
        model(torch.randn(4, 3, 16, 16))  # so that the batch norm is not the identity
    with torch.no_grad():
        expected = model.eval()(x).numpy()
    return relax_from_exported(torch.export.export(model, (x,)), "network"), x.numpy(), expected


class Cropped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(functional.pad(x, (-1, -1, -1, -1)))


def test_what_is_cut_off_before_a_convolution_is_no_padding():
    """Of a convolution that pads by as much nothing would be left to add."""
    torch.manual_seed(0)
    model, x = Cropped().eval(), torch.randn(1, 3, 12, 12)
    with torch.no_grad():
        expected = model(x).numpy()
    module = relax_from_exported(torch.export.export(model, (x,)), "network")
    assert np.abs(output(fuse(module, make_target(TARGET), PREPARED), x.numpy()) - expected).max() < 1e-5


class Bounded(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counts = (x * 8).to(torch.int64)
        return x.clamp(min=0.0) + counts.clamp(min=2) + counts.clamp(max=5) + x.clamp(max=0.25)


def test_a_bound_that_is_none_is_left_out():
    """TVM's importer has infinity in its place, which no integer is."""
    x = torch.linspace(-1, 1, 32).reshape(1, 2, 4, 4)
    module = relax_from_exported(torch.export.export(Bounded(), (x,)), "network")
    np.testing.assert_allclose(output(fuse(module, make_target(TARGET), PREPARED), x.numpy()), Bounded()(x).numpy(), rtol=1e-6)


class Clamped(torch.nn.Module):
    """What it returns is a bound itself, and the importer's other name of it."""

    def forward(self, x):
        return (x * 2).clamp(0, 1)


class Counted(torch.nn.Module):
    def forward(self, x):
        return (x * 8).to(torch.int64).clamp(-3, 2**63 - 1)


@pytest.mark.parametrize("graph", WAYS, ids=str)
@pytest.mark.parametrize("made", [Clamped, Counted])
def test_a_network_that_ends_in_a_bound(made, graph):
    """Of 64 bits too: the largest integer, as a float, is one more."""
    x = torch.linspace(-1, 1, 32).reshape(1, 2, 4, 4)
    module = relax_from_exported(torch.export.export(made(), (x,)), "network")
    np.testing.assert_allclose(output(fuse(module, make_target(TARGET), graph), x.numpy()), made()(x).numpy(), rtol=1e-6)


class Scattered(torch.nn.Module):
    def forward(self, x):
        y = torch.relu(x.reshape(8, 4)) + 1.0
        y[:, torch.tensor([0, 1])] = 2.0
        return y * 2.0


def test_what_is_one_opaque_block_is_no_task():
    """It has no loops that could be scheduled; TVM's own code of it stays."""
    x = torch.linspace(-1, 1, 32).reshape(1, 2, 4, 4)
    module = relax_from_exported(torch.export.export(Scattered(), (x,)), "network")
    fused = fuse(module, make_target(TARGET), PREPARED)
    with quiet_compiler():
        found = [describe(each.task_name, each.dispatched[0]) for each in fused_tasks(fused, make_target(TARGET))]
    assert found and all("index_put" not in task.name for task in found)
    np.testing.assert_allclose(output(fused, x.numpy()), Scattered()(x).numpy(), rtol=1e-6)


def tasks_of(module) -> list:
    with quiet_compiler():
        extracted = meta_schedule().relax_integration.extract_tasks(module, make_target(TARGET), {})
    return [describe(each.task_name, each.dispatched[0]) for each in extracted]


@pytest.mark.parametrize("graph", WAYS, ids=str)
def test_the_outputs_stay(network, graph):
    module, x, expected = network
    assert np.abs(output(fuse(module, make_target(TARGET), graph), x) - expected).max() < 1e-5


def test_the_network_given_is_not_changed(network):
    module, _, _ = network
    before = module.script(show_meta=False)
    fuse(module, make_target(TARGET), PREPARED)
    assert module.script(show_meta=False) == before


def test_one_transposition_at_the_entrance_is_left(network):
    """None around the padding, the bounds, the scale or the permutations, but for the transposed convolution, which stays."""
    tasks = tasks_of(fuse(network[0], make_target(TARGET), PREPARED))
    assert sum("transpose" in task.name and "conv2d_transpose" not in task.name for task in tasks) <= 2
    assert not any("pad" in task.name or "clip" in task.name for task in tasks)


def test_a_batch_norm_is_folded(network):
    """What is left of it is the addition of a constant."""
    given, prepared = (tasks_of(fuse(network[0], make_target(TARGET), graph)) for graph in (AS_GIVEN, PREPARED))
    assert any("divide" in task.name and "conv2d" in task.name for task in given)
    assert not any("divide" in task.name and "conv2d" in task.name for task in prepared)


@pytest.mark.parametrize("graph", [AS_GIVEN, PREPARED], ids=str)
def test_operators_are_told_in_either_layout(network, graph):
    kinds = Counter(task.operator for task in tasks_of(fuse(network[0], make_target(TARGET), graph)))
    assert kinds["depthwise_conv2d"] == 1 and kinds["conv2d"] >= 2 and kinds["matmul"] == 1


def test_only_packed_graphs_say_which_weights_may_move(network):
    """And of these only matrices and more: the order of a row of biases gains nothing."""
    unpacked = tasks_of(fuse(network[0], make_target(TARGET), replace(PREPARED, pack=False)))
    assert not any("layout_free_buffers" in task.module()["main"].attrs for task in unpacked)
    free = {
        (task.operator, tuple(argument_types(task.module())[int(number)][0]))
        for task in tasks_of(fuse(network[0], make_target(TARGET), PREPARED))
        for number in task.module()["main"].attrs.get("layout_free_buffers", ())
    }
    assert ("conv2d", (3, 3, 4, 8)) in free and ("matmul", (8, 4)) in free
    assert all(sum(extent > 1 for extent in shape) > 1 for _, shape in free)


def test_every_task_has_programs(network):
    """Each sketch of each task can be built, whatever it reorders."""
    for task in tasks_of(fuse(network[0], make_target(TARGET), PREPARED)):
        assert len(list(programs(task, 1))) >= 1, task.name


# --- weights in another order ---


def programs(task, count: int = 2):
    space, rng = DesignSpace(task.key, task.module(), TARGET), np.random.default_rng(0)
    for sketch in space.sketches():
        for decisions in sketch.sample(count, rng):
            yield space.materialise(sketch, decisions)


@pytest.fixture(scope="module")
def convolution(network):
    tasks = tasks_of(fuse(network[0], make_target(TARGET), PREPARED))
    return max((task for task in tasks if task.operator == "conv2d" and "transpose" not in task.name), key=lambda t: t.flops)


def test_a_program_gets_its_weights_in_its_order(convolution):
    """Reordered by us and computed without the blocks that reorder: what the untuned program computes."""
    tvm, target = load_tvm(), make_target(TARGET)
    remove = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)
    rng = np.random.default_rng(0)
    given = [rng.random(shape, dtype=np.float32) for shape, _ in argument_types(convolution.module())]

    def computed(module, arguments):
        with target, quiet_compiler():
            function = tvm.tirx.build(remove(module), target=target)
        tensors = [tvm.runtime.tensor(array) for array in arguments]
        function(*tensors)
        return tensors[-1].numpy()

    expected, moved = computed(convolution.module(), given), 0
    for schedule in programs(convolution):
        reordered = packed(schedule.mod, given)
        wanted = [tuple(int(n) for n in parameter.shape) for parameter in remove(schedule.mod)["main"].params]
        arguments = [reordered.get(number, array) for number, array in enumerate(given)]
        assert [array.shape for array in arguments] == wanted
        assert np.abs(computed(schedule.mod, arguments) - expected).max() < 1e-4
        moved += any(reordered[n].shape != given[n].shape for n in reordered)
    assert moved, "no program of the task wants another order, so that nothing was tried"


def test_a_database_of_such_programs_is_applied(network):
    """The weights are reordered while the network is built, and the outputs stay."""
    module, x, expected = network
    ms, target = meta_schedule(), make_target(TARGET)
    fused = fuse(module, target, PREPARED)
    database = ms.database.MemoryDatabase()
    for task in tasks_of(fused):
        workload = database.commit_workload(task.module())
        arguments = ms.arg_info.ArgInfo.from_prim_func(task.module()["main"])
        schedule = list(programs(task, 1))[-1]
        database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, [1e-3], target, arguments))
    applied = apply_database(fused, target, database)
    assert not any("weight_prepack" in var.name_hint for var in applied.functions), "they are reordered at each run"
    assert np.abs(output(applied, x) - expected).max() < 1e-5
