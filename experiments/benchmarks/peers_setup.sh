#!/bin/sh
# Virtual environments with Tunix and TRL in them, apart from grpo_jax's own: their pins would otherwise bind ours.
#   sh experiments/benchmarks/peers_setup.sh FOLDER        # makes FOLDER/tunix and FOLDER/trl
set -eu
folder=$1
mkdir -p "$folder"
python3 -m venv "$folder/tunix"
"$folder/tunix/bin/pip" install google-tunix==0.1.7
python3 -m venv "$folder/trl"
"$folder/trl/bin/pip" install trl==1.16.0 torch transformers accelerate
