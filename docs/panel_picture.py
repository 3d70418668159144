"""Makes docs/panel.png, the README's picture: a real JupyterLab while a cell trains.

    python docs/panel_picture.py

Needs Chromium, and the ``test`` extra.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

_ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(_ROOT))

from tests.browser.lab import CHROMIUM_FLAGS, Lab, LabServer, chromium, notebook  # noqa: E402

_TRAINS = """%%ddp
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
loader = DataLoader(TensorDataset(x, torch.tensor(digits.target)), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for epoch in range(200):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
_TRAINED_MS = 12_000


def main() -> None:
    """Train in a JupyterLab of its own and take the picture."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=[*CHROMIUM_FLAGS, "--force-device-scale-factor=2"]
        )
        server = LabServer(Path(home))
        try:
            (server.root / "train.ipynb").write_text(
                notebook("%load_ext ddp_magic\n%ddp start -n 2", _TRAINS)
            )
            page = Lab(server, browser).open("train.ipynb")
            page.run_cell(0)
            page.wait_until_run(0)
            page.run_cell(1)
            panel = page.output(1).get_by_role("region", name="Ranks of the running cell")
            panel.get_by_label("by").wait_for()
            page.page.wait_for_timeout(_TRAINED_MS)
            cell = page.page.locator(".jp-Notebook .jp-Cell").nth(1)
            cell.screenshot(path=str(_ROOT / "docs" / "panel.png"))
            panel.get_by_role("button", name="Stop").click()
            page.wait_until_run(1)
            page.close()
        finally:
            server.close()
            browser.close()


if __name__ == "__main__":
    main()
