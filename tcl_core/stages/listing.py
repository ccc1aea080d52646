"""`tcl platforms`: needs no compiler and no data, so that it answers at once."""

from __future__ import annotations

from dataclasses import asdict

from tcl_core.params import Params
from tcl_core.platforms import read_hardware, why_not


def list_platforms(params: Params) -> str:
    """The chain's platforms, whether this machine can run them, and their hardware vectors."""
    lines = [f"{'platform':14s} {'LLVM CPU':16s} {'from':14s} status"]
    runnable = []
    for name in params.chain_order:
        spec = params.platforms[name]
        reason = why_not(spec.mcpu)
        lines.append(f"{name:14s} {spec.mcpu:16s} {params.previous(name) or '-':14s} {reason or 'runs here'}")
        runnable += [] if reason else [(name, spec)]
    if runnable:
        name, spec = runnable[-1]
        fields = asdict(read_hardware(spec.mcpu, spec.hardware))
        known = ", ".join(f"{field} {value:g}" for field, value in fields.items() if value)
        unknown = ", ".join(field for field, value in fields.items() if not value)
        lines += ["", f"hardware of {name}: {known}"]
        lines += [f"unknown here (platforms.{name}.hardware of params.yaml can say): {unknown}"] if unknown else []
    return "\n".join(lines)
