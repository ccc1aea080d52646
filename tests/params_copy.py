"""A copy of params.yaml and its profiles that a test may change, and what is said of a wrong one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tcl_core.errors import UsageError
from tcl_core.params import load_params
from tcl_core.profiles import apply_profile
from tests.shipped import SHIPPED

ROOT = Path(__file__).parent.parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of params.yaml and its profiles, with the default profile's values; the path of the copy."""
    shutil.copy(SHIPPED, tmp_path)
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    apply_profile("default", tmp_path / "params.yaml")
    return tmp_path / "params.yaml"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    path.write_text(text.replace(old, new))


def error_of(path: Path) -> str:
    with pytest.raises(UsageError) as raised:
        load_params(path)
    message = str(raised.value)
    assert "\n" not in message and str(path) in message
    return message
