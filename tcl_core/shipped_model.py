"""The cost model that comes with TCL: for a machine on which nothing was measured yet.

    tcl.tune("net.onnx", tcl.pretrained(), minutes=10)

Boosted trees that read tokens learn the measured programs of ``reference.PREPARED`` in under a minute, when they are asked for: no
weights come with TCL that could be of other data or another version than it.  The data are of x86 CPUs with vectors of three widths.
What the data set's own held-out and sealed networks have was not learned, so tables of these stay true; of a project's held-out ones it
may know some (resnet-18), which ``train.shipped`` leaves out.
"""

from __future__ import annotations

from functools import lru_cache

from tcl_core import store
from tcl_core.errors import UsageError
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.platforms import cpu_named, hardware_under, host_fields, widest_cpu
from tcl_core.progress import progress
from tcl_core.reference import PREPARED, Reference, cache_of_features
from tcl_core.trained import Trained

NAME = "the model that comes with TCL"
MACHINE = "x86_64"  # on which the data were measured


def pretrained(mcpu: str | None = None) -> Trained:
    """It ranks programs for ``mcpu``, LLVM's name of a CPU; None: for the widest vectors of this machine.

    Raises UsageError for a CPU that TCL does not know or that is no x86.
    """
    mcpu = mcpu or widest_cpu()
    if mcpu is None or (reason := why_unknown(mcpu)):
        raise UsageError(
            f"{NAME} learned x86 CPUs{'' if mcpu is None else f', and {reason}'}; collect measurements, or tune without a model"
        )
    return Trained(_learned(), hardware_under(mcpu, host_fields(), {}), NAME)


def why_unknown(mcpu: str) -> str | None:
    """Why it cannot rank programs for a CPU; None if it can.  Raises UsageError for a name that TCL does not know."""
    machine = cpu_named(mcpu).machine
    return None if machine == MACHINE else f"{mcpu} is {machine}"


def digest() -> str:
    """Of the data that it learns."""
    return store.data_digest(PREPARED)


@lru_cache(maxsize=1)
def _learned() -> CostModel:
    """The trees, grown once in a process."""
    samples = Reference(PREPARED, cache_of_features()).pooled()
    model = catalogue.create("trees")
    with progress("learning the measurements that come with TCL", model.settings.epochs) as shown:
        return model.fit(samples, on_epoch=lambda *_: shown.advance())
