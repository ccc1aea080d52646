"""Methods for learning the next platform of a chain, by name; ``params.METHODS`` lists them, each imported on first use."""

from __future__ import annotations

import importlib

from tcl_core.chain.method import Method
from tcl_core.errors import unknown_name
from tcl_core.params import METHODS


def named(method: str) -> Method:
    """A method by name.  Raises UsageError that names the nearest known one."""
    if method not in METHODS:
        raise unknown_name("method", method, METHODS, "distill.method of params.yaml")
    module, _, name = METHODS[method].partition(":")
    return getattr(importlib.import_module(module), name)()
