"""The query embeddings of a bundle, from a process that runs its SavedModel.

Starting TensorFlow costs 12 s of a core, more than the embeddings do, and an evaluation
never imports it: one process serves all requests to a bundle. Both sides exchange files.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.history_facts import Facts
from recsys.errors import RecsysError
from recsys.system.parent import as_parent, child_command
from recsys.system.process import last_json_line, silent_end, stage_environment

USERS, HISTORIES, EMBEDDINGS = "users.parquet", "histories.npy", "embeddings.npy"
"""What `recsys.serving.embed` reads: `user_id` of each query, and item rows of the bundle
`[n, history]`, the newest first; and what it writes: `[n, dim]` float32."""
FACTS = "facts.npz"
"""What it reads too: what is known of the histories, each `[n, history]` int32."""

_MODULE = "recsys.serving.embed"
# The devices are JAX's: TensorFlow would take what memory is left on a GPU.
_NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "-1"}


class BundleProcess:
    """Computes query embeddings of a bundle in a process that ends with this object.

    Starting it doesn't wait: TensorFlow is loaded while this process does something else.

    Args:
        bundle: A whole bundle.
    """

    def __init__(self, bundle: Path) -> None:
        self._process = subprocess.Popen(
            child_command(_MODULE, ["--bundle", str(bundle.resolve())]),
            env={**os.environ, **stage_environment("tensorflow"), **_NO_DEVICES, **as_parent()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # It has nothing to save. Were it not killed, it would end with our end of the pipe.
        weakref.finalize(self, _end, self._process)

    def queries(
        self, user_ids: pa.Array, history: np.ndarray, facts: Facts | None = None
    ) -> np.ndarray:
        """Returns the embeddings `[n, dim]` float32 of queries.

        Args:
            user_ids: Ids of the users `[n]`, text; at least one.
            history: Item rows of the bundle `[n, history]` int32, the newest first,
                padded with 0.
            facts: What is known of the histories, each `[n, history]` int32; see
                `recsys.data.history_facts`.

        Raises:
            RecsysError: TensorFlow is missing (R542), can't load the bundle (R543), or the
                process died (R610).
        """
        with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
            folder = Path(scratch)
            pq.write_table(pa.table({"user_id": user_ids}), folder / USERS)
            np.save(folder / HISTORIES, np.asarray(history, np.int32))
            arrays: Any = facts or {}
            np.savez(folder / FACTS, **arrays)
            self._ask(folder)
            return np.load(folder / EMBEDDINGS, allow_pickle=False)

    def _ask(self, folder: Path) -> None:
        answer = self._exchange(f"{folder}\n")
        if answer is None:
            raise silent_end(f"The process of {_MODULE} must respond.", self._process.wait())
        if "error" in answer:
            raise RecsysError.from_json(answer["error"])

    def _exchange(self, line: str) -> dict[str, Any] | None:
        """Returns what the process answers to `line`; None if it ends without an answer."""
        to, back = self._process.stdin, self._process.stdout
        if to is None or back is None:
            return None
        with contextlib.suppress(BrokenPipeError):  # It may have said why before it ended.
            to.write(line)
            to.flush()
        # Not every line need be ours.
        return next((answer for text in back if (answer := last_json_line(text))), None)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    process.wait()
