"""`tcl` commands for what comes before and after learning: begin a project, tune, predict, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from tcl_core.cli.app import USE, Overwrite, app, refuse_empty
from tcl_core.cli.saying import say
from tcl_core.errors import UsageError
from tcl_core.files import shown
from tcl_core.programs.tuning_logs.dialects import dialect_names

MOST_TRIALS = 10_000_000
MOST_MINUTES = 100_000.0


@app.command(rich_help_panel=USE)
def init(
    folder: Annotated[Path, typer.Argument(help="A new or an empty folder; none: the present one.")] = Path("."),
) -> None:
    """Begin a project of one's own: params.yaml, dvc.yaml, flows, profiles and a Makefile.  Example: tcl init kernels"""
    from tcl_core.stages.starting import start_project

    made = start_project(folder)
    say(f"a project lies in {shown(made)}; look through params.yaml, then, in that folder: make run")


@app.command(rich_help_panel=USE)
def tune(
    context: typer.Context,
    network: Annotated[Optional[str], typer.Argument(help="The network; none: params.yaml's.")] = None,
    platform: Annotated[
        Optional[str], typer.Option("--platform", "-p", help="The platform; none: the last of the chain that ran here.")
    ] = None,
    trials: Annotated[Optional[int], typer.Option(min=1, max=MOST_TRIALS, help="Programs to measure; none: params.yaml's.")] = None,
    minutes: Annotated[Optional[float], typer.Option(min=0.1, max=MOST_MINUTES, help="Tune for so long instead of --trials.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Tune anew; without it, what this champion tuned already is only said once more.")
    ] = False,
    model: Annotated[
        Optional[Path], typer.Option(help="Rank with the saved model in this folder or .safetensors file, not with the champion.")
    ] = None,
    warm_start: Annotated[
        Optional[list[Path]], typer.Option(help="A folder with the database of a tuned network, whose programs are tried first.")
    ] = None,
    out: Annotated[Optional[Path], typer.Option(help="A folder that gets the tuned network as a library, and a report.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite what --out names, if tcl tune wrote it.")] = False,
) -> None:
    """Search fast programs for a network with the champion.  Example: tcl tune resnet-18 -p host-avx2 --minutes 10 --out fast"""
    from tcl_core.stages import tuning

    refuse_empty(network=network, platform=platform)
    if overwrite and out is None:
        raise UsageError("--overwrite is of --out; give both, or leave it out")
    request = tuning.TuneRequest(network, platform, trials, minutes, force, out, overwrite, warm_start or (), model)
    say(tuning.tune(context.obj, request))


@app.command(rich_help_panel=USE)
def run(
    folder: Annotated[Path, typer.Argument(help="A folder that tcl tune --out wrote.")],
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds of a third of a second or more in which it is timed.")] = 7,
) -> None:
    """Run a tuned network: check its output and time it.  Example: tcl run fast"""
    from tcl_core.stages.tuned_folder import run_tuned

    say(run_tuned(folder, rounds))


@app.command(rich_help_panel=USE)
def predict(
    context: typer.Context,
    log: Annotated[Path, typer.Argument(help=f"A log of {dialect_names()}, gzip or plain; of a database, its folder.")],
    platform: Annotated[Optional[str], typer.Option("--platform", "-p", help="Score with this platform's champion.")] = None,
    model: Annotated[Optional[Path], typer.Option(help="Score with the saved model in this folder or .safetensors file instead.")] = None,
    to: Annotated[Optional[Path], typer.Option(help="A CSV file that takes all scores; none: print a table of the best.")] = None,
    overwrite: Overwrite = False,
    top: Annotated[Optional[int], typer.Option(min=1, help="Only so many programs of each task, the best ranked.")] = None,
    target: Annotated[str, typer.Option(help="Only lines whose target has this text in it.")] = "",
) -> None:
    """Score the programs of a tuning log and rank them; scores compare only within a task.

    Example: tcl predict random.log.gz -p host-avx2 --to scores.csv
    """
    from tcl_core.stages.predict import predict_log

    refuse_empty(platform=platform)
    say(predict_log(context.obj, log, platform, model, to, top, target, overwrite), beside=to)


@app.command(rich_help_panel=USE)
def profile(context: typer.Context, name: Annotated[str, typer.Argument(help="A file of profiles/, without .yaml.")]) -> None:
    """Set params.yaml to a named profile.  Example: tcl profile full"""
    from tcl_core.params import PARAMS
    from tcl_core.profiles import apply_profile

    refuse_empty(profile=name)
    changed = apply_profile(name, context.obj.root / PARAMS)
    say("\n".join(f"{key}: {old} -> {new}" for key, (old, new) in changed.items()) or f"params.yaml is {name} already")


@app.command(rich_help_panel=USE)
def report(
    context: typer.Context,
    runs: Annotated[
        Optional[list[Path]], typer.Argument(help="Two runs to compare: projects, or copies of data/reports; none: the last run here.")
    ] = None,
    to: Annotated[Optional[Path], typer.Option(help="The HTML file; none: data/reports/report.html, or comparison.html of two.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the last run as one HTML page, or compare two runs.  Example: tcl report before data/reports --to changes.html"""
    from tcl_core.stages.reporting import write_comparison, write_report

    say(write_comparison(context.obj, runs, to, overwrite) if runs else write_report(context.obj, to, overwrite), beside=to)


@app.command(rich_help_panel=USE)
def summary(context: typer.Context) -> None:
    """Say what the last run measured, learned, promoted and tuned."""
    from tcl_core.stages.overview import summarise, summary_text

    say(summary_text(summarise(context.obj), context.obj.reports))
