"""params.yaml as it is shipped: how a user trains, what he lists beside it, and a profile that he applied change his runs and no test."""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
EDITED = ("train", "bridge", "distill", "baselines", "candidates", "measure", "tune")  # sections; the last ones are of profiles


def _shipped(file: Path) -> Path:
    """The file itself, or a copy in which those sections have the last commit's values, if their keys are still the same."""
    committed = subprocess.run(["git", "show", f"HEAD:{file.name}"], cwd=file.parent, capture_output=True, text=True)
    text = now = file.read_text()
    for section in EDITED if committed.returncode == 0 else ():
        mine, theirs = _section(now, section), _section(committed.stdout, section)
        if _keys(mine) == _keys(theirs):
            text = text.replace(mine, theirs)
    if text == now:
        return file
    folder = Path(tempfile.mkdtemp(prefix="tcl-shipped-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / file.name
    copy.write_text(text)
    return copy


def _section(text: str, name: str) -> str:
    found = re.search(rf"^{name}:.*?(?=^\w)", text, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def _keys(section: str) -> list[str]:
    return [key for values in (YAML(typ="safe").load(section) or {}).values() for key in values]


SHIPPED = _shipped(ROOT / "params.yaml")
