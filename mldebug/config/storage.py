"""The sections of the configuration about storage: checkpoints, sizes of directories, filesystems, quotas, test writes."""

from typing import Annotated

import msgspec

from mldebug.core.units import SIZE, Duration, PositiveDuration
from mldebug.core.yaml_reader import Section


class CheckpointsConfig(Section, frozen=True, kw_only=True):
    """The section `checkpoints`: where jobs write checkpoints, and how they are checked."""

    # look at the saves of jobs; where they are is learned from what the jobs write
    watch: bool = True
    # between two looks; half of it while something is written
    interval: Annotated[Duration, msgspec.Meta(ge=2, le=600)] = 30.0
    # more of them, which count for no run: each name that matches is one save. /scratch/*/ckpt/step-*
    paths: tuple[str, ...] = ()
    # without growth for so long, a save that is not complete has died
    settle: Annotated[Duration, msgspec.Meta(ge=5, le=3600)] = 60.0


class DirSizesConfig(Section, frozen=True, kw_only=True):
    """The section `trees`: directories whose size and inodes are kept current; each is counted once and then watched."""

    # absolute: [/scratch/me, /data/checkpoints]
    paths: tuple[str, ...] = ()
    # also watch, within bounds, the directories on local filesystems to which runs write
    learn: bool = True
    # between two counts where nothing tells of changes (network filesystems, no watches left)
    rescan: Annotated[Duration, msgspec.Meta(ge=1)] = 600.0
    # between two counts where events tell
    verify: Annotated[Duration, msgspec.Meta(ge=60)] = 21600.0
    # of one tree; what is beyond is not counted, and said
    max_inodes: Annotated[int, msgspec.Meta(ge=1000)] = 20_000_000


class QuotaConfig(Section, frozen=True, kw_only=True):
    """A quota that is read with a tool of the site: `lfs quota`, `mmlsquota`, `idrquota`."""

    # the program with its arguments, without a shell; it runs in the C locale
    command: tuple[str, ...] = ()
    # a regular expression with groups named `used` and `limit` (bytes, or 20G), or `ratio` or `percent`
    pattern: str = ""
    # too much from this share on
    limit: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.85
    # it is ended after this time
    timeout: PositiveDuration = 10.0


class CanaryConfig(Section, frozen=True, kw_only=True):
    """The section `storage.canary`: test writes, because `df` may differ from what can be written, and test reads. Without it the agent writes nowhere
    and reads no data.
    """

    # folders in which a small file is written, synced and removed
    paths: tuple[str, ...] = ()
    # between two of them
    interval: Annotated[Duration, msgspec.Meta(ge=1, le=86400)] = 60.0
    # of the file
    size: Annotated[int, SIZE, msgspec.Meta(ge=1, le=16 << 20)] = 64 << 10
    # also read a little of files that ranks have open, on FUSE, object-store and other mounts of jobs that the kernel does not count
    reads: bool = False
    # between two such looks of three reads for each mount
    read_interval: Annotated[Duration, msgspec.Meta(ge=1, le=3600)] = 20.0
    # of one read
    read_size: Annotated[int, SIZE, msgspec.Meta(ge=4 << 10, le=4 << 20)] = 64 << 10


class StorageConfig(Section, frozen=True, kw_only=True):
    """The section `storage`: when filesystems are too full, or will be."""

    # between two looks
    interval: Annotated[Duration, msgspec.Meta(ge=0.5, le=3600)] = 30.0
    # folders that are watched though no job uses them
    paths: tuple[str, ...] = ()
    # by folder, too full from a share on or with less than a rest: {/scratch: '0.75', /data: '40TiB left'}; elsewhere 0.85,
    # 0.75 where a folder's name has "scratch" in it
    limits: dict[str, str] = {}
    # of the inodes
    inode_limit: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.85
    # by folder, the share that can be written before the filesystem fails: {/fs: 0.83}; elsewhere 0.8 on Lustre, 1
    usable: dict[str, float] = {}
    # alarm where it will be full within this time …
    full_within: PositiveDuration = 86400.0
    # … or one of the next so many saves does not fit
    saves_left: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    # by name, asked every five minutes: {work: {command: [idrquota, -w], pattern: '(?P<percent>[0-9.]+)%'}}
    quotas: dict[str, QuotaConfig] = {}
    # the command that asks GPFS for its counters, on its stdin: [/usr/lpp/mmfs/bin/mmpmon, -p], with sudo where the agent is not root
    mmpmon: tuple[str, ...] = ()
    # of a quota that the kernel keeps, too much from this share on
    quota_limit: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.85
    # folders in which the agent writes a small file
    canary: CanaryConfig = msgspec.field(default_factory=CanaryConfig)
