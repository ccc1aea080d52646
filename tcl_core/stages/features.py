"""Which programs the pipeline's stages will read as per-store features, so that they can be lowered beforehand."""

from __future__ import annotations

import numpy as np

from tcl_core.records import ProgramKey
from tcl_core.models import catalogue
from tcl_core.stages.baselines import platforms_measured, platforms_of
from tcl_core.stages.training import learns_beside
from tcl_core.stages.workspace import Workspace


def programs_to_lower(workspace: Workspace) -> list[ProgramKey]:
    """Programs that teach the chain's first model, unless it ``learns_beside``, and those of the baselines that read per-store features.

    Baselines' programs are those measured by now.  Empty for a pool that is not a CPU's.  Raises DataError without records.
    """
    params = workspace.params
    if params.candidates.design_space != "cpu":
        return []
    keys = _pseudo_labelled(workspace) if params.train.unlabelled and not learns_beside(workspace) else []
    for name in params.baselines.models:
        if catalogue.reads(name) == "per-store features":
            learned = platforms_of(name, platforms_measured(workspace))
            judged = [platform for platform in learned if platform in workspace.platforms_here()]
            for kind, platforms in {"records": learned, "holdout": judged}.items():
                keys += [key for platform in platforms for key in _measured(workspace, platform, kind)]
    return list(dict.fromkeys(keys))


def _pseudo_labelled(workspace: Workspace) -> list[ProgramKey]:
    """What the teacher ensemble of the chain's first platform reads: its records, and the programs that it labels."""
    first = workspace.params.chain.first
    train, _ = workspace.split_by_task(workspace.samples(first), workspace.params.train.validation_share)
    measured = _measured(workspace, first, "records")
    return measured + workspace.unlabelled_keys(np.unique(train.tasks), workspace.params.train.unlabelled, measured)


def _measured(workspace: Workspace, platform: str, kind: str) -> list[ProgramKey]:
    return [record.key for record in workspace.records(platform, kind)]
