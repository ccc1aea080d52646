"""The samplers that have a name, and where each is: plain data, so that params.yaml can be checked without loading anything."""

SAMPLERS = {
    "rdu": "tcl_core.sampling.rdu:pick",
    "rdu-paper": "tcl_core.sampling.rdu:pick_as_printed",
    "random": "tcl_core.sampling.random_picks:pick",
    "per-task": "tcl_core.sampling.per_task:pick",
}
BLIND = ("random", "per-task")  # they ask no model
FIRST_MODEL_ALONE = ("rdu-paper",)  # of an ensemble they ask no other
LEARNED_ELSEWHERE = ("rdu",)  # they begin with what the platform before measured, if there is one
