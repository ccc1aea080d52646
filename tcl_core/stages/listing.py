"""`tcl platforms`; needs no compiler and no data, so it answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tcl_core import sandbox
from tcl_core.errors import PlatformError
from tcl_core.measure.tracker import NONE, list_devices
from tcl_core.params import Platform
from tcl_core.platforms import Ask, kind_of
from tcl_core.stages.machine import measured_bandwidth
from tcl_core.stages.workspace import Workspace

RUNS = "runs here"
BANDWIDTH = "bandwidth_gbs"


def list_platforms(workspace: Workspace) -> dict[str, Any]:
    """The chain's platforms and whether this machine can run each, the hardware vector of the last that it can run, and how
    work on untrusted programs and files is confined; for JSON and ``platforms_text``.  The memory's bandwidth is 0 until it was measured.
    """
    params, rows, last = workspace.params, [], None
    for name in params.chain_order:
        spec = params.platforms[name]
        status = _status(spec, params.candidates.design_space)
        runs = status == RUNS
        rows.append({
            "platform": name, "hardware": kind_of(spec).shown_as(spec, runs), "from": params.previous(name), "runs_here": runs, "status": status,
        })  # fmt: skip
        last = name if runs else last
    if last is None:
        return {"platforms": rows, "hardware": None, **_confinement()}
    spec = params.platforms[last]
    vector = {
        "platform": last,
        "vector": asdict(kind_of(spec).find(spec, Ask(lambda: measured_bandwidth(workspace) or 0.0, dict)).hardware),
    }
    return {"platforms": rows, "hardware": vector, **_confinement()}


def platforms_text(listed: Mapping[str, Any]) -> str:
    """What ``list_platforms`` found, the platforms as a table."""
    lines = [f"{'platform':14s} {'hardware':16s} {'from':14s} status"]
    lines += [f"{row['platform']:14s} {row['hardware']:16s} {row['from'] or '-':14s} {row['status']}" for row in listed["platforms"]]
    if listed["hardware"]:
        name, fields = listed["hardware"]["platform"], listed["hardware"]["vector"]
        known = ", ".join(f"{field} {value:g}" for field, value in fields.items() if value)
        known += "" if fields.get(BANDWIDTH, 1.0) else f", {BANDWIDTH} not measured yet"
        unknown = ", ".join(field for field, value in fields.items() if not value and field != BANDWIDTH)
        lines += ["", f"hardware of {name}: {known}"]
        lines += [f"unknown here (platforms.{name}.hardware of params.yaml can say): {unknown}"] if unknown else []
    return "\n".join([*lines, "", f"what cannot be trusted runs {_confined_text(listed)}"])


def _confinement() -> dict[str, list[str]]:
    held = sandbox.barriers()
    return {"confined_in": list(held), "not_confined_in": [name for name in sandbox.BARRIERS if name not in held]}


def _confined_text(listed: Mapping[str, Any]) -> str:
    held, missing = listed["confined_in"], listed["not_confined_in"]
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
