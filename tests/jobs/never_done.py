"""usage: never_done.py FOLDER COUNT: processes that stay in exec for ever, as anybody can have them; prints a line when all do.

Each closes on exec a file on a FUSE mount of its own user, whose server never answers a FLUSH. The kernel then keeps whoever reads
/proc/PID/stat (or others, by its version) waiting. Run by `unshare -Urm`, which lends the right to mount.
"""

import ctypes
import os
import struct
import sys
import threading

FOLDER, COUNT = sys.argv[1], int(sys.argv[2])
LOOKUP, GETATTR, OPEN, FLUSH, INIT, FORGETS = 1, 3, 14, 25, 26, (2, 42)
IN, OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"never", FOLDER.encode(), b"fuse", 0, options.encode()) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))


def attributes(node: int) -> bytes:
    mode = 0o40755 if node == 1 else 0o100644
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(operation: int, node: int) -> bytes | None:
    if operation == INIT:
        return struct.pack("<IIIIHHII36x", 7, 31, 65536, 0, 12, 10, 1 << 17, 1)
    if operation == LOOKUP:
        return struct.pack("<QQQQII", 2, 0, 3600, 3600, 0, 0) + attributes(2)
    if operation == GETATTR:
        return struct.pack("<QII", 3600, 0, 0) + attributes(node)
    return struct.pack("<QII", 1, 0, 0) if operation == OPEN else None


def serve() -> None:
    held = 0
    while True:
        _, operation, number, node, *_ = IN.unpack_from(os.read(device, 1 << 20))
        if operation == FLUSH:
            held += 1
            if held == COUNT:
                print("up", flush=True)
        elif operation not in FORGETS:
            data = answer(operation, node)
            body, error = (b"", -38) if data is None else (data, 0)
            os.write(device, OUT.pack(OUT.size + len(body), error, number) + body)


threading.Thread(target=serve, daemon=True).start()
for number in range(COUNT):
    if not os.fork():
        os.open(f"{FOLDER}/file", os.O_RDONLY | os.O_CLOEXEC)
        job = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        words = ["python3", "-c", "import time; time.sleep(100_000)"]
        os.execve(sys.executable, words, job | {"MASTER_PORT": str(21_000 + number)})
sys.stdin.read()
