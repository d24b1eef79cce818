"""The messages of a Kafka topic, one JSON object each, landed night by night as JSON Lines.

A night has, in each partition, the messages from the offset where the last night ended to the end
of the partition when it began. They are written into a hidden folder, which is renamed once it
is complete with its offsets: after a kill the same messages are read again, into the same night.
Nights are kept as spans, since a topic keeps its messages for some days only.

In a file `TOPIC-PARTITION-OFFSET.jsonl`, the message at offset OFFSET + n - 1 is line n. Messages
that the topic no longer has, as after a compaction, are blank lines.
"""

from __future__ import annotations

import glob
import json
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal

from pydantic import Field

from recsys.data.sources.tables import (
    LANDED,
    Landing,
    PlainOptions,
    Table,
    answering,
    from_environment,
    required,
)
from recsys.errors import RecsysError
from recsys.system.events import emit
from recsys.system.files import commit_folder, folders_in, remove

_AT_ONCE, _ANSWER_S, _SILENCE_S = 10_000, 15.0, 60.0
_MOST_BLANK_LINES = 1000
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_OPTIONS = {
    "group.id": "recsys",
    "log_level": "0",  # Errors are raised.
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "queued.max.messages.kbytes": "16384",
}

Range = dict[str, int]
"""`start` and `stop`, exclusive: offsets of a partition."""


class KafkaTable(Table):
    """A Kafka topic whose messages are JSON objects."""

    title: ClassVar[str] = "Kafka"
    has_spans: ClassVar[bool] = True
    servers: str
    """Addresses of servers: `host:9092,host:9092`."""
    topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    """Name of the topic."""
    options: PlainOptions = Field(default={})
    """Options of librdkafka's consumer, such as `security.protocol`; secret values are `$NAME`,
    environment variables."""
    lost: Literal["stop", "go_on"] = "stop"
    """What to do if the topic has deleted messages before they were read: `stop` ends the run,
    `go_on` reports them and reads on."""

    def reach(self, columns: Sequence[str]) -> None:
        """Checks that the servers answer and have the topic."""
        del columns  # Messages have no schema.
        with self._answering(), closing(self._consumer()) as consumer:
            self._partitions(consumer)

    def pinned(self, columns: Sequence[str], landing: Landing) -> dict[str, Any]:
        """Lands what is new in the topic; returns the keys for the files of all nights."""
        del columns
        nights = landing.folder / self.topic
        nights.mkdir(parents=True, exist_ok=True)
        for path in nights.glob(".*"):  # Of a killed run.
            remove(path)
        with self._answering(), closing(self._consumer()) as consumer:
            self._land(consumer, nights, landing)
        for old in folders_in(nights)[: -landing.spans if landing.spans else 0]:
            shutil.rmtree(old)
        span = "{SPAN}" if landing.what == "interactions" else "*"
        return {"files": f"{glob.escape(str(nights))}/{span}/*.jsonl", "format": "jsonl"}

    def _land(self, consumer: Any, nights: Path, landing: Landing) -> None:
        """Writes a night, if there are new messages."""
        cluster, numbers = self._partitions(consumer)
        done = [json.loads((path / LANDED).read_text()) for path in folders_in(nights)[-1:]]
        before = done[0] if done else None
        if before and before["cluster"] != cluster:
            rule = f"The topic {self.topic!r} must stay on the cluster {before['cluster']!r}."
            cure = f"Move {nights} away to read the topic of this cluster from its beginning."
            raise RecsysError("R285", rule, cure, cluster)
        ranges = {str(n): self._range(consumer, n, before, nights) for n in numbers}
        number = 1 + int(folders_in(nights)[-1].name) if done else 0
        if all(one["start"] == one["stop"] for one in ranges.values()):
            if not done:
                rule = f"The topic {self.topic!r} must have messages."
                raise RecsysError("R202", rule, "Send some, or name another topic.")
            return
        temporary = nights / f".{number:08d}-{uuid.uuid4().hex}"
        temporary.mkdir()
        self._copy(consumer, ranges, temporary)
        if done and not any(temporary.iterdir()):  # Only messages of open transactions.
            temporary.rmdir()
            return
        for file in sorted(temporary.iterdir()):
            landing.clean(file)
        manifest = {"cluster": cluster, "topic": self.topic, "partitions": ranges}
        (temporary / LANDED).write_text(json.dumps(manifest, indent=1) + "\n")
        commit_folder(temporary, nights / f"{number:08d}")

    def _partitions(self, consumer: Any) -> tuple[str, list[int]]:
        """Returns the id of the cluster and the numbers of the topic's partitions."""
        found = consumer.list_topics(self.topic, timeout=_ANSWER_S)
        topic = found.topics[self.topic]
        if topic.error is not None:
            raise ValueError(str(topic.error))
        return str(found.cluster_id), sorted(topic.partitions)

    def _range(
        self, consumer: Any, partition: int, before: Mapping[str, Any] | None, nights: Path
    ) -> Range:
        """Returns the offsets of a night: from the end of the last one to the partition's end."""
        kafka = required("confluent_kafka", "kafka")
        at = kafka.TopicPartition(self.topic, partition)
        first, stop = consumer.get_watermark_offsets(at, timeout=_ANSWER_S)
        if before is None:
            return {"start": first, "stop": stop}
        start = before["partitions"].get(str(partition), {"stop": 0})["stop"]
        if start > stop:
            rule = f"Partition {partition} of {self.topic!r} must go on at offset {start:,}."
            cure = f"If the topic was made anew, move {nights} away to read it from its beginning."
            raise RecsysError("R285", rule, cure, f"it ends at {stop:,}")
        if start < first:
            self._lost(partition, start, first)
            start = first
        return {"start": start, "stop": stop}

    def _lost(self, partition: int, start: int, stop: int) -> None:
        """Raises an error for messages that were deleted unread, or reports them."""
        lost = (
            f"partition {partition} of {self.topic!r} lost the offsets {start:,} to {stop - 1:,}"
            f" ({stop - start:,} messages) before they were read"
        )
        if self.lost == "go_on":
            emit("note", step="InteractionGen", text=lost)
            return
        raise RecsysError(
            "R286",
            f"Messages must be read before the topic deletes them; {lost}.",
            "Read more often than its retention.ms; to go on without them, set format.lost: go_on.",
        )

    def _copy(self, consumer: Any, ranges: dict[str, Range], folder: Path) -> None:
        """Writes the messages of ranges of offsets; where less is readable, the range is cut."""
        kafka = required("confluent_kafka", "kafka")
        left = {int(n): one for n, one in ranges.items() if one["start"] < one["stop"]}
        parts = {n: kafka.TopicPartition(self.topic, n, one["start"]) for n, one in left.items()}
        files = {n: _Lines(folder, f"{self.topic}-{n}") for n in left}
        consumer.assign(list(parts.values()))
        heard = time.monotonic()

        def finish(partition: int) -> None:
            consumer.pause([parts[partition]])
            del left[partition]

        while left:
            messages = consumer.consume(_AT_ONCE, timeout=0.2)
            heard = time.monotonic() if messages else heard
            if time.monotonic() - heard > _SILENCE_S:
                raise TimeoutError(f"no message for {_SILENCE_S:.0f} s")
            for message in messages:
                partition, offset, error = message.partition(), message.offset(), message.error()
                if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:
                    raise kafka.KafkaException(error)
                if partition not in left:
                    continue
                stop = left[partition]["stop"]
                if error is not None:  # Messages of an open transaction can't be read yet.
                    ranges[str(partition)]["stop"] = min(stop, offset)
                    finish(partition)
                    continue
                if offset < stop:
                    files[partition].write(offset, message.value())
                if offset >= stop - 1:
                    finish(partition)
        for file in files.values():
            file.close()

    def _consumer(self) -> Any:
        kafka = required("confluent_kafka", "kafka")
        given = {name: from_environment(value) for name, value in self.options.items()}
        return kafka.Consumer({"bootstrap.servers": self.servers, **_OPTIONS, **given})

    def _answering(self) -> Any:
        secrets = [from_environment(t) for t in self.options.values() if t.startswith("$")]
        cure = "Correct format.servers, format.topic and format.options."
        return answering(f"Kafka at {self.servers}, topic {self.topic!r},", cure, secrets)


class _Lines:
    """The messages of a partition as lines of files, each named by its first offset."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name, self._next = folder, name, -1
        self._file: BinaryIO | None = None

    def write(self, offset: int, value: bytes | None) -> None:
        """Adds a message; one without a value is a blank line."""
        n_missing = offset - self._next
        if self._file is None or n_missing > _MOST_BLANK_LINES:
            self.close()
            self._file, n_missing = (self._folder / f"{self._name}-{offset}.jsonl").open("xb"), 0
        self._file.write(b"\n" * n_missing + (value or b"").translate(_ONE_LINE) + b"\n")
        self._next = offset + 1

    def close(self) -> None:
        """Closes the last file."""
        if self._file is not None:
            self._file.close()
