"""`--coordinator` and `--hosts`: a run on several hosts, and the parent of each of them.

The parent of the first host is the leader. The others connect to it, it checks that all would run
the same, and each parent starts its own processes. If a process dies or a host is lost, all
processes are ended. With `--hosts` the parents of a training then meet again and resume from
the last checkpoint; with `--coordinator` each parent ends with the reason, and may be started
again.

The leader holds a lock in a shared folder, with a counter of the meetings (epoch). A parent
that was given up, for example on a suspended machine, finds another name in the lock, and ends.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from recsys.training.cluster import Cluster
from recsys.training.follower import Follower
from recsys.training.launcher import Attempts, LocalProcesses, devices_of, stopped
from recsys.training.leader import Leader
from recsys.training.meeting import End, Failure, Start
from recsys.training.preflight import SharedFolders, address_to_publish, digest_of
from recsys.training.processes import ADDRESS, COUNT, INDEX, LOCAL_DEVICE, SERVICE, note


def run_on_hosts(
    module: str,
    arguments: Sequence[str],
    cluster: Cluster,
    out: Path,
    facts: Mapping[str, Any],
    checkpoints: Path | None = None,
) -> dict[str, Any]:
    """Runs a stage on several hosts, of which this is one.

    Args:
        module: The stage, such as `recsys.train`.
        arguments: Its command line, for each process.
        cluster: The hosts.
        out: Folder that it writes, which all of them reach.
        facts: What this host would do, see `recsys.training.preflight.facts_of`.
        checkpoints: Folder of the checkpoints of all runs, likewise; None: the stage saves none.

    Returns:
        The result of this host's first process; with `restarts`, where there are checkpoints.

    Raises:
        RecsysError: The hosts don't fit together, one was lost or refused to go on, or, with
            `--hosts`, this happened several times without a new checkpoint between.
    """
    name, saves = f"hosts-{digest_of(facts)}", checkpoints is not None
    folders = SharedFolders((checkpoints or out) / name, out.absolute().parent if saves else out)
    attempts = None if checkpoints is None else Attempts(checkpoints)
    with ExitStack() as stack:
        party = stack.enter_context(_party(cluster, facts, folders))
        # Of no use later: a stage that saves nothing starts from scratch each time.
        if not saves and cluster.member == 0:
            stack.callback(shutil.rmtree, folders.folder, ignore_errors=True)
        while True:
            end, result = _attempt(party, module, arguments, saves=saves)
            if end.error is None:
                restarts = {} if attempts is None else {"restarts": attempts.failed}
                return {**(result or {}), **restarts}
            if attempts is None or cluster.kind == "process" or not end.again:
                raise end.error
            attempts.add(end.error.rule)
            note(f"{end.error.rule} All start again from the last checkpoint.")


@contextmanager
def _party(
    cluster: Cluster, facts: Mapping[str, Any], folders: SharedFolders
) -> Iterator[Leader | Follower]:
    """Yields this host's part in the meetings."""
    facts = {f"the number of {cluster.kind}s": cluster.n_members, **json.loads(json.dumps(facts))}
    role = Leader if cluster.member == 0 else Follower
    with role(cluster, facts, folders) as party:
        yield party


def _attempt(
    party: Leader | Follower,
    module: str,
    arguments: Sequence[str],
    *,
    saves: bool,
) -> tuple[End, dict[str, Any] | None]:
    """Meets, and runs this host's processes until all is over.

    Args:
        party: This host's part.
        module: What each process runs.
        arguments: Its command line.
        saves: Whether it saves before it stops.
    """
    start, is_reported = party.meet(), False
    environments = _environments(party.cluster, start)
    with (
        tempfile.TemporaryDirectory(prefix="recsys-processes-") as scratch,
        LocalProcesses(module, arguments, environments, Path(scratch)) as processes,
    ):
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
                    error = stopped(code, saves=saves).to_json()
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
