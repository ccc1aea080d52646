"""`tcl`: the stages and the registry from the shell.  Thin: each command is one call into ``tcl_core.stages``.

Knows exit codes, signals and help texts; no stage logic.  A TclError ends as its one sentence and its exit code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn, Optional

import typer

from tcl_core import __version__, environment  # the latter before torch is imported
from tcl_core.errors import DRIFT, DataError, PlatformError, TclError, UsageError, missing_extra
from tcl_core.files import printable, refusal, shown
from tcl_core.process import ANSWER_FILE, end_with_parents

HELP = ("-h", "--help")
INTERRUPTED = "stopped; what was measured and finished is kept, the same command goes on from here"
MOST_TRIALS = 10_000_000
MOST_MINUTES = 100_000.0
SENTENCE = 2_000  # characters of an error that are printed
TOGETHER = ("train", "distill")  # what several processes of torchrun can do together

app = typer.Typer(
    help="Learn to rank tensor programs: choose what to measure, train, carry knowledge down a chain of platforms, tune.",
    epilog="The whole pipeline: make run.  One stage by hand: tcl collect --platform host-avx2",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": list(HELP)},
)
DATA, MODELS, USE = "Data", "Models", "Use"
Again = Annotated[bool, typer.Option("--again", envvar="TCL_AGAIN", help="Measure anew what was measured before; stopped, it goes on.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what --to names, if it is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Say it as JSON, for programs.")]
Platform = Annotated[Optional[str], typer.Option("--platform", "-p", help="A platform of params.yaml; none: the whole chain.")]


def _version(wanted: bool) -> None:
    if wanted:
        _say(f"tcl {__version__}")
        raise typer.Exit()


@app.callback()
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version, and exit.")] = False,
) -> None:
    context.obj = _here()  # what a user's paths are relative to
    if environment.processes() > 1 and context.invoked_subcommand not in TOGETHER:
        raise UsageError(
            f"tcl {context.invoked_subcommand} is the work of one process, and torchrun started {environment.processes()}; run it "
            f"without torchrun, which is for: {', '.join(TOGETHER)}"
        )
    # These need no project; and this runs before a command sees its own --help.
    if context.invoked_subcommand not in ("device", "init") and not set(HELP) & set(sys.argv):
        _enter_project()
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, _end)
    end_with_parents(lambda text: typer.secho(text, err=True, fg="yellow"))


@app.command(rich_help_panel=USE)
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A new or an empty folder; none: the present one.")] = Path("."),
) -> None:
    """Begin a project of one's own: params.yaml, dvc.yaml, flows, profiles and a Makefile.  Example: tcl init kernels"""
    from tcl_core import stages

    _say(stages.init(context.obj / folder))


@app.command(rich_help_panel=DATA)
def platforms(
    similar: Annotated[Optional[str], typer.Option("--similar", help="Measure a few programs on this one: which other is nearest to it?")] = None,
    probes: Annotated[int, typer.Option("--probes", min=8, max=10_000, help="How many, with --similar.")] = 48,
    as_json: AsJson = False,
) -> None:
    """List the platforms of the chain and whether this machine can run them; or find out from which one a new one should learn."""
    from tcl_core import stages

    if similar is not None and as_json:
        raise UsageError("--similar has no --json; leave one of them out")
    _say(stages.platforms(as_json) if similar is None else stages.similar(similar, probes))


@app.command(rich_help_panel=DATA)
def tasks(network: Annotated[Optional[str], typer.Argument(help="Show one network's tasks; none: write all.")] = None) -> None:
    """Cut the networks of params.yaml into tasks.  Example: tcl tasks resnet-18"""
    from tcl_core import stages

    _say(stages.tasks(network))


@app.command(rich_help_panel=DATA)
def candidates() -> None:
    """Sample candidate programs of every task."""
    from tcl_core import stages

    _say(stages.candidates())


@app.command(rich_help_panel=DATA)
def collect(platform: Platform = None, again: Again = False) -> None:
    """Choose programs, measure them, refit, in rounds.  A stopped collection goes on where it was.

    Example: tcl collect --platform host-avx2
    """
    from tcl_core import stages

    _say(stages.collect(platform, again=again))


@app.command(rich_help_panel=DATA)
def holdout(platform: Platform = None, again: Again = False) -> None:
    """Measure the programs of the held-out networks, on which models are compared."""
    from tcl_core import stages

    _say(stages.holdout(platform, again=again))


@app.command(rich_help_panel=DATA)
def drift(
    platform: Annotated[Optional[str], typer.Option("--platform", "-p", help="A platform of params.yaml; none: each that was measured here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure a few held-out programs again: does the machine order them as it did?  Exits with 6 if not.

    Example: tcl drift --platform host-avx2
    """
    from tcl_core import stages

    said, drifted = stages.drift(platform, as_json)
    _say(said, DRIFT if drifted else 0)
    if drifted:
        sys.exit(DRIFT)


@app.command("import", rich_help_panel=DATA)
def import_(
    context: typer.Context,
    logs: Annotated[list[Path], typer.Argument(help="Logs of AutoTVM or Ansor, gzip or plain, or a MetaSchedule database's folder.")],
    platform: Annotated[str, typer.Option("--platform", "-p", help="The hardware that the logs are of; any name.")],
    target: Annotated[str, typer.Option(help="Only lines whose target has this text in it.")] = "",
) -> None:
    """Read tuning logs of other tuners.  Example: tcl import random.log.gz searched.log.gz -p ryzen-3700x"""
    from tcl_core import stages

    _say(stages.import_logs([context.obj / log for log in logs], platform, target))


@app.command(rich_help_panel=DATA)
def export(
    context: typer.Context,
    platform: Annotated[str, typer.Option("--platform", "-p", help="A platform of params.yaml that was measured.")],
    to: Annotated[Optional[Path], typer.Option(help="The database's folder; none: data/exported/platform=P.")] = None,
    force: Force = False,
) -> None:
    """Write what was measured as a MetaSchedule database that plain TVM loads.  Example: tcl export -p host-avx2"""
    from tcl_core import stages

    _say(stages.export(platform, to and context.obj / to, force))


@app.command(rich_help_panel=MODELS)
def train(
    model: Annotated[Optional[str], typer.Option(help="Another cost model than the chain's; docs/models.md lists them.")] = None,
    platform: Annotated[Optional[str], typer.Option("--platform", "-p", help="With --model: on this one; none: on each.")] = None,
) -> None:
    """Train the cost model of the chain's first platform, or another one beside it.  Example: tcl train --model xgboost"""
    from tcl_core import stages

    _say(stages.train(model, platform))


@app.command(rich_help_panel=MODELS)
def distill(
    platform: Platform = None,
    add: Annotated[Optional[str], typer.Option("--add", help="A platform that goes on from the champion of the one before it.")] = None,
) -> None:
    """Carry the knowledge of the previous platform on to this one; with --add from its champion, so that its records may lie elsewhere."""
    from tcl_core import stages

    _say(stages.distill(platform, add))


@app.command(rich_help_panel=MODELS)
def evaluate() -> None:
    """Rank the held-out programs of every platform with every model; write the report and its plots."""
    from tcl_core import stages

    _say(stages.evaluate())


@app.command(rich_help_panel=MODELS)
def register(platform: Platform = None) -> None:
    """Put the trained models into the registry, as new versions of tcl-PLATFORM."""
    from tcl_core import stages

    _say(stages.register(platform))


@app.command(rich_help_panel=MODELS)
def promote(platform: Platform = None, as_json: AsJson = False) -> None:
    """Make the present models champions where they rank the held-out programs better than today's champions."""
    from tcl_core import stages

    _say(stages.promote(platform, as_json))


@app.command(rich_help_panel=MODELS)
def rollback(
    platform: Annotated[str, typer.Option("--platform", "-p", help="The platform whose champion is taken back.")],
    reason: Annotated[str, typer.Option(help="Why; it stays with both versions.")] = "no reason given",
    to: Annotated[Optional[int], typer.Option(min=1, max=999_999_999, help="Another version than the previous champion.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make the previous champion champion again.  Example: tcl rollback -p host-avx2 --reason "slower on BERT" """
    from tcl_core import stages

    _say(stages.rollback(platform, reason, to, as_json))


@app.command(rich_help_panel=MODELS)
def models(
    platform: Annotated[Optional[str], typer.Option("--platform", "-p", help="Of this one only; none: of all that is registered.")] = None,
    as_json: AsJson = False,
) -> None:
    """List champions, candidates and previous champions: since when, how good, from which data."""
    from tcl_core import stages

    _say(stages.show_models(platform, as_json))


@app.command(rich_help_panel=MODELS)
def lineage(
    asked: Annotated[str, typer.Argument(metavar="MODEL|REVISION", help="A platform, PLATFORM:NUMBER, a hash of data, or a commit.")],
    as_json: AsJson = False,
) -> None:
    """Tell what a model was made of, or which models were made of data or at a commit.  Example: tcl lineage host-avx2:3"""
    from tcl_core import stages

    _say(stages.show_lineage(asked, as_json))


@app.command(rich_help_panel=USE)
def tune(
    context: typer.Context,
    network: Annotated[Optional[str], typer.Argument(help="The network; none: params.yaml's.")] = None,
    platform: Annotated[Optional[str], typer.Option("--platform", "-p", help="The platform; none: the chain's last.")] = None,
    trials: Annotated[Optional[int], typer.Option(min=1, max=MOST_TRIALS, help="Programs to measure; none: params.yaml's.")] = None,
    minutes: Annotated[Optional[float], typer.Option(min=0.1, max=MOST_MINUTES, help="Tune for so long instead of --trials.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Tune anew what was tuned with this champion.")] = False,
    model: Annotated[Optional[Path], typer.Option(help="Rank with the saved model in this folder, not with the champion.")] = None,
    warm_start: Annotated[
        Optional[list[Path]], typer.Option(help="A folder with the database of a tuned network, whose programs are tried first.")
    ] = None,
    out: Annotated[Optional[Path], typer.Option(help="A folder that gets the tuned network as a library, and a report.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what --out names, if tcl tune wrote it.")] = False,
) -> None:
    """Search fast programs for a network with the champion.  Example: tcl tune resnet-18 -p host-avx2 --minutes 10 --out fast"""
    from tcl_core import stages

    warm = [context.obj / folder for folder in warm_start or ()]
    _say(stages.tune(network, platform, trials, again=again, minutes=minutes, out=out and context.obj / out, force=force, warm_start=warm, model=model and context.obj / model))


@app.command(rich_help_panel=USE)
def run(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A folder that tcl tune --out wrote.")],
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds of a third of a second or more in which it is timed.")] = 7,
) -> None:
    """Run a tuned network: check its output and time it.  Example: tcl run fast"""
    from tcl_core import stages

    _say(stages.run(context.obj / folder, rounds))


@app.command(rich_help_panel=USE)
def predict(
    context: typer.Context,
    log: Annotated[Path, typer.Argument(help="A log of AutoTVM or Ansor, gzip or plain, or a MetaSchedule database's folder.")],
    platform: Annotated[Optional[str], typer.Option("--platform", "-p", help="Score with this platform's champion.")] = None,
    model: Annotated[Optional[Path], typer.Option(help="Score with the saved model in this folder instead.")] = None,
    to: Annotated[Optional[Path], typer.Option(help="A CSV file that takes all scores; none: print a table of the best.")] = None,
    force: Force = False,
    top: Annotated[Optional[int], typer.Option(min=1, help="Only so many programs of each task, the best ranked.")] = None,
    target: Annotated[str, typer.Option(help="Only lines whose target has this text in it.")] = "",
) -> None:
    """Score the programs of a tuning log and rank them; scores compare only within a task.

    Example: tcl predict random.log.gz -p host-avx2 --to scores.csv
    """
    from tcl_core import stages

    paths = model and context.obj / model, to and context.obj / to
    _say(stages.predict_log(context.obj / log, platform, *paths, top, target, force))


device = typer.Typer(help="Boards and other hosts that measure for this one, through TVM's RPC.", no_args_is_help=True)
app.add_typer(device, name="device", rich_help_panel=DATA)
Tracker = Annotated[str, typer.Option(help="Where the tracker listens, host:port.")]


@device.command()
def serve(
    key: Annotated[Optional[str], typer.Option(help="Serve this machine under this name; none: a tracker only.")] = None,
    tracker: Tracker = "127.0.0.1:9190",
    host: Annotated[str, typer.Option(help="The address at which the server listens.")] = "127.0.0.1",
    port: Annotated[Optional[int], typer.Option(min=1, max=65535, help="Its port; none: the first free one.")] = None,
) -> None:
    """Serve this machine's CPU to others, and start a tracker where none answers.  Example: tcl device serve --key pi4"""
    from tcl_core import stages

    stages.serve_device(key, tracker, host, port, _say)


@device.command("list")
def list_(tracker: Tracker = "127.0.0.1:9190", as_json: AsJson = False) -> None:
    """Show the devices that a tracker knows.  Example: tcl device list --tracker 192.168.0.2:9190"""
    from tcl_core import stages

    _say(stages.devices(tracker, as_json))


@app.command(rich_help_panel=USE)
def profile(name: Annotated[str, typer.Argument(help="A file of profiles/, without .yaml.")]) -> None:
    """Set params.yaml to a named profile.  Example: tcl profile full"""
    from tcl_core import stages

    _say(stages.profile(name))


@app.command(rich_help_panel=USE)
def report(
    context: typer.Context,
    runs: Annotated[Optional[list[Path]], typer.Argument(help="Two runs to compare: projects, or copies of data/reports; none: the last run here.")] = None,
    to: Annotated[Optional[Path], typer.Option(help="The HTML file; none: data/reports/report.html, or comparison.html of two.")] = None,
    force: Force = False,
) -> None:
    """Write the last run as one HTML page, or compare two runs.  Example: tcl report before data/reports --to changes.html"""
    from tcl_core import stages

    _say(stages.report([context.obj / run for run in runs or ()], to and context.obj / to, force))


@app.command(rich_help_panel=USE)
def summary() -> None:
    """Say what the last run measured, learned, promoted and tuned."""
    from tcl_core import stages

    _say(stages.summary())


def main() -> None:
    """Entry point of `tcl`: exits 0, a TclError's own code, 2 for wrong usage, 7 for drift, 130 for Ctrl-C, 1 for the unforeseen."""
    output = _open_standard_streams()
    try:
        _check_words(sys.argv[1:])
        app()
    except TclError as error:
        _fail(shown(error, SENTENCE), error.exit_code)
    except SystemExit as end:
        if end.code == 130:  # what typer makes of KeyboardInterrupt
            _fail(INTERRUPTED, 130)
        if end.code == 1:  # and of a broken pipe
            _end_of_a_pipe(output)
        raise
    except KeyboardInterrupt:
        _fail(INTERRUPTED, 130)
    except OSError as error:
        _fail(shown(refusal(error), SENTENCE), refusal(error).exit_code)
    except MemoryError:
        _fail("this machine has too little memory for that; give it a smaller file or number", PlatformError.exit_code)
    except ModuleNotFoundError as error:
        if (sentence := missing_extra(error)) is None:
            _fail(f"unexpected {type(error).__name__}: {_first_line(error)}; {_write_log()}", 1)
        _fail(sentence, UsageError.exit_code)
    except RecursionError:
        _fail("a file that was read is nested too deeply to be one of TCL's; give another one", DataError.exit_code)
    except Exception as error:
        _fail(f"unexpected {type(error).__name__}: {_first_line(error)}; {_write_log()}", 1)
    finally:
        os.close(output)
        _let_go_of_streams()


def _open_standard_streams() -> int:
    """Give each stream that was closed a descriptor: else the next file that is opened would take what is printed.

    Returns another descriptor of the standard output, for libraries redirect the first when its reader leaves.
    """
    for number, way in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):  # writing to a closed output must fail
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, way), True)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)
    sys.stdout.reconfigure(errors="backslashreplace")  # a character that a locale lacks
    return os.dup(1)


def _let_go_of_streams() -> None:
    """What cannot be printed was told; the interpreter's own last try to print it would change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _check_words(words: list[str]) -> None:
    """Raise UsageError for words that no command can mean.  An empty name must not come to mean "all platforms"."""
    for word in words:
        if not word.strip() or (word.startswith("--") and word.endswith("=")):
            raise UsageError("an argument is empty, such as a shell variable that is not set; fill it in, or leave the option out")
        if any(unicodedata.category(character) == "Cc" for character in word):
            raise UsageError(f"the argument '{shown(word)}' has control characters in it; give it without them")


def _say(text: str | None, code: int = 0) -> None:
    if not text or _handed_over(text, code):
        return
    try:
        typer.echo("\n".join(map(printable, text.split("\n"))))
        sys.stdout.flush()  # a reader that left is noticed here
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        reason = error.strerror.lower()
        raise PlatformError(f"cannot write to the standard output ({reason}); what the command did is kept") from None


def _fail(message: str, code: int) -> NoReturn:
    if not _handed_over(message, code):
        with suppress(OSError):  # nobody is there to be told
            typer.secho(f"tcl: {message}", err=True, fg="red")
    sys.exit(code)


def _end_of_a_pipe(output: int) -> NoReturn:
    """The end of a command that wrote to a pipe which nobody reads: quiet if that is the standard output."""
    poll = select.poll()
    poll.register(output, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        sys.exit(0)
    _fail("a process that this command had started is gone; run it again", PlatformError.exit_code)


def _handed_over(text: str, code: int) -> bool:
    """Whether the flow that started this command took the answer; it says it in its own log."""
    if ANSWER_FILE not in os.environ:
        return False
    try:
        Path(os.environ[ANSWER_FILE]).write_text(json.dumps({"text": text, "exit_code": code}), encoding="utf-8")
    except OSError:  # a full disk: then it is printed
        return False
    return True


def _enter_project() -> None:
    """Work in the folder of params.yaml, here or above: all paths are relative to it."""
    here = _here()
    for folder in (here, *here.parents):
        file = folder / "params.yaml"
        if file.is_file():
            os.chdir(folder)
            return
        if os.path.lexists(file):  # else a project that contains this one would be taken for it
            raise UsageError(f"{file} is no file; restore it from the repository (git checkout params.yaml)")
    raise UsageError(f"there is no params.yaml in {here} or above; run tcl inside the repository")


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the present folder has been removed; cd to the project's") from None


def _end(number: int, frame: object) -> NoReturn:
    """On a signal: so that `finally` blocks run."""
    sys.exit(128 + number)


def _first_line(error: Exception) -> str:
    return shown((str(error).strip().splitlines() or ["no message"])[0], SENTENCE)


def _write_log() -> str:
    """Where the traceback of the present exception is; itself on a disk that takes no file."""
    file = Path("logs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        file.parent.mkdir(exist_ok=True)
        with open(file, "x", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"{' '.join(sys.argv)}\n{traceback.format_exc()}")
    except OSError as full:
        return f"{file} could not be written ({full.strerror}), so here is the traceback:\n{traceback.format_exc()}"
    return f"the traceback is in {file}"


if __name__ == "__main__":
    main()
