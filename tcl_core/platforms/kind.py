"""The interface of a kind of platform.  A new kind is one file beside this one and one line in ``KINDS``.

A kind is a stateless object that answers questions about a platform of params.yaml.  It knows neither how
programs are timed nor how devices are queried; the caller who wants a device passes that in (``Ask``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from tcl_core.gpu import GpuHardware
from tcl_core.platforms.hardware import Hardware


class Platform(Protocol):
    """What a kind reads of ``params.Platform``, which cannot be imported here: ``params`` imports the kinds."""

    @property
    def kind(self) -> str: ...
    @property
    def mcpu(self) -> str: ...
    @property
    def tracker(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def hardware(self) -> Mapping[str, Any]: ...


class Measure(Protocol):
    """What a kind reads of ``params.Measure``."""

    @property
    def flush_cache(self) -> bool: ...


class Found(NamedTuple):
    """A platform's device as it is today.

    host      identifies it in every record: latencies compare within one host
    hardware  its description for models
    """

    host: str
    hardware: Hardware | GpuHardware


class Ask(NamedTuple):
    """Facts that take time or a connection to learn, as functions.

    bandwidth_gbs  bandwidth of this host's memory
    describe       a device's description of itself, behind the platform's tracker; raises PlatformError where none answers
    """

    bandwidth_gbs: Callable[[], float]
    describe: Callable[[], Mapping[str, Any]]


class Kind(ABC):
    """One kind of platform.

    name           its name in params.yaml
    keys           keys that its platforms must have in params.yaml, besides ``kind`` and ``hardware``, which every kind may have
    design_spaces  design spaces whose candidates it can run
    code           kind of the TVM targets that its programs are compiled for
    device         TVM's name of the device that runs them
    remote         its devices are behind TVM's RPC tracker
    apart          its programs run on another device than the one that builds them
    bounded        a limit on a worker's address space makes sense as a limit on its memory
    elsewhere      what its devices are, if not part of this machine, for which alone networks are tuned
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()
    design_spaces: ClassVar[tuple[str, ...]]
    code: ClassVar[str]
    device: ClassVar[str]
    remote: ClassVar[bool] = False
    apart: ClassVar[bool] = False
    bounded: ClassVar[bool] = True
    elsewhere: ClassVar[str] = ""

    def check(self, platform: Platform, where: str) -> None:  # noqa: B027  (most kinds have nothing to do)
        """Raise UsageError for invalid values of its keys; the error names ``where`` they stand."""

    def check_measure(self, name: str, measure: Measure) -> None:  # noqa: B027  (most kinds have nothing to do)
        """Raise UsageError for a protocol by which the platform ``name`` cannot be measured."""

    @abstractmethod
    def why_not(self, platform: Platform, design_space: str) -> str | None:
        """Why this machine skips the platform, in one sentence; None if it does not.  Raises UsageError for an unknown CPU."""

    @abstractmethod
    def shown_as(self, platform: Platform, runs: bool) -> str:
        """The platform's hardware in a word; ``runs``: whether this machine runs it."""

    @abstractmethod
    def target(self, platform: Platform) -> dict[str, Any]:
        """TVM's target dictionary.  Raises PlatformError where there is no such device, UsageError for an unknown one."""

    @abstractmethod
    def pool_target(self, design_space: str, threads: int) -> dict[str, Any]:
        """The target for which the candidates' design space is generated, shared by all platforms of the kind."""

    def behind(self, platform: Platform) -> tuple[str, int, str] | None:
        """Host and port of its devices' tracker, and their key; None: the devices are this machine's."""
        return None

    @abstractmethod
    def find(self, platform: Platform, ask: Ask) -> Found:
        """The device to measure on.  Raises PlatformError where there is none."""

    def prepare(self) -> None:  # noqa: B027  (most kinds have nothing to do)
        """Prepare a process that builds its programs; called once, with TVM loaded."""

    def most_workers(self) -> int | None:
        """How many processes may run its programs in parallel; None: as many as there are CPUs to build on."""
        return None

    def why_untuned(self, name: str) -> str | None:
        """Why no network is tuned on the platform ``name``; None where networks are."""
        return f"networks are tuned for this machine's CPU or GPU; {name} is {self.elsewhere}" if self.elsewhere else None

    def why_unfit(self, target: Mapping[str, Any]) -> str | None:
        """Why this machine cannot run what was built for a target of this kind; None if no reason is known."""
        return None

    def unsearched(self, module: Any, target: Any) -> Any:
        """An unscheduled module in a form that TVM can build: by default unchanged, which a CPU can run."""
        return module


class CpuKind(Kind):
    """Base of the kinds whose programs LLVM compiles for a CPU: one pool of candidates serves all of them."""

    design_spaces = ("cpu",)
    code, device = "llvm", "cpu"

    def shown_as(self, platform: Platform, runs: bool) -> str:
        return platform.mcpu

    def pool_target(self, design_space: str, threads: int) -> dict[str, Any]:
        return {"kind": self.code, "num-cores": threads}
