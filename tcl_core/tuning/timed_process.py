"""A process that runs one network for ``latency.compare``: it writes the outputs once, then times a round of runs per request.

The command is ``python -m tcl_core.sandbox RIGHTS tcl_core.tuning.timed_process ORDER``, ORDER being JSON:

    kind      library, eager or compile
    network   the library's file; else a network's name or .pt2 file
    threads, pin, memory_bytes (0: any)
    device    cpu or cuda, which holds weights and inputs
    cores     those it may run on
    inputs    descriptor of an .npz file with input_0, input_1, ...
    outputs   descriptor of the file for the network's outputs, as .npz with output_0, output_1, ...

On its standard output it writes, as lines of JSON, {"ready": milliseconds of the first run} or {"refused": why}; then, for each line of
its standard input, {"ms": median of a round}.  It imports nothing that sets OpenMP's policy: the process that starts it sets that.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from tcl_core.compat import calling_thread_pinned, load_tvm, set_threads
from tcl_core.errors import TclError
from tcl_core.files import shown
from tcl_core.process import die_with_parent
from tcl_core.programs.network_files import limit_memory, tensors_of
from tcl_core.programs.pt2_archive import last_line, load_pt2

# A round: FEWEST runs and FOR_S seconds at least, but none starts after MOST_S seconds; a run longer than that is the only one.
FEWEST, FOR_S, MOST_S = 3, 0.3, 3.0
WARM_UP, WARM_UP_S = 3, 1.0  # most runs before the first round; no further one starts after this many seconds

Run = Callable[[], Any]


def main() -> None:
    die_with_parent()  # while stopped (SIGSTOP) it would never see that its parent is gone
    order = json.loads(sys.argv[1])
    os.sched_setaffinity(0, order["cores"])
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # whatever libraries print goes to standard error
        if order["memory_bytes"]:
            limit_memory(order["memory_bytes"])
        try:
            with np.load(os.fdopen(order["inputs"], "rb"), allow_pickle=False) as given:
                inputs = [given[f"input_{number}"] for number in range(len(given.files))]
            KINDS[order["kind"]](order, inputs, answers)
        except TclError as error:
            _say(answers, refused=str(error))
        except Exception as error:  # compilers, runtimes and networks raise types of their own
            _say(answers, refused=last_line(error))


def _serve(run: Run, arrays: Callable[[Any], list[np.ndarray]], order: Mapping[str, Any], answers: Any) -> None:
    start = time.perf_counter()
    found = run()
    first_s = time.perf_counter() - start
    with os.fdopen(order["outputs"], "wb") as file:
        np.savez(file, **{f"output_{number}": array for number, array in enumerate(arrays(found))})
    end = time.perf_counter() + WARM_UP_S
    if order["kind"] == "library":  # PyTorch's first run may have compiled the network
        end -= first_s  # so one that takes minutes is run only once
    for _ in range(WARM_UP):
        if time.perf_counter() < end:
            run()
    _say(answers, ready=first_s * 1e3)
    for _ in sys.stdin:
        _say(answers, ms=round_ms(run))


def _say(answers: Any, **words: Any) -> None:
    answers.write(f"{json.dumps(words)}\n")


def round_ms(run: Run) -> float:
    """Median milliseconds of a round, after one run that wakes threads and fills caches.

    That first run counts if it takes longer than ``FOR_S``: waking is negligible then.
    """
    waking_s = _seconds(run)
    seconds = [waking_s] if waking_s > FOR_S else []
    spent_s = sum(seconds)
    while spent_s < MOST_S and (len(seconds) < FEWEST or spent_s < FOR_S):
        seconds.append(_seconds(run))
        spent_s += seconds[-1]
    return statistics.median(seconds) * 1e3


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _library(order: Mapping[str, Any], inputs: Sequence[np.ndarray], answers: Any) -> None:
    """Serve a library, with ``threads`` threads; with ``pin`` each on a core of its own, as programs were measured."""
    tvm = load_tvm(without_torch=True)
    set_threads(order["threads"], order["pin"])
    device = tvm.device(order["device"])
    machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(order["network"]), device)
    main, arguments = machine["main"], [tvm.runtime.tensor(array, device) for array in inputs]

    def run() -> Any:
        found = main(*arguments)
        device.sync()
        return found

    def arrays(found: Any) -> list[np.ndarray]:
        """The outputs that are tensors: a network may return None too."""
        parts = [found] if isinstance(found, tvm.runtime.Tensor) else found
        return [part.numpy() for part in parts if isinstance(part, tvm.runtime.Tensor)]

    with calling_thread_pinned() if order["pin"] else nullcontext():
        _serve(run, arrays, order, answers)


def _torch(order: Mapping[str, Any], inputs: Sequence[np.ndarray], answers: Any) -> None:
    import torch

    torch.set_num_threads(order["threads"])
    device = torch.device(order["device"])
    model, tensors = _module(order["network"]).to(device), [torch.from_numpy(array).to(device) for array in inputs]
    with torch.inference_mode():
        compiled = torch.compile(model) if order["kind"] == "compile" else model

        def run() -> Any:
            found = compiled(*tensors)
            if device.type != "cpu":
                torch.accelerator.synchronize()
            return found

        _serve(run, tensors_of, order, answers)


def _module(network: str) -> Any:
    from tcl_core.programs.networks import build_torch

    if not network.endswith(".pt2"):
        return build_torch(network)[0]
    with open(network, "rb") as file:
        return load_pt2(file, shown(network))[0].module()


KINDS = {"library": _library, "eager": _torch, "compile": _torch}

if __name__ == "__main__":
    main()
