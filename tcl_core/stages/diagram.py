"""The stages of dvc.yaml and their dependencies: the flow runs this graph, the summary and the server's deployments list its stages.

dvc.yaml repeats the graph, since DVC cannot read Python; ``tests/test_dvc_graph.py`` checks that the two agree, and each stage's command.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tcl_core.params import Params
from tcl_core.stages.baselines import listed_folder
from tcl_core.stages.workspace import Workspace

Done = TypeVar("Done")
OUTPUTS: dict[str, Callable[[Workspace, str], Path]] = {  # stage -> the folder that says why it was left out
    "collect": Workspace.records_folder,
    "holdout": lambda workspace, platform: workspace.records_folder(platform, "holdout"),
    "distill": Workspace.model_folder,
    "baseline": lambda workspace, model: listed_folder(workspace) / model,
}


def diagram(params: Params, stage: Callable[..., Done]) -> Done:
    """Call ``stage`` with each stage's name and the results for the stages it depends on; returns the last stage's result."""
    tasks = stage("tasks")
    pool = stage("candidates", tasks)
    platforms = dict.fromkeys([*params.chain_order, *params.platforms])  # chain order: a sampler may start from earlier measurements
    records = {platform: stage(f"collect@{platform}", pool) for platform in platforms}
    holdout = {platform: stage(f"holdout@{platform}", pool) for platform in platforms}
    models = {params.chain.first: stage("train", tasks, pool, records[params.chain.first])}
    for platform, link in params.chain.then.items():
        models[platform] = stage(f"distill@{platform}", tasks, pool, records[platform], records[link.prev], models[link.prev])
    others = [stage(f"baseline@{name}", tasks, pool, *records.values()) for name in params.baselines.models]
    return stage("evaluate", tasks, pool, *records.values(), *holdout.values(), *models.values(), *others)


def stage_names(params: Params) -> list[str]:
    """DVC's names of the stages, in the order in which they run."""
    names: list[str] = []

    def note(name: str, *before: str) -> str:
        names.append(name)
        return name

    diagram(params, note)
    return names
