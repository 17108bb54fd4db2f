"""One store of a GPU to an address that nobody has, in this process alone: `python -m gpu.wild`, as `gpu.parts.xid13` starts it.

The driver ends this process's context and tells of it (Xid 31, or 13). Other processes and the GPU go on: it is what a bug in a
kernel of an application does. A memset of the runtime would not do: it looks the address up on the host and refuses it.
Prints `ready`, waits for a line, strikes, prints what CUDA says to it (700: illegal address), and stays until its input ends.
"""

import ctypes
import json
import sys
from collections.abc import Sequence

LIBRARY = "libcuda.so.1"
NOWHERE = 0x10  # in the first page, which the host has not either: so no driver that shares its pages finds one
PTX = b"""
.version 6.0
.target sm_70
.address_size 64
.visible .entry wild(.param .u64 where)
{
    .reg .u64 %to;
    .reg .u32 %value;
    ld.param.u64 %to, [where];
    mov.u32 %value, 1;
    st.global.u32 [%to], %value;
    ret;
}
\0"""


def main() -> None:
    """Get ready, wait, strike, and stay."""
    cuda = ctypes.CDLL(LIBRARY)
    kernel = ready(cuda)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(strike(cuda, kernel)), flush=True)
    sys.stdin.read()


def ready(cuda: ctypes.CDLL) -> ctypes.c_void_p:
    """The kernel, in the first GPU's own context of this process. Raises RuntimeError."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    _done("cuInit", cuda.cuInit(0))
    _done("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0))
    retained = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    _done("cuDevicePrimaryCtxRetain", retained)
    _done("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    _done("cuModuleLoadData", cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    found = cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"wild")
    _done("cuModuleGetFunction", found)
    return kernel


def strike(cuda: ctypes.CDLL, kernel: ctypes.c_void_p) -> dict[str, int]:
    """Run it in one thread; what the launch and the wait for its end return."""
    where = ctypes.c_uint64(NOWHERE)
    given = (ctypes.c_void_p * 1)(ctypes.addressof(where))
    one: Sequence[ctypes.c_uint] = [ctypes.c_uint(1)] * 6  # blocks and threads
    launched = cuda.cuLaunchKernel(kernel, *one, ctypes.c_uint(0), None, given, None)
    return {"launch": launched, "wait": cuda.cuCtxSynchronize()}


def _done(what: str, code: int) -> None:
    if code != 0:
        raise RuntimeError(f"{what} returned {code}")


if __name__ == "__main__":
    main()
