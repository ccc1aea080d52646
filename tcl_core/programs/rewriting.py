"""Rewriting the operators of a Relax module by patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tcl_core.compat import load_tvm


def relax_and_patterns() -> tuple[Any, Any]:
    """``tvm.relax`` and its language of patterns, loaded when first needed."""
    relax = load_tvm().relax
    from tvm.relax import dpl

    return relax, dpl


def as_always(name: str, builder: Any, call: Any) -> Any:
    """The call as TVM's own ``LegalizeOps`` legalizes it."""
    return load_tvm().ir.Op.get(name).get_attr("FLegalize")(builder, call)


def rewritten(module: Any, pattern: Any, function: Callable[[Any, Any], Any]) -> Any:
    """A copy of the module with each call that the pattern matches replaced by ``function(call, matched)``."""
    relax, dpl = relax_and_patterns()
    # ``function`` may return a variable bound to a call, through which the pattern then matches once more.
    of_call = lambda call, matched: function(call, matched) if isinstance(call, relax.Call) else call  # noqa: E731
    module = module.clone() if hasattr(module, "clone") else load_tvm().IRModule(module.functions, attrs=module.attrs)
    for name, found in list(module.functions.items()):
        if isinstance(found, relax.Function):
            module.update_func(name, dpl.rewrite_call(pattern, of_call, found))
    return module
