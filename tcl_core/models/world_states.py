"""Real states for training a world model: each distinct one once, and which programs reach it after which action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.states import Trajectory
from tcl_core.learning.batches_by_task import Batch
from tcl_core.models.world_dynamics import Dynamics, transition_loss


@dataclass(frozen=True)
class RealStates:
    """The replayed programs of a training set, and their real states without duplicates.

    samples   R replayed programs
    steps     (R, P) int64 number of actions applied before each of a program's states, -1 in the padding
    numbers   (R, P) int64 each state's row in ``distinct``, 0 in the padding
    distinct  (M, S) float32 distinct states (equal states of different tasks count as distinct)
    tasks     (M,) int32 the task of each distinct state
    """

    samples: Samples
    steps: np.ndarray
    numbers: np.ndarray
    distinct: np.ndarray
    tasks: np.ndarray

    @classmethod
    def of(cls, train: Samples) -> RealStates:
        """Collect the states of ``train``.  Raises DataError when no program has states."""
        replayed = [] if train.states is None else [row for row, s in enumerate(train.states) if s is not None]
        if not replayed:
            raise DataError(
                "the world-model learns from real states of replayed schedules, but none of "
                f"{len(train)} programs has them; make them with features.states.with_states before it is trained."
            )
        samples = train.take(np.array(replayed))
        ways: Sequence[Trajectory] = samples.states
        used = np.arange(max(len(way.steps) for way in ways)) < np.array([len(way.steps) for way in ways])[:, None]
        states = np.concatenate([way.states for way in ways])
        tasks = np.broadcast_to(samples.tasks[:, None], used.shape)[used]
        both = np.column_stack([tasks, states])
        _, first, number = np.unique(both, axis=0, return_index=True, return_inverse=True)
        steps, numbers = np.full(used.shape, -1), np.zeros(used.shape, dtype=np.int64)
        steps[used], numbers[used] = np.concatenate([way.steps for way in ways]), number
        return cls(samples, steps, numbers, states[first], tasks[first])

    def as_samples(self) -> Samples:
        """Each distinct state as a program of one row, as the training loop expects."""
        count = len(self.distinct)
        return Samples(
            features=self.distinct[:, None],
            lengths=np.ones(count, dtype=np.int32),
            tasks=self.tasks,
            latencies_s=np.ones(count),
            task_names=self.samples.task_names,
            holds="states",
        )

    def loss(self, dynamics: Dynamics, batch: Batch, places: Tensor) -> Tensor:
        """The transition loss of a batch of ``samples``; ``places`` (M, D) are the latent states of ``distinct``."""
        states, _ = dynamics.roll_out(batch.features, batch.lengths)
        steps, numbers = (torch.from_numpy(a[batch.rows]).to(places.device) for a in (self.steps, self.numbers))
        used = steps >= 0
        predicted = states.gather(1, steps.clamp_min(0)[..., None].expand(-1, -1, states.shape[2]))[used]
        tasks = torch.from_numpy(self.tasks).to(places.device)[numbers[used]]
        return transition_loss(predicted, places[numbers[used]], numbers[used], tasks)
