"""Remove passes over a network's data that PyTorch's exporter writes and no program needs.

Transformers of batch 1 are exported as matrix products with a reshape before and after each, which keep what follows a product
from being fused into it; their attention adds a mask of zeros and looks for rows that are fully masked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcl_core.compat import load_tvm, structural_key
from tcl_core.programs.rewriting import relax_and_patterns, rewritten

UNARY = (
    "relax.nn.gelu", "relax.nn.gelu_tanh", "relax.nn.relu", "relax.nn.silu",
    "relax.sigmoid", "relax.tanh", "relax.erf", "relax.exp", "relax.sqrt", "relax.rsqrt", "relax.negative",
)  # fmt: skip
BINARY = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.maximum", "relax.minimum", "relax.power")
# Operator -> its axis attribute, the value that names the last axis, and the number of parameters after the data.
ALONG_LAST = {
    "relax.nn.softmax": ("axis", -1, 0),
    "relax.nn.log_softmax": ("axis", -1, 0),
    "relax.nn.layer_norm": ("axes", [-1], 2),
    "relax.nn.rms_norm": ("axes", [-1], 1),
}


def simplify(module: Any) -> Any:
    """A module with the same outputs from fewer operators."""
    transform = load_tvm().relax.transform
    for each in (
        fold_constants, without_masks, without_checks_of_masks, reshapes_behind, transform.EliminateCommonSubexpr(), combine_products
    ):  # fmt: skip
        module = each(module)
    return transform.DeadCodeElimination()(module)


def fold_constants(module: Any) -> Any:
    """Compute what depends on constants alone, also where TVM's own pass does not look; operators are legalised for that."""
    relax, transform = load_tvm().relax, load_tvm().relax.transform
    for name, function in list(module.functions.items()):
        if isinstance(function, relax.Function):
            known = _constants(function)
            blocks = [
                type(block)([relax.VarBinding(b.var, known[b.var]) if b.var in known else b for b in block.bindings])
                for block in function.body.blocks
            ]
            body = relax.SeqExpr(blocks, function.body.body)
            module.update_func(name, relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs))
    return transform.DeadCodeElimination()(transform.CanonicalizeBindings()(module))


def _constants(function: Any) -> dict[Any, Any]:
    """Variable -> value, for variables that depend on no parameter and that TVM can compute."""
    tvm = load_tvm()
    relax, fixed = tvm.relax, {}
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    for binding in bindings:
        used = relax.analysis.free_vars(binding.value)
        if isinstance(binding, relax.VarBinding) and all(var in fixed for var in used) and _shape(binding.var) is not None:
            fixed[binding.var] = binding
    if not fixed:
        return {}
    found = relax.Var("found", relax.TupleType([var.ty for var in fixed]))
    block = relax.DataflowBlock([*fixed.values(), relax.VarBinding(found, relax.Tuple(list(fixed)))])
    alone = relax.Function([], relax.SeqExpr([block], found), found.ty)
    module = tvm.IRModule({"main": alone.with_attr("global_symbol", "main")})
    for each in (relax.transform.LegalizeOps(), relax.transform.FoldConstant()):
        module = each(module)
    values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    fields = next(value.fields for value in reversed(values) if isinstance(value, relax.Tuple))
    known = {binding.var: binding.value for block in module["main"].body.blocks for binding in block.bindings}
    computed = zip(fixed, (known.get(field, field) for field in fields), strict=True)
    return {var: value for var, value in computed if isinstance(value, tvm.ir.GenericConst)}


def without_masks(module: Any) -> Any:
    """Drop masks of zeros that are added to attention scores.  (A bias of zeros stays: trained ones are not zero.)"""
    relax, dpl = relax_and_patterns()
    scores, mask = dpl.wildcard(), dpl.is_const()
    added = dpl.is_op("relax.add")(scores, mask)

    def unmasked(call: Any, matched: Any) -> Any:
        zeros = not matched[mask].value.numpy().any()
        same = _shape(matched[scores]) == _shape(matched[added])
        return relax.Call(call.op, [matched[scores], *call.args[1:]], call.attrs) if zeros and same else call

    module = rewritten(module, dpl.is_op("relax.nn.softmax")(added), unmasked)
    return rewritten(module, dpl.is_op("relax.equal")(added, dpl.wildcard()), unmasked)


def without_checks_of_masks(module: Any) -> Any:
    """Drop attention's check for rows whose scores are all -inf, which get zeros, where there is no mask or a constant one leaves a score
    in each row.

    Outputs differ only if scores themselves overflow to -inf.  A check for other scores, or one that gives such rows something else, stays.
    """
    relax, dpl = relax_and_patterns()
    product = dpl.is_op("relax.matmul")(dpl.wildcard(), dpl.wildcard())
    plain = product | dpl.is_op("relax.reshape")(product, dpl.wildcard())
    mask, missing, filling = dpl.is_const(), dpl.is_const(), dpl.is_const()
    for scores, masked in ((plain, False), (dpl.is_op("relax.add")(plain, mask), True)):
        softmax = dpl.is_op("relax.nn.softmax")(scores)
        there = dpl.is_op("relax.logical_not")(dpl.is_op("relax.equal")(scores, missing))
        any_there = dpl.is_op("relax.max")(dpl.is_op("relax.astype")(there))
        none_there = dpl.is_op("relax.logical_not")(dpl.is_op("relax.astype")(any_there))
        checked = dpl.is_op("relax.where")(none_there, dpl.is_op("relax.full_like")(softmax, filling), softmax)

        def unchecked(call: Any, matched: Any, softmax: Any = softmax, masked: bool = masked) -> Any:
            if not np.isneginf(matched[missing].value.numpy()).all() or matched[filling].value.numpy().any():
                return call
            if masked and not (matched[mask].value.numpy() > -np.inf).any(axis=-1).all():
                return call
            return matched[softmax]

        module = rewritten(module, checked, unchecked)
    return module


def reshapes_behind(module: Any) -> Any:
    """Move reshapes that only add a leading 1 behind operators that ignore it, until they meet a reshape that removes it."""
    before = None
    while (now := structural_key(module)) != before:
        before = now
        for each in (_merged, _behind_unary, _behind_binary, _behind_last_axis):
            module = each(module)
        module = load_tvm().relax.transform.DeadCodeElimination()(module)
    return module


def _merged(module: Any) -> Any:
    """Merge a reshape of a reshape into one; drop reshapes and broadcasts that change nothing."""
    relax, dpl = relax_and_patterns()
    inner = dpl.is_op("relax.reshape")(dpl.wildcard(), dpl.wildcard())

    def merged(call: Any, matched: Any) -> Any:
        return relax.op.reshape(matched[inner].args[0], call.args[1])

    def gone(call: Any, _: Any) -> Any:
        return call.args[0] if _shape(call) is not None and _shape(call) == _shape(call.args[0]) else call

    module = rewritten(module, dpl.is_op("relax.reshape")(inner, dpl.wildcard()), merged)
    for name in ("relax.reshape", "relax.broadcast_to"):
        module = rewritten(module, dpl.is_op(name)(dpl.wildcard(), dpl.wildcard()), gone)
    return module


def _behind_unary(module: Any) -> Any:
    relax, dpl = relax_and_patterns()
    for name in UNARY:
        inner = dpl.is_op("relax.reshape")(dpl.wildcard(), dpl.wildcard())

        def moved(call: Any, matched: Any, inner: Any = inner) -> Any:
            given = _without_leading_one(matched[inner])
            return call if given is None else relax.op.reshape(relax.Call(call.op, [given], call.attrs), _shape(call))

        module = rewritten(module, dpl.is_op(name)(inner), moved)
    return module


def _behind_binary(module: Any) -> Any:
    relax, dpl = relax_and_patterns()
    for name in BINARY:
        for place in (0, 1):
            inner, beside = dpl.is_op("relax.reshape")(dpl.wildcard(), dpl.wildcard()), dpl.wildcard()
            both = (inner, beside) if place == 0 else (beside, inner)

            def moved(call: Any, matched: Any, inner: Any = inner, beside: Any = beside, place: int = place) -> Any:
                given, shape = _without_leading_one(matched[inner]), _shape(call)
                other = matched[beside]  # by pattern, not position: a commutative operator's arguments match in either order
                if given is None or _shape(other) is None or shape != _shape(matched[inner]):
                    return call
                if len(_shape(other)) == len(shape):
                    other = _squeezed(other, _shape(other)[1:])
                pair = [given, other] if place == 0 else [other, given]
                return relax.op.reshape(relax.Call(call.op, pair, call.attrs), shape)

            module = rewritten(module, dpl.is_op(name)(*both), moved)
    return module


def _behind_last_axis(module: Any) -> Any:
    """Move reshapes behind operators along the last axis alone; exporters name that axis -1."""
    relax, dpl = relax_and_patterns()
    for name, (attribute, last, parameters) in ALONG_LAST.items():
        inner = dpl.is_op("relax.reshape")(dpl.wildcard(), dpl.wildcard())

        def moved(call: Any, matched: Any, inner: Any = inner, attribute: str = attribute, last: Any = last) -> Any:
            given, axes = _without_leading_one(matched[inner]), getattr(call.attrs, attribute)
            if given is None or not _shape(given) or (int(axes) if last == -1 else [int(axis) for axis in axes]) != last:
                return call
            return relax.op.reshape(relax.Call(call.op, [given, *call.args[1:]], call.attrs), _shape(call))

        module = rewritten(module, dpl.is_op(name)(inner, *(dpl.wildcard() for _ in range(parameters))), moved)
    return module


@dataclass(frozen=True)
class _Product:
    """``biased`` = ``given`` @ weight + bias; nothing else uses the ``product``."""

    given: Any
    weight: np.ndarray
    bias: np.ndarray
    product: Any
    biased: Any


def combine_products(module: Any) -> Any:
    """Combine products of one matrix with several constant ones, each plus a bias, into one product and slices: attention's three.

    A slice costs no pass of its own where its user only moves data or works element by element.  TVM's
    CombineParallelMatmul does not look at constants.
    """
    relax = load_tvm().relax
    for name, function in list(module.functions.items()):
        if isinstance(function, relax.Function):
            blocks = [_combined(block) for block in function.body.blocks]
            body = relax.SeqExpr(blocks, function.body.body)
            module.update_func(name, relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs))
    return module


def _combined(block: Any) -> Any:
    relax, products = load_tvm().relax, {}
    for product in _products(block):
        products.setdefault(product.given, []).append(product)
    groups = [group for group in products.values() if len(group) > 1]
    first = {group[0].product: group for group in groups}
    gone = {var for group in groups for each in group for var in (each.product, each.biased)}
    bindings: list[Any] = []
    for binding in block.bindings:
        if binding.var in first:
            bindings += _one_product(first[binding.var])
        elif binding.var not in gone:
            bindings.append(binding)
    return relax.DataflowBlock(bindings) if isinstance(block, relax.DataflowBlock) else relax.BindingBlock(bindings)


def _products(block: Any) -> Iterator[_Product]:
    tvm = load_tvm()
    relax, constant, bindings = tvm.relax, tvm.ir.GenericConst, block.bindings
    calls = {b.var: b.value for b in bindings if isinstance(b, relax.VarBinding) and isinstance(b.value, relax.Call)}
    uses = Counter(var for binding in bindings for var in relax.analysis.free_vars(binding.value))
    is_op = lambda call, name: getattr(call.op, "name", None) == name  # noqa: E731
    for biased, call in calls.items():
        if not is_op(call, "relax.add") or not isinstance(biased, relax.DataflowVar):
            continue
        for product, bias in (call.args, reversed(call.args)):
            made = calls.get(product)
            if made is None or not isinstance(bias, constant) or uses[product] != 1 or not is_op(made, "relax.matmul"):
                continue
            given, weight = made.args
            widths = [1] * (len(_shape(bias) or ()) - 1) + [(_shape(product) or [0])[-1]]
            fits = _shape(bias) == widths and len(widths) <= len(_shape(product) or ())
            if isinstance(given, relax.Var) and isinstance(weight, constant) and len(_shape(weight)) == 2 and fits:
                yield _Product(given, weight.value.numpy(), bias.value.numpy().reshape(-1), product, biased)


def _one_product(group: Sequence[_Product]) -> list[Any]:
    """Bindings of the product with all weights side by side, and of each product's slice to its old variable."""
    relax = load_tvm().relax
    builder = relax.BlockBuilder()
    weight, bias = (np.concatenate(parts, axis=-1) for parts in zip(*((each.weight, each.bias) for each in group), strict=True))
    product = builder.normalize(relax.op.matmul(group[0].given, relax.const(weight)))
    made = relax.DataflowVar("products", product.ty)
    added = builder.normalize(relax.op.add(made, relax.const(bias)))
    biased = relax.DataflowVar("biased", added.ty)
    bindings, end = [relax.VarBinding(made, product), relax.VarBinding(biased, added)], 0
    for each in group:
        begin, end = end, end + len(each.bias)
        piece = builder.normalize(relax.op.strided_slice(biased, [len(_shape(biased)) - 1], [begin], [end]))
        bindings.append(relax.VarBinding(each.biased, piece))
    return bindings


def _without_leading_one(reshape: Any) -> Any:
    """The reshape's input, if the reshape only adds a leading 1; else None."""
    before, after = _shape(reshape.args[0]), _shape(reshape)
    return reshape.args[0] if before is not None and after == [1, *before] else None


def _squeezed(given: Any, shape: list[int]) -> Any:
    relax, _ = relax_and_patterns()
    if isinstance(given, load_tvm().ir.GenericConst):
        return relax.const(given.value.numpy().reshape(shape), given.ty.dtype)
    return relax.op.reshape(given, shape)


def _shape(given: Any) -> list[int] | None:
    """The extents of a tensor, None where they are not known."""
    values = getattr(getattr(given.ty, "shape", None), "values", None)
    return None if values is None else [int(extent) for extent in values]
