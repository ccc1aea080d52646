"""`tcl` commands that train and judge models, and those of the registry."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from tcl_core.checked import plain_json
from tcl_core.cli.app import MODELS, AsJson, Platform, app, each_platform, refuse_empty, told, told_first
from tcl_core.cli.saying import say
from tcl_core.errors import UsageError

if TYPE_CHECKING:
    from tcl_core.stages.workspace import Workspace


@app.command(rich_help_panel=MODELS)
def train(
    context: typer.Context,
    model: Annotated[Optional[str], typer.Option(help="Another cost model than the chain's; docs/models.md lists them.")] = None,
    platform: Annotated[Optional[str], typer.Option("--platform", "-p", help="With --model: on this one; none: on each.")] = None,
) -> None:
    """Train the cost model of the chain's first platform, or another one beside it.  Example: tcl train --model xgboost"""
    from tcl_core.learning.distributed import with_helpers
    from tcl_core.models.catalogue import CHAIN_MODEL
    from tcl_core.stages.baselines import train_baseline
    from tcl_core.stages.training import train as train_first

    refuse_empty(model=model, platform=platform)
    workspace = context.obj
    if platform is not None:
        workspace.check_platform(platform)
    if model in (None, CHAIN_MODEL):
        if platform is not None and platform not in workspace.params.chain_order:
            raise UsageError(
                f"{platform} is not in the chain of params.yaml, whose models these are; put it there, or name another --model"
            )
        if platform not in (None, workspace.params.chain.first):
            raise UsageError(
                f"the chain's model is trained on {workspace.params.chain.first}; it learns {platform} by: tcl distill --platform {platform}"
            )
        say(with_helpers(lambda: train_first(workspace)))
        return
    trained = with_helpers(lambda: train_baseline(workspace, model, platform))
    say("\n".join(map(str, trained)) if isinstance(trained, list) else trained)


@app.command(rich_help_panel=MODELS)
def distill(
    context: typer.Context,
    platform: Platform = None,
    add: Annotated[Optional[str], typer.Option("--add", help="A platform that goes on from the champion of the one before it.")] = None,
) -> None:
    """Carry the knowledge of the previous platform on to this one; with --add from its champion, so that its records may lie elsewhere."""
    from tcl_core.learning.distributed import with_helpers
    from tcl_core.stages.training import distill as distill_on

    if platform is not None and add is not None:
        raise UsageError("give either --platform, which goes on from the model here, or --add, which does from a champion")
    workspace = context.obj
    one = lambda name: distill_on(workspace, name, from_registry=add is not None)  # noqa: E731
    say(with_helpers(lambda: each_platform(workspace, platform if add is None else add, one, first=False)))


@app.command(rich_help_panel=MODELS)
def evaluate(context: typer.Context) -> None:
    """Rank the held-out programs of every platform with every model; write the report and its plots."""
    from tcl_core.evaluation.report import terminal_table
    from tcl_core.stages.judging import evaluate as judge

    say(terminal_table(judge(context.obj)))


@app.command(rich_help_panel=MODELS)
def register(context: typer.Context, platform: Platform = None) -> None:
    """Put the trained models into the registry, as new versions of tcl-PLATFORM."""
    from tcl_core.stages import promotion

    refuse_empty(platform=platform)
    said: list[str] = []
    with told_first(said):
        for name in promotion.chosen_platforms(context.obj, platform):
            said.append(str(promotion.register(context.obj, name)))
    say("\n".join([*said, _registry(context.obj)]))


@app.command(rich_help_panel=MODELS)
def promote(context: typer.Context, platform: Platform = None, as_json: AsJson = False) -> None:
    """Make the present models champions where they rank the held-out programs better than today's champions."""
    from tcl_core.stages import promotion

    refuse_empty(platform=platform)
    done, said = [], list[str]()
    with told_first(said):
        for name in promotion.chosen_platforms(context.obj, platform):
            done.append(promotion.promote(context.obj, name))
            said.append(json.dumps(plain_json(asdict(done[-1]))) if as_json else str(done[-1]))
    found = {"registry": promotion.registry_of(context.obj), "promotions": [asdict(each) for each in done]}
    say(told(found, lambda _: "\n".join([*map(str, done), _registry(context.obj)]), as_json))


def _registry(workspace: Workspace) -> str:
    """Which registry was written: a copy of a project has its own, and MLFLOW_TRACKING_URI may name any."""
    from tcl_core.stages.promotion import registry_of

    return f"registry: {registry_of(workspace)}"


@app.command(rich_help_panel=MODELS)
def rollback(
    context: typer.Context,
    platform: Annotated[str, typer.Option("--platform", "-p", help="The platform whose champion is taken back.")],
    reason: Annotated[str, typer.Option(help="Why; it stays with both versions.")] = "no reason given",
    to: Annotated[Optional[int], typer.Option(min=1, max=999_999_999, help="Another version than the previous champion.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make the previous champion champion again.  Example: tcl rollback -p host-avx2 --reason "slower on BERT" """
    from tcl_core.stages.promotion import roll_back, roll_back_text

    refuse_empty(platform=platform, reason=reason)
    say(told(roll_back(context.obj, platform, reason, to), roll_back_text, as_json))


@app.command(rich_help_panel=MODELS)
def models(
    context: typer.Context,
    platform: Annotated[Optional[str], typer.Option("--platform", "-p", help="Of this one only; none: of all that is registered.")] = None,
    as_json: AsJson = False,
) -> None:
    """List champions, candidates and previous champions: since when, how good, from which data."""
    from tcl_core.stages.lineage import list_models, models_text

    refuse_empty(platform=platform)
    say(told(list_models(context.obj, platform), models_text, as_json))


@app.command(rich_help_panel=MODELS)
def lineage(
    context: typer.Context,
    asked: Annotated[str, typer.Argument(metavar="MODEL|REVISION", help="A platform, PLATFORM:NUMBER, a hash of data, or a commit.")],
    as_json: AsJson = False,
) -> None:
    """Tell what a model was made of, or which models were made of data or at a commit.  Example: tcl lineage host-avx2:3"""
    from tcl_core.stages.lineage import lineage as find_lineage, lineage_text

    say(told(find_lineage(context.obj, asked), lineage_text, as_json))
