"""Tab and Shift-Tab in ``%%ddp`` cells, as a frontend asks for them."""

from __future__ import annotations

import pytest

from ddp_magic.errors import plain
from tests.notebook.conftest import Notebook

_DEFINE = '''%%ddp
import torch, threading, time
from torch import nn
class Net(nn.Module):
    """A net of the test's."""
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 3))
    @property
    def large(self):
        touched.append(rank)
    @property
    def other(self):
        touched.append(rank)
    def forward(self, batch, scale_by=1.0):
        """Say what it does."""
        return self.layers(batch)
touched = []
network, state_of_it = Net(), {"alpha": 1, "beta": {"gamma": 2}}
hold = True
'''


@pytest.fixture(scope="module")
def net(notebook: Notebook) -> Notebook:
    """Ranks with a model; and a notebook with variables of its own."""
    assert notebook.run(_DEFINE).status == "ok"
    notebook.run("network_of_the_notebook = 1\nnetwork_data = 2")
    return notebook


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("%%ddp\nnetw", ["network"]),
        ("%%ddp -r 0\nx = 1\nprint(network.la", [".large", ".layers"]),
        ("%%ddp\nnetwork.layers[0].we", [".weight"]),
        ("%%ddp\nstate_of_it['", ["alpha", "beta"]),
        ("%%ddp\nstate_of_it['beta']['g", ["gamma"]),
        ("%%ddp\nworld_si", ["world_size"]),
        ("%%ddp\nfrom torch.distributed import all_red", ["all_reduce"]),
        ("%%ddp\nnetwork.forward(sca", ["scale_by="]),
        ("%%ddp\n%time", ["%time", "%timeit"]),
        ("%%ddp --detect", ["--detect-anomaly"]),
        ("%ddp pull network.la", [".large", ".layers"]),
        ("%ddp sta", ["start", "status"]),
    ],
)
def test_tab_knows_what_is_on_the_ranks(net: Notebook, code: str, found: list[str]) -> None:
    told = net.complete(code)
    assert set(found) <= set(told.matches), told
    typed = code[told.start : told.end]
    assert all(one.startswith(typed) for one in found)
    assert net.run("%%ddp\nddp.print(touched)").text() == "[]\n"


def test_the_notebooks_own_are_not_offered(net: Notebook) -> None:
    assert net.complete("%%ddp\nnetwork").matches == ["network"]
    assert net.complete("%%ddp\nnetwork_").matches == []
    elsewhere = net.complete("network_").matches
    assert {"network_data", "network_of_the_notebook"} <= set(elsewhere)
    assert "network" not in elsewhere


def test_tab_leaves_no_trace(net: Notebook) -> None:
    net.run("%%ddp\nbefore = set(globals())")
    net.complete("%%ddp\nnetwork.layers[0].we")
    net.inspect("%%ddp\nnetwork")
    shown = net.run(
        "%%ddp\nnew = set(globals()) - before\nddp.print([n for n in new if n[0] != '_'], touched)"
    )
    assert shown.text() == "['before'] []\n"


def test_shift_tab_explains(net: Notebook) -> None:
    told = net.inspect("%%ddp\nNet(")
    assert "A net of the test's." in plain(told)
    assert told != plain(told)  # in colours
    assert "Say what it does." in net.inspect("%%ddp\nnetwork.forward")
    assert "scale_by" in plain(net.inspect("%%ddp\nnetwork.forward(1"))
    source = plain(net.inspect("%%ddp\nNet.forward", detail_level=1))
    assert "return self.layers(batch)" in source
    assert net.inspect("%%ddp\nnetwork.large") == ""
    assert net.run("%%ddp\nddp.print(touched)").text() == "[]\n"


def test_a_question_mark_in_a_cell_is_answered_once(net: Notebook) -> None:
    output = net.run("%%ddp\nnetwork.forward?")
    (shown,) = output.data("text/plain")
    assert plain(shown).count("Say what it does.") == 1
    assert output.text() + output.text("stderr") == ""


def test_tab_while_a_cell_runs(net: Notebook) -> None:
    assert net.run("%%ddp -b\nwhile hold: time.sleep(0.001)").status == "ok"
    try:
        assert net.complete("%%ddp\nnetw").matches == ["network"]
        assert "A net" in plain(net.inspect("%%ddp\nNet"))
    finally:
        net.run("hold = False\n%ddp push hold")
    net.run("%%ddp\nhold = True")


def test_a_rank_that_cannot_answer_is_not_waited_for(net: Notebook) -> None:
    """Compiled code that keeps the GIL: what IPython knows itself is offered."""
    assert net.run("%%ddp -b\nimport ctypes\nctypes.PyDLL(None).usleep(3_000_000)").status == "ok"
    while "network" in (found := net.complete("%%ddp\nnetwork").matches):
        pass  # it has not come to it yet
    assert "network_data" in found
    assert net.inspect("%%ddp\nnetwork") == ""
    assert net.run("%%ddp\nprint('again')").text() == "again\n"
    assert net.complete("%%ddp\nnetwork").matches == ["network"]


def test_without_ranks_and_without_the_extension_it_is_ipythons(bare_notebook: Notebook) -> None:
    look = (
        "kernel = get_ipython().kernel\n"
        "print('do_inspect' in vars(kernel), len(get_ipython().Completer.custom_matchers))"
    )
    assert bare_notebook.run(look).text() == "False 0\n"
    bare_notebook.run("%load_ext ddp_magic\nmine = 1")
    assert "mine" in bare_notebook.complete("%%ddp\nmin").matches
    assert "--no-wrap" in bare_notebook.complete("%%ddp --no").matches
    assert bare_notebook.inspect("%%ddp\nmine") != ""
    assert bare_notebook.run("%unload_ext ddp_magic").status == "ok"
    assert bare_notebook.run(look).text() == "False 0\n"
