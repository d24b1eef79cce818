"""What TensorBoard reads, and what becomes of it where the disk is full."""

import os
import resource
import subprocess
import sys

import pytest
from tensorboardX.proto.event_pb2 import Event

from recsys.training.scalars import Scalars


def events_in(folder):
    """Reads TFRecords: length, checksum, bytes, checksum."""
    found = []
    for path in sorted(folder.glob("events*")):
        content = path.read_bytes()
        while content:
            size = int.from_bytes(content[:8], "little")
            found.append(Event.FromString(content[12 : 12 + size]))
            content = content[16 + size :]
    return found


def test_each_call_is_on_the_disk_when_it_returns(tmp_path):
    scalars = Scalars(tmp_path, 0)
    scalars.write(7, {"train/loss": 0.5, "memory/peak": 3.0})
    version, event = events_in(tmp_path)
    assert version.file_version == "brain.Event:2"
    assert event.step == 7
    values = {value.tag: value.simple_value for value in event.summary.value}
    assert values == {"train/loss": 0.5, "memory/peak": 3.0}
    scalars.close()
    scalars.close()


def test_a_run_that_goes_on_has_later_steps_forgotten(tmp_path):
    Scalars(tmp_path, 40).close()
    start = events_in(tmp_path)[1]
    assert start.step == 41
    assert start.session_log.status == start.session_log.START


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit of files' sizes")
def test_a_full_disk_ends_the_writing_and_not_the_run(tmp_path):
    script = """if True:
        import resource, signal, sys
        from pathlib import Path
        from recsys.training.scalars import Scalars
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        scalars = Scalars(Path(sys.argv[1]), 0)
        for step in range(1000):
            scalars.write(step, {"train/loss": 1.0})
        scalars.close()
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "done\n"
    assert done.stderr.count("Nothing more is written for TensorBoard: File too large.") == 1


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    scalars = Scalars(tmp_path / "file" / "tensorboard", 3)
    scalars.write(4, {"train/loss": 1.0})
    scalars.close()
    assert capsys.readouterr().err.count("Nothing more is written") == 1
