"""The application, the options that several commands share, and the workspace that a command works in."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Optional

import typer
from typer.core import TyperGroup

from tcl_core import __version__, environment
from tcl_core.checked import plain_json
from tcl_core.cli.saying import say
from tcl_core.errors import TclError, UsageError
from tcl_core.files import present_folder
from tcl_core.params import PARAMS
from tcl_core.process import ANSWER_FILE, end_with_parents
from tcl_core.settings import restored

if TYPE_CHECKING:
    from tcl_core.stages.workspace import Workspace

HELP = ("-h", "--help")
TOGETHER = ("train", "distill")  # what several processes of torchrun can do together
WITHOUT_PROJECT = ("device", "init", "run")
_began: list[Any] = []  # in a stage of DVC: the project's folder, the stage, and what it reads


class Commands(TyperGroup):
    """Commands whose wrong words, which typer would only print, reach the flow that started `tcl`."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _told_to_flows():
            return super().make_context(*arguments, **options)

    def invoke(self, context: Any) -> Any:
        with _told_to_flows():
            return super().invoke(context)


@contextmanager
def _told_to_flows() -> Iterator[None]:
    """Raise typer's errors of usage, which have a ``format_message``, as UsageError if a flow waits for the answer."""
    try:
        yield
    except Exception as error:
        if ANSWER_FILE not in os.environ or not hasattr(error, "format_message"):
            raise
        raise UsageError(f"{error.format_message().rstrip('.')}; see: tcl --help") from None


app = typer.Typer(
    cls=Commands,
    help="Learn to rank tensor programs: choose what to measure, train, carry knowledge down a chain of platforms, tune.",
    epilog="The whole pipeline: make run.  One stage by hand: tcl collect --platform host-avx2",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": list(HELP)},
)
DATA, MODELS, USE = "Data", "Models", "Use"
Force = Annotated[bool, typer.Option("--force", envvar="TCL_FORCE", help="Measure anew what was measured before; rerun to resume.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite what --to names, if it is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Say it as JSON, for programs.")]
Platform = Annotated[Optional[str], typer.Option("--platform", "-p", help="A platform of params.yaml; none: the whole chain.")]


def _version(wanted: bool) -> None:
    if wanted:
        say(f"tcl {__version__}")
        raise typer.Exit()


def _as_it_began(said: object, **options: object) -> None:
    """After a stage of DVC that ended well."""
    if _began:
        from tcl_core.stages.unchanged import check_unchanged

        check_unchanged(*_began)


@app.callback(result_callback=_as_it_began)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version, and exit.")] = False,
) -> None:
    _began.clear()
    if environment.processes() > 1 and context.invoked_subcommand not in TOGETHER:
        raise UsageError(
            f"tcl {context.invoked_subcommand} is the work of one process, and torchrun started {environment.processes()}; run it "
            f"without torchrun, which is for: {', '.join(TOGETHER)}"
        )
    if context.invoked_subcommand not in WITHOUT_PROJECT:
        from tcl_core.stages.workspace import Workspace

        # This runs before a command sees its own --help, which needs no project; but such a word may be an option's value.
        with suppress(*[TclError] * bool(set(HELP) & set(sys.argv))):
            context.obj = Workspace(_project())
    if context.obj is not None:
        if stage := os.environ.get("DVC_STAGE"):
            from tcl_core.stages.unchanged import read_by

            _began[:] = [context.obj.root, stage, read_by(context.obj.root, stage)]
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, _end)
    end_with_parents(lambda text: typer.secho(text, err=True, fg="yellow"))


def _end(number: int, frame: object) -> NoReturn:
    """On a signal: so that `finally` blocks run."""
    sys.exit(128 + number)


def _project() -> Path:
    """The folder of params.yaml, here or above, relative to the present one."""
    here = present_folder()
    for folder in (here, *here.parents):
        file = folder / PARAMS
        if file.is_file():
            return Path(os.path.relpath(folder, here))
        if os.path.lexists(file):  # else a project that contains this one would be taken for it
            raise UsageError(f"{file} is no file; restore it ({restored(file)})")
    raise UsageError(f"there is no params.yaml in {here} or above; run tcl in a project's folder, or begin one: tcl init NAME")


def logs_folder() -> Path:
    """In the project, or, outside of one, here."""
    try:
        return _project() / "logs"
    except UsageError:
        return Path("logs")


def refuse_empty(**given: str | None) -> None:
    """An empty name is a shell variable that is not set: it must not mean all of them."""
    for what, name in given.items():
        if name is not None and not name.strip():
            raise UsageError(f"the {what} is an empty name (is a variable of your shell not set?); name a {what}, or leave it out")


def each_platform(workspace: Workspace, platform: str | None, stage: Callable[[str], Any], first: bool = True) -> str:
    """What a stage of one platform reports, or of all of the chain in order, a line each; ``first``: with the chain's first."""
    refuse_empty(platform=platform)
    if platform is not None:
        workspace.check_platform(platform)
        return str(stage(platform))
    said: list[str] = []
    with told_first(said):
        for name in workspace.params.chain_order[0 if first else 1 :]:
            said.append(f"{name}: {stage(name)}")
    return "\n".join(said)


@contextmanager
def told_first(said: Sequence[str]) -> Iterator[None]:
    """Print what was ``said`` so far if the block ends with an error, which goes on."""
    try:
        yield
    except BaseException:
        if said and ANSWER_FILE not in os.environ:  # whose one answer is why it failed
            with suppress(TclError):  # an output that takes nothing must not hide why it failed
                say("\n".join(said))
        raise


def told(found: Mapping[str, Any], text: Callable[[Mapping[str, Any]], str], as_json: bool) -> str:
    """What a command found: as JSON for programs, or in words."""
    return json.dumps(plain_json(found), indent=2, allow_nan=False) if as_json else text(found)
