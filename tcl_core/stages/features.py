"""Which programs the pipeline's stages will want as statements, so that they can be lowered beforehand."""

from __future__ import annotations

import numpy as np

from tcl_core import store
from tcl_core.records import ProgramKey
from tcl_core.models import catalogue
from tcl_core.stages.baselines import platforms_of
from tcl_core.stages.project import Project, records_folder


def programs_to_lower(project: Project) -> list[ProgramKey]:
    """Those that teach the chain's first model, and those of each model of ``baselines.models`` that reads statements.

    As far as they were measured by now; none where they are not a CPU's.  Raises DataError where there are no records.
    """
    params = project.params
    if params.candidates.design_space != "cpu":
        return []
    keys = _taught(project) if params.train.unmeasured else []
    for name in params.baselines.models:
        if catalogue.reads(name) == "statements":
            keys += [key for platform in platforms_of(project, name) for kind in ("records", "holdout") for key in _measured(platform, kind)]
    return list(dict.fromkeys(keys))


def _taught(project: Project) -> list[ProgramKey]:
    """What the committee of the chain's first platform reads: its records, and the programs that it labels."""
    first = project.params.chain.first
    train, _ = project.split_by_task(project.samples(first), project.params.train.validation_share)
    measured = _measured(first, "records")
    return measured + project.unmeasured_keys(np.unique(train.tasks), project.params.train.unmeasured, measured)


def _measured(platform: str, kind: str) -> list[ProgramKey]:
    return [record.key for record in store.read_records(records_folder(platform, kind))]
