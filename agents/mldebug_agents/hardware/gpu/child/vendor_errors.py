"""How reading GPUs fails as a whole, whatever the vendor; what a plugin of the room `gpus` may raise."""


class MissingLibraryError(Exception):
    """There is no management library on this node: no GPU of that vendor, or no driver."""


class DriverGoneError(Exception):
    """Every handle is worth nothing: the driver was unloaded or loaded anew."""
