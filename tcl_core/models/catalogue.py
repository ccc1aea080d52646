"""Name -> cost model class: the only file that lists them.

A model's module is imported on first use, so listing the names costs nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcl_core.checked import check_contents
from tcl_core.errors import DataError, naming_extras, unknown_name
from tcl_core.files import shown
from tcl_core.learning.fit_settings import FitSettings
from tcl_core.models.cost_model import AGAIN, CostModel, check_version, read_description

CLASSES = {
    "random": "tcl_core.models.random_scores:RandomScores",
    "mamba": "tcl_core.models.mamba:MambaModel",
    "mamba-paper": "tcl_core.models.mamba_paper:MambaPaperModel",
    "lateral-mamba": "tcl_core.models.lateral_mamba:LateralMambaModel",
    "tlp": "tcl_core.models.tlp:TlpModel",
    "mtl-tlp": "tcl_core.models.mtl_tlp:MtlTlpModel",
    "tenset-mlp": "tcl_core.models.tenset_mlp:TensetMlpModel",
    "xgboost": "tcl_core.models.trees:XgboostModel",
    "trees": "tcl_core.models.trees:TreesModel",
    "world-model": "tcl_core.models.world_model:WorldModel",
}

CHAIN_MODEL = "mamba"  # trained on the chain's first platform; also chooses the programs to measure if the sampler is rdu-paper


def model_class(name: str) -> type[CostModel]:
    """Model class by name.  Raises UsageError that names the nearest known model, or the missing extra."""
    if name not in CLASSES:
        raise unknown_name("model", name, CLASSES)
    module, _, attribute = CLASSES[name].partition(":")
    with naming_extras():
        return getattr(importlib.import_module(module), attribute)


def create(name: str, settings: FitSettings | None = None) -> CostModel:
    """An untrained model by name; ``settings`` (seed and training options) default to the class's own."""
    return model_class(name)(settings) if settings else model_class(name)()


def own_settings(name: str) -> FitSettings:
    """Default training settings of a class: those of its paper, or those its file chooses."""
    return create(name).settings


def reads(name: str) -> str:
    """Kind of rows that a model reads (``CostModel.reads``)."""
    return model_class(name).reads


def check_tokens(description: Mapping[str, Any], origin: str) -> None:
    """Raise DataError if a saved model reads tokens of another width or version than this TCL makes.

    ``description`` is what ``read_description`` returns; ``origin`` names the model in the message.
    """
    made = model_class(description["class"])
    width = description["arguments"].get("features", made.row_width)
    if made.reads == "tokens" and width != made.row_width:
        raise DataError(f"{origin} reads tokens of {width} numbers, and this version's have {made.row_width}; train it again")
    check_version(description, made.reads, origin)


def load(folder: Path) -> CostModel:
    """Load a saved model of any class.  Raises DataError if it is missing or damaged, if a file in the folder is not the one
    written there, or if the model reads another version of the tokens.
    """
    description = read_description(folder)
    made = model_class(description["class"])
    check_version(description, made.reads, f"the {description['class']} model in {shown(folder)}")
    check_contents(Path(folder), AGAIN)
    return made.load(folder)
