"""`--coordinator` and `--hosts`: a training on several hosts, and the parent of each of them.

The parent of the first host leads: the others come to it, all are checked to train the same,
and each starts its own processes. When one of them dies, or a host is lost, all end. With
`--hosts` they meet again and go on from the last checkpoint; with `--coordinator` each parent
ends with the reason, and whoever started them may start them again.

While it leads, the first host holds a lock in the folder of the checkpoints, and counts there
how often the hosts have met: its epoch. A parent that was given up, as on a machine that was
suspended, finds another one's name in the lock, and ends.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recsys.training.cluster import Cluster
from recsys.training.distributed import ADDRESS, COUNT, INDEX, LOCAL_DEVICE, SERVICE
from recsys.training.follower import Follower
from recsys.training.launcher import Attempts, LocalProcesses, devices_of, not_all_saved
from recsys.training.leader import Leader
from recsys.training.meeting import End, Failure, Start
from recsys.training.preflight import SharedFolders, address_to_publish, digest_of
from recsys.training.training_log import note


def train_on_hosts(
    arguments: Sequence[str],
    cluster: Cluster,
    checkpoints: Path,
    out: Path,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Trains on several hosts, of which this is one.

    Args:
        arguments: Command line of `python -m recsys.train` for each process.
        cluster: The hosts.
        checkpoints: Folder of the checkpoints of all runs, which all of them reach.
        out: Model folder, likewise.
        facts: What this host would train, see `recsys.training.preflight.facts_of`.

    Returns:
        The result of this host's first process, with `restarts`.

    Raises:
        RecsysError: The hosts don't fit together, one was lost or refused to go on, or, with
            `--hosts`, this happened several times without a new checkpoint between.
    """
    facts = {f"the number of {cluster.kind}s": cluster.n_members, **json.loads(json.dumps(facts))}
    role = Leader if cluster.member == 0 else Follower
    folders = SharedFolders(checkpoints / f"hosts-{digest_of(facts)}", out.absolute().parent)
    attempts = Attempts(checkpoints)
    with (
        tempfile.TemporaryDirectory(prefix="recsys-processes-") as scratch,
        role(cluster, facts, folders) as party,
    ):
        while True:
            end, result = _attempt(party, arguments, Path(scratch))
            if end.error is None:
                return {**(result or {}), "restarts": attempts.failed}
            if cluster.kind == "process" or not end.again:
                raise end.error
            attempts.add(end.error.rule)
            note(f"{end.error.rule} All start again from the last checkpoint.")


def _attempt(
    party: Leader | Follower, arguments: Sequence[str], scratch: Path
) -> tuple[End, dict[str, Any] | None]:
    """Meets, and runs this host's processes until all is over."""
    start, is_reported = party.meet(), False
    with LocalProcesses(arguments, _environments(party.cluster, start), scratch) as processes:
        while (end := party.poll()) is None:
            if processes.stop.is_set:
                party.check()
            if is_reported:
                continue
            failed = processes.failed()
            if failed is not None:
                is_reported = True
                words = processes.last_words(failed) or {}
                error, code = words.get("error"), processes.codes[failed] or 0
                if error is None and processes.stop.is_set:
                    error = not_all_saved(code).to_json()
                party.report_failed(Failure(start.first + failed, code, error))
            elif processes.are_done:
                is_reported = True
                party.report_done()
    return end, processes.last_words(0)


def _environments(cluster: Cluster, start: Start) -> list[dict[str, str]]:
    environments = []
    for index in range(cluster.n_processes):
        own = {SERVICE: start.service, COUNT: str(start.n_processes)}
        own[INDEX] = str(start.first + index)
        if cluster.devices is not None or cluster.n_processes > 1:
            own[LOCAL_DEVICE] = cluster.devices or devices_of(index, cluster.n_processes)
        if (address := address_to_publish(start.address)) is not None:
            own[ADDRESS] = address
        environments.append(own)
    return environments
