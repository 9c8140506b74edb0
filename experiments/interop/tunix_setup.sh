#!/bin/sh
# A virtual environment with Tunix in it, apart from grpo_jax's own: Tunix's pins would otherwise bind ours.
#   sh experiments/interop/tunix_setup.sh FOLDER
set -eu
folder=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
python3 -m venv "$folder"
"$folder/bin/pip" install google-tunix==0.1.7
# Without its dependencies: grpo_jax.losses needs jax, numpy and jaxtyping alone, and Tunix brought those.
"$folder/bin/pip" install --no-deps -e "$root"
