"""What a registered version brings along."""

from __future__ import annotations

from pathlib import Path

from tcl_core.registry import serving


def test_a_version_brings_the_code_along_that_ranks_and_no_data(monkeypatch, tmp_path):
    import mlflow.pyfunc

    seen = set()

    def log_model(**given):
        (code,) = given["code_paths"]
        seen.update(path.relative_to(code).as_posix() for path in Path(code).rglob("*"))
        assert "serve()" in Path(given["python_model"]).read_text() and Path(code).name == "tcl_core"

    monkeypatch.setattr(mlflow.pyfunc, "log_model", log_model)
    serving.log_model(tmp_path, {})
    assert {"models/mamba.py", "registry/__init__.py", "features/batches.py"} <= seen
    assert not [name for name in seen if "package_data" in name or "__pycache__" in name]
