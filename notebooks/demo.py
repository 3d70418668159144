"""Runs the quickstart without a browser and makes an HTML page of it: ``make demo``."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat import NotebookNode

_NOTEBOOK = Path(__file__).with_name("quickstart.ipynb")
_BUILD = _NOTEBOOK.parents[1] / "build"
_CELL_TIMEOUT_S = 300


def main(folder: Path) -> None:
    """Run the quickstart, write it and its page into ``folder``, print what came out."""
    print(f"Running {_NOTEBOOK.name} on the CPU ...", flush=True)
    began_s = time.monotonic()
    notebook = execute(_NOTEBOOK)
    took_s = time.monotonic() - began_s
    page = write(notebook, folder)
    print(accuracy_line(notebook))
    print(curve_line(notebook))
    print(f"Done in {took_s:.0f} s. The notebook as a page: {page}")


def execute(path: Path) -> NotebookNode:
    """Return the notebook with fresh outputs; raise `CellExecutionError` if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=_CELL_TIMEOUT_S,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    notebook.metadata.language_info = {"name": "python"}  # not this machine's version of it
    return notebook


def write(notebook: NotebookNode, folder: Path) -> Path:
    """Write the notebook and its HTML page; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / _NOTEBOOK.name)
    html, _ = HTMLExporter().from_notebook_node(notebook)
    page = folder / _NOTEBOOK.with_suffix(".html").name
    page.write_text(html)
    return page


def accuracy_line(notebook: NotebookNode) -> str:
    """Return the line of the test accuracy, as the notebook printed it."""
    printed = "".join(output.get("text", "") for output in _outputs(notebook))
    found = re.search(r"^Test accuracy: .*", printed, re.MULTILINE)
    return found[0] if found else sys.exit("The quickstart printed no test accuracy.")


def curve_line(notebook: NotebookNode) -> str:
    """Return the line beneath the picture of the loss curve."""
    for output in _outputs(notebook):
        data = output.get("data", {})
        if "<img" in data.get("text/html", ""):
            return str(data["text/plain"])
    sys.exit("The quickstart drew no loss curve.")


def _outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else _BUILD)
