"""Scripts and modules run as ``__main__``."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_magic.errors import UsageError
from ddp_magic.rank.script import run_program


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def run(name: str, *args: str, **how: Any) -> dict[str, Any]:
    """Run a program; return what it left."""
    namespace: dict[str, Any] = {}
    run_program(name, args, namespace, **how)
    return namespace


def test_a_script_is_a_program(tmp_path: Path) -> None:
    Path("beside.py").write_text("value = 1")
    Path("data.txt").write_text("text")
    Path("train.py").write_text(
        "import sys, beside\nfrom pathlib import Path\n"
        "class Net: pass\n"
        "if __name__ == '__main__':\n"
        "    found = sys.argv, beside.value, Path(__file__).with_name('data.txt').read_text()\n"
        "    main = sys.modules['__main__'].Net is Net, Net.__module__\n"
    )
    before = sys.argv, sys.modules["__main__"]
    left = run("train.py", "--epochs", "3")
    assert left["found"] == (["train.py", "--epochs", "3"], 1, "text")
    assert left["main"] == (True, "__main__")
    assert "__name__" not in left
    assert (sys.argv, sys.modules["__main__"]) == before


def test_it_is_found_where_the_notebook_says(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "train.py").write_text("import sys\nfound = sys.argv, __file__")
    path = str(tmp_path / "elsewhere" / "train.py")
    assert run("./train.py", path=path)["found"] == (["./train.py"], path)


def test_what_it_imports_from_beside_it_is_as_new() -> None:
    Path("beside.py").write_text("value = 1")
    Path("train.py").write_text("import beside, json\nvalue, other = beside.value, json")
    first = run("train.py")
    Path("beside.py").write_text("value = 'changed'")
    second = run("train.py")
    assert (first["value"], second["value"]) == (1, "changed")
    assert first["other"] is second["other"]


def test_a_module_of_a_package() -> None:
    Path("package/inner").mkdir(parents=True)
    Path("package/__init__.py").touch()
    Path("package/inner/__init__.py").write_text("value = 3")
    Path("package/__main__.py").write_text("name = 'the package itself'")
    Path("package/train.py").write_text(
        "import sys\nfrom .inner import value\n"
        "found = value, __name__, __package__, sys.argv[1:], sys.argv[0] == __file__"
    )
    found = run("package.train", "a", is_module=True)["found"]
    assert found == (3, "__main__", "package", ["a"], True)
    assert run("package", is_module=True)["name"] == "the package itself"


def test_exit_codes() -> None:
    Path("fine.py").write_text("import sys\nx = 1\nsys.exit(0)")
    Path("bad.py").write_text("import sys\nx = 2\nsys.exit('no data')")
    assert run("fine.py")["x"] == 1
    namespace: dict[str, Any] = {}
    with pytest.raises(SystemExit, match="no data"):
        run_program("bad.py", (), namespace)
    assert namespace["x"] == 2


def test_annotations_are_not_turned_into_text() -> None:
    Path("typed.py").write_text("def f(x: int): pass\nkind = f.__annotations__['x']")
    assert run("typed.py")["kind"] is int


def test_the_tree_can_be_changed() -> None:
    import ast

    Path("named.py").write_text("x = 'cuda:0'")

    def change(tree: ast.Module) -> ast.Module:
        (assigned,) = tree.body
        assert isinstance(assigned, ast.Assign)
        assigned.value = ast.copy_location(ast.Constant("cuda:1"), assigned.value)
        return tree

    assert run("named.py", transform=change)["x"] == "cuda:1"


@pytest.mark.parametrize(
    ("name", "is_module"), [("nothere.py", False), (".", False), ("none.such", True), ("sys", True)]
)
def test_what_is_not_there(name: str, is_module: bool) -> None:
    with pytest.raises(UsageError, match="%ddp run"):
        run(name, is_module=is_module)


def test_installed_modules_stay(tmp_path: Path) -> None:
    stays = types.ModuleType("ddp_magic.rank.probe")
    stays.__file__ = str(tmp_path / "ddp_magic" / "probe.py")
    sys.modules["ddp_magic.rank.probe"] = stays
    Path("train.py").write_text("x = 1")
    run("train.py")
    assert sys.modules.pop("ddp_magic.rank.probe") is stays


def test_two_programs_with_helpers_of_one_name(tmp_path: Path) -> None:
    for name in ("a", "b", "lib"):
        Path(name).mkdir()
    for name in ("a", "b"):
        Path(name, "helper.py").write_text(f"value = {name!r}")
        Path(name, "train.py").write_text(
            "import sys, os\nsys.path.insert(0, os.path.abspath('lib'))\n"
            "import helper, shared\nvalue = helper.value, shared.value\nos.chdir('/')"
        )
    Path("lib/shared.py").write_text("value = 1")
    assert run("a/train.py")["value"] == ("a", 1)
    Path("lib/shared.py").write_text("value = 'edited'")
    assert run("b/train.py")["value"] == ("b", "edited")
    assert run("a/train.py")["value"] == ("a", "edited")
    assert Path.cwd() == tmp_path
