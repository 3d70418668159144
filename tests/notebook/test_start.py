"""How ranks start and end in a real kernel."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tests.kernel.notebooks import START_CHILDREN, await_end
from tests.notebook.conftest import Notebook

_COLLECTIVE = "%%ddp\nimport torch\nx = torch.ones(1)\ntorch.distributed.all_reduce(x)\nprint(x)"


def below(notebook: Notebook) -> list[psutil.Process]:
    """Return all that runs below the kernel."""
    kernel = psutil.Process(notebook.manager.provisioner.process.pid)  # type: ignore[union-attr]
    return kernel.children(recursive=True)


def folder_of(notebook: Notebook) -> Path:
    """Return the folder of the session."""
    said = notebook.run("print(get_ipython().magics_manager.registry['DdpMagics'].session.folder)")
    return Path(said.text().strip())


@pytest.mark.parametrize("how", ["restart", "restart now", "shutdown", "unload", "stop"])
def test_nothing_is_left_when_the_kernel_or_the_session_ends(
    cold_notebook: Notebook, how: str
) -> None:
    cold_notebook.run(f"%%ddp\n{START_CHILDREN}")
    processes, folder = below(cold_notebook), folder_of(cold_notebook)
    assert len(processes) == 9
    if how.startswith("restart"):
        cold_notebook.manager.restart_kernel(now=how.endswith("now"))
    elif how == "shutdown":
        cold_notebook.manager.shutdown_kernel()
    elif how == "unload":
        assert "have been stopped" in cold_notebook.run("%unload_ext ddp_magic").text()
    else:
        cold_notebook.run("%ddp stop")
    assert await_end(processes, folder) == []


def test_the_extension_warms_up_and_can_be_told_not_to(bare_notebook: Notebook) -> None:
    bare_notebook.run("get_ipython().config.DdpMagics.warm_start = False\n%load_ext ddp_magic")
    assert below(bare_notebook) == []
    bare_notebook.run("%unload_ext ddp_magic")
    bare_notebook.run("get_ipython().config.DdpMagics.warm_start = True\n%load_ext ddp_magic")
    bare_notebook.run("get_ipython().magics_manager.registry['DdpMagics']._warming.join()")
    names = {process.name() for process in below(bare_notebook)}
    assert names == {"ddp-guardian", "ddp-forkserver", "ddp-controller"}
    assert "tensor([2.])" in bare_notebook.run(_COLLECTIVE).text()


def test_modules_can_be_imported_once_for_all_ranks(cold_notebook: Notebook) -> None:
    cold_notebook.run("%config DdpMagics.preload = ['wave', 'nosuchmodule']")
    failed = cold_notebook.run(_COLLECTIVE)
    assert failed.status == "error"
    assert "No module named nosuchmodule" in failed.error["evalue"]
    assert "DdpMagics.preload" in failed.error["evalue"]
    cold_notebook.run("%config DdpMagics.preload = ['wave']")
    output = cold_notebook.run("%%ddp\nimport sys\nprint('wave' in sys.modules)")
    assert output.text() == "True\n"


def test_what_the_kernel_did_with_cuda_does_not_matter(cold_notebook: Notebook) -> None:
    cold_notebook.run(
        "import torch\ntorch.cuda.is_available(), torch.cuda.device_count()\n"
        "x = torch.zeros(2, device='cuda' if torch.cuda.is_available() else 'cpu') @ torch.ones(2)"
    )
    output = cold_notebook.run("%%ddp\nimport torch\nprint(torch.cuda.is_initialized())")
    assert output.text() == ("True\n" if torch_has_gpu() else "False\n")


def torch_has_gpu() -> bool:
    """Whether ranks train on GPUs here."""
    return os.path.exists("/dev/nvidia0")


def test_ranks_begin_with_the_notebooks_environment(
    cold_notebook: Notebook, tmp_path: Path
) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "beside" / "beside.py").write_text("value = 1")
    (tmp_path / "elsewhere" / "appended.py").write_text("value = 2")
    cold_notebook.run(
        f"%cd {tmp_path}/beside\nimport os, sys\nsys.path.append('{tmp_path}/elsewhere')\n"
        "os.environ['ADDED'] = 'yes'; os.environ.pop('HOME', None)\n"
        f"os.environ['TMPDIR'] = '{tmp_path}'; os.environ['TZ'] = 'Asia/Tokyo'"
    )
    output = cold_notebook.run(
        "%%ddp\nimport os, beside, appended, tempfile, time\n"
        "print(os.getcwd(), os.environ['ADDED'], 'HOME' in os.environ, appended.value)\n"
        "print(tempfile.gettempdir(), time.localtime(0).tm_hour)"
    )
    assert output.text() == f"{tmp_path}/beside yes False 2\n{tmp_path} 9\n"


def test_a_variable_that_torch_reads_as_it_is_imported(cold_notebook: Notebook) -> None:
    cold_notebook.run("get_ipython().magics_manager.registry['DdpMagics']._warming.join()")
    (server,) = (one for one in below(cold_notebook) if one.name() == "ddp-forkserver")
    cold_notebook.run("import os\nos.environ['TORCH_SHOW_CPP_STACKTRACES'] = '1'")
    cold_notebook.run(_COLLECTIVE)
    assert not server.is_running()
    (server,) = (one for one in below(cold_notebook) if one.name() == "ddp-forkserver")
    assert server.environ()["TORCH_SHOW_CPP_STACKTRACES"] == "1"


@pytest.mark.parametrize(("given", "threads"), [("", None), ("3", 3)])
def test_each_rank_has_its_share_of_the_cores(
    cold_notebook: Notebook, given: str, threads: int | None
) -> None:
    cold_notebook.run(
        f"import os\nos.environ.pop('OMP_NUM_THREADS', None)\nif '{given}':"
        f" os.environ['OMP_NUM_THREADS'] = '{given}'"
    )
    output = cold_notebook.run(
        "%%ddp -n 2\nimport os, torch, numpy, threadpoolctl\n"
        "blas = {p['num_threads'] for p in threadpoolctl.threadpool_info()}\n"
        "print(torch.get_num_threads(), blas, os.environ['OMP_NUM_THREADS'])"
    )
    share = threads or max(1, len(os.sched_getaffinity(0)) // 2)
    assert output.text() == f"{share} {{{share}}} {share}\n"


def test_loader_workers_run_in_the_ranks(notebook: Notebook) -> None:
    output = notebook.run(
        "%%ddp\nimport torch\nfrom torch.utils.data import DataLoader\n"
        "loader = DataLoader(torch.arange(8), batch_size=4, num_workers=2)\n"
        "with torch.no_grad():\n    print(sum(int(batch.sum()) for batch in loader))"
    )
    assert output.text() == "28\n"


def test_a_silent_cell_says_where_the_ranks_are(notebook: Notebook) -> None:
    output = notebook.run(
        "%%ddp\nimport torch.distributed as dist, time\n"
        "if rank == 1:\n    time.sleep(12)\ndist.barrier()\nprint('together')"
    )
    assert output.text() == "together\n"
    lines = [text for text in output.data("text/plain") if "nothing" in text]
    assert "rank 0 waits in barrier (line 5); rank 1 is at line 4: time.sleep(12)" in lines[0]
    assert lines[-1].startswith("ddp: nothing was printed for")


def test_compiled_code_prints_into_the_cell(notebook: Notebook) -> None:
    output = notebook.run(
        "%%ddp --output all\nimport os, subprocess\nos.write(1, b'raw %d\\n' % rank)\n"
        "subprocess.run(['echo', 'from echo'])\nos.write(2, b'err\\n');"
    )
    assert "raw 0\n" in output.text()
    assert "[rank 1] raw 1\n" in output.text()
    assert output.text().count("from echo") == 2
    assert "err\n" in output.text("stderr")


def test_the_last_words_of_a_crash_are_shown(notebook: Notebook) -> None:
    output = notebook.run("%%ddp\nimport ctypes\nif rank == 1:\n    ctypes.string_at(0)")
    assert output.status == "error"
    assert "rank 1 died of SIGSEGV" in output.error["evalue"]
    assert "Segmentation fault" in output.text("stderr")
    assert "line 4" in output.text("stderr")
    notebook.run("%ddp restart")


def test_two_notebooks_at_once(cold_notebook: Notebook, bare_notebook: Notebook) -> None:
    cell = "%%ddp\nimport os\nprint(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])"
    bare_notebook.run("%load_ext ddp_magic")
    first, second = cold_notebook.run(cell).text(), bare_notebook.run(cell).text()
    assert first.startswith("127.0.0.1 ")
    assert second.startswith("127.0.0.1 ")
    assert first != second


@pytest.mark.parametrize("command", ["%ddp restart", "%ddp stop", "%unload_ext ddp_magic"])
@pytest.mark.parametrize("delay_s", [0.01, 0.05])
def test_stop_while_ranks_end_leaves_nothing_half_done(
    cold_notebook: Notebook, command: str, delay_s: float
) -> None:
    cold_notebook.run("%%ddp -b\nimport time; time.sleep(60)")
    processes, folder = below(cold_notebook), folder_of(cold_notebook)
    output = cold_notebook.run(
        "import os, signal, threading\n"
        f"threading.Timer({delay_s}, os.kill, (os.getpid(), signal.SIGINT)).start()\n{command}"
    )
    if output.status == "error":
        assert output.error["ename"] in ("Interrupted", "KeyboardInterrupt")
        assert len(output.error["traceback"]) == 1
    if command == "%unload_ext ddp_magic":
        assert await_end(processes, folder) == []
        return
    cold_notebook.run("%ddp restart")
    assert "tensor([2.])" in cold_notebook.run(_COLLECTIVE).text()


def test_stop_while_ranks_start_is_told_in_a_line(bare_notebook: Notebook) -> None:
    bare_notebook.run("get_ipython().config.DdpMagics.warm_start = False\n%load_ext ddp_magic")
    output = bare_notebook.run(
        "import os, signal, threading\n"
        "threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()\n%ddp start"
    )
    assert output.error["traceback"] == [
        "KeyboardInterrupt: the start was stopped; nothing of it is left"
    ]
    assert "have been stopped" in bare_notebook.run("%ddp status").data("text/plain")[0]
    assert below(bare_notebook) == []


def test_stop_ends_what_a_cell_has_started(notebook: Notebook) -> None:
    output = notebook.run(
        "%%ddp\nimport os\nprint('begun', flush=True)\nos.system('sleep 600');",
        lambda message: notebook.interrupt() if "begun" in str(message["content"]) else None,
    )
    assert output.status == "error"
    assert "busy" not in str(output.error)


def test_exit_ends_no_rank(notebook: Notebook) -> None:
    output = notebook.run("%%ddp\nx = 1\nexit()")
    assert "`%ddp stop` does" in output.text("stderr")
    assert notebook.run("%%ddp\nprint(x)").text() == "1\n"


def test_one_percent_sign_above_code_is_told(notebook: Notebook) -> None:
    output = notebook.run("%ddp\nran_here = 1")
    assert "Write %%ddp" in output.error["evalue"]
    assert notebook.run("print('ran_here' in globals())").text() == "False\n"
    assert "%ddp start" in notebook.run("%ddp").text()


def test_modules_are_found_as_in_the_notebook(cold_notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("own = True")
    (tmp_path / "ownmodule.py").write_text("")
    cold_notebook.run(f"%cd {tmp_path}\n%config DdpMagics.preload = ['ownmodule']")
    here = cold_notebook.run("import sys\nprint(sys.path)").text()
    assert cold_notebook.run("%%ddp\nimport sys\nprint(sys.path)").text() == here
