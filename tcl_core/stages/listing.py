"""`tcl platforms`: needs no compiler and no data, so that it answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tcl_core import sandbox
from tcl_core.errors import PlatformError
from tcl_core.gpu import GpuHardware, read_gpu, read_gpu_hardware, why_no_gpu
from tcl_core.measure.tracker import NONE, list_devices
from tcl_core.params import Params, Platform, parse_address
from tcl_core.platforms import Hardware, read_hardware, why_not


RUNS = "runs here"


def list_platforms(params: Params) -> dict[str, Any]:
    """The chain's platforms and whether this machine can run them, the hardware vector of the last that it can, and how it is
    confined what cannot be trusted; for JSON and ``platforms_text``.
    """
    rows, last = [], None
    for name in params.chain_order:
        spec = params.platforms[name]
        status = _status(spec, params.candidates.design_space)
        runs = status == RUNS
        rows.append({
            "platform": name, "hardware": _hardware_name(spec, status), "from": params.previous(name), "runs_here": runs, "status": status,
        })  # fmt: skip
        last = name if runs else last
    vector = {"platform": last, "vector": asdict(_hardware(params.platforms[last]))} if last else None
    return {"platforms": rows, "hardware": vector, **_confinement()}


def platforms_text(listed: Mapping[str, Any]) -> str:
    """As a table, with the hardware vector of the last platform that runs here."""
    lines = [f"{'platform':14s} {'hardware':16s} {'from':14s} status"]
    lines += [f"{row['platform']:14s} {row['hardware']:16s} {row['from'] or '-':14s} {row['status']}" for row in listed["platforms"]]
    if listed["hardware"]:
        name, fields = listed["hardware"]["platform"], listed["hardware"]["vector"]
        known = ", ".join(f"{field} {value:g}" for field, value in fields.items() if value)
        unknown = ", ".join(field for field, value in fields.items() if not value)
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
    if spec.kind == "rpc":
        return _devices(spec)
    return (why_no_gpu(design_space) if spec.kind == "cuda" else why_not(spec.mcpu)) or RUNS


def _devices(spec: Platform) -> str:
    try:
        listed = list_devices(*parse_address(spec.tracker, "tracker")).get(spec.key, NONE)
    except PlatformError as error:
        return str(error)
    return f"{listed.servers} devices of key '{spec.key}' at {spec.tracker}, {listed.free} free"


def _hardware_name(spec: Platform, status: str) -> str:
    """The LLVM CPU name, or the GPU's name where there is one."""
    if spec.kind != "cuda":
        return spec.mcpu
    return read_gpu().name if status == RUNS else "GPU"


def _hardware(spec: Platform) -> Hardware | GpuHardware:
    return read_gpu_hardware(spec.hardware) if spec.kind == "cuda" else read_hardware(spec.mcpu, spec.hardware)
