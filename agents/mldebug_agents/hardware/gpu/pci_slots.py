"""Where on the PCI bus the GPUs of this node sit, whether they answer or not: the driver's folder in /sys names them."""

import os
import re

from mldebug_agents.system.host import Host

FOLDER = "sys/bus/pci/drivers/nvidia"
_SLOT = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def gpu_slots(host: Host) -> tuple[str, ...]:
    """Their addresses, `0000:3b:00.0`; none without the driver. Lists names only, and never asks a device."""
    try:
        names = os.listdir(f"{host.root}/{FOLDER}")
    except OSError:
        return ()
    return tuple(name for name in names if _SLOT.fullmatch(name))
