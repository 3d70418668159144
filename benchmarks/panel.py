"""What the panel costs, after a thousand points and after a million.

Bytes of an update, the kernel's time for one, and in a real page how long plotly.js draws and how
long frames take meanwhile.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from compare import print_rows
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.browser.lab import CHROMIUM_FLAGS, Lab, LabServer, NotebookPage, chromium, notebook

_RANKS = 64
_PANEL = f"""
import json, time
from ddp_magic.core.runstate import Doing, RankState, RunState
from ddp_magic.ui.panel import Panel

ranks = {{rank: RankState(Doing.RUNS) for rank in range({_RANKS})}}
state = RunState(ranks, 1, 1.0, 64, 9.9, 640.0, 0.1, 2**28)
panel = Panel()
panel.add({{"loss": [(0, 1.0)]}})
panel.show_state(state)
step, took_s, sizes = 1, [], []

def update(points):
    global step
    panel.add({{"loss": [(step + i, float((i * 7919) % 101)) for i in range(points)]}})
    step += points
    picture = panel._picture()
    begin_s = time.perf_counter()
    panel._view.draw(panel._picture())
    took_s.append(time.perf_counter() - begin_s)
    traces = panel._view._figure._traces
    buffers = sum(len(trace["steps"]) + len(trace["values"]) for trace in traces)
    sizes.append(buffers + len(json.dumps([picture.head, picture.steps_at])))
"""
_GROW = "while step < {points}: update(10_000 if step >= 10_000 else 100)\ntime.sleep(1)"
_UPDATES = """
del took_s[:], sizes[:]
for _ in range(20):
    update(1)
    time.sleep(0.3)
print(json.dumps([took_s, sizes]))
"""
# The longest frames while updates come, and how long the browser's main thread was busy.
_FRAMES = """() => {
    window.frames_ms = [];
    let last = performance.now();
    const next = (now) => {
        window.frames_ms.push(now - last);
        last = now;
        requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
}"""


def main() -> None:
    """Measure and print."""
    rows = [("", "bytes of an update", "kernel", "longest frame", "median frame")]
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        server = LabServer(Path(home))
        try:
            grows = [_GROW.format(points=points) for points in (1_000, 1_000_000)]
            cells = [_PANEL, grows[0], _UPDATES, grows[1], _UPDATES]
            (server.root / "panel.ipynb").write_text(notebook(*cells))
            page = Lab(server, browser).open("panel.ipynb")
            page.run_cell(0)
            page.wait_until_run(0)
            rows += [_row("1,000 points", page, 1), _row("1,000,000 points", page, 3)]
            page.close()
        finally:
            server.close()
            browser.close()
    print_rows(f"The panel of {_RANKS} ranks", rows)


def _row(what: str, page: NotebookPage, grows: int) -> tuple[str, ...]:
    page.run_cell(grows)
    page.wait_until_run(grows, 300)
    page.evaluate(_FRAMES)
    page.run_cell(grows + 1)
    page.wait_until_run(grows + 1)
    frames_ms: list[float] = page.evaluate("() => window.frames_ms")
    took_s, sizes = _printed(page, grows + 1)
    return (
        what,
        f"{statistics.median(sizes):,.0f}",
        f"{1e3 * statistics.median(took_s):.1f} ms",
        f"{max(frames_ms):.0f} ms",
        f"{statistics.median(frames_ms):.0f} ms",
    )


def _printed(page: NotebookPage, index: int) -> Any:
    return json.loads(page.output(index).inner_text().strip())


if __name__ == "__main__":
    main()
