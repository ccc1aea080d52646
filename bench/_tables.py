"""What the comparisons share: results as JSON beside the code, tables on the terminal and in the documents.

Each has a smallest form, ``python bench/NAME.py --smallest``: a few programs, an epoch or two, everything once.  It shows that
the comparison runs to its end; its figures mean nothing, so they go to another folder and no document is written.  Where the
documents show more than ``--quick`` computes, that form, too, has a results file of its own and writes no document (``Quick``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scipy.stats import t

from tcl_core.files import replacing
from tcl_core.platforms import host_fingerprint

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
APART = "TCL_BENCH_RESULTS"  # environment variable that names the folder of the smallest forms' results


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and its 95 % interval by Student's t, over at least two seeds."""
    mean = statistics.fmean(values)
    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


_apart: Path | None = None  # that folder, once --smallest is parsed
_quick = False  # whether a ``Quick`` was parsed


class _Smallest(argparse.Action):
    def __call__(self, parser: object, namespace: argparse.Namespace, *_: object) -> None:
        global _apart
        _apart = Path(os.environ.get(APART) or tempfile.mkdtemp(prefix="tcl-bench-")).resolve()
        namespace.smallest = True


class Quick(argparse.Action):
    """Action of a ``--quick`` whose results go to a file of their own: ``add_argument("--quick", action=Quick, help=...)``."""

    def __init__(self, *names: Any, **options: Any) -> None:
        super().__init__(*names, nargs=0, default=False, **options)

    def __call__(self, parser: object, namespace: argparse.Namespace, *_: object) -> None:
        global _quick
        _quick = namespace.quick = True


def arguments(description: str) -> argparse.ArgumentParser:
    """Parser of a comparison's command line, so far with --smallest only."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    said = f"all of it once, with next to no data, to see that it runs; results go to ${APART} or a temporary folder"
    parser.add_argument("--smallest", action=_Smallest, nargs=0, default=False, help=said)
    return parser


def result_file(name: str) -> Path:
    """``bench/results/NAME``, with ``_quick`` added to its stem after ``Quick``; for the smallest form in that form's folder."""
    path = (_apart or RESULTS) / name
    return path.with_stem(f"{path.stem}_quick") if _quick else path


def save(name: str, result: dict[str, Any], command: str) -> None:
    """Write ``bench/results/NAME.json`` with the command, the machine and the day."""
    path = result_file(f"{name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"command": command, "host": host_fingerprint(), "python": platform.python_version()}
    day = datetime.now(UTC).date().isoformat()
    text = json.dumps({**about, "date": day, **result}, indent=2)
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)  # innermost lists on one line each
    with replacing(path) as file:
        file.write((text + "\n").encode())


class Results:
    """Published results of a comparison, and those that a run with other code or data has begun.

    What is begun lies beside them, in ``NAME_begun.json``, until it has every unit that is published; then it takes their place.  So
    a run that ends early replaces no table.
    """

    def __init__(self, name: str, units: Callable[[Mapping[str, Any]], Collection[Any]]) -> None:
        """``units`` gives the names of the units in results."""
        self._name, self._units = name, units

    def of(self, identity: object) -> dict[str, Any]:
        """What is begun or published with this ``identity`` (a key of results); {} if nothing is."""
        return next((found for found in (self.begun(), self.published()) if found.get("identity") == identity), {})

    def published(self) -> dict[str, Any]:
        return self._read(self._name)

    def begun(self) -> dict[str, Any]:
        return self._read(self._begun)

    def _read(self, name: str) -> dict[str, Any]:
        file = result_file(f"{name}.json")
        return json.loads(file.read_text()) if file.exists() else {}

    def save(self, result: dict[str, Any], command: str, complete: bool | None = None) -> bool:
        """Publish results if they have all published units, else keep them as begun; return whether they are published.

        ``complete``: whether all units of a plan are there; until then nothing is published, and then also what has units of other
        names, if those are no fewer.
        """
        shown, mine = self.published(), self._units(result)
        theirs = self._units(shown) if shown else ()
        covers = set(theirs) <= set(mine)
        publishes = covers if complete is None else complete and (covers or len(mine) >= len(theirs))
        save(self._name if publishes else self._begun, result, command)
        if publishes:
            result_file(f"{self._begun}.json").unlink(missing_ok=True)
        return publishes

    @property
    def _begun(self) -> str:
        return f"{self._name}_begun"


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def into_document(name: str, text: str) -> None:
    """Put ``text`` between the markers of ``name`` in the README or in a page of docs/, except in the small forms.

    Raises ValueError where no document has the markers.
    """
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        written, count = pattern.subn(lambda _: f"{start}\n{text}\n{end}", document.read_text())
        if count:
            if _apart is None and not _quick:
                document.write_text(written)
            return
    raise ValueError(f"no document has {start} ... {end} for the table")
