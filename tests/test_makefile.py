"""The Makefiles: of the repository and of a project of one's own."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAKEFILES = {"the repository": ROOT / "Makefile", "a project": ROOT / "tcl_core" / "package_data" / "project" / "Makefile"}


@pytest.mark.parametrize("whose", MAKEFILES)
def test_a_folder_whose_name_has_a_space_is_one_word(whose, tmp_path):
    folder = tmp_path / "My Projects"
    folder.mkdir()
    shutil.copy(MAKEFILES[whose], folder / "Makefile")
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).touch()
    goals = ["ui", *(["setup"] if whose == "the repository" else [])]
    # A make that runs the tests would make this one say which folder it enters.
    done = subprocess.run(["make", "-n", "--no-print-directory", *goals], cwd=folder, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert str(folder) in done.stdout
    assert str(folder) not in re.sub(r'"[^"\n]*"', "", done.stdout)  # but within quotes
