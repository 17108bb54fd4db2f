"""Lines of healthy boots and days, as many as a test wants: forms in `ordinary.txt`, filled in differently each time."""

import random
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

FORMS = Path(__file__).parents[2] / "fixtures/kernellog/ordinary.txt"
NAMES = (
    "python3",
    "pt_main_thread",
    "a: Link down",
    "x]: 79, y",
    "kworker/3:1",
    "Oops",
    "nfs: server x",
    "ring 0 timeout",
    "Oops: 0000 [#1]",
    "ceph: mds0 hung",
    "kernel BUG at x",
    "divide error: 0",
)


def forms() -> list[str]:
    """The forms, without remarks."""
    return [line for line in FORMS.read_text().splitlines() if line and not line.startswith("#")]


def ordinary_lines(rounds: int, seed: int = 7) -> Iterator[str]:
    """Each form so many times, in another order and with other values each time; the same for one seed."""
    chance = random.Random(seed)
    for _ in range(rounds):
        for form in chance.sample(forms(), len(forms())):
            yield form.format_map(_values(chance))


def _values(chance: random.Random) -> dict[str, object]:
    return {
        "bus": f"0000:{chance.randrange(256):02x}:00.{chance.randrange(2)}",
        "eth": chance.choice(("eno1", "ens1f0np0", "enp65s0f1", "eth0", "ib0v1")),
        "ib": chance.choice(("ib0", "ib1", "ibp12s0")),
        "n": chance.randrange(1, 4000),
        "cpu": chance.randrange(8),
        "hex": f"{chance.getrandbits(32):08x}",
        "disk": chance.choice(("sda", "nvme0n1p", "dm-", "md")),
        "nvme": chance.choice(("nvme0", "nvme7")),
        "pid": chance.randrange(2, 4_000_000),
        "mac": "02:00:00:00:00:01",
        "ip": f"10.4.{chance.randrange(256)}.{chance.randrange(256)}",
        "uuid": UUID(int=chance.getrandbits(128)),
        "name": chance.choice(NAMES),
    }
