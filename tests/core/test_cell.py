from ddp_magic.core.cell import split_cell


def test_blank_lines_belong_to_the_header() -> None:
    assert split_cell("-n 2 ", "\n  \nx = 1\n") == ("%%ddp -n 2\n\n  \n", "x = 1\n")


def test_a_plain_cell() -> None:
    assert split_cell("", "  x\n") == ("%%ddp\n", "  x\n")
