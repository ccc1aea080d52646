"""The log of ranking the sealed networks, on which nothing is chosen: it takes committed code and a stated reason."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime

from _tables import ROOT

from tcl_core.errors import UsageError

LOG = ROOT / "bench" / "sealed.md"
NONE = "| not yet | | | |\n"
FROZEN = "tcl_core", "bench/*.py", "params.yaml"  # what models and their settings are made of


def opened(command: str, why: str | None) -> None:
    """Add a line to the log.  Raises UsageError without a reason, or where the code or settings have uncommitted changes."""
    if not why:
        raise UsageError("the sealed networks are ranked once per release; say why with --why TEXT, which bench/sealed.md keeps")
    if changed := _git("status", "--porcelain", "--", *FROZEN):
        raise UsageError(f"the sealed networks are ranked with what is committed, and {changed.split()[1]} is changed; commit it first")
    row = f"| {datetime.now(UTC).date()} | {_git('rev-parse', '--short', 'HEAD')} | `{command} --part sealed` | {why} |\n"
    LOG.write_text(LOG.read_text().replace(NONE, "") + row)


def _git(*words: str) -> str:
    try:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise UsageError(f"the sealed networks are ranked with what is committed, and {ROOT} is no checkout of git") from None
