"""Real quotas of the kernel: what `mldebug preflight` finds before a run."""

import json
from pathlib import Path
from typing import Any

import inside


def preflight(folder: Path, checkpoint: str) -> Any:
    """What stands against a start there, for an ordinary user."""
    done = inside.run(*inside.MLDEBUG, "preflight", "--json", "--folder", str(folder), "--checkpoint", checkpoint, user=inside.NOBODY, fails=True)  # fmt: skip
    found = json.loads(done.stdout)
    failed = [one["sentence"] for one in found["findings"] if one["level"] == "failed"]
    return {"code": done.returncode, "failed": failed}


def limit(place: Path, words: str, *flags: str) -> None:
    """Set a quota by `xfs_quota`, which speaks to ext4 as well."""
    inside.run("xfs_quota", *flags, "-x", "-c", f"limit {words}", str(place))


def find() -> Any:
    """All of it, on an XFS and an ext4."""
    inside.load("quota_v2")
    xfs = inside.mount("/dev/ubda", "xfs", "-o", "uquota,pquota")
    ext4 = inside.mount("/dev/ubdb", "ext4", "-o", "usrquota,grpquota")
    free = preflight(xfs, "20MiB")
    limit(xfs, f"bhard=60m {inside.NOBODY}")
    user = preflight(xfs, "40MiB"), preflight(xfs, "20MiB")
    project = xfs / "project"
    project.mkdir()
    project.chmod(0o777)
    inside.run("xfs_quota", "-x", "-c", f"project -s -p {project} 7", str(xfs))
    limit(xfs, "-p bhard=30m 7")
    limit(ext4, f"-g bhard=30m {inside.NOBODY}", "-f")
    limited = {"project": preflight(project, "20MiB"), "group of ext4": preflight(ext4, "20MiB")}
    return {"free": free, "user": user, **limited}


if __name__ == "__main__":
    inside.main(find)
