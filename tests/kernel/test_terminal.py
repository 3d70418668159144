"""IPython in a terminal, where there is no kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_SESSION = """
def cell(code):
    get_ipython().run_cell_magic("ddp", "", code)
%load_ext ddp_magic
%ddp start -n 2
cell("import ipywidgets\\nbar = ipywidgets.IntProgress()\\nbar.close()")
cell("other = ipywidgets.IntProgress()\\nprint('after a widget:', rank)")
cell("print('one cell later:', rank)")
"""
_LIMIT_S = 120


def test_output_comes_after_a_widget(tmp_path: Path) -> None:
    script = tmp_path / "session.ipy"
    script.write_text(_SESSION)
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--simple-prompt", str(script)],
        env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    assert "after a widget: 0" in said
    assert "one cell later: 0" in said
    assert "Traceback" not in said
    assert said.count("widgets need a notebook") == 1
