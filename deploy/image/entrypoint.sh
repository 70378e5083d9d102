#!/bin/sh
# What the image starts: the checks, then tritonserver as this very process, so that it gets the
# signals. Arguments go to `python -m tools serve`. Set LORA_DOCTOR=off to leave the checks out.
set -eu

config=${LORA_SERVING_CONFIG:-/etc/lora-serving/serving.yaml}
state=${LORA_STATE_DIR:-/var/lib/lora-serving/state}

if [ "${LORA_DOCTOR:-on}" != off ]; then
    # In the background: a shell that waits for a command in front hears no signal, and as process 1
    # it is not even ended by one.
    # The ports are serve's to look at: it knows which.
    python3 -m tools doctor --config "$config" --state-dir "$state" --skip ports >&2 &
    doctor=$!
    trap 'kill -TERM "$doctor" 2>/dev/null; exit 143' TERM INT
    # Warnings end with 0. What ends otherwise would not serve: better to say so than to try.
    wait "$doctor"
    trap - TERM INT
fi

# It ends when a part of the server dies: restarting is the container's affair.
exec python3 -m tools serve --exec --host 0.0.0.0 --config "$config" --state-dir "$state" "$@"
