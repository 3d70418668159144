"""The fork server as a launcher of any ipyparallel cluster's engines."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import ipyparallel
import pytest
from ipyparallel.cluster.launcher import NotRunning

from ddp_magic.kernel.launcher import ForkedEngineSetLauncher
from tests.kernel.notebooks import await_end
from tests.leaks import children

_DEADLINE_S = 60


def has_torch() -> bool:
    import sys

    return "torch" in sys.modules


def work_for_ever() -> None:
    import time

    while True:
        time.sleep(0.01)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ipyparallel.Cluster]:
    cluster = ipyparallel.Cluster(
        n=2,
        engines="ddp_magic",
        profile_dir=str(tmp_path),
        controller_args=["--HeartMonitor.period=100"],
        delay=0,
        load_profile=False,
        log_level=40,
    )
    yield cluster
    cluster.stop_cluster_sync()


def engines_of(cluster: ipyparallel.Cluster) -> ForkedEngineSetLauncher:
    """Return the launcher of the cluster's engines."""
    launcher = cluster.engine_set
    assert isinstance(launcher, ForkedEngineSetLauncher)
    return launcher


def test_engines_of_a_stock_cluster_are_forked_with_torch(cluster: ipyparallel.Cluster) -> None:
    client = cluster.start_and_connect_sync()
    assert client[:].apply_sync(has_torch) == [True, True]
    running = client[0].apply_async(work_for_ever)
    engines_of(cluster).signal(signal.SIGINT)
    while not running.ready():  # it may have come before the work began
        running.wait(0.5)
        engines_of(cluster).signal("SIGINT")
    with pytest.raises(ipyparallel.RemoteError, match="KeyboardInterrupt"):
        running.get(_DEADLINE_S)
    names = [one.name() for one in children()]
    assert {"ddp-engine-0", "ddp-engine-1"} <= set(names)
    launcher = engines_of(cluster)
    client.close()
    cluster.stop_cluster_sync()
    assert launcher.state == "after"
    assert await_end(children(), Path("/none")) == []


def test_the_end_of_all_engines_is_noticed(cluster: ipyparallel.Cluster) -> None:
    client = cluster.start_and_connect_sync()
    launcher = engines_of(cluster)
    launcher.signal(signal.SIGKILL)
    for engine in launcher._engines.values():
        engine.ended.result(_DEADLINE_S)
    assert launcher.state == "after"
    assert launcher.stop_data["engines"]["0"]["signal_name"] == "SIGKILL"
    client.close()


def test_engines_of_another_process_cannot_be_taken_over() -> None:
    with pytest.raises(NotRunning, match="end with the process that launched them"):
        ForkedEngineSetLauncher.from_dict({})
