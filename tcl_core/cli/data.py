"""`tcl` commands that make and exchange data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from tcl_core.cli.app import DATA, AsJson, Force, Overwrite, Platform, app, each_platform, refuse_empty, told, told_first
from tcl_core.cli.saying import say
from tcl_core.errors import DRIFT, UsageError
from tcl_core.programs.tuning_logs.dialects import dialect_names

PROBES = 48


@app.command(rich_help_panel=DATA)
def platforms(
    context: typer.Context,
    similar: Annotated[
        Optional[str], typer.Option("--similar", help="Measure a few programs on this one: which other is nearest to it?")
    ] = None,
    probes: Annotated[Optional[int], typer.Option("--probes", min=8, max=10_000, help="How many, with --similar; none: 48.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the platforms of the chain and whether this machine can run them; or find out from which one a new one should learn."""
    from tcl_core.stages.listing import list_platforms, platforms_text
    from tcl_core.stages.probing import find_similar

    refuse_empty(platform=similar)
    if similar is None:
        if probes is not None:
            raise UsageError("--probes is of --similar; give both, or leave it out")
        say(told(list_platforms(context.obj), platforms_text, as_json))
        return
    if as_json:
        raise UsageError("--similar has no --json; leave one of them out")
    say(find_similar(context.obj, similar, probes or PROBES))


@app.command(rich_help_panel=DATA)
def tasks(
    context: typer.Context, network: Annotated[Optional[str], typer.Argument(help="Show one network's tasks; none: write all.")] = None
) -> None:
    """Cut the networks of params.yaml into tasks.  Example: tcl tasks resnet-18"""
    from tcl_core.stages.candidates import cut_tasks, tasks_of, tasks_text

    refuse_empty(network=network)
    say(cut_tasks(context.obj) if network is None else tasks_text(tasks_of(network, context.obj.params.graph)))


@app.command(rich_help_panel=DATA)
def candidates(context: typer.Context) -> None:
    """Sample candidate programs of every task."""
    from tcl_core.stages.candidates import sample_candidates

    say("; ".join(map(str, sample_candidates(context.obj))))


@app.command(rich_help_panel=DATA)
def collect(context: typer.Context, platform: Platform = None, force: Force = False) -> None:
    """Choose programs, measure them, refit, in rounds.  Rerun a stopped collection to resume it.

    Example: tcl collect --platform host-avx2
    """
    from tcl_core.stages import collecting

    workspace = context.obj
    said = each_platform(workspace, platform, lambda name: collecting.collect(workspace, name, force))
    collecting.end_forced(workspace, "collect", workspace.params.chain_order if platform is None else [platform])
    say(said)


@app.command(rich_help_panel=DATA)
def holdout(context: typer.Context, platform: Platform = None, force: Force = False) -> None:
    """Measure the programs of the held-out networks, on which models are compared."""
    from tcl_core.stages import collecting

    workspace = context.obj
    said = each_platform(workspace, platform, lambda name: collecting.holdout(workspace, name, force))
    collecting.end_forced(workspace, "holdout", workspace.params.chain_order if platform is None else [platform])
    say(said)


@app.command(rich_help_panel=DATA)
def drift(
    context: typer.Context,
    platform: Annotated[
        Optional[str], typer.Option("--platform", "-p", help="A platform of params.yaml; none: each that was measured here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure a few held-out programs again: does the machine order them as it did?  Exits with 7 if not.

    Example: tcl drift --platform host-avx2
    """
    from tcl_core.evaluation.drift import DRIFTED
    from tcl_core.stages.drifting import check_drift, drift_text

    refuse_empty(platform=platform)
    found = {"checks": check_drift(context.obj, platform)}
    drifted = any(check["verdict"] == DRIFTED for check in found["checks"])
    say(told(found, lambda _: "\n".join(map(drift_text, found["checks"])), as_json), DRIFT if drifted else 0)
    if drifted:
        sys.exit(DRIFT)


@app.command("import", rich_help_panel=DATA)
def import_(
    context: typer.Context,
    logs: Annotated[list[Path], typer.Argument(help=f"Logs of {dialect_names()}, gzip or plain; of a database, its folder.")],
    platform: Annotated[str, typer.Option("--platform", "-p", help="The hardware that the logs are of; any name.")],
    target: Annotated[str, typer.Option(help="Only lines whose target has this text in it.")] = "",
) -> None:
    """Read tuning logs of other tuners.  Example: tcl import random.log.gz searched.log.gz -p ryzen-3700x"""
    from tcl_core.stages.exchange import import_logs

    said: list[str] = []
    with told_first(said):
        import_logs(context.obj, logs, platform, target, told=lambda report: said.append(str(report)))
    say("\n".join(said))


@app.command(rich_help_panel=DATA)
def export(
    context: typer.Context,
    platform: Annotated[str, typer.Option("--platform", "-p", help="A platform of params.yaml that was measured.")],
    to: Annotated[Optional[Path], typer.Option(help="The database's folder; none: data/exported/platform=P.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write what was measured as a MetaSchedule database that plain TVM loads.  Example: tcl export -p host-avx2"""
    from tcl_core.stages.exchange import export_database

    refuse_empty(platform=platform)
    say(export_database(context.obj, platform, to, overwrite))
