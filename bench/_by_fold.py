"""Comparisons that learn without a group of training networks at a time: their command line, and the units that are kept.

A *unit* is all rows of one fold and seed.  What was computed with the same code and data is not computed again.
"""

from __future__ import annotations

import json
import math
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from _tables import Quick, arguments, into_document, result_file, save

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import torch
from _identity import code_identity
from _transfer_data import FOLDS

from tcl_core.errors import TclError
from tcl_core.progress import progress
from tcl_core.reference import Reference


def begin(description: str, run: Callable[[Namespace], None], seeds: int, quick: str = "one fold, one seed") -> None:
    """Read the command line and ``run``; a TclError ends the command with its sentence.

    ``seeds``  of each fold unless told otherwise;  ``quick``  what --quick computes.  The small forms have one fold and one seed.
    """
    parser = arguments(description)
    parser.add_argument("--quick", action=Quick, help=quick)
    parser.add_argument(
        "--folds", type=int, choices=range(1, len(FOLDS) + 1), default=len(FOLDS), help=f"groups of networks ({len(FOLDS)})"
    )
    parser.add_argument("--seeds", type=int, choices=range(1, 51), metavar="N", default=seeds, help=f"of each fold ({seeds})")
    parser.add_argument("--threads", type=int, default=2, help="of training (2)")
    parser.add_argument("--force", action="store_true", help="compute all anew")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no unit after that")
    given = parser.parse_args()
    if given.quick or given.smallest:
        given.folds = given.seeds = 1
    torch.set_num_threads(given.threads)
    try:
        run(given)
    except TclError as error:
        sys.exit(f"{parser.prog.removesuffix('.py')}: {error}")


def identity(script: str, modules: Sequence[str], sets: Iterable[Reference], *more: str) -> str:
    """Of the code of a script and of what it and these modules of tcl_core need, of the data sets, and of whatever ``more`` decides."""
    return "-".join([code_identity(modules, [script]), *(store.data_digest(each.folder)[:12] for each in sets), *more])


def compute(
    name: str,
    given: Namespace,
    identity: str,
    units: Mapping[str, Callable[[], Any]],
    summary: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    table: Callable[[Mapping[str, Any]], str],
) -> None:
    """Compute the units that are not kept, each for itself, and save after each; then print the table, into the document too where it is of
    all units: until then the summary that is saved, like the document's table, is that of the last whole run.

    ``units``  name -> what computes it.  ``summary`` gets what they say by name, as JSON has it, and ``table`` the summary.
    """
    file, command = result_file(f"{name}.json"), f"python bench/{name}.py" + " --quick" * given.quick
    before = json.loads(file.read_text()) if file.exists() else {}
    known = before["units"] if before.get("identity") == identity and not given.force else {}
    until = time.monotonic() + 60 * given.minutes
    whole = lambda: units.keys() <= known.keys()  # noqa: E731
    with progress("learning", len(units)) as shown:
        for unit, made in units.items():
            if unit not in known and time.monotonic() < until:
                known[unit] = json.loads(json.dumps(made()))
                said = summary(known) if whole() or not before.get("summary") else before["summary"]
                save(name, {"identity": identity, "summary": said, "units": known}, command)
            shown.advance(unit)
    if known:  # --minutes 0 begins none
        text = table(summary(known))
        print(text)
        if whole():
            into_document(name, text)
        else:
            print(f"of {len(known)} of {len(units)} units; rerun the same command for the others")
