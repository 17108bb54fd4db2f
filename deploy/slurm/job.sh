#!/bin/bash
# A training job that is watched by agents of your own, and captured on all nodes before Slurm ends it. It needs no right: it is your job.
#
#   sbatch job.sh torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 train.py
#
# What you name is started once on each node. Settings, of the environment:
#   MLDEBUG=/home/you/venv/bin/mldebug                        where it is, on all nodes (else in $PATH)
#   MLDEBUG_REPORTS=/scratch/you/reports                      (else mldebug-JOB where you typed sbatch)
#   MLDEBUG_SETTINGS='channels: {me: {kind: slack, …}}'       more lines of the agents' configuration: who is told of a stall
#
# Where the nodes have agents already, leave yours out (what has `agents` in it): those see your job as well.
#
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
# The last one: five minutes before the end this script alone gets the signal, and looks once more at all ranks.
export MLDEBUG=${MLDEBUG:-mldebug}
export MLDEBUG_REPORTS=${MLDEBUG_REPORTS:-$SLURM_SUBMIT_DIR/mldebug-$SLURM_JOB_ID}
mkdir -p -m 700 "$MLDEBUG_REPORTS" || exit

watch_node() { # on each node, with its state on the node's own disk: an agent has a database and a socket there
    ended='' agent=''
    trap 'ended=yes; [ -z "$agent" ] || kill "$agent"' TERM
    state=$(mktemp -d)
    printf 'agent: {state_dir: "%s", listen: ""}\n%s\n' "$state" "${MLDEBUG_SETTINGS:-}" >"$state/mldebug.yaml"
    "$MLDEBUG" agent --config "$state/mldebug.yaml" &
    agent=$!
    [ -z "$ended" ] || kill "$agent"
    wait "$agent"
    wait "$agent" # the signal interrupts the first one
    [ ! -d "$state/reports" ] || cp -r "$state/reports" "$MLDEBUG_REPORTS/$SLURMD_NODENAME"
    rm -rf "$state"
}
export -f watch_node

look() {
    "$MLDEBUG" dump --slurm-job "$SLURM_JOB_ID" --html "$MLDEBUG_REPORTS/before-the-end.html" >"$MLDEBUG_REPORTS/before-the-end.txt"
}
trap look USR1

# --gres: or the agents would wait for the GPUs that the job holds.
srun --overlap --gres=gpu:0 --ntasks-per-node=1 --job-name=mldebug-agents bash -c watch_node & agents=$!

(
    eval "$("$MLDEBUG" run --print-env)" # the ranks tell their steps, and their stacks where nobody may read them
    exec srun --ntasks-per-node=1 "$@"
) &
training=$!
wait "$training"
code=$?
while kill -0 "$training" 2>/dev/null; do # it was only a signal for this script
    wait "$training"
    code=$?
done

# TERM for the step: srun itself and a plain scancel would kill its agents at once, and what they have to copy. Half a minute is theirs.
step=$(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i %j' | awk '$2 == "mldebug-agents" {print $1}')
[ -z "$step" ] || scancel --signal=TERM "$step"
for _ in {1..30}; do kill -0 "$agents" 2>/dev/null && sleep 1; done
exit "$code"
