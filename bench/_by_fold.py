"""Comparisons by grouped cross-validation, each fold without a group of training networks: command line and stored units.

A *unit* is all rows of one fold and seed.  Units computed with the same code and data are not computed again.
"""

from __future__ import annotations

import json
import math
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from _tables import Quick, Results, arguments, into_document

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import torch
from _identity import code_identity
from _transfer_data import FOLDS

from tcl_core.errors import TclError
from tcl_core.progress import progress
from tcl_core.reference import Reference


def begin(description: str, run: Callable[[Namespace], None], seeds: int, quick: str = "one fold, one seed") -> None:
    """Parse the command line and call ``run``; a TclError exits with its message.

    ``seeds``  default number for each fold;  ``quick``  help text of --quick.  The small forms have one fold and one seed.
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
    usual = {"folds": len(FOLDS), "seeds": seeds}
    given.sizes = (
        "" if given.quick else "".join(f" --{name} {getattr(given, name)}" for name in usual if getattr(given, name) != usual[name])
    )
    torch.set_num_threads(given.threads)
    try:
        run(given)
    except TclError as error:
        sys.exit(f"{parser.prog.removesuffix('.py')}: {error}")


def identity(script: str, modules: Sequence[str], sets: Iterable[Reference], *more: str) -> str:
    """Identity of the code (the script, these tcl_core modules, and what they import), of the data sets, and of ``more``."""
    return "-".join([code_identity(modules, [script]), *(store.data_digest(each.folder)[:12] for each in sets), *more])


def compute(
    name: str,
    given: Namespace,
    identity: str,
    units: Mapping[str, Callable[[], Any]],
    summary: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    table: Callable[[Mapping[str, Any]], str],
) -> None:
    """Compute the missing units, saving after each, then print the table.

    Results are published, and the table goes into the document, once all units are there (``Results``).

    ``units``  name -> its computation;  ``summary``  takes the units' results by name, as read from JSON;  ``table``  takes the summary.
    """
    results, command = Results(name, lambda found: found["units"]), f"python bench/{name}.py{' --quick' * given.quick}{given.sizes}"
    known = {} if given.force else results.of(identity).get("units", {})
    until, whole = time.monotonic() + 60 * given.minutes, lambda: units.keys() <= known.keys()
    published = whole() and results.published().get("identity") == identity
    with progress("learning", len(units)) as shown:
        for unit, made in units.items():
            if unit not in known and time.monotonic() < until:
                known[unit] = json.loads(json.dumps(made()))
                published = results.save({"identity": identity, "summary": summary(known), "units": known}, command, whole())
            shown.advance(unit)
    if known:  # --minutes 0 begins none
        text = table(summary(known))
        print(text)
        if published:
            into_document(name, text)
        elif whole():
            print("not published, for what is published has more units")
        else:
            print(f"of {len(known)} of {len(units)} units; rerun the same command for the others")
