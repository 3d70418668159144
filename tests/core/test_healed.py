from ddp_magic.core.failures import way_back
from ddp_magic.core.healed import Healed


def test_what_was_moved_and_what_was_not() -> None:
    healed = Healed((1,), 0, variables=12, models=1, optimizers=2, left_out={"gen": "a generator"})
    assert healed.line(0.84) == (
        "rank 1 is back with rank 0's variables (12, of them 1 model and 2 optimizers) in 0.8 s;"
        " not moved: gen (a generator)"
    )


def test_all_that_there_is_to_say() -> None:
    healed = Healed((0, 2, 3), 1, without_graph=["loss"], differing=["lr", "name"], subgroups=True)
    assert healed.line(1) == (
        "ranks 0, 2-3 are back with rank 1's variables (0) in 1.0 s; moved without autograd's"
        " graph: loss; differed between ranks: lr, name; groups of dist.new_group have to be made"
        " anew"
    )


def test_the_way_back() -> None:
    assert way_back([0], range(3)) == (
        "`%ddp heal` brings it back with rank 1's variables, `%ddp restart` starts afresh"
    )
    assert way_back([1, 2], range(3)).startswith("`%ddp heal` brings them back with rank 0's")
    assert way_back([0, 1], range(2)) == "`%ddp restart` starts new ones"
