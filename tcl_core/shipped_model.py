"""The cost model that comes with TCL: for a machine on which nothing was measured yet.

    tcl.tune("net.onnx", tcl.pretrained(), minutes=10)

Boosted trees that read tokens learn the measured programs of ``reference.LEARNED`` on first use, in a minute or a few: TCL ships no
weights, which could be of other data or another version.  The trees are kept in the user's cache (``pretrained/``), named by a digest
of all that they were made of.  The data are of x86 CPUs with vectors of three widths.
Tasks of the data sets' own held-out and sealed networks were not learned, so tables about these stay true.  The model may know some of a
project's held-out networks (resnet-18), whose tasks ``train.shipped`` leaves out.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from functools import lru_cache
from pathlib import Path

from tcl_core.checked import running_code
from tcl_core.compat import TVM_VERSION
from tcl_core.errors import TclError, UsageError
from tcl_core.files import user_cache
from tcl_core.locks import ThreadLock
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.platforms import cpu_named, hardware_under, host_fields, widest_cpu
from tcl_core.progress import progress
from tcl_core.reference import Reference, digest, shipped
from tcl_core.trained import Trained

NAME = "the model that comes with TCL"
MACHINE = "x86_64"  # architecture on which the data were measured
# The code that a model depends on.
LEARNS = (
    "reference.py",
    "records.py",
    "models/estimate.py",
    "models/trees.py",
    *(f"{folder}/*.py" for folder in ("features", "learning", "platforms", "programs", "store")),
)

log = logging.getLogger(__name__)
_GROWING = ThreadLock()


def pretrained(mcpu: str | None = None) -> Trained:
    """The model that comes with TCL, to rank programs for ``mcpu``, LLVM's name of a CPU; None: for this machine's widest vectors.

    Raises UsageError for a CPU that TCL does not know or that is not x86.
    """
    mcpu = mcpu or widest_cpu()
    if mcpu is None or (reason := why_unknown(mcpu)):
        raise UsageError(
            f"{NAME} learned x86 CPUs{'' if mcpu is None else f', and {reason}'}; collect measurements, or tune without a model"
        )
    with _GROWING:  # one of several threads grows the trees
        model = copy.deepcopy(_learned())
    return Trained(model, hardware_under(mcpu, host_fields(), {}), NAME)


def why_unknown(mcpu: str) -> str | None:
    """Why the model cannot rank programs for a CPU; None if it can.  Raises UsageError for a name that TCL does not know."""
    machine = cpu_named(mcpu).machine
    return None if machine == MACHINE else f"{mcpu} is {machine}"


@lru_cache(maxsize=1)
def _learned() -> CostModel:
    """The trees, from the user's cache or grown once per process; a cache that cannot be used is only a warning."""
    model = catalogue.create("trees")
    kept = _kept(model)
    if kept and kept.exists():
        try:
            return catalogue.load(kept)
        except TclError as error:
            log.warning("what was learned before cannot be read and is learned again (%s)", error)
    samples = shipped(Reference.pooled)
    with progress("learning the measurements that come with TCL", model.settings.epochs) as shown:
        model.fit(samples, on_epoch=lambda *_: shown.advance())
    if kept:
        try:
            model.save(kept)
        except TclError as error:
            log.warning("what was learned is not kept for the next process (%s)", error)
    return model


def _kept(model: CostModel) -> Path | None:
    """The model's folder in the user's cache; None for a user without a home."""
    try:
        return user_cache("pretrained") / _made_of(model)
    except RuntimeError:
        return None


def _made_of(model: CostModel) -> str:
    """Digest of data, settings, versions and code: a change to any of them makes another model."""
    import xgboost  # installed, for ``catalogue.create`` has imported it

    package = Path(__file__).parent
    code = [running_code(path.read_text(encoding="utf-8")) for pattern in LEARNS for path in sorted(package.glob(pattern))]
    facts = repr((digest(), model.settings, xgboost.__version__, TVM_VERSION, code))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
