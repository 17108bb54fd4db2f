"""Names that no other test has, also not one in a process world of its own, where process numbers begin at 1 again."""

import secrets


def own_name() -> str:
    """`mldebug-test-` and eight digits: of a control group, a device, or a folder outside of a test's own."""
    return f"mldebug-test-{secrets.token_hex(4)}"
