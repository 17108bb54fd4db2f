#!/bin/sh
# What the kernel tells of the ranks on this node, for `mldebug diagnose` elsewhere: where a node or a container has no Python, or no mldebug.
#
#   sh collect.sh >node1.txt            the ranks that you may look at: processes with RANK (else SLURM_PROCID, OMPI_…, PMI_RANK) in their environment
#   sh collect.sh PID… >node1.txt       these processes
#   mldebug diagnose FOLDER             where mldebug is, with one file of each node in the folder
#
# It reads /proc, and asks `py-spy dump --nonblocking` where py-spy is: nothing is stopped, attached to or changed. Of an environment only the numbers of
# the rank are printed. Root sees the kernel's stacks, others the function in which a rank waits.
set -u
PROC=${PROC:-/proc}
NUMBERS='LOCAL_RANK LOCAL_WORLD_SIZE WORLD_SIZE GROUP_RANK SLURM_LOCALID SLURM_NTASKS SLURM_NODEID OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE PMI_SIZE'
IDS='RANK SLURM_PROCID OMPI_COMM_WORLD_RANK PMI_RANK'

# The value of variable $2 of process $1; nothing where it has none, or may not be read.
variable() {
    { tr '\0' '\n' <"$PROC/$1/environ"; } 2>/dev/null | sed -n "s/^$2=\\([0-9]\\{1,7\\}\\)\$/\\1/p" | sed -n 1p
}

# Field $2 of /proc/$1/status.
field() {
    sed -n "s/^$2:[[:space:]]*//p" "$PROC/$1/status" 2>/dev/null
}

# Whether process $1 is a rank by variable $2: no shell or launcher, and no child of a rank, such as a DataLoader's worker.
is_rank() {
    [ -n "$(variable "$1" "$2")" ] || return 1
    case $(field "$1" Name) in
    sh | bash | dash | ash | zsh | srun | slurmstepd | mpirun | mpiexec | prted | orted | hydra* | env | timeout | numactl | sleep | tee) return 1 ;;
    esac
    parent=$(field "$1" PPid)
    [ "$(variable "$parent" "$2")" != "$(variable "$1" "$2")" ] && return 0
    case $(field "$parent" Name) in
    sh | bash | dash | ash | zsh | srun | slurmstepd | mpirun | mpiexec | prted | orted | hydra* | env | timeout | numactl | torchrun) return 0 ;;
    esac
    return 1
}

ranks() {
    for id in $IDS; do
        found=
        for folder in "$PROC"/[0-9]*; do
            is_rank "${folder##*/}" "$id" && found="$found ${folder##*/}"
        done
        [ -n "$found" ] && break
    done
    echo "$found"
}

# All that is known of process $1, in the forms that mldebug reads.
tell() {
    [ -r "$PROC/$1/status" ] || return 0
    echo "== pid $1 =="
    for name in $IDS $NUMBERS; do
        value=$(variable "$1" "$name")
        [ -n "$value" ] && echo "$name=$value"
    done
    echo "State: $(field "$1" State)"
    stack=$(cat "$PROC/$1/stack" 2>/dev/null)
    waits=$(cat "$PROC/$1/wchan" 2>/dev/null)
    if [ -n "$stack" ]; then
        printf '/proc/%s/stack:\n%s\n' "$1" "$stack"
    elif [ -n "$waits" ] && [ "$waits" != 0 ]; then
        printf '/proc/%s/stack:\n[<0>] %s+0x0/0x0\n' "$1" "$waits"
    fi
    command -v py-spy >/dev/null 2>&1 && py-spy dump --nonblocking --pid "$1" 2>/dev/null
    echo
}

[ $# -gt 0 ] || set -- $(ranks)
if [ $# -eq 0 ]; then
    echo "collect.sh: no process here has ${IDS% PMI_RANK} or PMI_RANK in an environment that $(id -un) may read: try as root, or name PIDs" >&2
    exit 1
fi
echo "node: $(uname -n)"
for pid; do
    tell "$pid"
done
