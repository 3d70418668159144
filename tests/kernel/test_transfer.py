"""Moving variables between this process and real ranks."""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddp_magic import Session, StateError, UsageError
from ddp_magic.core.names import parse_path
from ddp_magic.kernel import transfer
from ddp_magic.kernel.sharedmemory import SharedMemory
from ddp_magic.kernel.transfer import Transfer
from tests.kernel.conftest import Run

_LARGE = 300_000  # float64: more than goes into a message


def _nothing() -> Iterator[None]:
    """Return a generator."""
    yield


def _open_files() -> set[str]:
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return {os.readlink(link) for link in links if os.path.lexists(link)}


def test_large_arrays_come_whole_and_can_be_written_to(session: Session, run: Run) -> None:
    run(f"import torch\nbig = torch.arange({_LARGE}, dtype=torch.float64) + rank")
    before = _open_files()
    first, second = session.pull("big")
    assert first.dtype == np.float64
    assert (first[-1], second[-1]) == (_LARGE - 1, _LARGE)
    first[:] = 0
    assert session.pull("big", ranks=0)[-1] == _LARGE - 1
    assert not [link for link in _open_files() - before if "memfd" in link]


def test_what_is_pulled_changes_no_more(session: Session, run: Run) -> None:
    run(f"import numpy as np\nkept = np.ones({_LARGE})")
    pulled = session.pull("kept", ranks=0)
    run("kept[:] = 2")
    assert pulled.max() == 1


def test_pulling_a_tensor_leaves_it_resizable(session: Session, run: Run) -> None:
    run(f"import torch\nt = torch.ones({_LARGE})")
    session.pull("t")
    view = run("t.untyped_storage().resize_(0)\nddp.print(t.untyped_storage().nbytes())")
    assert view.stdout == "0\n"


def test_containers_keep_their_kinds_and_what_they_share(session: Session, run: Run) -> None:
    run(
        "import torch, collections\nfrom torch import nn\n"
        f"net = nn.Linear(2, 1)\nstate = net.state_dict()\nw = torch.ones({_LARGE})\n"
        "mixed = {'list': [w, (w, 1)], 'dtype': w.dtype, 'size': w.shape, 'flag': True,\n"
        "         'half': torch.ones(3).bfloat16(), 'bool': torch.tensor(True),\n"
        "         'slice': torch.arange(6).reshape(2, 3).T, 'none': torch.empty(0, 3)}"
    )
    state = session.pull("state", ranks=1)
    assert type(state) is collections.OrderedDict
    assert state["weight"].shape == (1, 2)
    mixed = session.pull("mixed", ranks=0)
    assert mixed["list"][0] is mixed["list"][1][0]
    assert (mixed["dtype"], mixed["size"], mixed["flag"]) == ("torch.float32", (_LARGE,), True)
    assert mixed["half"].dtype == np.float32
    assert mixed["bool"].item() is True
    assert mixed["slice"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert mixed["none"].shape == (0, 3)


def test_parts_are_pulled_by_path(session: Session, run: Run) -> None:
    run("from torch import nn\nmodel = nn.Sequential(nn.Linear(2, 3))\ncfg = {'lr': [0.1, 0.2]}")
    assert session.pull("model[0].weight", ranks=0).shape == (3, 2)
    assert session.pull("cfg['lr'][1]") == [0.2, 0.2]


def test_pushed_arrays_are_each_ranks_own(session: Session, run: Run) -> None:
    array = np.arange(_LARGE, dtype=np.float64)
    session.push({"a": array, "small": np.ones(2), "odd": array[::2], "f": np.asfortranarray})
    run("import numpy as np\na[0] = rank + 1\nsmall += rank\nsame = type(a) is np.ndarray")
    assert [one[0] for one in session.pull("a")] == [1, 2]
    assert [one.tolist() for one in session.pull("small")] == [[1, 1], [2, 2]]
    assert array[0] == 0
    assert session.pull("same") == [True, True]
    assert session.pull("odd", ranks=1)[1] == 2


def test_what_the_notebook_defines_goes_along(session: Session, run: Run) -> None:
    main: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "class Config:\n    lr = 0.1\n    def twice(self): return helper(self.lr)\n"
        "def helper(x): return 2 * x\nconfig = Config()\ncube = lambda x: x ** 3",
        main,
    )
    session.push({"config": main["config"], "cube": main["cube"]})
    run("config.lr = rank\ngot = config.twice() + cube(3)")
    assert session.pull("got") == [27, 29]
    back = session.pull("config", ranks=1)
    assert type(back) is main["Config"]  # and not another one of the same name
    assert main["Config"].twice.__globals__ is main
    assert back.lr == 1


def test_what_cells_define_comes_along(session: Session, run: Run) -> None:
    run(
        "import dataclasses, torch\n@dataclasses.dataclass\nclass Result:\n    loss: object\n"
        "    def half(self): return self.loss / 2\n"
        "result = Result(torch.tensor(3.0))\nfn = lambda x: x + 1"
    )
    result = session.pull("result", ranks=0)
    assert result.half() == 1.5
    assert session.pull("fn", ranks=0)(1) == 2


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("x = {'g': (i for i in [])}", "x", r"x\['g'\] \(a generator\) cannot travel"),
        ("x = [1, {'f': open('/dev/null')}]", "x", r"x\[1\]\['f'\] \(an open file\) cannot"),
        ("import threading\nx = [threading.Lock()]", "x", r"x\[0\] \(a lock\) cannot travel"),
        (
            "from torch.utils.data import DataLoader\nx = DataLoader([1, 2])",
            "x",
            r"x \(a DataLoader\) cannot travel: its tensors would come as arrays",
        ),
        (
            "from torch import nn\nx = nn.Sequential(nn.Linear(1, 1))",
            "x",
            r"x \(a Sequential\) cannot travel: .*such as \[0\].weight",
        ),
        (
            "import torch\nw = torch.ones(1)\nx = {'opt': torch.optim.SGD([w])}",
            "x",
            r"x\['opt'\] \(a SGD\) cannot travel: run `state = optimizer",
        ),
        ("import torch\nx = [torch.eye(2).to_sparse()]", "x", r"x\[0\] \(a Tensor\).* dense"),
        (
            "class Bad:\n    def __reduce__(self): raise ValueError('not me')\nx = (Bad(),)",
            "x",
            r"x\[0\] \(a Bad\) cannot travel: ValueError: not me",
        ),
        ("x = []\nfor _ in range(10**5): x = [x]", "x", "cannot travel: it is nested too deeply"),
        ("x = 1", "x.nothing", r"there is no x\.nothing"),
        ("losses = 1", "lossess", r"no variable 'lossess' \(did you mean losses\?\)"),
    ],
)
def test_errors_name_what_cannot_be_pulled(
    session: Session, run: Run, code: str, name: str, words: str
) -> None:
    run(code)
    with pytest.raises(UsageError, match=words) as caught:
        session.pull(name)
    assert "ranks 0-1: " in str(caught.value)
    run("x = None")


def test_a_variable_of_some_ranks_is_told_with_the_ranks(session: Session, run: Run) -> None:
    run("if rank == 1: only = 1")
    with pytest.raises(UsageError, match=r"rank 0: there is no variable 'only'.*; rank 1 has only"):
        session.pull_all({"only": parse_path("only")})
    assert session.pull("only", ranks=1) == 1


def test_a_huge_repr_is_not_made(session: Session, run: Run) -> None:
    run("class Huge:\n    def __repr__(self): raise SystemExit\nhuge = [Huge(), lambda: 0]")
    assert len(session.pull("huge", ranks=0)) == 2


@pytest.mark.parametrize("value", [_nothing(), [sys.stdout]])
def test_errors_name_what_cannot_be_pushed(session: Session, value: Any) -> None:
    with pytest.raises(UsageError, match=r"^x(\[0\])? \((a generator|an? .*)\) cannot travel"):
        session.push({"fine": 1, "x": value})
    with pytest.raises(UsageError, match="no variable 'fine'"):
        session.pull("fine")


def test_a_value_that_waits_is_given_up_and_nothing_is_broken(session: Session, run: Run) -> None:
    run(
        "import threading\ngo = threading.Event()\n"
        "class Waits:\n    def __reduce__(self):\n        go.wait()\n        return int, ()\n"
        "waits = Waits()"
    )
    world = session._ranks()
    with pytest.raises(UsageError, match=r"not pickled within 0\.3 s"):
        Transfer(world, None, print, patience_s=0.3).pull({"waits": parse_path("waits")})
    run("go.set()")
    assert session.pull("waits") == [0, 0]


def test_a_push_that_fails_on_a_rank_sets_nothing(session: Session, run: Run) -> None:
    class Picky:
        def __reduce__(self) -> Any:
            return eval, ("1 if rank == 0 else 1 / 0",)

    with pytest.raises(UsageError, match="rank 1: cannot be made on a rank: ZeroDivisionError"):
        session.push({"picky": Picky(), "other": 1})
    with pytest.raises(UsageError, match="no variable 'other'"):
        session.pull("other")


def test_a_cell_that_runs_is_not_waited_for(session: Session, run: Run) -> None:
    cell = session.run(
        "import time, torch\nstep, more = torch.zeros(1), True\n"
        "while more: step += 1; time.sleep(0.001)",
        background=True,
    )
    assert cell is not None
    try:
        while True:
            try:
                assert session.pull("step", ranks=0) >= 0
                break
            except UsageError:  # it has not begun yet
                assert not cell.done
        assert not cell.done
    finally:
        session.push({"more": False})
    cell.result(30)


@pytest.mark.parametrize("broken", ["here", "there"])
def test_without_shared_memory_messages_serve(
    session: Session, run: Run, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    if broken == "here":
        monkeypatch.setattr(SharedMemory, "is_available", staticmethod(lambda: False))
    else:
        nowhere = property(lambda self: {"path": "/nowhere", "token": "x"})
        monkeypatch.setattr(SharedMemory, "address", nowhere)
    told: list[str] = []
    session.push({"a": np.arange(_LARGE)}, tell=told.append)
    pulled = session.pull_all({"b": parse_path("a")}, tell=told.append)
    assert [one[-1] for one in pulled["b"]] == [_LARGE - 1] * 2
    assert len(told) == 2
    assert told[0].startswith("ddp: no memory is shared with ranks 0-1")


def test_memory_of_another_transfer_is_not_written_to(
    session: Session, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a rank is late, and the number stands for another open file by then."""
    run(f"import numpy as np\na = np.ones({_LARGE})")
    (tmp_path / "mine").write_text("mine")
    with open(tmp_path / "mine", "r+b") as file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        monkeypatch.setattr(
            SharedMemory, "address", property(lambda self: {"path": path, "token": self._token})
        )
        session.pull_all({"a": parse_path("a")}, tell=lambda _: None)
    assert (tmp_path / "mine").read_text() == "mine"


def test_what_there_is_no_room_for_is_refused(
    session: Session, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(f"import numpy as np\na = np.ones({_LARGE})")
    monkeypatch.setattr(transfer, "free_bytes", lambda: 1000)
    with pytest.raises(UsageError, match=r"a, of 2 ranks,: 0.0 GiB, and 0.0 GiB of memory are"):
        session.pull("a")
    with pytest.raises(UsageError, match="of memory are free"):
        session.push({"b": np.ones(_LARGE)})


def test_the_rank_keeps_nothing(session: Session, run: Run, monkeypatch: Any) -> None:
    run(f"import numpy as np\na = np.ones({_LARGE})")
    session.pull("a")
    monkeypatch.setattr(transfer, "free_bytes", lambda: 1000)
    with pytest.raises(UsageError):
        session.pull("a")
    # The notebook does not wait until the ranks have dropped what it will not fetch.
    run(
        "import time\nfrom ddp_magic.rank import transfer\ndeadline_s = time.monotonic() + 30\n"
        "while transfer._waiting and time.monotonic() < deadline_s: time.sleep(0.01)\n"
        "left = len(transfer._waiting)"
    )
    assert session.pull("left") == [0, 0]


def test_a_dead_rank_is_told_of_with_the_others(own_session: Callable[[], Session]) -> None:
    session = own_session()
    session.run("x = rank")
    with pytest.raises(Exception, match=r"exit|died|ended"):
        session.run("import os\nif rank == 1: os._exit(3)")
    with pytest.raises(StateError, match=r"-r 0 uses the others"):
        session.pull("x")
    with pytest.raises(StateError, match=r"-r 0 uses the others"):
        session.push({"y": 1})
    session.push({"y": 1}, ranks=0)
    assert session.pull("x", ranks=0) == 0


@pytest.fixture
def own_session() -> Any:
    sessions: list[Session] = []

    def make() -> Session:
        sessions.append(Session(nproc=2, seed=0))
        sessions[-1].start()
        return sessions[-1]

    yield make
    for one in sessions:
        one.stop()
