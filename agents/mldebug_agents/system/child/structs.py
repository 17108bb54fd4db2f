"""Has msgspec inspect all struct classes before threads exist.

msgspec (0.22) inspects a class when it is first decoded, and other threads see it half done
meanwhile: two first decodings at the same time end the process by SIGSEGV.
"""

import gc
from collections.abc import Iterator
from contextlib import suppress

import msgspec


def keep_imported() -> None:
    """Prepare this process for threads after it has imported modules: msgspec knows all struct classes, and the garbage
    collector leaves alone what the modules hold, which stays for good: to go through it takes 50 ms each time.
    """
    learn_structs()
    gc.collect()
    gc.freeze()


def learn_structs() -> None:
    """Have msgspec inspect all struct classes that are imported by now, before threads decode any of them: 14 ms for the 300 of an agent.

    Classes already inspected cost nothing.
    """
    for kind in struct_classes(msgspec.Struct):
        with suppress(TypeError):  # it holds what cannot be decoded, and so never is
            msgspec.json.Decoder(kind)


def struct_classes(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """All subclasses of a struct class, at every level."""
    for one in kind.__subclasses__():
        yield one
        yield from struct_classes(one)
