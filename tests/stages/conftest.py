"""Fixtures that several test files of stages share; a file's own of the same name takes their place."""

from tests.stages.known_models import database, project  # noqa: F401
