"""The report of the last tuning, read from a folder of reports; apart from the tuner, so that showing it does not load that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcl_core.checked import damaged, read_json

TUNED = "tuned.json"  # in the folder of reports


def last_tuned(reports: Path) -> dict[str, Any]:
    """What the last tuning wrote into a folder of reports; empty before the first.  Raises DataError where it is damaged."""
    again, file = "tune again: tcl tune", reports / TUNED
    try:
        found = read_json(file, again)
    except FileNotFoundError:
        return {}
    if not {"network", "platform", "untuned_ms", "tuned_ms", "pytorch_ms"} <= found.keys():
        raise damaged(file, "it is no report of tuning", again)
    return found


def tuned_text(tuned: Mapping[str, Any]) -> str:
    """One line; PyTorch's time is unknown for an ONNX file, torch.compile's for any network file."""
    pytorch = "-" if tuned["pytorch_ms"] is None else ms(tuned["pytorch_ms"])
    compiled = "" if tuned.get("compile_ms") is None else f", torch.compile {ms(tuned['compile_ms'])}"
    by = f", by {tuned['model']}" if "model" in tuned else ""
    return (
        f"{tuned['network']} on {tuned['platform']}{by}: {ms(tuned['untuned_ms'])} untuned, "
        f"{ms(tuned['tuned_ms'])} tuned, PyTorch {pytorch}{compiled}"
    )


def ms(milliseconds: float) -> str:
    """Milliseconds with two decimals, or below 1 with three significant digits."""
    return f"{milliseconds:.2f} ms" if milliseconds >= 1 else f"{milliseconds:.3g} ms"
