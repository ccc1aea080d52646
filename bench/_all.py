"""Run every comparison in turn, as `make bench` does; those already done with this code are skipped.

    python bench/_all.py [NAME ...] [--quick] [--minutes M] [--force] [--list]

A stopped comparison resumes if its own help says so, else it starts over.  The durations are kept in bench/results/seconds.json; --list
shows them and runs nothing.  Exits with 1 if a comparison failed, after running all others.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _tables import RESULTS, ROOT, markdown

from tcl_core.checked import AGAIN, read_json, running_code, write_json
from tcl_core.errors import TclError, unknown_name
from tcl_core.platforms import host_fingerprint

BENCH = Path(__file__).resolve().parent
SECONDS = RESULTS / "seconds.json"
WITHOUT = ("reference", "searched")  # not run here: they take hours to measure the data that others read
LAST = ("gate", "scale")  # these read the others' results
SHARED = (*BENCH.glob("_*.py"), *(ROOT / "tcl_core").rglob("*.py"))


def names() -> list[str]:
    """Names of the comparisons, in the order in which they run."""
    found = sorted(path.stem for path in BENCH.glob("[!_]*.py") if path.stem not in (*WITHOUT, *LAST))
    return [*found, *LAST]


def code_of(name: str) -> str:
    """Digest of a comparison's code and of the code that all comparisons share."""
    digest = hashlib.sha256()
    for path in sorted((BENCH / f"{name}.py", *SHARED)):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0{running_code(path.read_text(encoding='utf-8'))}".encode())
    return digest.hexdigest()[:16]


def known() -> dict[str, dict[str, Any]]:
    """Comparison (quick form: "NAME, quick") -> seconds, date, host, code, done.  Raises DataError where the file is damaged."""
    try:
        return read_json(SECONDS, AGAIN)["runs"]
    except FileNotFoundError:
        return {}


def run(name: str, quick: bool) -> bool:
    """Run a comparison and record how long it took; return whether it succeeded."""
    start, command = time.monotonic(), [sys.executable, str(BENCH / f"{name}.py"), *["--quick"] * quick]
    print(f"--- {name}{' --quick' * quick}", flush=True)
    ended = subprocess.run(command, cwd=ROOT).returncode
    about = {"date": datetime.now(UTC).date().isoformat(), "host": host_fingerprint(), "code": code_of(name), "done": ended == 0}
    write_json(SECONDS, {"runs": known() | {_key(name, quick): {"seconds": round(time.monotonic() - start), **about}}})
    return ended == 0


def is_done(name: str, quick: bool) -> bool:
    """Whether this host has completed it with this code."""
    entry = known().get(_key(name, quick), {})
    return bool(entry.get("done")) and (entry["host"], entry["code"]) == (host_fingerprint(), code_of(name))


def _key(name: str, quick: bool) -> str:
    return f"{name}, quick" if quick else name


def table(chosen: Iterable[str]) -> str:
    """A row for each comparison, a dash where it never ran."""
    runs = known()

    def shown(key: str) -> str:
        run = runs.get(key)
        return "-" if run is None else f"{run['seconds'] / 60:.1f} min, {run['date']}{'' if run['done'] else ', failed'}"

    return markdown(["comparison", "whole", "quick"], [[name, shown(name), shown(_key(name, True))] for name in chosen])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--quick", action="store_true", help="each in its quick form, of at most ten minutes")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after that")
    parser.add_argument("--force", action="store_true", help="also what was done with this code")
    parser.add_argument("--list", action="store_true", help="how long each took; runs none")
    given = parser.parse_args()
    try:
        for name in given.names:
            if name not in names():
                raise unknown_name("comparison", name, names(), "bench/")
        chosen = [name for name in names() if name in (given.names or names())]
        if given.list:
            print(table(chosen))
            return
        todo = [name for name in chosen if given.force or not is_done(name, given.quick)]
    except TclError as error:
        sys.exit(f"bench: {error}")
    until, failed = time.monotonic() + 60 * given.minutes, []
    for place, name in enumerate(todo):
        if time.monotonic() > until:
            print(f"left for the same command: {', '.join(todo[place:])}")
            break
        failed += [] if run(name, given.quick) else [name]
    if failed:
        sys.exit(f"bench: {', '.join(failed)} failed; what was said stands above")


if __name__ == "__main__":
    main()
