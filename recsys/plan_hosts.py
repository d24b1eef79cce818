"""A plan on several hosts: what each holds and writes, what leaves it, and the least time."""

from __future__ import annotations

import dataclasses

from recsys.embedding.traffic import leaving, total
from recsys.plan import Plan


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Hosts alike, and how fast they are; the speeds are assumptions, not measured.

    Attributes:
        hosts: How many.
        devices_per_host: Devices of each.
        link: What a device sends to others of its host [bytes/s], one way; by default
            NVLink 4 of an H100.
        fabric: What a device sends to other hosts [bytes/s], one way; by default a link of
            400 Gbit/s for each device.
        disk: What a host writes of a checkpoint [bytes/s].
    """

    hosts: int
    devices_per_host: int
    link: int = 450_000_000_000
    fabric: int = 50_000_000_000
    disk: int = 2_000_000_000


@dataclasses.dataclass(frozen=True)
class HostsPlan:
    """What a plan comes to on hosts.

    Attributes:
        hosts: The hosts.
        bytes_per_host: All that the devices of a host hold.
        within_bytes: What a device sends to others of its host in a step.
        leaving_bytes: What it sends to other hosts, in the mean over the host's devices.
        within_s: The time of the former [s].
        leaving_s: The time of the latter [s].
        checkpoint_bytes: A checkpoint.
        checkpoint_s: The time to write it, each host its part [s].
    """

    hosts: Hosts
    bytes_per_host: int
    within_bytes: int
    leaving_bytes: int
    within_s: float
    leaving_s: float
    checkpoint_bytes: int
    checkpoint_s: float

    @property
    def floor_s(self) -> float:
        """The least time of a step [s], if all is sent while both links and devices are busy."""
        return max(self.within_s, self.leaving_s)

    @classmethod
    def of(cls, plan: Plan, hosts: Hosts) -> HostsPlan:
        """Returns what a plan comes to."""
        sent = list(plan.sent)
        between = leaving(sent)
        within = total(sent) - between
        return cls(
            hosts=hosts,
            bytes_per_host=plan.bytes_per_device * hosts.devices_per_host,
            within_bytes=within,
            leaving_bytes=between,
            within_s=within / hosts.link,
            leaving_s=between / hosts.fabric,
            checkpoint_bytes=plan.checkpoint_bytes,
            checkpoint_s=plan.checkpoint_bytes / hosts.hosts / hosts.disk,
        )
