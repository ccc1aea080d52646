"""Samplers by name, and where each is: plain data, so that params.yaml can be checked without loading anything."""

SAMPLERS = {
    "rdu": "tcl_core.sampling.rdu:pick",
    "rdu-paper": "tcl_core.sampling.rdu:pick_as_printed",
    "random": "tcl_core.sampling.random_picks:pick",
    "per-task": "tcl_core.sampling.per_task:pick",
}
BLIND = ("random", "per-task")  # use no model
FIRST_MODEL_ALONE = ("rdu-paper",)  # use only the first model of an ensemble
LEARNED_ELSEWHERE = ("rdu",)  # start from the previous platform's measurements, if there are any
