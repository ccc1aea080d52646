"""What a version includes so that MLflow can serve it: this package's code, and a file that loads the model with it.

Code, not a pickled object: loading a version runs ``serve`` and reads safetensors.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.models.model import ModelInfo

CODE = Path(__file__).resolve().parents[1]  # tcl_core, which a registered version includes
APART = ("package_data", "__pycache__")  # left out: ranking does not need them, and they are megabytes in each version
NEEDED = ("numpy", "torch", "safetensors", "mlflow")  # to load a model and rank with it
SERVED = "from tcl_core.registry import serve\n\nserve()\n"  # what MLflow runs to load a version


def log_model(model_folder: Path, tags: Mapping[str, str]) -> ModelInfo:
    """Log a model's folder, and what serves it, into the active MLflow run."""
    import mlflow

    with tempfile.TemporaryDirectory() as folder:
        served, code = Path(folder) / "served.py", Path(folder) / CODE.name
        served.write_text(SERVED)
        shutil.copytree(CODE, code, ignore=shutil.ignore_patterns(*APART))
        return mlflow.pyfunc.log_model(
            name="model",
            python_model=str(served),
            artifacts={"model": str(model_folder)},
            pip_requirements=[f"{package}=={importlib.metadata.version(package).partition('+')[0]}" for package in NEEDED],
            code_paths=[str(code)],
            tags=dict(tags),
        )


def serve() -> None:
    """Give MLflow a model that ranks: ``predict({"tokens": (N, L, F), "lengths": (N,), "tasks": (N,)})`` -> (N,) scores."""
    import numpy as np
    from mlflow.models import set_model
    from mlflow.pyfunc import PythonModel

    from tcl_core.features.batches import Samples
    from tcl_core.models.catalogue import load

    with warnings.catch_warnings(record=True):  # MLflow asks for a type hint, but has none for a group of arrays

        class Ranking(PythonModel):
            def load_context(self, context) -> None:
                self.model = load(Path(context.artifacts["model"]))

            def predict(self, context, model_input, params=None):
                tokens = np.asarray(model_input["tokens"], np.float32)
                lengths = np.asarray(model_input["lengths"], np.int32)
                tasks = np.asarray(model_input["tasks"], np.int32)
                return self.model.predict(Samples(tokens, lengths, tasks, np.full(len(tasks), np.inf)))

    set_model(Ranking())
