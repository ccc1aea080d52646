"""Records that nobody measured, and where a journal and a table of them may lie."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tcl_core.records import Record

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def record(program: int, task: str = "task-a", **changes) -> Record:
    values = dict(
        task_key=task, sketch_id=program % 3, program_id=program, decisions=(program, 2, 4),
        latencies_s=(0.5, 0.25, 1.0), error="ok", message="", round=0, protocol='{"repeats": 3}',
        measured_at=START + timedelta(seconds=program), host="cpu-1", tvm_version="0.27",
    )  # fmt: skip
    return Record(**values | changes)


FAILED = dict(latencies_s=(), error="build", message="line 1\nline 2 “quoted”")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal" / "platform=host-avx2"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return tmp_path / "data" / "records" / "platform=host-avx2"
