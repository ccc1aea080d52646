"""Prepare a network's graph before tasks are extracted: folding, data layouts, weights that may be packed.

Everything that decides which tasks a network has is here; measuring and tuning both go through ``fuse``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tcl_core.compat import load_tvm, structural_key
from tcl_core.errors import TclError, UsageError
from tcl_core.files import shown
from tcl_core.params import Graph
from tcl_core.programs import rounding, vector_math, winograd
from tcl_core.programs.booleans import spell_out_booleans
from tcl_core.programs.rewriting import relax_and_patterns, rewritten
from tcl_core.programs.simplify import simplify

WEIGHTS = {"NHWC": "HWIO"}  # layout of the data -> layout of the weights

# TVM implements these in one layout only: it converts them to another, but cannot build the result.
AS_THEY_ARE = {"relax.nn.conv2d_transpose": ["NCHW", "IOHW"]}
FREE = "layout_free_buffers"  # TVM's function attribute: numbers of the arguments that may be packed
COMMUTATIVE = ("relax.add", "relax.multiply")
ELEMENTWISE = (*COMMUTATIVE, "relax.subtract", "relax.divide")

# The graph as the network's author wrote it, and as prepared by default (params.yaml).
AS_GIVEN = Graph(simplify=False, layout="NCHW", fold=False, pack=False, vector_math=False, round_up=False, winograd=False)
PREPARED = Graph(simplify=True, layout="NHWC", fold=True, pack=True, vector_math=True, round_up=True, winograd=True)


def fuse(module: Any, target: Any, graph: Graph) -> Any:
    """Lower a Relax module to fused TIR functions: what MetaSchedule calls its tasks."""
    tvm = load_tvm()
    transform = tvm.relax.transform
    passes = [spell_out_booleans, bound_integers]
    if graph.simplify:
        passes += [simplify]
    if graph.fold:
        passes += [fold_padding, transform.FoldBatchnormToConv2D(), transform.FoldConstant()]
    if graph.layout != "NCHW":
        wanted = {"relax.nn.conv2d": [graph.layout, WEIGHTS[graph.layout]], **AS_THEY_ARE}
        passes += [ready_for_layout, transform.ConvertLayout(wanted), merge_transposes]
    passes += [
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        transform.FoldConstant(),
        transform.LegalizeOps(_legalizations(graph)),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
    ]
    if graph.pack:
        passes += [transform.AttachAttrLayoutFreeBuffers(), only_matrices]
    with target:
        for each in passes:
            module = each(module)
    return module


@contextmanager
def fixed_shapes(module: Any, network: str) -> Iterator[None]:
    """Raise UsageError if the block fails and a shape in the Relax module depends on data; TVM and passes raise unrelated types."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TclError) or (name := _of_no_fixed_shape(module)) is None:
            raise
        raise UsageError(
            f"{shown(network)} has a tensor whose shape depends on data ({shown(name)}), and TCL tunes fixed shapes only; export it without"
        ) from error


def _of_no_fixed_shape(module: Any) -> str | None:
    """The name of a tensor whose extents are not all numbers, or None."""
    relax = load_tvm().relax
    for function in module.functions.values():
        blocks = function.body.blocks if isinstance(function, relax.Function) else ()
        for variable in (binding.var for block in blocks for binding in block.bindings):
            for type_ in getattr(variable.ty, "fields", (variable.ty,)):
                extents = getattr(getattr(type_, "shape", None), "values", None) or ()
                if not all(isinstance(extent, int) or hasattr(extent, "value") for extent in extents):
                    return variable.name
    return None


def _legalizations(graph: Graph) -> dict[str, Callable[[Any, Any], Any]]:
    """Operator -> its legalization, for operators that ``graph`` legalizes otherwise than TVM's ``LegalizeOps``."""
    chosen = {vector_math: graph.vector_math, rounding: graph.round_up, winograd: graph.winograd}
    return {name: function for way, wanted in chosen.items() if wanted for name, function in way.legalizations().items()}


def apply_database(fused: Any, target: Any, database: Any) -> Any:
    """A fused module with a MetaSchedule database's programs for its tasks, and its weights packed as these read them."""
    transform = load_tvm().relax.transform
    with target, database:
        applied = transform.MetaScheduleApplyDatabase()(fused)
        for each in (transform.SplitLayoutRewritePreproc(), transform.FoldConstant(), transform.DeadCodeElimination()):
            applied = each(applied)
    return applied


def only_matrices(module: Any) -> Any:
    """Let only those weights of a task be packed that have two or more extents above 1.

    Reordering a row of biases or scales gains nothing, and RewriteLayout fails on some, such as a group norm's.
    """
    tvm = load_tvm()
    for var, function in list(module.functions.items()):
        if isinstance(function, tvm.tirx.PrimFunc) and FREE in (function.attrs or {}):
            shapes = {int(number): function.params[int(number)].shape for number in function.attrs[FREE]}
            kept = [number for number, shape in shapes.items() if sum(int(extent) > 1 for extent in shape) > 1]
            module.update_func(var, function.with_attr(FREE, kept) if kept else function.without_attr(FREE))
    return module


def fold_padding(module: Any) -> Any:
    """Fold zero padding before a convolution into the convolution.

    Networks that pad explicitly would otherwise move all data once more, and ConvertLayout does not pass through ``pad``.
    """
    relax, dpl = relax_and_patterns()
    pad = dpl.is_op("relax.nn.pad")(dpl.wildcard())
    convolution = dpl.is_op("relax.nn.conv2d")(pad, dpl.wildcard())

    def folded(call: Any, matched: Any) -> Any:
        padding, attributes = matched[pad].attrs, call.attrs
        *others, top, bottom, left, right = (int(width) for width in padding.pad_width)
        zeros = padding.pad_mode == "constant" and float(padding.pad_value) == 0
        if not zeros or any(others) or min(top, bottom, left, right) < 0 or attributes.data_layout != "NCHW":
            return call
        widths = [int(own) + more for own, more in zip(attributes.padding, (top, left, bottom, right), strict=True)]
        kept = {name: attributes[name] for name in ("strides", "dilation", "groups", "data_layout", "kernel_layout", "out_layout")}
        return relax.op.nn.conv2d(matched[pad].args[0], call.args[1], padding=widths, out_dtype=attributes.out_dtype or None, **kept)

    return rewritten(module, convolution, folded)


def bound_integers(module: Any) -> Any:
    """Rewrite ``clip`` of integers as minimum and maximum: TVM's importer makes a missing bound infinite, which no integer is."""
    return _bounded(module, integers=True)


def _bounded(module: Any, integers: bool = False) -> Any:
    """Rewrite ``clip`` as minimum and maximum, without bounds that bound nothing; with ``integers``, for integers alone."""
    relax, dpl = relax_and_patterns()

    def bounded(call: Any, _: Any) -> Any:
        data, low, high = call.args
        dtype = data.ty.dtype
        if integers and "int" not in str(dtype):
            return call
        low, high = (float(getattr(bound, "value", bound)) for bound in (low, high))
        widest = 2.0**63 if "int" in str(dtype) else math.inf  # as a float, the largest int64 rounds up to 2^63, which none reaches
        if low > -widest:
            data = relax.op.maximum(data, relax.const(low, dtype))
        return relax.op.minimum(data, relax.const(high, dtype)) if high < widest else data

    return rewritten(module, dpl.is_op("relax.clip")(dpl.wildcard(), dpl.wildcard(), dpl.wildcard()), bounded)


def ready_for_layout(module: Any) -> Any:
    """Rewrite what ConvertLayout cannot pass through: ``clip`` as minimum and maximum, constants with full rank.

    Axes of ``squeeze`` are counted from the front: ConvertLayout reads out of bounds for negative ones (std::bad_alloc).
    """
    relax, dpl = relax_and_patterns()

    def from_the_front(call: Any, _: Any) -> Any:
        axes, rank = call.attrs.axis, call.args[0].ty.ndim
        return call if axes is None else relax.op.squeeze(call.args[0], [int(axis) % rank for axis in axes])

    module = _bounded(module)
    module = rewritten(module, dpl.is_op("relax.squeeze")(dpl.wildcard()), from_the_front)
    for name in ELEMENTWISE:
        module = rewritten(module, dpl.is_op(name)(dpl.wildcard(), dpl.wildcard()), _full_rank)
    return module


def _full_rank(call: Any, _: Any) -> Any:
    """The elementwise operator with constants of its result's rank, as the second argument where it commutes."""
    tvm, rank = load_tvm(), call.ty.ndim

    def of_full_rank(given: Any) -> Any:
        if not isinstance(given, tvm.ir.GenericConst) or not 0 < given.ty.ndim < rank:
            return given
        array = given.value.numpy()
        return tvm.relax.const(array.reshape((1,) * (rank - array.ndim) + array.shape), given.ty.dtype)

    arguments = [of_full_rank(given) for given in call.args]
    if call.op.name in COMMUTATIVE and isinstance(arguments[0], tvm.ir.GenericConst):
        arguments.reverse()
    return tvm.relax.Call(call.op, arguments, call.attrs)


def merge_transposes(module: Any) -> Any:
    """Move transpositions behind elementwise operators, where they meet and merge or cancel."""
    before = None
    while (now := structural_key(module)) != before:
        module, before = _cancelled(_behind_elementwise(module)), now
    return module


def _behind_elementwise(module: Any) -> Any:
    """Rewrite ``op(transpose(a), transpose(b))`` as ``transpose(op(a, b))`` where both transpose alike and a and b have one shape."""
    relax, dpl = relax_and_patterns()

    for name in ELEMENTWISE:
        left, right = (dpl.is_op("relax.permute_dims")(dpl.wildcard()) for _ in range(2))

        def moved(call: Any, matched: Any, left: Any = left, right: Any = right) -> Any:
            first, second = matched[left], matched[right]
            axes = _axes(first)
            if _axes(second) != axes or list(first.args[0].ty.shape) != list(second.args[0].ty.shape):
                return call
            return relax.op.permute_dims(relax.Call(call.op, [first.args[0], second.args[0]], call.attrs), axes)

        module = rewritten(module, dpl.is_op(name)(left, right), moved)
    return module


def _cancelled(module: Any) -> Any:
    """Merge a transposition of a transposition into one; drop one that changes nothing."""
    relax, dpl = relax_and_patterns()
    inner = dpl.is_op("relax.permute_dims")(dpl.wildcard())

    def merged(call: Any, matched: Any) -> Any:
        first = _axes(matched[inner])
        return relax.op.permute_dims(matched[inner].args[0], [first[axis] for axis in _axes(call)])

    def gone(call: Any, _: Any) -> Any:
        axes = _axes(call)
        return call.args[0] if axes == sorted(axes) else call

    module = rewritten(module, dpl.is_op("relax.permute_dims")(inner), merged)
    return rewritten(module, dpl.is_op("relax.permute_dims")(dpl.wildcard()), gone)


def _axes(call: Any) -> list[int]:
    rank = call.args[0].ty.ndim
    return list(reversed(range(rank))) if call.attrs.axes is None else [int(axis) % rank for axis in call.attrs.axes]
