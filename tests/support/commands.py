"""The command line, run in this process."""

import pytest

from recsys.cli import main


def run_main(*words: object) -> int:
    """Runs `recsys words` and returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)
