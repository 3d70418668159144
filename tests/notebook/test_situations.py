"""Situations in which users of other tools got stuck, as they would type them here."""

from __future__ import annotations

from tests.notebook.conftest import Notebook


def test_classes_typed_in_a_cell_can_be_pickled_in_the_next(notebook: Notebook) -> None:
    notebook.run(
        "%%ddp\nimport torch.nn as nn\nclass Tiny(nn.Module):\n"
        "    def __init__(self): super().__init__(); self.f = nn.Linear(3, 1)\n"
        "    def forward(self, x): return self.f(x)\nnet = Tiny()"
    )
    output = notebook.run(
        "%%ddp\nimport copy, io, pickle, torch\nblob = pickle.dumps(Tiny())\n"
        "again = pickle.loads(blob)\n"
        "assert type(again) is Tiny and Tiny.__module__ == '__main__'\n"
        "buffer = io.BytesIO()\ntorch.save(net, buffer)\nbuffer.seek(0)\n"
        "assert type(torch.load(buffer, weights_only=False)) is Tiny\n"
        "assert type(copy.deepcopy(net)) is Tiny"
    )
    assert output.status == "ok"


def test_progress_bars_and_lines_are_seen_once(notebook: Notebook) -> None:
    output = notebook.run(
        "%%ddp\nfrom tqdm import tqdm\nfor i in tqdm(range(20), desc='train'): pass\n"
        "print('loss 0.5')"
    )
    assert output.text() == "loss 0.5\n"
    bars = output.text("stderr")
    assert bars.count("100%") == 1
    assert "[rank" not in bars


def test_an_error_is_shown_below_its_own_cell(notebook: Notebook) -> None:
    first = notebook.run("%%ddp\nprint('first cell')")
    second = notebook.run("%%ddp\n1 / 0")
    assert first.text() == "first cell\n"
    assert [o["msg_type"] for o in first.outputs] == ["stream"]
    assert [o["msg_type"] for o in second.outputs] == ["error"]


def test_rich_output_comes_once(notebook: Notebook) -> None:
    output = notebook.run(
        "%%ddp\nfrom IPython.display import display, HTML\nimport matplotlib.pyplot as plt\n"
        "display(HTML('<b>hello</b>'))\nplt.plot([1, 2])\nplt.show()\n{'last': 'expression'}"
    )
    assert output.data("text/html") == ["<b>hello</b>"]
    assert len(output.data("image/png")) == 1
    assert output.data("text/plain")[-1] == "{'last': 'expression'}"


def test_widgets_of_rank_0_appear_once(notebook: Notebook) -> None:
    output = notebook.run(
        "%%ddp\nfrom tqdm.auto import tqdm\nfor i in tqdm(range(3), desc='train'): pass"
    )
    views = output.data("application/vnd.jupyter.widget-view+json")
    assert len(views) == 1
    assert "[rank" not in output.text() + output.text("stderr")


def test_top_level_await(notebook: Notebook) -> None:
    output = notebook.run("%%ddp\nimport asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')")
    assert output.text() == "awaited\n"


def test_the_namespace_holds_no_foreign_settings(cold_notebook: Notebook) -> None:
    output = cold_notebook.run(
        '%%ddp\nkeys = [k for k, v in globals().items() if not k.startswith("_")'
        " and isinstance(v, (int, float, bool, str))]\n"
        'print(keys); assert keys == [], f"foreign names in the namespace: {keys}"'
    )
    assert output.text() == "[]\n"
