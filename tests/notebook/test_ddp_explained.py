"""What ``ddp_explained.ipynb`` claims is what its cells show, as committed and as run anew."""

from __future__ import annotations

import base64
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat import NotebookNode

from tests.notebook.committed import (
    NOTEBOOKS,
    check_failures,
    code_cells,
    committed,
    lasting,
    places,
    run_anew,
    text_of,
)

_EXPLAINED = "ddp_explained.ipynb"
_FAILING = {
    "uneven": "CellError",
    "not-of-the-ranks": "CellError",
    "stop-early": "CellError",
    "barrier-broken": "CellError",
    "document-run": "CellSyntaxError",
}
_DRAWN = ("two-ways-drawn", "profile-drawn", "speed-drawn")
_MEASURED = {"profile-counts", "speed", "speed-counts", "stop-early", "stop-together"}
_KIB = 1024

pytestmark = pytest.mark.timeout(360)


@pytest.fixture(scope="module")
def anew() -> NotebookNode:
    return run_anew(_EXPLAINED)


@pytest.fixture(params=["committed", "anew"])
def shown(request: pytest.FixtureRequest) -> dict[str, str]:
    """What each cell shows, as it is committed, and as it comes out now."""
    notebook = (
        committed(_EXPLAINED) if request.param == "committed" else request.getfixturevalue("anew")
    )
    return {name: text_of(cell) for name, cell in code_cells(notebook).items()}


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def _by_rank(text: str) -> list[str]:
    """Return what stands behind ``rank 0:``, ``rank 1:``, ..."""
    return re.findall(r"^rank \d: (.*)", text, re.MULTILINE)


def _rows(text: str) -> list[list[float]]:
    return [_numbers(line) for line in text.splitlines() if line.strip()]


def _speeds(text: str) -> list[list[float]]:
    """Return batch size, ranks, images a second, times one rank, loss."""
    return [_numbers(line) for line in text.splitlines() if line.startswith("batches of")]


@pytest.mark.parametrize("place", ["committed", "anew"])
def test_the_cells_that_fail_are_those_that_are_meant_to(
    place: str, request: pytest.FixtureRequest
) -> None:
    notebook = committed(_EXPLAINED) if place == "committed" else request.getfixturevalue("anew")
    check_failures(notebook, _FAILING)


@pytest.mark.parametrize("place", ["committed", "anew"])
def test_pictures_are_there_and_small(place: str, request: pytest.FixtureRequest) -> None:
    notebook = committed(_EXPLAINED) if place == "committed" else request.getfixturevalue("anew")
    cells = code_cells(notebook)
    for name in _DRAWN:
        (png,) = (
            o.data["image/png"] for o in cells[name].outputs if "image/png" in o.get("data", {})
        )
        assert len(base64.b64decode(png)) < 100 * _KIB
    for name in ("complete-run", "plain"):
        assert "<img" in str(cells[name].outputs)


def test_one_device_is_not_enough(shown: dict[str, str]) -> None:
    assert re.search(r"^together .* bytes, 16 per parameter$", shown["memory"], re.MULTILINE)
    assert "7 billion parameters:   112.0 GB" in shown["memory"]
    kept = [row[1] / row[0] for row in _rows(shown["activations"])]
    assert len(kept) == 4
    assert len(set(kept)) == 1
    busy, idle = (float(line.split()[2]) for line in _by_rank(shown["idle"]))
    assert idle < busy / 2


def test_two_ways_to_divide_the_work(shown: dict[str, str]) -> None:
    first, last = _by_rank(shown["model-parallel"])
    assert (first, last) == ("8,320 parameters", "1,290 parameters")
    before, after = re.findall(r"loss ([\d.]+) → ([\d.]+)", shown["model-parallel"])[0]
    assert float(after) < float(before) / 4
    assert shown["model-parallel-same"].count(": True") == 2


def test_replicas(shown: dict[str, str]) -> None:
    assert len(set(_by_rank(shown["replicas"]))) == 4
    assert shown["replicas-diff"].startswith("model differs: rank 0 / rank 1 / rank 2 / rank 3")
    assert len(set(_by_rank(shown["replicas-ddp"]))) == 1
    assert "model is bit-identical on ranks 0-3" in shown["replicas-same"]


def test_shards(shown: dict[str, str]) -> None:
    assert _by_rank(shown["shards"]) == ["[0, 4, 8]", "[1, 5, 9]", "[2, 6, 10]", "[3, 7, 11]"]
    uneven = _by_rank(shown["shards-uneven"])
    assert uneven[:4] == ["[0, 4, 8]", "[1, 5, 9]", "[2, 6, 0]", "[3, 7, 1]"]
    assert uneven[4:] == ["[0, 4]", "[1, 5]", "[2, 6]", "[3, 7]"]
    assert all(line.startswith("360 images") for line in _by_rank(shown["shards-disjoint"]))
    assert "in two shards: 0\nin none: 0" in shown["shards-disjoint"]


def test_gradients_are_averaged(shown: dict[str, str]) -> None:
    own = [list(map(float, line.split())) for line in _by_rank(shown["gradients"])]
    reduced = [list(map(float, line.split())) for line in _by_rank(shown["all-reduce"])]
    means = [sum(values) / len(own) for values in zip(*own, strict=True)]
    assert len({tuple(values) for values in own}) == 4
    assert all(values == pytest.approx(means, abs=1e-4) for values in reduced)
    assert shown["all-reduce"].count(": True") == 2
    assert _by_rank(shown["ddp-gradient"]) == _by_rank(shown["all-reduce"])
    assert "as by hand: True" in shown["ddp-gradient"]
    assert "the sum, as all_reduce's: True" in shown["ring"]
    assert shown["ring"].count("has sent 240,000 bytes, 1.50 times the tensor (160,000 bytes)") == 4
    assert shown["backend"] == "backend: gloo\n"


def test_a_step_on_all_ranks_is_a_step_of_one(shown: dict[str, str]) -> None:
    assert shown["same-step"].count(": True") == 2
    assert "together is bit-identical on ranks 0-3" in shown["same-ranks"]
    mean, total = shown["sum-loss"].splitlines()
    assert "is 1.00 of" in mean
    assert "is 0.25 of" in total


def test_communication_is_hidden_behind_backward(shown: dict[str, str]) -> None:
    found = re.findall(r"rank \d: (\d) buckets, (\d) began before", shown["profile-counts"])
    assert [buckets for buckets, _ in found] == ["6", "6"]
    assert all(int(early) > 0 for _, early in found)
    assert shown["profile"] == ""


def test_data_parallel_has_a_bottleneck(shown: dict[str, str]) -> None:
    assert shown["data-parallel"] == "devices: []\njust the model: True\n"
    rows = _rows("\n".join(shown["data-parallel-by-hand"].splitlines()[2:]))
    assert [row[0] for row in rows] == [2, 4, 8, 16]
    assert all(row[1] > row[0] for row in rows)
    assert all(row[2] < 4 for row in rows)
    assert shown["data-parallel-by-hand"].count("same gradient: True") == 4
    assert len(_rows(shown["threads"])) == 3


def test_rules_of_processes_and_data(shown: dict[str, str]) -> None:
    shares = [float(share) for share in re.findall(r"has had ([\d.]+) of", shown["one-core"])]
    assert len(shares) == 4
    assert sum(shares[:2]) < 1.3
    broken, also, first, second = _by_rank(shown["sampler"])
    assert broken == also == "broken: [[0, 1], [2, 3], [4, 5], [6, 7]]"
    assert (first, second) == ("kept: [[0, 2], [4, 6]]", "kept: [[1, 3], [5, 7]]")
    assert "ValueError: sampler option is mutually exclusive" in shown["sampler-shuffle"]
    order = re.findall(r"^rank 0: (\w+), epoch \d: +(.*)", shown["set-epoch"], re.MULTILINE)
    orders = {rule: {batches for r, batches in order if r == rule} for rule, _ in order}
    assert len(orders["broken"]) == 1
    assert len(orders["kept"]) == 3


def test_rules_of_steps(shown: dict[str, str]) -> None:
    assert re.search(r"rank 1 waited in backward\(\).* in vain; rank 0 had ended", shown["uneven"])
    assert _by_rank(shown["join"]) == ["3 steps", "4 steps"]
    assert shown["stop-early"].count("ended at step") == 1
    assert "rank 1 waited in backward()" in shown["stop-early"]
    ended = re.findall(r"ended at step (\d+), own loss ([\d.]+)", shown["stop-together"])
    assert len(ended) == 2
    assert len({step for step, _ in ended}) == 1
    mean = sum(float(loss) for _, loss in ended) / 2
    assert mean < 0.5 < max(float(loss) for _, loss in ended)


def test_rules_of_seeds_and_globals(shown: dict[str, str]) -> None:
    (broken, still_broken), (kept, still_kept) = _rows(shown["start-apart"])
    assert broken == pytest.approx(still_broken, abs=0.02)
    assert broken > 0.1
    assert (kept, still_kept) == (0, 0)
    assert re.findall(r": (True|False)", shown["noise"]) == ["True", "False"]
    assert "name 'threshold' is not defined" in shown["not-of-the-ranks"]
    assert _by_rank(shown["globals"]) == [
        "learning rate 0.01, 720 images",
        "learning rate 0.1, 720 images",
    ]
    assert "1 variable on ranks 0-1, 1 differs" in shown["globals-vars"]
    assert _by_rank(shown["globals-kept"]) == ["learning rate 0.01, 1440 images"] * 2


def test_rules_of_rank_zero(shown: dict[str, str]) -> None:
    (first, second), (mean,) = (
        list(map(float, re.findall(r"loss ([\d.]+)", part))) for part in shown["log"].split("kept")
    )
    assert first != second
    assert mean == pytest.approx((first + second) / 2, abs=2e-4)
    truth, broken, kept = (
        float(re.findall(r": ([\d.]+)", line)[0]) for line in shown["metrics"].splitlines()
    )
    assert broken != truth == kept
    assert re.findall(r": (True|False)", shown["metrics"]) == ["False", "True"]
    there = [line.endswith("True") for line in _by_rank(shown["checkpoint"])]
    assert there == [True, False, True, True]
    assert "rank 0 waited in barrier (line 4) in vain" in shown["barrier-broken"]
    assert "broken: module.weight module.bias\nkept:   weight bias" in shown["prefix"]


def test_rules_of_ddp(shown: dict[str, str]) -> None:
    assert re.findall(r": (True|False)", shown["forward"]) == ["False", "True"]
    broken, kept = shown["unused"].splitlines()
    assert broken.startswith("broken: RuntimeError: Expected to have finished reduction")
    assert kept == "kept: three steps"
    (often, gradient), (once, same) = _rows(shown["no-sync"])
    assert (often, once) == (4, 1)
    assert gradient == same


def test_the_whole_program(shown: dict[str, str]) -> None:
    refused = "SyntaxError: positional argument follows keyword argument"
    assert shown["document-run"].splitlines()[0] == "  File example.py, line 14"
    assert refused in shown["document-run"]
    assert "+            optimizer" not in shown["difference"]
    assert "+    optimizer = " in shown["difference"]
    assert "model.pt" in shown["difference"]
    assert re.search(r"loss \S+ → \S+ over 230 steps", shown["complete-run"])
    losses = [float(loss) for loss in re.findall(r"mean loss ([\d.]+)", shown["complete-run"])]
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 10
    for name in ("complete-test", "plain"):
        (accuracy,) = re.findall(r"([\d.]+)% of the test images", shown[name])
        assert float(accuracy) > 85
    assert "batch 64 → 2 " in shown["plain"]
    assert "model is bit-identical on ranks 0-1" in shown["plain-same"]


def test_the_whole_program_runs_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = code_cells(committed(_EXPLAINED))
    for name in ("task", "complete"):
        first, _, text = cells[name].source.partition("\n")
        (tmp_path / first.split()[1]).write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    program = [sys.executable, "train.py"]
    printed = subprocess.run(program, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert re.findall(r"^epoch .*", printed.stdout, re.MULTILINE) == re.findall(
        r"^epoch .*", text_of(cells["complete-run"]), re.MULTILINE
    )


def test_what_it_gives(shown: dict[str, str]) -> None:
    rows = _speeds(shown["speed-counts"])
    assert [row[:2] for row in rows] == [[batch, n] for batch in (512, 2048) for n in (1, 2, 4)]
    assert all(row[2] > 0 for row in rows)
    for same in (rows[:3], rows[3:]):
        assert [row[4] for row in same] == pytest.approx([same[0][4]] * 3, abs=2e-4)
    assert shown["reproducible-run"].count(": True") == 3
    held = re.findall(r"(\w+): +(\d+) bytes", shown["sharded"])
    assert held == [("DDP", "16")] * 2 + [("fully_shard", "8")] * 2
    assert "LOCAL_RANK       on ranks 0 and 1: 0 1" in shown["environment"]
    assert "its GPU          on ranks 0 and 1: cuda:0 cuda:1" in shown["environment"]


def test_committed_figures_are_of_ranks_that_had_a_core_each() -> None:
    shown = {name: text_of(cell) for name, cell in code_cells(committed(_EXPLAINED)).items()}
    *_, (*_, gain_of_two, _), _ = _speeds(shown["speed-counts"])
    assert gain_of_two > 1.3
    shares = [float(share) for share in re.findall(r"has had ([\d.]+) of", shown["one-core"])]
    assert sum(shares[2:]) > 1.5
    _, threads, processes = (row[0] for row in _rows(shown["threads"]))
    assert processes < threads


def test_the_committed_outputs_are_those_of_today(anew: NotebookNode) -> None:
    then, today = code_cells(committed(_EXPLAINED)), code_cells(anew)
    assert [one.source for one in then.values()] == [one.source for one in today.values()]
    for name in then.keys() - _MEASURED:
        assert lasting(then[name]) == lasting(today[name]), name


def test_committed_outputs_are_small_and_name_no_place_on_a_machine() -> None:
    assert places(committed(_EXPLAINED)) == []
    assert (NOTEBOOKS / _EXPLAINED).stat().st_size < 400 * _KIB
