"""Wait channels: the kernel function in which a thread sleeps; read off Linux 5.10 to 6.18."""

import re

from mldebug.diagnosis.classify.tables.signs import I, NameSign, sign

# Wait channels (kernel functions) that name the cause by themselves, whatever the Python stack says.
STORAGE_WAITS = re.compile(
    r"request_wait_answer|fuse_\w+|__fuse_\w+|nfs\d?_\w+|rpc_\w+|__rpc_\w+|cl_sync_io_wait|ptlrpc_\w+|osc_\w+|ll_\w+|ldlm_\w+|"
    r"cifs_\w+|smb2?_\w+|ceph\w*|gpfs\w*|mmfs\w*|cxiWait\w*|beegfs\w*|folio_wait_\w+|wait_on_page\w*|"
    r"io_schedule\w*|wait_on_buffer|__wait_on_buffer|jbd2_\w+|xfs_\w+|xlog_\w+|ext4_\w+|btrfs_\w+|percpu_rwsem_wait|"
    r"rwsem_down_\w+|blk_\w+|bit_wait_io|__lock_page\w*|filemap_\w+|p9_\w+"
)

ON_STORAGE = ("storage", "uninterruptible")
"""Classes of who waits for a filesystem: its wait channel says so, or the kernel shows only that it cannot be interrupted."""

WAIT_CHANNELS: tuple[NameSign, ...] = (
    sign(
        "fifo",
        I,
        "waits to open a FIFO{on} in {site}, whose other end nobody holds",
        r"wait_for_partner|fifo_open",
    ),
    sign(
        "pipe_write",
        I,
        "is blocked writing to a full pipe{on} in {site}",
        r"(anon_)?pipe_write",
    ),
    sign("pipe_read", I, "is blocked reading from a pipe{on} in {site}", r"(anon_)?pipe_read"),
    sign("terminal", I, "waits for input from a terminal in {site}", r"n_tty_read|tty_\w+"),
    sign(
        "socket",
        I,
        "waits for a network peer in {site}",
        r"sk_wait_data|tcp_\w+|inet_\w+|unix_stream_\w+|unix_\w+|sk_stream_wait_\w+|__skb_wait_\w+|skb_\w+",
    ),
    sign(
        "flock",
        I,
        "waits for a file lock in {site}",
        r"(posix|flock|locks)_\w*lock\w*|fcntl_setlk|nlmclnt_\w+",
    ),
    sign(
        "child_wait",
        I,
        "waits for a child process in {site}",
        r"do_wait|kernel_clone|wait_for_vfork_done",
    ),
    sign("sleep", I, "sleeps in {site}", r"hrtimer_nanosleep|do_nanosleep|common_nsleep\w*"),
)

POLL_WAITS = re.compile(r"poll_schedule_timeout|ep_poll|do_select|do_sys_poll|do_epoll_wait")
"""Waits for one of several descriptors: says that it waits, not for whom."""

FUTEX_WAITS = re.compile(r"futex_\w+|do_futex|__futex_\w+")
