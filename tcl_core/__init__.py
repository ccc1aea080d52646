"""TCL: learned cost models of tensor programs, across hardware.

    import tcl_core as tcl

    model = tcl.load("host-avx512")                    # a platform's champion, a folder or a file
    tcl.rank(model, "path/to/a/database").table(3)     # the programs of a tuning log or a database, best first

The public names are those in ``__all__``; each is imported on first use, so ``import tcl_core`` itself costs nothing.
Only ``Workspace``, a project's folder, needs params.yaml, and only a champion's name is looked up in the registry of the working folder.
Nothing exits the process, or prints anything but progress and warnings, on standard error.  Errors are exceptions of
``tcl_core.errors``, one sentence each.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {  # public name -> module, or module:name in it
    "CostModel": "tcl_core.models.cost_model:CostModel",
    "FitSettings": "tcl_core.learning.fit_settings:FitSettings",
    "Hardware": "tcl_core.platforms:Hardware",
    "Mamba": "tcl_core.models.mamba:MambaModel",
    "Samples": "tcl_core.features.batches:Samples",
    "SearchSettings": "tcl_core.tuning.schedules:SearchSettings",
    "Trained": "tcl_core.trained:Trained",
    "Trees": "tcl_core.models.trees:TreesModel",
    "Workspace": "tcl_core.stages.workspace:Workspace",
    "cost_model": "tcl_core.tuning.adapters:cost_model",
    "create": "tcl_core.models.catalogue:create",
    "datasets": "tcl_core.datasets",
    "distill": "tcl_core.library:distill",
    "errors": "tcl_core.errors",
    "figures": "tcl_core.library:figures",
    "hardware": "tcl_core.library:hardware",
    "load": "tcl_core.trained:load",
    "pretrained": "tcl_core.shipped_model:pretrained",
    "rank": "tcl_core.library:rank",
    "samplers": "tcl_core.samplers",
    "search_strategy": "tcl_core.tuning.adapters:search_strategy",
    "teach": "tcl_core.teaching:teach",
    "tune": "tcl_core.library:tune",
}
__all__ = [
    "__version__", "CostModel", "FitSettings", "Hardware", "Mamba", "Samples", "SearchSettings", "Trained", "Trees", "Workspace",
    "cost_model", "create", "datasets", "distill", "errors", "figures", "hardware", "load", "pretrained", "rank", "samplers",
    "search_strategy", "teach", "tune",
]  # fmt: skip

if TYPE_CHECKING:
    from tcl_core import datasets as datasets, errors as errors, samplers as samplers
    from tcl_core.features.batches import Samples as Samples
    from tcl_core.learning.fit_settings import FitSettings as FitSettings
    from tcl_core.library import distill as distill, figures as figures, hardware as hardware, rank as rank, tune as tune
    from tcl_core.models.catalogue import create as create
    from tcl_core.models.cost_model import CostModel as CostModel
    from tcl_core.models.mamba import MambaModel as Mamba
    from tcl_core.models.trees import TreesModel as Trees
    from tcl_core.platforms import Hardware as Hardware
    from tcl_core.shipped_model import pretrained as pretrained
    from tcl_core.stages.workspace import Workspace as Workspace
    from tcl_core.teaching import teach as teach
    from tcl_core.trained import Trained as Trained, load as load
    from tcl_core.tuning.adapters import cost_model as cost_model, search_strategy as search_strategy
    from tcl_core.tuning.schedules import SearchSettings as SearchSettings


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tcl_core import environment  # noqa: F401  (before torch is imported)
    from tcl_core.errors import naming_extras

    module, _, attribute = _WHERE[name].partition(":")
    with naming_extras():
        found = importlib.import_module(module)
    globals()[name] = value = getattr(found, attribute) if attribute else found
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
