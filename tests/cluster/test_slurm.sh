#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Under Slurm: a cluster of the two hosts, with its own slurmctld, slurmd and munged, on which srun
# starts hptrain by PMIx (Open MPI) and PMI-2 (MPICH); the losses are those of one host. Skipped where
# there is no Slurm (apt-get install slurm-wlm). Runs inside `tools/cluster.sh with`.
set -euo pipefail
build=$1
cluster=tools/cluster.sh
out=$HP_CLUSTER/out
mkdir -p "$out"

fail() {
    echo "test_slurm: $*" >&2
    tail -n 20 "$out"/*.log "$out/said" >&2 2>/dev/null || true
    exit 1
}

for tool in slurmctld slurmd srun munged mungekey; do
    if ! PATH=$PATH:/usr/sbin command -v $tool >/dev/null; then
        echo "skipped: $tool is not here (apt-get install slurm-wlm)"
        exit 77
    fi
done
PATH=$PATH:/usr/sbin

# Everything of Slurm is in $out and ends with the hosts.
export SLURM_CONF=$out/slurm.conf
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=hpa
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$out/munge.socket
CredType=cred/munge
StateSaveLocation=$out/state
SlurmdSpoolDir=$out/spool.%n
SlurmctldPidFile=$out/slurmctld.pid
SlurmdPidFile=$out/slurmd.%n.pid
SlurmctldLogFile=$out/slurmctld.log
SlurmdLogFile=$out/slurmd.%n.log
TmpFS=$out/tmp.%n
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=hpa,hpb CPUs=2 State=UNKNOWN
PartitionName=all Nodes=hpa,hpb Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
echo CgroupPlugin=cgroup/v1 >"$out/cgroup.conf" # asks nothing of the hosts, whose /sys has no cgroups
mkdir -p "$out/tmp.hpa" "$out/tmp.hpb" "$out/state" "$out/spool.hpa" "$out/spool.hpb"
mungekey -c -k "$out/munge.key"
chmod 755 "$HP_CLUSTER" "$out"
$cluster on a munged --force --key-file "$out/munge.key" --socket "$out/munge.socket" --pid-file "$out/munge.pid" \
    --log-file "$out/munge.log" --seed-file "$out/munge.seed" || fail "munged"
$cluster on a slurmctld -D >"$out/ctld.out.log" 2>&1 &
$cluster on a slurmd -D -N hpa >"$out/a.out.log" 2>&1 &
$cluster on b slurmd -D -N hpb >"$out/b.out.log" 2>&1 &
for _ in $(seq 100); do
    [ "$($cluster on a sinfo -h -o %D -t idle 2>/dev/null)" != 2 ] || break
    sleep 0.1
done
[ "$($cluster on a sinfo -h -o %D -t idle)" = 2 ] || fail "expected two nodes, given $($cluster on a sinfo)"
model=(--hidden-size 32 --layers 2 --heads 4 --kv-heads 2 --head-dim 8 --intermediate-size 48
    --seq 16 --batch 4 --eval-every 0 --eval-samples 16 --steps 12 --mesh 2x2 --output json)
losses() { grep -o '"loss": [^,]*' "$out/$1.jsonl"; }

"$build/bin/hprun" -n 4 "$build/bin/hptrain" "${model[@]}" --log "$out/one.jsonl" >"$out/said" 2>&1 || fail "one host"
export OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 OMPI_MCA_pml=ob1 UCX_TLS=tcp,self UCX_NET_DEVICES=wire
for mpi in openmpi mpich; do
    case $mpi in openmpi) pmi=pmix ;; mpich) pmi=pmi2 ;; esac
    [ -e "$build/lib/hyperparallel/libhyperparallel-mpi-$mpi.so" ] || continue
    timeout -s KILL 60 $cluster on a srun -N 2 -n 4 "--mpi=$pmi" --export=ALL "$build/bin/hptrain" "${model[@]}" \
        --log "$out/$mpi.jsonl" >"$out/said" 2>&1 || fail "$mpi by --mpi=$pmi: expected exit status 0"
    cmp <(losses one) <(losses $mpi) || fail "$mpi: expected the losses of one host"
    cat >"$out/job" <<JOB
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --output=$out/said
srun --mpi=$pmi --kill-on-bad-exit=1 "$build/bin/hptrain" ${model[*]} --log "$out/$mpi.batch.jsonl"
JOB
    timeout -s KILL 60 $cluster on a sbatch --wait "$out/job" >"$out/batch" || fail "$mpi: expected exit status 0 of sbatch"
    cmp <(losses one) <(losses $mpi.batch) || fail "$mpi: expected the losses of one host in a batch job"
    echo "$mpi: srun -N 2 -n 4 --mpi=$pmi trains the bits of one host"
done
