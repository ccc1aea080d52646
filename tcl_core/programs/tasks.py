"""Tasks: the tensor subgraphs of networks that the compiler schedules one by one.

A task is known by its structural hash, so that networks share tasks; how often a network runs a task is its weight there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tcl_core.compat import load_module, load_tvm, make_target, meta_schedule, quiet_compiler, structural_key
from tcl_core.programs.graph import Graph, fixed_shapes, fuse
from tcl_core.programs.networks import load_relax

REDUCE = 2  # tirx.IterVar.CommReduce

# The graph is prepared alike for every CPU, so any LLVM target extracts the same tasks.
EXTRACTION_TARGET = {"kind": "llvm", "num-cores": 1}
# First match in the fused task's name decides; order goes from the most to the least costly operator.
OPERATORS = ("conv2d", "conv3d", "conv1d", "matmul", "softmax", "norm", "pool", "mean", "sum", "take")


@dataclass(frozen=True)
class Task:
    """One tensor subgraph.

    key          structural hash, 16 hexadecimal digits
    name         TVM's name of the fused function, readable but not unique
    operator     operator type, the class over which the sampler spreads its budget
    flops        floating point operations of one run
    module_json  the ``IRModule`` as TVM's JSON
    """

    key: str
    name: str
    operator: str
    flops: float
    module_json: str

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """The task of a row of the tasks table (``store.SCHEMAS``)."""
        return cls(row["task_key"], row["name"], row["op_type"], row["flops"], row["module_json"])

    def as_row(self) -> dict[str, Any]:
        """Its row of the tasks table."""
        return {
            "task_key": self.key,
            "name": self.name,
            "op_type": self.operator,
            "flops": self.flops,
            "module_json": self.module_json,
        }

    def module(self) -> Any:
        """The ``IRModule``, parsed anew."""
        return load_module(self.module_json)


def extract_tasks(network: str, graph: Graph) -> list[tuple[Task, int]]:
    """The tasks of a network (a name, ``.pt2`` or ``.onnx``) prepared as ``graph`` says, each with its weight in the network.

    Raises UsageError if the network cannot be loaded or imported.
    """
    target, module = make_target(EXTRACTION_TARGET), load_relax(network)
    with quiet_compiler(), fixed_shapes(module, network):
        fused = fused_tasks(fuse(module, target, graph), target)
        for extracted in fused:
            argument_types(extracted.dispatched[0])
    found: dict[str, tuple[Task, int]] = {}
    for extracted in fused:
        task = describe(extracted.task_name, extracted.dispatched[0])
        weight = int(extracted.weight) + (found[task.key][1] if task.key in found else 0)
        found[task.key] = (task, weight)
    return list(found.values())


def fused_tasks(module: Any, target: Any) -> list[Any]:
    """The tasks that MetaSchedule extracts from a fused module, without reshapes, which TVM makes views of unless they are scheduled, and
    without single opaque blocks, such as scatters, which have no loops to schedule.
    """
    extracted = meta_schedule().relax_integration.extract_tasks(module, target, {})
    is_reshape = load_tvm().relax.analysis.has_reshape_pattern
    return [each for each in extracted if not is_reshape(each.dispatched[0]["main"]) and has_blocks(each.dispatched[0])]


def has_blocks(module: Any) -> bool:
    """Whether a task has loops to schedule: a single opaque block has none."""
    return getattr(getattr(module["main"].body, "block", None), "name_hint", "") == "root"


def describe(name: str, module: Any) -> Task:
    """The ``Task`` of a fused function with this name and module."""
    tvm = load_tvm()
    return Task(
        key=structural_key(module),
        name=name,
        operator=operator_type(name, module),
        flops=float(tvm.s_tir.analysis.estimate_tir_flops(module)),
        module_json=tvm.ir.save_json(module),
    )


def operator_type(name: str, module: Any) -> str:
    """The operator that dominates a fused function, from its name, else from its blocks' names, else from what these do.

    A convolution is depthwise when its weight, the second of the main function's 4-D inputs, has one input channel for each output.
    """
    for texts in ([name], block_names(module)):
        for operator in OPERATORS:
            if any(operator in text.lower() for text in texts):
                return "depthwise_conv2d" if operator == "conv2d" and _is_depthwise(module) else operator
    return _by_what_it_does(module)


def _by_what_it_does(module: Any) -> str:
    """The operator by the largest sum.  With two inputs: a convolution if it moves windows over one of them, else a product; with one:
    a mean if something is also divided, else a sum.  Without a sum: elementwise.
    """
    blocks = _blocks(module)
    tirx = load_tvm().tirx
    adding = [block for block in blocks if isinstance(getattr(block.body, "value", None), tirx.Add)]
    reductions = [block for block in adding if any(iter_var.iter_type == REDUCE for iter_var in block.iter_vars)]
    if not reductions:
        return "elementwise"
    largest = max(reductions, key=lambda block: math.prod(int(iter_var.dom.extent) for iter_var in block.iter_vars))
    if len(largest.reads) < 2:
        return "mean" if any("divide" in str(block.name_hint) for block in blocks) else "sum"
    windows = max(sum(_moves_a_window(part.min, largest.iter_vars) for part in region.region) for region in largest.reads)
    return f"conv{min(windows, 3)}d" if windows else "matmul"


def _moves_a_window(index: Any, iter_vars: Sequence[Any]) -> bool:
    """Whether an index depends on both a spatial and a reduced axis."""
    used = load_tvm().tirx.analysis.undefined_vars(index)
    kinds = {iter_var.iter_type == REDUCE for iter_var in iter_vars if any(iter_var.var.same_as(each) for each in used)}
    return len(kinds) == 2


def _blocks(module: Any) -> list[Any]:
    schedule = load_tvm().s_tir.Schedule(module, error_render_level="none")
    return [schedule.get(block) for block in schedule.get_child_blocks(schedule.get_sblock("root"))]


def block_names(module: Any) -> list[str]:
    """Names of a module's blocks, in an order that structurally equal modules share."""
    return [str(block.name_hint) for block in _blocks(module)]


def _is_depthwise(module: Any) -> bool:
    data, *others = (shape for shape, _ in argument_types(module))
    weight = next((shape for shape in others if len(shape) == len(data) == 4), None)
    if weight is None:
        return False
    if any("nhwc" in name for name in block_names(module)):  # then weights are HWIO
        return weight[2] == 1 and weight[3] == data[3]
    *_, output = others
    kept = len(output) != 4 or data[1] in output  # not of a transposed convolution with one output, whose weight is (inputs, 1, ...)
    return weight[1] == 1 and weight[0] == data[1] and kept


def named(operator: str, module: Any) -> str:
    """A name for a task that has none: its operator and the shapes of its arguments."""
    return f"{operator} {' '.join('x'.join(map(str, shape)) for shape, _ in argument_types(module))}"


def as_task(given: Any) -> Any:
    """A ``PrimFunc``, or a module's one function, as a module with the function ``main``, which MetaSchedule takes; others unchanged."""
    tvm = load_tvm()
    function = given
    if isinstance(given, tvm.IRModule):
        names = [var.name_hint for var in given.get_global_vars()]
        if names == ["main"] or len(names) != 1:
            return given
        (function,) = given.functions.values()
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def argument_types(module: Any) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of each argument of a task, outputs last."""
    return [(tuple(int(d) for d in arg.shape), str(arg.dtype)) for arg in module["main"].params]
