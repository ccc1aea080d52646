"""The pipeline's stages, one module per kind; a stage takes a ``Workspace`` and returns a report of what it did."""
