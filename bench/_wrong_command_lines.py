"""Invalid command lines of `tcl`: each must end soon, with one sentence and its exit code, and change nothing.

    for name, argv in wrong_command_lines(Path("project"), Path("scratch")): ...     argv without `tcl` itself

The project's pipeline must have run; the files in the scratch folder are made here.  None of these commands measures,
trains or waits if it is refused as it should be.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

LONG = "a" * 300
CODES = (0, 2, 3, 4, 5)
NAMES = {  # that no platform, model, network, key or profile has
    "empty": "", "blank": " ", "unknown": "nosuch", "long": LONG, "up": "../up", "root": "/", "dots": "..", "newline": "a\nb",
    "escape": "\x1b[31mred", "formula": "=1+1", "quote": "'\"", "unicode": "höst-é", "no-utf8": "caf\udce9", "glob": "host-*", "null-word": "null",
}  # fmt: skip
NUMBERS = ("0", "-1", "1.5", "x", "nan", "1e3", "9" * 30, "9" * 5000, "")
ADDRESSES = (
    "", "localhost", "localhost:", ":9190", "localhost:x", "localhost:0", "localhost:65536", "localhost:" + "9" * 5000,
    "localhost:²", f"{LONG}:9190", "a\nb:9190", "127.0.0.1:1", "..:9190", "[::1]:1",
)  # fmt: skip
LOG_LINE = (
    '{"input": ["llvm", "dense", [], {}], "config": {"index": 0, "code_hash": null, "entity": [["tile", "sp", [-1, 4]]]}, '
    '"result": [[0.5], 0, 1, 1], "version": 0.2, "tvm_version": "0.10"}\n'
)


def wrong_command_lines(project: Path, scratch: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the words of each command line."""
    files = _make_files(scratch)
    groups = (
        _words(),
        _names(),
        _numbers(),
        _logs(files),
        _places(files, scratch),
        _models(files, project),
        _runs(files, project, scratch),
        _devices(),
    )
    yield from chain(*groups)


def _make_files(scratch: Path) -> dict[str, Path]:
    """Files that a user could give by mistake, named by what is wrong with them."""
    scratch.mkdir(parents=True, exist_ok=True)
    contents = {
        "empty.log": b"", "blank.log": b"\n \n\n", "binary.log": bytes(range(256)) * 10, "zeros.log": bytes(1 << 16),
        "text.log": b"hello\n", "number.log": b"7\n", "null.log": b"null\n", "nested.log": b"[" * 5000, "no-utf8.log": b'{"i": "\xff"}\n',
        "torn.log.gz": gzip.compress(LOG_LINE.encode() * 50)[:-9], "no.gz": b"\x1f\x8b" + bytes(50),
        "other.json": b'{"a": [1, 2]}\n', "refused.log": LOG_LINE.replace("0.5", "-1").encode(), "sound.log": LOG_LINE.encode(),
        "network.pt2": b"PK\x03\x04", "network.onnx": b"\x08\x07", "empty.onnx": b"", "lonely/database_tuning_record.json": b"[0, [1]]\n",
        ".hidden": b"x", "taken.csv": b"mine", "database/database_workload.json": b"mine", "model/model.json": b"{}",
        "array/model.json": b"[]", "nested/model.json": b"[" * 100_000, "binary/model.json": bytes(range(256)),
    }  # fmt: skip
    for name, content in contents.items():
        (scratch / name).parent.mkdir(exist_ok=True)
        (scratch / name).write_bytes(content)
    links = {"loop.log": "loop.log", "dangling.log": "gone", "loop": "loop"}
    for name, target in links.items():
        if not os.path.lexists(scratch / name):
            (scratch / name).symlink_to(target)
    if not (scratch / "pipe").exists():
        os.mkfifo(scratch / "pipe")
    (scratch / "folder.log").mkdir(exist_ok=True)
    return {name: scratch / name for name in (*contents, *links, "pipe", "folder.log")}


def _words() -> Iterator[tuple[str, list[str]]]:
    """Unknown commands and options, and known ones misplaced or without their arguments."""
    for words in (
        ["trian"], ["--nosuch"], ["-x"], [""], ["\x1b[31m"], [LONG], ["platforms", "extra"], ["platforms", "--nosuch"],
        ["--platform", "host-avx2", "collect"], ["collect", "host-avx2"], ["collect", "--platform"], ["collect", "-p", "a", "-p"],
        ["candidates", "extra"], ["evaluate", "-p", "host-avx2"], ["summary", "7"], ["export"], ["import"], ["import", "a.log"],
        ["import", "-p", "p"], ["predict"], ["predict", "-p", "host-avx2"], ["profile"], ["profile", "full", "default"], ["device"],
        ["device", "nosuch"], ["device", "list", "extra"], ["tune", "a", "b"], ["tasks", "a", "b"], ["train", "mamba"],
        ["import", "--", "-p", "p"], ["predict", "--overwrite"], ["rollback"], ["rollback", "-p"], ["lineage"], ["lineage", "-x"], ["models", "extra"], ["export", "-p", "host-avx2", "--to"], ["--", "--"],
    ):  # fmt: skip
        yield "words " + " ".join(words), words


def _names() -> Iterator[tuple[str, list[str]]]:
    """Names that nothing has, without `import`, which takes any name for a platform, and `predict`, which takes any platform."""
    commands = {
        "collect": ["collect", "-p"], "holdout": ["holdout", "-p"], "export": ["export", "-p"], "distill": ["distill", "-p"],
        "train": ["train", "--model"], "register": ["register", "-p"], "promote": ["promote", "-p"], "tune": ["tune", "-p"],
        "tasks": ["tasks"], "network": ["tune"], "profile": ["profile"],
        "rollback": ["rollback", "-p"], "models": ["models", "-p"], "lineage": ["lineage"],
    }  # fmt: skip
    for (command, words), (kind, name) in product(commands.items(), NAMES.items()):
        yield f"{command} of name {kind}", [*words, name]


def _numbers() -> Iterator[tuple[str, list[str]]]:
    for number in NUMBERS:
        yield f"trials {number[:9]}", ["tune", "--trials", number, "-p", "nosuch"]
        yield f"minutes {number[:9]}", ["tune", "--minutes", number, "-p", "nosuch"]
        yield f"rollback to {number[:9]}", ["rollback", "-p", "nosuch", "--to", number]
        yield f"rounds {number[:9]}", ["run", "nosuch", "--rounds", number]
        yield f"top {number[:9]}", ["predict", "nosuch.log", "-p", "host-avx2", "--top", number]
        yield f"port {number[:9]}", ["device", "serve", "--key", "a b", "--port", number]


def _logs(files: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    wrong = [str(path) for name, path in files.items() if name != "sound.log" and "model" not in name]
    for log in (*wrong, "gone.log", LONG, "/", "", "/dev/null", "/dev/zero", "a\nb", f"{files['sound.log']}/below", "caf\udce9.log"):
        yield f"import {Path(log).name[:20]}", ["import", log, "-p", "imported-wrong"]
        yield f"predict {Path(log).name[:20]}", ["predict", log, "-p", "host-avx2"]
    for kind, name in NAMES.items():
        if kind not in ("unknown", "null-word", "unicode"):  # these are valid for an import
            yield f"import as {kind}", ["import", str(files["sound.log"]), "-p", name]
        yield f"predict for {kind}", ["predict", str(files["sound.log"]), "-p", name]
    yield "import of no target", ["import", str(files["sound.log"]), "-p", "imported-wrong", "--target", "nosuch"]


def _places(files: dict[str, Path], scratch: Path) -> Iterator[tuple[str, list[str]]]:
    """Paths at which no file can be written, or where one must not be replaced."""
    log = str(files["sound.log"])
    for to in (
        "", "/", ".", LONG, "/proc/scores.csv", "/dev/full", log, f"{log}/below.csv", f"{scratch}/loop", f"{scratch}/taken.csv", "a\nb",
    ):  # fmt: skip
        yield f"predict to {Path(to).name[:20]}", ["predict", log, "-p", "host-avx2", "--to", to]
    yield "predict to the log by overwrite", ["predict", log, "-p", "host-avx2", "--to", log, "--overwrite"]
    for to in ("", LONG, "/proc/database", "/dev/null", log, f"{log}/below", f"{scratch}/loop", f"{scratch}/database", f"{scratch}/pipe"):
        yield f"export to {Path(to).name[:20]}", ["export", "-p", "host-avx2", "--to", to]
        yield f"tune out {Path(to).name[:20]}", ["tune", "-p", "host-avx2", "--out", to, "--trials", "1"]
    for folder in (
        "",
        "gone",
        LONG,
        log,
        "/dev/null",
        "/",
        f"{scratch}/loop",
        f"{scratch}/database",
        f"{scratch}/model",
        f"{scratch}/pipe",
    ):
        yield f"run {Path(folder).name[:20]}", ["run", folder]
    yield "trials and minutes", ["tune", "-p", "host-avx2", "--trials", "1", "--minutes", "1"]


def _models(files: dict[str, Path], project: Path) -> Iterator[tuple[str, list[str]]]:
    log, others = str(files["sound.log"]), [str(files[f"{name}/model.json"].parent) for name in ("model", "array", "nested", "binary")]
    for model in ("", "gone", LONG, log, "/dev/null", str(files["loop"]), str(files["folder.log"]), str(project), *others):
        yield f"predict by {Path(model).name[:20]}", ["predict", log, "--model", model]
    yield "predict by two", ["predict", log, "--model", "gone", "-p", "host-avx2"]
    yield "predict by none", ["predict", log]
    for network in ("network.pt2", "network.onnx", "empty.onnx", "folder.log", "loop", "pipe"):
        yield f"tasks {network}", ["tasks", str(files[network])]
    for name in ("gone.pt2", f"{LONG}.onnx", ".onnx", "/.pt2"):
        yield f"tasks {name[:20]}", ["tasks", name]


def _runs(files: dict[str, Path], project: Path, scratch: Path) -> Iterator[tuple[str, list[str]]]:
    """Runs to compare that are no runs, or not two."""
    for run in ("", "gone", LONG, str(files["sound.log"]), "/dev/null", "/", str(files["loop"]), f"{scratch}/database", f"{scratch}/pipe"):
        yield f"report of {Path(run).name[:20]}", ["report", run, str(project)]
        yield f"report against {Path(run).name[:20]}", ["report", f"{scratch}/database", run]
    yield "report of one", ["report", str(project)]
    yield "report of three", ["report", *[str(project)] * 3]
    yield "report to the log", ["report", str(project), str(project), "--to", str(files["sound.log"])]


def _devices() -> Iterator[tuple[str, list[str]]]:
    for address in ADDRESSES:
        yield f"list of {address[:20]!r}", ["device", "list", "--tracker", address]
        yield f"serve with {address[:20]!r}", ["device", "serve", "--key", "a b", "--tracker", address]
    for kind, name in NAMES.items():
        if kind not in ("unknown", "null-word", "unicode", "dots"):  # these are valid keys and would be served
            yield f"serve as {kind}", ["device", "serve", "--key", name, "--tracker", "127.0.0.1:1"]
    for host in ("", LONG, "nosuch.invalid", "a b"):
        yield f"serve at {host[:20]}", ["device", "serve", "--key", "board", "--tracker", "192.0.2.1:1", "--host", host]
