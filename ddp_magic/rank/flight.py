"""What collectives this rank has begun and has not ended, from torch's flight recorder."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

# As torch's own variable has it; read when the first collective is recorded.
_SIZE_VARIABLE = "TORCH_FR_BUFFER_SIZE"
_ENTRIES = "64"


class FlightRecorder:
    """Reads torch's record of collectives, which covers those that DDP makes in compiled code."""

    def __init__(self) -> None:
        self._since_ns = 0

    def install(self) -> None:
        """Have torch keep a record, unless the user has said how long."""
        os.environ.setdefault(_SIZE_VARIABLE, _ENTRIES)

    def on_new_group(self) -> None:
        """Leave out from now on what the former process group has left unfinished."""
        self._since_ns = time.time_ns()

    def counts(self) -> dict[str, int]:
        """Return how many collectives each process group of this rank has begun."""
        return {
            str(group.group_name): group._get_sequence_number_for_group()  # type: ignore[attr-defined]
            for group in _groups()
        }

    def pending(self) -> list[dict[str, Any]]:
        """Return the collectives that have not ended, the oldest first (`core.deadlock.Op`)."""
        dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
        if dump is None:  # an older torch: what waits is then found out by its standing still
            return []
        members = {str(group.group_name): _members(group) for group in _groups()}
        entries = json.loads(dump()).get("entries", [])
        return [
            {
                "group": entry["process_group"][0],
                "number": entry["op_id"],
                "members": members[entry["process_group"][0]],
                "name": entry["profiling_name"].partition(":")[2],
                "sizes": entry["input_sizes"],
                "dtypes": entry["input_dtypes"],
            }
            for entry in entries
            if not entry["retired"]  # gloo's never say that they are completed
            and entry["time_created_ns"] >= self._since_ns
            and entry["process_group"][0] in members
            and not entry["is_p2p"]
        ]


def _groups() -> list[dist.ProcessGroup]:
    """Return the process groups that this rank is in."""
    known = list(distributed_c10d._world.pg_group_ranks)
    return [group for group in known if isinstance(group, dist.ProcessGroup)]


def _members(group: dist.ProcessGroup) -> list[int]:
    return sorted(distributed_c10d._world.pg_group_ranks[group])
