from ddp_magic.core.anomaly import Census, told_inputs


def test_counts_say_what_of_how_many() -> None:
    assert Census((64, 10), "float32", nan=5).counts == "5 NaN of 640 values"
    assert Census((2000,), "float32", 1200, 1).counts == "1,200 NaN and 1 infinite of 2,000 values"
    assert Census((), "float32", infinite=1).counts == "1 infinite of 1 value"


def test_batch_indices_are_told_where_only_some_are_bad() -> None:
    assert Census((8, 2), "float32", 1, elements=(3,)).batch_indices == "batch index 3 of 8"
    assert Census((8,), "float32", 2, elements=(0, 7)).batch_indices == "batch indices 0, 7 of 8"
    many = Census((64, 2), "float32", 12, elements=tuple(range(12)))
    assert many.batch_indices.endswith("8, 9 and 2 more of 64")
    assert Census((2, 2), "float32", 4, elements=(0, 1)).batch_indices == ""
    assert Census((), "float32", 1).batch_indices == ""


def test_a_span_has_its_ends_where_there_are_any() -> None:
    assert Census((4,), "float32", low=-2.0, high=3.5).span == "[4] float32, from -2 to 3.5"
    assert Census((4,), "float16", nan=4).span == "[4] float16"


def test_inputs_are_told_in_number() -> None:
    fine, masked = Census((4,), "float32"), Census((4,), "float32", infinite=2)
    assert told_inputs([fine]) == "its input was finite"
    assert told_inputs([fine, fine]) == "its inputs were finite"
    assert told_inputs([fine, masked]) == "its inputs had no NaN, but 2 infinite"
    assert told_inputs([]) == "it has no input of floating point"
