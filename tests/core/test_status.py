from ddp_magic.core.status import RankStatus, SessionStatus


def test_the_table_is_aligned() -> None:
    ranks = (
        RankStatus(0, 11, "host", "cpu", "ready", 300 * 2**20),
        RankStatus(1, 1234, "host", "cpu", "died", None, "ValueError: x"),
    )
    status = SessionStatus("the ranks are ready", "gloo", 7, ranks)
    assert str(status).splitlines() == [
        "the ranks are ready: 2 ranks, gloo, seed 7",
        "rank  pid   host  device  state  memory   last error",
        "0     11    host  cpu     ready  300 MiB",
        "1     1234  host  cpu     died            ValueError: x",
    ]


def test_without_ranks_there_is_one_line() -> None:
    assert str(SessionStatus("no ranks have been started")) == "no ranks have been started"
