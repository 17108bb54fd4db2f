"""The GPU reader: a child process that reads GPUs on request, one request at a time, until the agent closes the connection.

It is a process of its own because a call into a GPU driver may block for ever or end the process, and because it holds the GPUs'
device files open: when it ends, they are free for a reset.
"""

import contextlib
import resource
import socket

import msgspec

from mldebug.core.plugins import load, options_of
from mldebug_agents.hardware.gpu.child.messages import MAX_BODY, GpuReply, GpuRequest
from mldebug_agents.hardware.gpu.errors import DriverGoneError, MissingLibraryError
from mldebug_agents.hardware.gpu.vendors import Vendor
from mldebug_agents.system.child.link import ChildLink


def serve(connection: socket.socket) -> None:
    """Answer the agent's requests for GPU readings until it closes the connection: the main function of the GPU child."""
    resource.setrlimit(
        resource.RLIMIT_CORE, (0, 0)
    )  # a library that crashes must not fill the disk
    vendors: dict[str, Vendor] = {}
    link = ChildLink(connection, msgspec.msgpack.Decoder(GpuRequest), max_body=MAX_BODY)
    with contextlib.suppress(OSError):  # the agent is gone
        while True:
            link.send(answer(link.receive(), vendors))
    for vendor in vendors.values():
        vendor.close()


def answer(request: GpuRequest, vendors: dict[str, Vendor]) -> GpuReply:
    """Take the requested reading. A failure of the driver or of its library becomes part of the reply and is not raised."""
    number = request.number
    try:
        vendor = _vendor(request, vendors)
        vendor.leave_alone(request.excluded)
        if request.wanted == "watch":
            return GpuReply(number=number, watch=vendor.watch())
        return GpuReply(number=number, full=vendor.full())
    except MissingLibraryError as error:
        return GpuReply(number=number, trouble="no_library", reason=str(error))
    except DriverGoneError as error:
        return GpuReply(number=number, trouble="driver_gone", reason=str(error))
    except Exception as error:  # noqa: BLE001 - a defect of ours must not look like a crash of the driver
        return GpuReply(number=number, trouble="broken", reason=f"{type(error).__name__}: {error}")


def _vendor(request: GpuRequest, vendors: dict[str, Vendor]) -> Vendor:
    if request.vendor not in vendors:
        module = load("gpus", request.vendor)
        options = msgspec.msgpack.decode(request.options, type=options_of(module))
        vendors[request.vendor] = module.create(options)
    return vendors[request.vendor]
