#!/usr/bin/env bash
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=16 --time=08:00:00
# ResNet-50 on four GPUs of a node. Submit it in the repository: sbatch examples/slurm.sh
# Each rank tunes its own loader within the cores that Slurm gives it; what it finds is kept for the next job.
export MASTER_ADDR="$(hostname)" MASTER_PORT=29500 LOADTUNE_CACHE="$HOME/.cache/loadtune"
loadtune exec -- srun --cpus-per-task "$SLURM_CPUS_PER_TASK" bash -c '
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
  exec python examples/imagenet_ddp.py /data/imagenet/train'
