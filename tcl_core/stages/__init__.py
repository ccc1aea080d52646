"""What the pipeline is made of: a module for each kind of stage; a stage takes a ``Workspace`` and returns what it did."""
