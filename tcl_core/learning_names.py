"""Losses, schedules and column starts by name, and where they are: plain data, so that params.yaml is checked without torch."""

LOSSES = {
    "rank": "tcl_core.learning.losses:lambda_rank",
    "pairs": "tcl_core.learning.losses:rank_net",
    "scores": "tcl_core.learning.losses:score_regression",
}
SCHEDULES = {  # of the learning rate
    "constant": "tcl_core.learning.fit:constant",
    "cosine": "tcl_core.learning.fit:cosine",
    "step": "tcl_core.learning.fit:step",
}
COLUMN_STARTS = ("knowledge_base", "fresh")  # where the paper's active column begins (chain.ckd)
