#!/bin/sh
# Slurm prolog: a node that is not fit to train is drained with the reason, and the job starts elsewhere.
#
#   slurm.conf: Prolog=/etc/slurm/prolog.sh
#               PrologFlags=Alloc
#
# It only looks (GPU driver, RDMA ports), which takes about a second and needs no PyTorch; what loads the node belongs into
# epilog.sh. Settings, in /etc/mldebug/probe.conf (shell), which root alone may write:
#   MLDEBUG=/opt/mldebug/bin/mldebug
#   MLDEBUG_PROLOG="--stages driver,ib --require-gpus 8 --require-ib 8x400"
#   MLDEBUG_PROLOG_SECONDS=60
#
# A node is drained only where mldebug names a check that failed: never because it is busy, slow to answer or not installed.
PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
settings="${MLDEBUG_SETTINGS:-/etc/mldebug/probe.conf}"
[ -r "$settings" ] && . "$settings"

# shellcheck disable=SC2086 # the options are words
reason=$(timeout -k 5 "${MLDEBUG_PROLOG_SECONDS:-60}" "${MLDEBUG:-mldebug}" probe node --drain-reason \
    ${MLDEBUG_PROLOG:---stages driver,ib} 2>/dev/null)
[ -n "$reason" ] || exit 0

scontrol update nodename="$SLURMD_NODENAME" state=drain reason="$reason"
exit 1 # the job goes back into the queue
