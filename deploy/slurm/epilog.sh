#!/bin/sh
# Slurm epilog: after a job the node's GPUs are put through a short test, and a node that fails is drained with the reason.
#
#   slurm.conf: Epilog=/etc/slurm/epilog.sh
#
# Settings, in /etc/mldebug/probe.conf (shell), which root alone may write:
#   MLDEBUG=/opt/mldebug/bin/mldebug
#   MLDEBUG_EPILOG="--stages driver,ib,memory,matmul,copy,peers --require-gpus 8 --python /opt/torch/bin/python"
#   MLDEBUG_EPILOG_SECONDS=180
#
# Nothing is measured while another job computes on the node. A node is drained only where mldebug names a check that failed.
PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
settings="${MLDEBUG_SETTINGS:-/etc/mldebug/probe.conf}"
[ -r "$settings" ] && . "$settings"

# shellcheck disable=SC2086 # the options are words
reason=$(timeout -k 5 "${MLDEBUG_EPILOG_SECONDS:-180}" "${MLDEBUG:-mldebug}" probe node --drain-reason \
    ${MLDEBUG_EPILOG:---stages driver,ib,memory,matmul,copy,peers} 2>/dev/null)
[ -n "$reason" ] || exit 0

scontrol update nodename="$SLURMD_NODENAME" state=drain reason="$reason"
exit 0 # the job has ended well; another code would drain the node with a reason that says nothing
