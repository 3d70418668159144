"""``%ddp run``: unmodified scripts on the live ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_magic.errors import plain
from tests.notebook.conftest import Notebook

TRAIN = """
import argparse, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import nets


def main(args):
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    model = DDP(nets.Net().to(device), device_ids=[local_rank])
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if args.fail:
        raise ValueError("as asked")
    if dist.get_rank() == 0:
        print("trained", args.epochs, "epochs of", len(loader), "batches", sys.argv)
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--fail", action="store_true")
    model = main(parser.parse_args())
    sys.exit(0)
"""
NETS = """
from torch import nn

class Net(nn.Linear):
    def __init__(self): super().__init__(4, 1)
"""
SPAWN = """
import os
import torch.distributed as dist, torch.multiprocessing as mp

def demo(rank, size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    print("rank", rank, "of", dist.get_world_size())
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(demo, args=(2,), nprocs=2)
"""


@pytest.fixture
def folder(notebook: Notebook, tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "spawn.py").write_text(SPAWN)
    notebook.run(f"%cd -q {tmp_path}")
    return tmp_path


def test_a_torchrun_script(notebook: Notebook, folder: Path) -> None:
    notebook.run("epochs = 3")
    output = notebook.run("%ddp run train.py --epochs {epochs}")
    assert output.status == "ok", output.error
    assert output.text() == "trained 3 epochs of 4 batches ['train.py', '--epochs', '3']\n"
    assert any('init_process_group("nccl")' in text for text in output.data("text/plain"))
    left = notebook.run("%%ddp\nprint(type(model).__name__, type(model.module).__name__)")
    assert left.text() == "DistributedDataParallel Net\n"


def test_its_losses_have_a_curve(notebook: Notebook, folder: Path) -> None:
    output = notebook.run("%ddp run train.py --epochs 2")
    assert any("mse_loss" in text or "loss" in text for text in output.data("text/plain"))
    assert output.data("text/html")


def test_an_error_shows_its_file_and_line_and_its_globals_stay(
    notebook: Notebook, folder: Path
) -> None:
    output = notebook.run("%ddp run train.py --fail")
    assert output.status == "error"
    traceback = plain("\n".join(output.error["traceback"]))
    assert "train.py" in traceback
    assert 'raise ValueError("as asked")' in traceback
    assert "ddp_magic" not in traceback.split("ValueError")[0]
    assert notebook.run("%%ddp\nprint(parser.prog)").text() == "train.py\n"


def test_a_script_that_spawns_its_ranks(notebook: Notebook, folder: Path) -> None:
    output = notebook.run("%ddp run spawn.py")
    assert output.text() == "rank 0 of 2\n[rank 1] rank 1 of 2\n"
    assert any("has trained nothing" in text for text in output.data("text/plain"))


def test_a_module_of_a_package(notebook: Notebook, folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "train.py").write_text(
        "from .inner import x\nimport sys\nprint(x, sys.argv[1:])"
    )
    (folder / "package" / "inner.py").write_text("x = 3")
    notebook.run(f"%%ddp\nimport os; os.chdir({str(folder)!r})")
    assert notebook.run("%ddp run -m package.train a -b").text() == "3 ['a', '-b']\n"


def test_an_exit_code_fails_the_cell(notebook: Notebook, folder: Path) -> None:
    output = notebook.run("%ddp run train.py --nope")
    assert output.status == "error"
    assert "SystemExit: 2" in output.error["evalue"]
    assert "unrecognized arguments: --nope" in output.text("stderr")
    assert "%tb" not in "\n".join(output.error["traceback"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nothere.py", "nothere.py is not there"),
        ("bad.py", "bad.py"),
        (".", "is a folder"),
        ("", "what to run is missing"),
        ("--nope train.py", "%ddp run has no option --nope"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(
    notebook: Notebook, folder: Path, line: str, said: str
) -> None:
    (folder / "bad.py").write_text("print('runs')\nif True\n")
    output = notebook.run(f"%ddp run {line}")
    assert output.status == "error"
    assert said in "\n".join([output.error["evalue"], *output.error["traceback"]])
    assert output.text() == ""


def test_a_script_that_cannot_be_compiled_is_called_as_the_user_calls_it(
    notebook: Notebook, folder: Path
) -> None:
    (folder / "bad.py").write_text("if True\n")
    shown = notebook.run("%ddp run bad.py").error["traceback"]
    assert shown[0] == "  File bad.py, line 1"


def test_options_of_a_cell(notebook: Notebook, folder: Path) -> None:
    (folder / "where.py").write_text("print(rank)")
    assert notebook.run("%ddp run -r 1 where.py").text() == "1\n"
    assert "script.py [arguments]" in notebook.run("%ddp run -h").text()
