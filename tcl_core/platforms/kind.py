"""What TCL asks of a kind of platform.  A new kind is one file beside this one and one line in ``KINDS``.

A kind is an object without state: it is asked about a platform of params.yaml.  It knows neither how
programs are timed nor how devices are asked; who asks for a device brings that along (``Ask``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from tcl_core.gpu import GpuHardware
from tcl_core.platforms.hardware import Hardware


class Platform(Protocol):
    """What a kind reads of a platform of params.yaml: ``params.Platform``, which names the kinds and so comes after them."""

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

    host      names it in every record: latencies compare within one
    hardware  what models are told of it
    """

    host: str
    hardware: Hardware | GpuHardware


class Ask(NamedTuple):
    """What costs time or a connection to learn.

    bandwidth_gbs  of this host's memory
    describe       what a device behind the platform's tracker tells of itself; raises PlatformError where none answers
    """

    bandwidth_gbs: Callable[[], float]
    describe: Callable[[], Mapping[str, Any]]


class Kind(ABC):
    """One kind of platform.

    name           its name in params.yaml
    keys           what a platform of params.yaml must say of it, beside ``kind`` and ``hardware``, which every kind may have
    design_spaces  of the candidates that it can run
    code           what TVM compiles its programs with: the kind of a target
    device         what TVM calls the device that runs them
    remote         its devices are behind TVM's RPC tracker
    apart          its programs run on another device than they are built on
    bounded        what a program may take of the address space says something about its memory
    elsewhere      what it is, if it is no part of this machine, on which alone networks are tuned
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
        """Raise UsageError for values of its keys that cannot be; ``where`` they stand is named in it."""

    def check_measure(self, name: str, measure: Measure) -> None:  # noqa: B027  (most kinds have nothing to do)
        """Raise UsageError for a protocol that the platform ``name`` cannot be measured by."""

    @abstractmethod
    def why_not(self, platform: Platform, design_space: str) -> str | None:
        """One sentence that says why this machine leaves the platform out; None where it does not.  Raises UsageError."""

    @abstractmethod
    def shown_as(self, platform: Platform, runs: bool) -> str:
        """Its hardware in a word; ``runs``: whether it is here."""

    @abstractmethod
    def target(self, platform: Platform) -> dict[str, Any]:
        """TVM's target dictionary.  Raises PlatformError where there is no such device, UsageError for an unknown one."""

    @abstractmethod
    def pool_target(self, design_space: str, threads: int) -> dict[str, Any]:
        """The target whose design space the candidates are of, which all platforms of the kind share."""

    def behind(self, platform: Platform) -> tuple[str, int, str] | None:
        """Host and port of the tracker behind which its devices are, and their key; None: they are this machine's."""
        return None

    @abstractmethod
    def find(self, platform: Platform, ask: Ask) -> Found:
        """The device to measure on.  Raises PlatformError where there is none."""

    def prepare(self) -> None:  # noqa: B027  (most kinds have nothing to do)
        """What a process that builds its programs does once, with TVM loaded."""

    def most_workers(self) -> int | None:
        """How many processes may run its programs side by side; None: as many as there are CPUs to build on."""
        return None

    def why_untuned(self, name: str) -> str | None:
        """Why no network is tuned on the platform ``name``; None where networks are."""
        return f"networks are tuned for this machine's CPU or GPU; {name} is {self.elsewhere}" if self.elsewhere else None

    def why_unfit(self, target: Mapping[str, Any]) -> str | None:
        """Why this machine cannot run what was built for a target of this kind; None where nothing is known against it."""
        return None

    def unsearched(self, module: Any, target: Any) -> Any:
        """A module that nobody scheduled as one that TVM can build: as it is written down, which a CPU runs."""
        return module


class CpuKind(Kind):
    """What platforms have in common whose programs LLVM compiles for a CPU: one pool of candidates serves all of them."""

    design_spaces = ("cpu",)
    code, device = "llvm", "cpu"

    def shown_as(self, platform: Platform, runs: bool) -> str:
        return platform.mcpu

    def pool_target(self, design_space: str, threads: int) -> dict[str, Any]:
        return {"kind": self.code, "num-cores": threads}
