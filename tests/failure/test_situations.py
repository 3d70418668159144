"""What people reported of other tools, as it goes here: a rank fails, or waits, or is stopped."""

from __future__ import annotations

from tests.failure.faults import THERE
from tests.failure.world import Ranks


def test_the_error_of_one_rank_is_shown_while_the_others_wait_in_a_collective(
    ranks: Ranks,
) -> None:
    told = ranks.fail(
        "%%ddp\nw = torch.zeros(1)\nif rank == 1: raise KeyError('bad sample 17')\n"
        "dist.all_reduce(w)"
    )
    assert told.output.error["evalue"].startswith("KeyError: 'bad sample 17' (rank 1)")
    assert told.of(1) == "failed with KeyError: 'bad sample 17'"
    assert told.of(0).startswith("waited in all_reduce of [1] float32 (line 4) in vain")
    output = ranks.run_well("%%ddp\nw += 1; dist.all_reduce(w); print(w)")
    assert output.text() == "tensor([2.])\n"


def test_a_barrier_that_one_rank_does_not_come_to(ranks: Ranks) -> None:
    told = ranks.fail("%%ddp\nif rank != 1: dist.barrier()\nprint('rank', rank, 'left')")
    assert "rank 1 left" in told.output.text()
    assert told.of(0) == "waited in barrier (line 2) in vain; rank 1 had ended the cell"
    assert told.of(1) == "finished"


def test_rank_0_alone_evaluates(ranks: Ranks) -> None:
    output = ranks.run_well(
        "%%ddp\nnet = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))\n"
        "net(torch.randn(8, 4)).sum().backward()\n"
        "if rank == 0:\n    net.eval()\n"
        "    with torch.no_grad(): print('evaluated', net(torch.randn(8, 4)).isfinite().all())\n"
        "dist.barrier(); print('after', rank)"
    )
    assert "evaluated tensor(True)\n" in output.text()
    assert "after 0\n" in output.text()
    assert "after 1\n" in output.text()


def test_tensors_of_two_sizes_are_named_and_the_next_collective_is_sound(ranks: Ranks) -> None:
    told = ranks.fail(
        "%%ddp\nt = torch.ones(4 if rank == 0 else 8)\ndist.all_reduce(t); print(t.sum())"
    )
    assert "rank 0 all_reduce of [4] float32 (line 3), rank 1 all_reduce of [8]" in told.text
    output = ranks.run_well("%%ddp\nt = torch.ones(1); dist.all_reduce(t); print(t)")
    assert output.text() == "tensor([2.])\n"


def test_a_process_group_destroyed_as_an_error_passes(ranks: Ranks) -> None:
    told = ranks.fail(
        "%%ddp\ntry:\n    if rank == 0: raise MemoryError('simulated')\n"
        "    dist.all_reduce(torch.ones(1))\nfinally:\n    dist.destroy_process_group()"
    )
    assert told.of(0) == "failed with MemoryError: simulated"
    assert told.of(1).startswith("waited in all_reduce of [1] float32 (line 4) in vain")
    output = ranks.run_well("%%ddp\nt = torch.ones(1); dist.all_reduce(t); print(t)")
    assert output.text() == "tensor([2.])\n"


def test_half_a_result_fails_the_cell(ranks: Ranks) -> None:
    told = ranks.fail(
        "%%ddp\npart = list(range(rank * 4, rank * 4 + 4))\n"
        "if rank == 1: part = part[:1]; raise ValueError('shard reader died')"
    )
    assert told.of(0) == "finished"
    assert told.of(1) == "failed with ValueError: shard reader died"
    output = ranks.run_well("%%ddp\nprint(ddp.gather(part))")
    assert output.text() == "[[0, 1, 2, 3], [4]]\n"


def test_stop_ends_every_rank_with_one_traceback(ranks: Ranks) -> None:
    told = ranks.fail(
        f"%%ddp\nfor i in range(10**6): i or {THERE}; time.sleep(0.05)", press_stop=True
    )
    assert told.name == "CellInterrupted"
    assert told.text.count("KeyboardInterrupt: ") == 1
    assert told.of(0) == told.of(1)
    assert told.of(0).startswith("were interrupted at line 2: ")
    assert ranks.run_well("%%ddp\nprint('usable again')").text() == "usable again\n"


def test_stop_frees_a_rank_from_a_collective(ranks: Ranks) -> None:
    told = ranks.fail(
        "%%ddp\nkeep = torch.arange(4)\n"
        f"if rank == 0: {THERE}; dist.all_reduce(torch.ones(1))\n"
        f"else: {THERE}; time.sleep(60)",
        press_stop=True,
    )
    assert told.of(0) == "was interrupted in all_reduce of [1] float32 (line 3)"
    assert told.of(1).startswith("was interrupted at line 4: ")
    output = ranks.run_well("%%ddp\nprint('alive', keep.sum().item())")
    assert output.text() == "alive 6\n"


def test_a_rank_that_has_gone_is_not_waited_for(ranks: Ranks) -> None:
    told = ranks.fail("%%ddp\nif rank == 0: os._exit(137)")
    assert told.of(0) == "exited with code 137"
    again = ranks.fail("%%ddp\nprint(rank, world_size)")
    assert again.name == "StateError"
    assert "ank 0 " in again.text
    ranks.restored()
    output = ranks.run_well("%%ddp\nprint(rank, dist.get_world_size())")
    assert output.text() == "0 2\n[rank 1] 1 2\n"
