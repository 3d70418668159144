from ddp_magic.core.cell import split_cell


def test_blank_lines_belong_to_the_header() -> None:
    assert split_cell("-n 2 ", "\n  \nx = 1\n") == ("%%ddp -n 2\n\n  \n", "x = 1\n")


def test_a_plain_cell() -> None:
    assert split_cell("", "  x\n") == ("%%ddp\n", "  x\n")


def test_lines_above_the_magic_count() -> None:
    whole = "%%time\n\n%%ddp -n 2\n\nx = 1\n\n"
    assert split_cell("-n 2", "\nx = 1\n", whole) == ("# %%time\n# \n%%ddp -n 2\n\n", "x = 1\n")
    assert split_cell("", "x = 1", "%%ddp\nx = 1\n") == ("%%ddp\n", "x = 1")
    for other in ("", "%ddp status", "run_cell_magic('ddp', '', 'x')"):
        assert split_cell("", "x = 1", other) == ("%%ddp\n", "x = 1")
