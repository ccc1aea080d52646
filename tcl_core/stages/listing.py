"""`tcl platforms`: needs no compiler and no data, so that it answers at once."""

from __future__ import annotations

from dataclasses import asdict

from tcl_core import sandbox
from tcl_core.errors import PlatformError
from tcl_core.measure.tracker import NONE, list_devices
from tcl_core.params import Params, Platform
from tcl_core.platforms import Ask, copy_bandwidth_gbs, kind_of

RUNS = "runs here"


def list_platforms(params: Params) -> str:
    """The chain's platforms, whether this machine can run them, and the hardware vector of the last that it can."""
    lines = [f"{'platform':14s} {'hardware':16s} {'from':14s} status"]
    runnable = []
    for name in params.chain_order:
        spec = params.platforms[name]
        status = _status(spec, params.candidates.design_space)
        hardware = kind_of(spec).shown_as(spec, status == RUNS)
        lines.append(f"{name:14s} {hardware:16s} {params.previous(name) or '-':14s} {status}")
        runnable += [(name, spec)] if status == RUNS else []
    if runnable:
        name, spec = runnable[-1]
        fields = asdict(kind_of(spec).find(spec, Ask(copy_bandwidth_gbs, dict)).hardware)
        known = ", ".join(f"{field} {value:g}" for field, value in fields.items() if value)
        unknown = ", ".join(field for field, value in fields.items() if not value)
        lines += ["", f"hardware of {name}: {known}"]
        lines += [f"unknown here (platforms.{name}.hardware of params.yaml can say): {unknown}"] if unknown else []
    return "\n".join([*lines, "", f"what cannot be trusted runs {_confined()}"])


def _confined() -> str:
    held = sandbox.barriers()
    missing = [name for name in sandbox.BARRIERS if name not in held]
    if not held:
        return "with all rights of this user (docs/security.md)"
    return f"confined in {', '.join(held)}" + (f"; not in {', '.join(missing)} (docs/security.md)" if missing else "")


def _status(spec: Platform, design_space: str) -> str:
    if behind := kind_of(spec).behind(spec):
        return _devices(*behind)
    return kind_of(spec).why_not(spec, design_space) or RUNS


def _devices(host: str, port: int, key: str) -> str:
    try:
        listed = list_devices(host, port).get(key, NONE)
    except PlatformError as error:
        return str(error)
    return f"{listed.servers} devices of key '{key}' at {host}:{port}, {listed.free} free"
