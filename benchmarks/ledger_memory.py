"""How much memory an entry of the gateway's ledger takes.

    PYTHONPATH=api:gateway python -m benchmarks.ledger_memory [calls]

Each call has tokens and times of its own; versions change as in a run. Nothing is asked for, as in groups that are
open.
"""

import os
import sys
from pathlib import Path

from gymtrain_api.ledger import CallTimes, LedgerEntry
from gymtrain_gateway.ledger import Ledger, LedgerLimits

_CALLS = 1_000_000
_CALLS_A_VERSION = 10_000


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Prints one line."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else _CALLS
    ledger = Ledger(LedgerLimits(calls=calls, seconds=3600.0))
    before = resident()
    for number in range(calls):
        times = CallTimes(seconds=number / 1e5, queued=number / 1e7, sampled=number / 1e6)
        version = f"run:1:{number // _CALLS_A_VERSION}"
        entry = LedgerEntry(versions=[version], history="exact", finish_reason="stop", times=times)
        ledger.note([number >> 16, 1, 2, 3], [number & 0xFFFF, 4, 5], entry)
    held = resident() - before
    assert ledger.unasked == calls
    print(f"{calls} calls: {held / 1024 / 1024:.0f} MiB, {held / calls:.0f} bytes a call")


if __name__ == "__main__":
    main()
