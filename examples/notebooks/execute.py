"""Executes the notebooks, and stores their outputs in them.

    python -m examples.notebooks.execute

Each runs in an empty folder, so that it depends on nothing that lies around.
"""

import os
import tempfile
from pathlib import Path
from unittest import mock

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
NAMES = ("quickstart", "own_data", "ranking", "pair", "keras_distribution")
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "100", "PYTHONWARNINGS": "ignore"}


def execute(name: str) -> nbformat.NotebookNode:
    """Returns a notebook with the outputs of a new execution.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, ENVIRONMENT):
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
        return _portable(notebook, folder)


def _portable(notebook: nbformat.NotebookNode, folder: str) -> nbformat.NotebookNode:
    """Returns the notebook without logs, scripts, and what differs between machines."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if _is_result(output)]
    notebook.metadata["language_info"] = {"name": "python"}
    text = nbformat.writes(notebook).replace(f"{Path(folder).resolve()}/", "")
    return nbformat.reads(text, as_version=4)


def _is_result(output: nbformat.NotebookNode) -> bool:
    # In a notebook TensorFlow logs to stdout.
    is_log = output.get("name") == "stderr" or output.get("text", "").startswith("INFO:")
    is_script = "application/javascript" in output.get("data", {})  # Beam's, for its own widgets.
    return not is_log and not is_script


def main() -> None:
    """Executes all notebooks."""
    for name in NAMES:
        nbformat.write(execute(name), FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    main()
