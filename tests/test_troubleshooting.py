"""docs/troubleshooting.md knows every sentence that ends a command, and none that is no longer said.

A sentence is read off the code: the text in the call of a TclError, with … for whatever is filled in.  A row of the page begins
with such sentences in backticks, as much of them as is needed to know them by, and the exit code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tcl_core import errors

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
GAP = "…"
SAYS_LITTLE = 8  # letters of a sentence's own: it passes on what another one said


@dataclass(frozen=True)
class Sentence:
    """``code`` None: of a child process, whatever it was."""

    text: str
    code: int | None
    place: str


def template(node: ast.expr, module: ast.Module) -> list[str]:
    """The texts that an expression may have, with … for what is filled in; functions and names of the module are looked up."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else GAP for part in node.values)]
    if isinstance(node, ast.BinOp):
        return [left + right for left in template(node.left, module) for right in template(node.right, module)]
    if isinstance(node, ast.BoolOp | ast.IfExp):
        parts = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
        return [text for part in parts for text in template(part, module)]
    if isinstance(node, ast.Call) and (name := getattr(node.func, "id", getattr(node.func, "attr", ""))):
        returned = [part.value for part in ast.walk(definition(module, name)) if isinstance(part, ast.Return) and part.value]
        return [text for value in returned for text in template(value, module)] or [GAP]
    if isinstance(node, ast.Name):
        given = [s.value for s in module.body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == node.id]
        given += [part.value for part in ast.walk(module) if isinstance(part, ast.NamedExpr) and part.target.id == node.id]
        sources = [s.module for s in module.body if isinstance(s, ast.ImportFrom) and node.id in {name.name for name in s.names}]
        elsewhere = [modules()[f"{source.replace('.', '/')}.py"] for source in sources if f"{source.replace('.', '/')}.py" in modules()]
        return (
            [text for value in given for text in template(value, module)]
            or [text for m in elsewhere for text in template(node, m)]
            or [GAP]
        )
    return [GAP]


def definition(module: ast.Module, name: str) -> ast.AST:
    found = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == name]
    return found[0] if found else ast.Module([], [])


@cache
def modules() -> dict[str, ast.Module]:
    files = sorted([*(ROOT / "tcl_core").rglob("*.py"), *(ROOT / "flows").rglob("*.py")])
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text()) for file in files}


@cache
def exit_codes() -> dict[str, int | None]:
    """Class of error -> its exit code, those that derive from others too."""
    found: dict[str, int | None] = {name: kind.exit_code for name, kind in vars(errors).items() if hasattr(kind, "exit_code")}
    for module in modules().values():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and node.bases and (base := ast.unparse(node.bases[0])) in found:
                own = any(isinstance(part, ast.Attribute) and part.attr == "exit_code" for part in ast.walk(node))
                found.setdefault(node.name, None if own else found[base])
    return found


def said(path: str, module: ast.Module, codes: dict[str, int | None]) -> Iterator[Sentence]:
    for node in ast.walk(module):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        name, place = ast.unparse(node.func).split(".")[-1], f"{path}:{node.lineno}"
        if name == "unknown_name":
            kind, known = template(node.args[0], module)[0], f" in {GAP}" if len(node.args) > 3 else ""
            yield Sentence(f"unknown {kind} '{GAP}'{known}; {GAP}", errors.UsageError.exit_code, place)
        elif name in codes:
            text = node.args[1] if name == "StageFailed" else node.args[0]
            yield from (Sentence(found, codes[name], place) for found in template(text, module) if not found.startswith(f"unknown {GAP}"))
        elif name == "fail" and path.startswith("tcl_core/cli/"):
            code = node.args[1]
            number = code.value if isinstance(code, ast.Constant) else codes.get(ast.unparse(code).split(".")[0])
            yield from (Sentence(found, number, place) for found in template(node.args[0], module))


@cache
def sentences() -> list[Sentence]:
    found = [sentence for path, module in modules().items() for sentence in said(path, module, exit_codes())]
    return [sentence for sentence in found if len(re.findall("[a-z]", sentence.text)) >= SAYS_LITTLE]


@cache
def rows() -> list[tuple[str, str]]:
    """Each sentence of the page with its row's exit code."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        if line.startswith("| `") and len(cells) == 4:
            found += [(part, cells[1]) for part in re.findall("`([^`]+)`", cells[0])]
    return found


def knows(row: str, sentence: str) -> bool:
    """Whether the parts of a row's sentence stand in another, in this order."""
    place = 0
    for part in row.split(GAP):
        if (found := sentence.find(part, place)) < 0:
            return False
        place = found + len(part)
    return True


def fits(code: int | None, cell: str) -> bool:
    return code is None or str(code) == cell


def test_every_sentence_has_a_row():
    missing = [s for s in sentences() if not any(knows(row, s.text) and fits(s.code, code) for row, code in rows())]
    said = "\n".join(f"{s.place}, exit {s.code}: {s.text}" for s in missing)
    assert not missing, f"docs/troubleshooting.md has no row for\n{said}"


def test_every_row_is_said_somewhere():
    left = [row for row, code in rows() if not any(knows(row, s.text) and fits(s.code, code) for s in sentences())]
    assert left == [], "nothing says this any more, or with another exit code"


def test_rows_are_read():
    assert len(rows()) > 50 and {code for _, code in rows()} >= {"2", "3", "4", "5", "130", "1"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise UsageError(f'no {a} in ' + 'b')", [("no … in b", 2)]),
        ("raise PlatformError(why())\ndef why():\n    return 'all is lost'", [("all is lost", 4)]),
        ("StageFailed(name, words or f'{name} is lost', 3)", [("…", None), ("… is lost", None)]),
        ("WORDS = 'gone for good'\nerror = errors.DataError(WORDS)", [("gone for good", 3)]),
        ("unknown_name('platform', name, known, 'the chain')", [("unknown platform '…' in …; …", 2)]),
        ("raise ValueError('a bug')", []),
    ],
)
def test_how_a_sentence_is_read(source, expected):
    assert [(s.text, s.code) for s in said("tcl_core/x.py", ast.parse(source), exit_codes())] == expected


@pytest.mark.parametrize(
    ("row", "sentence", "yes"),
    [
        ("is damaged (…); …", "… is damaged (…); …", True),
        ("… exists; give … --overwrite", "… exists; give another name, or --overwrite to replace it", True),
        ("--overwrite … exists", "… exists; --overwrite", False),
    ],
)
def test_which_row_knows_a_sentence(row, sentence, yes):
    assert knows(row, sentence) is yes
